//! The links to the logs of containers: that of each container that there is, and no others.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{ContainerState, StateDir};
use kubelet_testing::{Action, FakeRuntime, Op, PodBuilder, Script};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;

fn node(runtime: &FakeRuntime, dir: &Path) -> Node {
    Node::start_with(runtime, StateDir::in_memory(), |builder| {
        builder
            .root_dir(dir.join("root"))
            .pod_logs_dir(dir.join("logs"))
            .container_logs_dir(Some(dir.join("links")))
    })
}

fn pod(name: &str) -> Pod {
    PodBuilder::new(name)
        .uid(format!("uid-of-{name}"))
        .container("app", |c| c)
        .build()
}

/// Writes the logs of all containers that run, as a runtime does; the fake one only keeps where they are.
fn write_logs(runtime: &FakeRuntime) -> Vec<PathBuf> {
    let running = runtime.containers().into_iter();
    let running = running.filter(|container| container.state == ContainerState::Running);
    let mut logs: Vec<PathBuf> = running.map(|container| container.log_path.unwrap()).collect();
    for log in &logs {
        fs::write(log, "2026-01-01T00:00:00Z stdout F hello\n").unwrap();
    }
    logs.sort();
    logs
}

/// Where the links lead.
fn targets(dir: &Path) -> Vec<PathBuf> {
    let links = fs::read_dir(dir.join("links")).into_iter().flatten();
    let mut targets: Vec<PathBuf> = links.map(|link| fs::read_link(link.unwrap().path()).unwrap()).collect();
    targets.sort();
    targets
}

#[tokio::test(start_paused = true)]
async fn links_that_are_missing_when_the_agent_starts_are_made() {
    let (root, runtime) = (tempfile::tempdir().unwrap(), fake());
    let dir = root.path();
    let pods = vec![pod("a"), pod("b")];
    let first = node(&runtime, dir);
    first.pods.set(pods.clone()).await.unwrap();
    first.running("a").await;
    first.running("b").await;
    first.kill().await;
    // It was killed before it saw a log.
    assert_eq!(targets(dir), [] as [PathBuf; 0]);
    let logs = write_logs(&runtime);
    assert_eq!(logs.len(), 2);

    for _ in 0..2 {
        let next = node(&runtime, dir);
        next.pods.set(pods.clone()).await.unwrap();
        next.until("linked", |_| targets(dir) == logs).await;
        // Once: who removes one meanwhile has his reasons.
        fs::remove_dir_all(dir.join("links")).unwrap();
        sleep(Duration::from_secs(600)).await;
        assert_eq!(targets(dir), [] as [PathBuf; 0]);
        next.kill().await;
    }
    let last = node(&runtime, dir);
    last.pods.set(pods).await.unwrap();
    last.until("linked", |_| targets(dir) == logs).await;
    last.pods.set(vec![pod("b")]).await.unwrap();
    last.until("gone", |node| node.named("a").is_none()).await;
    assert_eq!(targets(dir), logs[1..]);
    assert_eq!(runtime.count(Op::StartContainer), 2);
    last.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_nobody_heard_the_end_of_is_linked_too() {
    let (root, runtime) = (tempfile::tempdir().unwrap(), fake());
    let dir = root.path();
    // It happens before the engine comes to start it again.
    let (deadline, late) = (Duration::from_secs(1), Duration::ZERO);
    runtime.script(Script::next(Op::StartContainer, Action::Outlive { deadline, late }));
    let node = node(&runtime, dir);
    node.pods.set(vec![pod("p")]).await.unwrap();
    node.until("made", |_| !runtime.containers().is_empty()).await;
    let log = runtime.containers()[0].log_path.clone().unwrap();
    fs::write(&log, "").unwrap();
    assert_eq!(targets(dir), [] as [PathBuf; 0]);
    node.running("p").await;
    node.until("linked", |_| targets(dir) == [log.clone()]).await;
    assert_eq!(runtime.count(Op::CreateContainer), 1);
    assert_eq!(runtime.count(Op::StartContainer), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn links_of_containers_that_somebody_else_removed_go_with_their_logs() {
    let (root, runtime) = (tempfile::tempdir().unwrap(), fake());
    let dir = root.path();
    let first = node(&runtime, dir);
    first.pods.set(vec![pod("p")]).await.unwrap();
    first.running("p").await;
    write_logs(&runtime);
    first.kill().await;

    let node = node(&runtime, dir);
    node.pods.set(vec![pod("p")]).await.unwrap();
    for instance in 1..4 {
        node.until("linked", |_| {
            targets(dir).contains(&runtime.containers()[0].log_path.clone().unwrap())
        })
        .await;
        runtime.vanish_container(&runtime.containers()[0].id);
        node.until("made anew", |_| !runtime.containers().is_empty()).await;
        // The last one's log is kept, as long as the pod is there.
        write_logs(&runtime);
        node.running("p").await;
        assert!(targets(dir).len() <= 2, "{instance}: {:?}", targets(dir));
        // Nothing made the new one's link: its log was not there yet.
        let newest = &runtime.containers()[0];
        let link = format!("p_default_app-{}.log", newest.id);
        std::os::unix::fs::symlink(newest.log_path.as_ref().unwrap(), dir.join("links").join(link)).unwrap();
    }
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("p").is_none()).await;
    assert_eq!(targets(dir), [] as [PathBuf; 0]);
    assert!(!dir.join("logs/default_p_uid-of-p").exists());
    node.stop().await;
}
