//! What an earlier life of the agent left behind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    ChannelSource, ContainerConfig, ContainerRuntime, ContainerState, ContainerStatus, CreateContainer, MemoryDisk,
    PodUid, SandboxConfig, SourceKind, StateDir, label,
};
use kubelet_testing::{Action, FakeRuntime, Op, PodBuilder, Script};
use tokio::time::{Instant, sleep};

use super::harness::{Node, node_with_static_pods};
use super::life::fake;

/// A node with files.
fn node_on_disk(runtime: &FakeRuntime, dir: &Path) -> Node {
    let (root, logs) = (dir.join("root"), dir.join("logs"));
    Node::start_with(runtime, StateDir::in_memory(), |builder| {
        builder.root_dir(root).pod_logs_dir(logs)
    })
}

fn pod(uid: &str) -> Pod {
    PodBuilder::new(format!("pod-{uid}"))
        .uid(uid)
        .container("app", |c| c)
        .build()
}

fn pod_dir(dir: &Path, uid: &str) -> PathBuf {
    dir.join("root/pods").join(uid)
}

fn log_dir(dir: &Path, uid: &str) -> PathBuf {
    dir.join("logs").join(format!("default_pod-{uid}_{uid}"))
}

#[tokio::test(start_paused = true)]
async fn folders_of_pods_that_nobody_knows_of_go_once_all_sources_have_spoken() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let runtime = fake();
    let node = node_on_disk(&runtime, dir);
    let uids = ["gone", "wanted", "mounted", "linked", "later"];
    node.pods.set(uids.map(pod).to_vec()).await.unwrap();
    for uid in uids {
        node.running(&format!("pod-{uid}")).await;
    }
    node.kill().await;
    // The crash came after the containers of all but one were removed.
    for sandbox in runtime.sandboxes() {
        if sandbox.pod_uid.as_str() != "wanted" {
            runtime.vanish_sandbox(&sandbox.id);
        }
    }
    for uid in uids {
        fs::write(log_dir(dir, uid).join("app/0.log"), "hello").unwrap();
    }
    fs::create_dir(pod_dir(dir, "mounted").join("volumes/data")).unwrap();
    let elsewhere = dir.join("elsewhere");
    fs::rename(pod_dir(dir, "linked"), &elsewhere).unwrap();
    symlink(&elsewhere, pod_dir(dir, "linked")).unwrap();
    // Of another agent, which has its own folder for pods.
    let foreign = log_dir(dir, "foreign");
    fs::create_dir_all(foreign.join("app")).unwrap();
    fs::create_dir(pod_dir(dir, "no uid")).unwrap();

    let (more, source) = ChannelSource::new("file");
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
        builder
            .root_dir(dir.join("root"))
            .pod_logs_dir(dir.join("logs"))
            .source(source.kind(SourceKind::Managed))
    });
    node.pods.set(vec![pod("wanted")]).await.unwrap();
    node.running("pod-wanted").await;
    sleep(Duration::from_secs(60)).await;
    assert!(pod_dir(dir, "gone").exists(), "a source has not spoken");
    more.set(vec![pod("later")]).await.unwrap();
    node.running("pod-later").await;
    node.until("swept", |_| !pod_dir(dir, "gone").exists()).await;
    sleep(Duration::from_secs(60)).await;
    assert!(!log_dir(dir, "gone").exists());
    for uid in ["wanted", "later"] {
        assert!(pod_dir(dir, uid).join("containers/app").exists(), "{uid}");
        assert!(log_dir(dir, uid).join("app/0.log").exists(), "{uid}");
    }
    assert!(pod_dir(dir, "mounted").join("containers/app").exists());
    assert!(log_dir(dir, "mounted").join("app/0.log").exists());
    assert!(elsewhere.join("containers/app").exists() && pod_dir(dir, "linked").is_symlink());
    assert!(foreign.join("app").exists() && pod_dir(dir, "no uid").exists());
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_disk_holds_up_only_a_pod_whose_old_checkpoint_it_still_has() {
    let runtime = fake();
    let disk = MemoryDisk::new();
    let state = StateDir::simulated(&disk);
    let node = Node::start(&runtime, state.clone());
    let job = |uid: &str| {
        PodBuilder::new(format!("pod-{}", uid.trim_start_matches('.')))
            .uid(uid)
            .restart_policy("Never")
            .container("app", |c| c.args(["exit=0", "after=1s"]))
            .build()
    };
    let jobs: Vec<Pod> = ["j1", "j2", ".j3"].map(job).to_vec();
    node.pods.set(jobs.clone()).await.unwrap();
    node.until("all done", |node| {
        jobs.iter()
            .all(|job| node.phase(job.metadata.name.as_deref().unwrap()).as_deref() == Some("Succeeded"))
    })
    .await;
    assert_eq!(state.list("pods").await.unwrap().len(), 3);
    disk.hold_removals();
    node.pods.set(Vec::new()).await.unwrap();
    node.until("all gone", |node| node.handle.pods().is_empty()).await;
    let made = runtime.count(Op::CreateContainer);
    node.pods.set(vec![pod("new"), job("j1"), job(".j3")]).await.unwrap();
    node.running("pod-new").await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(runtime.count(Op::CreateContainer), made + 1);
    // Named again, and left again.
    node.pods.set(vec![pod("new"), job("j1")]).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    disk.release_removals();
    node.until("anew", |_| runtime.count(Op::CreateContainer) == made + 2)
        .await;
    node.until("done", |node| node.phase("pod-j1").as_deref() == Some("Succeeded"))
        .await;
    assert_eq!(state.list("pods").await.unwrap(), ["j1.json"]);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(runtime.count(Op::CreateContainer), made + 2);
    assert!(node.named("pod-j3").is_none());
    node.stop().await;
}

/// Makes a pod like one that is there, under another UID, as an agent does that forgot of the first.
async fn make_twin(runtime: &FakeRuntime, of: &str, uid: &str) {
    let sandboxes = runtime.sandboxes();
    let sandbox = sandboxes.iter().find(|sandbox| sandbox.pod_uid.as_str() == of).unwrap();
    let mut config = SandboxConfig::clone(&runtime.sandbox_config(&sandbox.id).unwrap());
    config.pod_uid = PodUid::from(uid);
    config.labels.insert(label::POD_UID.to_owned(), uid.to_owned());
    let inside = sandbox.containers.as_ref().unwrap();
    let mut container = ContainerConfig::clone(&runtime.container_config(&inside[0].id).unwrap());
    container.labels.insert(label::POD_UID.to_owned(), uid.to_owned());
    let id = runtime.run_sandbox(&config, "").await.unwrap();
    let request = CreateContainer::new(&id, &config, &container);
    let id = runtime.create_container(request).await.unwrap();
    runtime.start_container(&id).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_leftovers_of_one_static_name_both_end_before_a_third_pod_of_that_name_runs() {
    let wish = |uid: &str| PodBuilder::new("web").uid(uid).container("app", |c| c).build();
    // The one that takes longer to stop is the first or the second.
    for (slow, wished) in [("s1", "s3"), ("s2", "s3"), ("s1", "s2"), ("s2", "s1")] {
        let runtime = fake();
        let (node, files) = node_with_static_pods(&runtime).await;
        files.set(vec![wish("s1")]).await.unwrap();
        node.until("runs", |_| runs(&runtime) == ["s1"]).await;
        node.kill().await;
        make_twin(&runtime, "s1", "s2").await;
        runtime.script(Script::next(Op::StopContainer, Action::Delay(Duration::from_secs(20))).of_pod(slow.into()));
        let (node, files) = node_with_static_pods(&runtime).await;
        files.set(vec![wish(wished)]).await.unwrap();
        node.until("the new one alone", |_| {
            let runs = runs(&runtime);
            assert!(
                wished != "s3" || runs.len() < 2 || !runs.contains(&"s3".to_owned()),
                "{runs:?}"
            );
            runs == [wished]
        })
        .await;
        node.running("web-node-1").await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(runs(&runtime), [wished]);
        assert_eq!(runtime.sandboxes().len(), 1);
        // What ran goes on.
        assert_eq!(runtime.count(Op::CreateContainer), if wished == "s3" { 3 } else { 2 });
        assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_first_look_hangs_holds_up_no_other() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let uids = ["u0", "u1", "u2"];
    node.pods.set(uids.map(pod).to_vec()).await.unwrap();
    for uid in uids {
        node.running(&format!("pod-{uid}")).await;
    }
    node.kill().await;
    let of_u0 = runtime.sandboxes().into_iter().find(|s| s.pod_uid.as_str() == "u0");
    runtime.kill_container(&of_u0.unwrap().containers.unwrap()[0].id, 1);
    runtime.script(Script::next(Op::SandboxStatus, Action::Hang).of_pod("u1".into()));
    let begun = Instant::now();
    let node = Node::start(&runtime, state);
    node.pods.set(["u0", "u1", "u2", "u3"].map(pod).to_vec()).await.unwrap();
    node.until("the one that ended runs again", |node| {
        node.restarts("pod-u0", "app") == Some(1) && node.phase("pod-u0").as_deref() == Some("Running")
    })
    .await;
    for uid in ["u2", "u3"] {
        node.running(&format!("pod-{uid}")).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Nobody knows how it is.
    assert!(node.named("pod-u1").is_none());
    node.running("pod-u1").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.restarts("pod-u1", "app"), Some(0));
    assert_eq!(runtime.count(Op::StopContainer), 0);
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_whose_old_version_is_inspected_late_waits_alone() {
    let named = |name: &str, uid: &str| PodBuilder::new(name).uid(uid).container("app", |c| c).build();
    let runtime = fake();
    let (node, files) = node_with_static_pods(&runtime).await;
    files.set(vec![named("web", "s1"), named("dns", "d1")]).await.unwrap();
    node.until("both run", |_| runs(&runtime).len() == 2).await;
    node.kill().await;
    runtime.script(Script::next(Op::SandboxStatus, Action::Delay(Duration::from_secs(20))).of_pod("s1".into()));
    let begun = Instant::now();
    let (node, files) = node_with_static_pods(&runtime).await;
    files
        .set(vec![named("web", "s2"), named("dns", "d1"), named("more", "m1")])
        .await
        .unwrap();
    node.running("dns-node-1").await;
    node.running("more-node-1").await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    node.until("the new one instead of the old one", |_| {
        let runs = runs(&runtime);
        let has = |uid: &str| runs.iter().any(|one| one == uid);
        assert!(!(has("s1") && (has("s2"))), "{runs:?}");
        has("s2") && has("m1") && has("d1")
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(runtime.count(Op::CreateContainer), 4);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_refused_for_the_room_of_a_pod_that_may_have_ended() {
    for has_ended in [true, false] {
        let runtime = fake();
        let state = StateDir::in_memory();
        let node = Node::start(&runtime, state.clone());
        let big = |uid: &str| {
            PodBuilder::new(uid)
                .uid(uid)
                .restart_policy("OnFailure")
                .container("app", |c| c.request("cpu", "60"))
                .build()
        };
        node.pods.set(vec![big("old")]).await.unwrap();
        node.running("old").await;
        node.kill().await;
        if has_ended {
            runtime.kill_container(&runtime.containers()[0].id, 0);
        }
        runtime.script(Script::next(Op::SandboxStatus, Action::Delay(Duration::from_secs(15))).of_pod("old".into()));
        let node = Node::start(&runtime, state);
        node.pods.set(vec![big("old"), big("new")]).await.unwrap();
        node.until("waits", |node| node.phase("new").as_deref() == Some("Pending"))
            .await;
        let ends_as = if has_ended { "Running" } else { "Failed" };
        node.until("decided", |node| node.phase("new").as_deref() == Some(ends_as))
            .await;
        let old = if has_ended { "Succeeded" } else { "Running" };
        assert_eq!(node.phase("old").as_deref(), Some(old));
        node.stop().await;
    }
}

/// The UIDs of the pods that run.
fn runs(runtime: &FakeRuntime) -> Vec<String> {
    let is_running = |c: &ContainerStatus| c.state == ContainerState::Running;
    let sandboxes = runtime.sandboxes().into_iter();
    let running = sandboxes.filter(|sandbox| sandbox.containers.iter().flatten().any(is_running));
    running.map(|sandbox| sandbox.pod_uid.to_string()).collect()
}
