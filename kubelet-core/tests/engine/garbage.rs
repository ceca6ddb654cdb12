//! What is dead and goes, and how much of it stays: by default as much as upstream keeps.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{ContainerGcPolicy, ContainerState, PodUid, Settings, StateDir, StatusOverride};
use kubelet_testing::{Action, FakeRuntime, Op, PodBuilder, Script};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;

const SECOND: Duration = Duration::from_secs(1);

fn node_on_disk(runtime: &FakeRuntime, dir: &Path, state: StateDir) -> Node {
    Node::start_with(runtime, state, |builder| {
        builder
            .root_dir(dir.join("root"))
            .pod_logs_dir(dir.join("logs"))
            .container_logs_dir(Some(dir.join("links")))
    })
}

fn node_that_keeps(runtime: &FakeRuntime, crash_backoff: Duration, policy: ContainerGcPolicy) -> Node {
    let mut settings = Settings::default();
    settings.crash_backoff = (crash_backoff, crash_backoff);
    settings.container_gc = policy;
    Node::start_with(runtime, StateDir::in_memory(), |builder| builder.settings(settings))
}

fn policy(change: impl FnOnce(&mut ContainerGcPolicy)) -> ContainerGcPolicy {
    let mut policy = ContainerGcPolicy::default();
    change(&mut policy);
    policy
}

fn pod(name: &str, args: &[&str]) -> Pod {
    PodBuilder::new(name)
        .uid(format!("uid-of-{name}"))
        .container("app", |c| c.args(args.iter().copied()))
        .build()
}

/// The ids of what has ended, the newest last.
fn dead(runtime: &FakeRuntime) -> Vec<String> {
    let mut ended = runtime.containers();
    ended.retain(|container| container.state == ContainerState::Exited);
    ended.sort_by_key(|container| container.created_at);
    ended.into_iter().map(|container| container.id.to_string()).collect()
}

/// Writes the logs of all containers, and links to them, as far as they are missing.
fn write_logs(runtime: &FakeRuntime, dir: &Path) {
    for container in runtime.containers() {
        let log = container.log_path.unwrap();
        fs::write(&log, "").unwrap();
        fs::create_dir_all(dir.join("links")).unwrap();
        let (pod, name) = (&container.labels["io.kubernetes.pod.name"], &container.name);
        let link = dir.join(format!("links/{pod}_default_{name}-{}.log", container.id));
        let _ = std::os::unix::fs::symlink(log, link);
    }
}

/// All logs and links.
fn logs(dir: &Path) -> (Vec<PathBuf>, usize) {
    let mut logs = Vec::new();
    let mut folders = vec![dir.join("logs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            logs.push(path);
        }
    }
    (logs, fs::read_dir(dir.join("links")).into_iter().flatten().count())
}

#[tokio::test(start_paused = true)]
async fn of_a_pod_that_crashes_the_last_dead_container_and_its_log_stay() {
    let (root, runtime) = (tempfile::tempdir().unwrap(), fake());
    let dir = root.path();
    let node = node_on_disk(&runtime, dir, StateDir::in_memory());
    node.pods.set(vec![pod("p", &["exit=1", "after=5s"])]).await.unwrap();
    for restarts in 1..6 {
        node.until("made", |node| {
            node.restarts("p", "app") >= Some(restarts) && runtime.containers().len() == 2
        })
        .await;
        write_logs(&runtime, dir);
        node.until("it waits", |node| {
            node.waits_for("p", "app").as_deref() == Some("CrashLoopBackOff")
        })
        .await;
        sleep(SECOND).await;
        let left = runtime.containers();
        assert_eq!(dead(&runtime), [left[0].id.to_string()], "{left:?}");
        let log = left[0].log_path.clone().unwrap();
        let (logs, links) = logs(dir);
        assert!(logs.contains(&log), "{logs:?}");
        // The folders of the pod and of the container, and the log.
        assert_eq!((logs.len(), links), (3, 1), "{logs:?}");
    }
    assert_eq!(runtime.sandboxes().len(), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_goes_once_no_container_is_of_it() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![pod("p", &[])]).await.unwrap();
    node.running("p").await;
    for _ in 0..2 {
        let sandbox = runtime.sandboxes().pop().unwrap();
        runtime.stop_sandbox_behind(&sandbox.id);
        let made = runtime.count(Op::StartContainer);
        node.until("made anew", |_| runtime.count(Op::StartContainer) > made)
            .await;
        node.running("p").await;
        sleep(600 * SECOND).await;
    }
    // The present one, and that of the last dead container.
    assert_eq!((dead(&runtime).len(), runtime.sandboxes().len()), (1, 2));
    let last = runtime.containers();
    let last = last.iter().find(|c| c.state == ContainerState::Exited).unwrap();
    runtime.vanish_container(&last.id);
    sleep(600 * SECOND).await;
    assert_eq!(runtime.sandboxes().len(), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn of_a_pod_that_leaves_or_is_evicted_nothing_stays() {
    let (root, runtime) = (tempfile::tempdir().unwrap(), fake());
    let (dir, state) = (root.path(), StateDir::in_memory());
    let node = node_on_disk(&runtime, dir, state.clone());
    let done = PodBuilder::new("done").uid("uid-of-done").restart_policy("Never");
    let done = done.container("app", |c| c.args(["exit=0"])).build();
    let (p, q) = (pod("p", &[]), pod("q", &[]));
    node.pods.set(vec![p, q.clone(), done.clone()]).await.unwrap();
    node.running("p").await;
    node.running("q").await;
    node.until("done", |node| node.phase("done").as_deref() == Some("Succeeded"))
        .await;
    for container in runtime.containers() {
        runtime.kill_container(&container.id, 1);
    }
    node.until("restarted", |node| {
        node.restarts("p", "app") == Some(1) && node.restarts("q", "app") == Some(1)
    })
    .await;
    write_logs(&runtime, dir);
    assert_eq!((runtime.containers().len(), runtime.sandboxes().len()), (5, 3));

    node.pods.set(vec![q.clone(), done.clone()]).await.unwrap();
    node.until("gone", |node| node.named("p").is_none()).await;
    assert_eq!((runtime.containers().len(), runtime.sandboxes().len()), (3, 2));
    let evicted = StatusOverride::new("Evicted", "The node was low on resource: memory. ");
    node.handle
        .kill(&PodUid::from("uid-of-q"), Some(SECOND), evicted)
        .await
        .unwrap();
    let is_evicted = |node: &Node| node.status("q").and_then(|s| s.reason.clone()).as_deref() == Some("Evicted");
    node.until("evicted", |node| is_evicted(node) && runtime.containers().len() == 1)
        .await;
    sleep(SECOND).await;
    // What has ended by itself and is still wished for tells how.
    let left: Vec<_> = runtime.sandboxes().into_iter().map(|s| s.pod_uid.to_string()).collect();
    assert_eq!(left, ["uid-of-done"]);
    assert_eq!((logs(dir).0.len(), logs(dir).1), (3, 1), "{:?}", logs(dir));
    assert!(!dir.join("root/pods/uid-of-q").exists());

    node.kill().await;
    let node = node_on_disk(&runtime, dir, state);
    node.pods.set(vec![q, done]).await.unwrap();
    node.until("still so", is_evicted).await;
    sleep(600 * SECOND).await;
    assert!(is_evicted(&node) && node.phase("done").as_deref() == Some("Succeeded"));
    assert_eq!((runtime.containers().len(), runtime.count(Op::StartContainer)), (1, 5));
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.handle.pods().is_empty()).await;
    assert_eq!(logs(dir), (Vec::new(), 0));
    assert_eq!((runtime.containers().len(), runtime.sandboxes().len()), (0, 0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_is_cleared_up_after_though_the_agent_was_killed_before_it_did() {
    let (root, runtime) = (tempfile::tempdir().unwrap(), fake());
    let (dir, state) = (root.path(), StateDir::in_memory());
    let node = node_on_disk(&runtime, dir, state.clone());
    node.pods.set(vec![pod("p", &[])]).await.unwrap();
    node.running("p").await;
    write_logs(&runtime, dir);
    let uid = PodUid::from("uid-of-p");
    runtime.script(Script::next(Op::RemoveContainer, Action::Hang).of_pod(uid.clone()));
    let evicted = StatusOverride::new("Evicted", "The node was low on resource: memory. ");
    node.handle.kill(&uid, Some(SECOND), evicted).await.unwrap();
    node.until("is being removed", |_| runtime.count(Op::RemoveContainer) == 1)
        .await;
    node.kill().await;
    assert_eq!(runtime.containers().len(), 1);
    let node = node_on_disk(&runtime, dir, state);
    node.pods.set(vec![pod("p", &[])]).await.unwrap();
    node.until("cleared up", |_| runtime.sandboxes().is_empty()).await;
    sleep(SECOND).await;
    assert_eq!(node.status("p").unwrap().reason.as_deref(), Some("Evicted"));
    assert_eq!(logs(dir), (Vec::new(), 0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn as_many_dead_containers_of_a_name_stay_as_are_to() {
    for (most, want) in [(Some(3), 3), (Some(0), 0), (None, 7)] {
        let runtime = fake();
        let node = node_that_keeps(&runtime, SECOND, policy(|p| p.max_per_container = most));
        node.pods.set(vec![pod("p", &["exit=1", "after=100s"])]).await.unwrap();
        node.until("restarted", |node| node.restarts("p", "app") == Some(7))
            .await;
        sleep(SECOND).await;
        assert_eq!(dead(&runtime).len(), want, "{most:?}");
        node.pods.set(Vec::new()).await.unwrap();
        node.until("gone", |node| node.named("p").is_none()).await;
        assert!(runtime.containers().is_empty());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn dead_containers_stay_for_their_least_age() {
    let runtime = fake();
    let node = node_that_keeps(&runtime, 600 * SECOND, policy(|p| p.min_age = 3600 * SECOND));
    node.pods.set(vec![pod("p", &["exit=1", "after=1s"])]).await.unwrap();
    node.running("p").await;
    sleep(3500 * SECOND).await;
    let made = runtime.count(Op::CreateContainer);
    assert!(made >= 5, "{made}");
    assert_eq!(dead(&runtime).len() as u64, made);
    sleep(10_000 * SECOND).await;
    let made = runtime.count(Op::CreateContainer);
    // Those of the last hour, and one.
    let left = dead(&runtime).len();
    assert!(made >= 20 && (5..=9).contains(&left), "{made} {left}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_more_dead_containers_stay_on_the_node_than_are_to() {
    for (most, want) in [(3, 3), (0, 1)] {
        let runtime = fake();
        let node = node_that_keeps(&runtime, SECOND, policy(|p| p.max_total = Some(most)));
        let names = ["a", "b", "c", "d"];
        let done = PodBuilder::new("done").uid("uid-of-done").restart_policy("Never");
        let done = done.container("app", |c| c.args(["exit=0"])).build();
        let mut pods = names.map(|name| pod(name, &[])).to_vec();
        pods.push(done);
        node.pods.set(pods).await.unwrap();
        node.until("done", |node| node.phase("done").as_deref() == Some("Succeeded"))
            .await;
        for name in names {
            node.running(name).await;
            let of_it = runtime.containers().into_iter();
            let mut of_it = of_it.filter(|c| c.labels["io.kubernetes.pod.name"] == name);
            runtime.kill_container(&of_it.next().unwrap().id, 1);
            node.until("restarted", |node| node.restarts(name, "app") == Some(1))
                .await;
        }
        sleep(200 * SECOND).await;
        // What has ended for good stays, and counts: it would run again without.
        assert_eq!(dead(&runtime).len(), want, "{most}");
        sleep(600 * SECOND).await;
        assert_eq!(runtime.count(Op::StartContainer), 9);
        for name in names {
            assert_eq!(node.restarts(name, "app"), Some(1));
        }
        assert_eq!(node.phase("done").as_deref(), Some("Succeeded"));
        assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
        node.stop().await;
    }
}
