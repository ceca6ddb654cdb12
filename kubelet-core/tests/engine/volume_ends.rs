//! Volumes of pods that end: gone after the last container, before anything else of the pod goes.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{ContainerState, PodUid, StateDir};
use kubelet_testing::{Action, FakeCgroups, FakeRuntime, FakeVolumes, Op, PodBuilder, Script, VolumeOp};
use tokio::time::{Instant, sleep};

use super::harness::{Cluster, Node, deleted};
use super::life::fake;
use super::volumes::{builder, mount, pod, start, uid, volume};

/// When the volumes of a pod were unmounted.
fn unmounts(volumes: &FakeVolumes, uid: &PodUid) -> Vec<Instant> {
    let calls = volumes.calls().into_iter();
    let of_pod = calls.filter(|call| call.op == VolumeOp::Unmount && call.pod.as_ref() == Some(uid));
    of_pod.map(|call| call.at).collect()
}

/// A pod whose container ends by itself, for good.
fn job(name: &str) -> Pod {
    PodBuilder::new(name)
        .restart_policy("Never")
        .container("app", |c| {
            c.args(["exit=0", "after=30s"])
                .with(|c| c.volume_mounts = Some(vec![mount("data")]))
        })
        .spec(|spec| spec.volumes = Some(vec![volume("data")]))
        .build()
}

/// Whether a container of the pod runs.
fn runs(runtime: &FakeRuntime, uid: &PodUid) -> bool {
    let sandboxes = runtime
        .sandboxes()
        .into_iter()
        .filter(|sandbox| sandbox.pod_uid == *uid);
    let mut containers = sandboxes.flat_map(|sandbox| sandbox.containers.unwrap_or_default());
    containers.any(|container| container.state == ContainerState::Running)
}

#[tokio::test(start_paused = true)]
async fn volumes_go_after_the_containers_and_before_the_cgroup() {
    let (runtime, volumes, cgroups) = (fake(), FakeVolumes::new(), FakeCgroups::new());
    let cluster = Cluster::default();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
        builder
            .volumes(volumes.clone())
            .cgroups(cgroups.clone())
            .status_sink(cluster.clone())
    });
    node.pods.set(vec![pod("p"), pod("q")]).await.unwrap();
    for name in ["p", "q"] {
        node.running(name).await;
    }
    volumes.hang(VolumeOp::Unmount);
    runtime.script(Script::next(Op::StopContainer, Action::Delay(Duration::from_secs(20))).of_pod(uid("p")));
    node.pods.set(vec![deleted(pod("p"), 30), pod("q")]).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    assert_eq!(volumes.count(VolumeOp::Unmount), 0, "a container may run");
    node.until("asked for", |_| volumes.count(VolumeOp::Unmount) == 1).await;
    assert!(!runs(&runtime, &uid("p")) && runs(&runtime, &uid("q")));
    sleep(Duration::from_secs(60)).await;
    assert!(volumes.has(&uid("p"), "data") && cgroups.has(&uid("p")));
    assert!(node.named("p").is_some());
    let is_told = || {
        let told = cluster.0.lock().unwrap();
        told.iter().any(|told| *told.pod.uid() == uid("p") && told.finished)
    };
    assert!(!is_told());
    volumes.let_go(VolumeOp::Unmount);
    node.until("told", |_| is_told()).await;
    node.pods.set(vec![pod("q")]).await.unwrap();
    node.until("gone", |node| node.named("p").is_none()).await;
    assert!(!volumes.has(&uid("p"), "data") && !cgroups.has(&uid("p")));
    assert!(volumes.has(&uid("q"), "data") && cgroups.has(&uid("q")));
    assert_eq!(node.restarts("q", "app"), Some(0));
    node.stop().await;
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
}

#[tokio::test(start_paused = true)]
async fn volumes_that_do_not_go_are_tried_again_with_back_off() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    node.pods.set(vec![pod("p")]).await.unwrap();
    node.running("p").await;
    volumes.fail(VolumeOp::Unmount, 3);
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("p").is_none()).await;
    let tried = unmounts(&volumes, &uid("p"));
    assert_eq!(tried.len(), 4);
    // After the first time it is looked once more at what was removed before.
    for pair in tried[1..].windows(2) {
        assert!(
            (10..=15).contains(&(pair[1] - pair[0]).as_secs()),
            "{:?}",
            pair[1] - pair[0]
        );
    }
    let told = node.events.messages("FailedKillPod");
    assert_eq!(
        told,
        ["error cleaning up pod: Unmount of volumes: scripted by the test"; 3]
    );
    assert!(volumes.pods().is_empty());
    assert_eq!(runtime.count(Op::StopContainer), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_has_no_volumes_although_its_pod_is_wished_for() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    node.pods.set(vec![job("p"), job("q")]).await.unwrap();
    for name in ["p", "q"] {
        node.running(name).await;
    }
    // How it ended does not depend on them.
    volumes.hold("data", None);
    volumes.fail(VolumeOp::Unmount, 3);
    for name in ["p", "q"] {
        node.until("succeeded", |node| node.phase(name).as_deref() == Some("Succeeded"))
            .await;
        node.until("its volumes go", |_| !volumes.has(&uid(name), "data")).await;
    }
    assert_eq!(volumes.count(VolumeOp::Unmount), 5);
    let mounted = volumes.count(VolumeOp::Mount);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(
        (volumes.count(VolumeOp::Unmount), volumes.count(VolumeOp::Mount)),
        (5, mounted)
    );
    assert_eq!(node.phase("p").as_deref(), Some("Succeeded"));
    assert_eq!(runtime.containers().len(), 2, "they tell how it ended");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_before_it_was_ever_started_leaves_no_volumes() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    volumes.hold("late", None);
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    node.pods
        .set(vec![builder("p", &["data", "late"]).build()])
        .await
        .unwrap();
    node.until("a part is there", |_| volumes.has(&uid("p"), "data")).await;
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("p").is_none()).await;
    assert!(volumes.pods().is_empty());
    assert_eq!(runtime.count(Op::RunSandbox), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn volumes_of_a_pod_that_nobody_wishes_for_go_after_its_containers() {
    let (runtime, state, volumes) = (fake(), StateDir::in_memory(), FakeVolumes::new());
    let node = start(&runtime, state.clone(), &volumes);
    node.pods.set(vec![pod("gone"), pod("stays")]).await.unwrap();
    for name in ["gone", "stays"] {
        node.running(name).await;
    }
    node.kill().await;
    let later = volumes.next_life();
    later.fail(VolumeOp::Unmount, 2);
    runtime.script(Script::next(Op::StopContainer, Action::Delay(Duration::from_secs(20))).of_pod(uid("gone")));
    let node = start(&runtime, state, &later);
    node.pods.set(vec![pod("stays")]).await.unwrap();
    node.until("asked for", |_| later.count(VolumeOp::Unmount) > 0).await;
    assert!(runtime.sandboxes().iter().all(|sandbox| sandbox.pod_uid != uid("gone")));
    node.until("its volumes go", |_| !later.has(&uid("gone"), "data")).await;
    assert_eq!(later.count(VolumeOp::Unmount), 3);
    sleep(Duration::from_secs(120)).await;
    assert!(later.has(&uid("stays"), "data"));
    assert_eq!(later.count_of(VolumeOp::Unmount, &uid("stays")), 0);
    assert_eq!(node.restarts("stays", "app"), Some(0));
    node.stop().await;
}

/// A node with files.
fn node_on_disk(runtime: &FakeRuntime, dir: &Path, volumes: &FakeVolumes) -> Node {
    Node::start_with(runtime, StateDir::in_memory(), |builder| {
        builder
            .root_dir(dir.join("root"))
            .pod_logs_dir(dir.join("logs"))
            .volumes(volumes.clone())
    })
}

/// A crash of an agent after the containers of all pods but one were removed.
async fn crash(runtime: &FakeRuntime, dir: &Path, volumes: &FakeVolumes, names: &[&str]) -> FakeVolumes {
    let node = node_on_disk(runtime, dir, volumes);
    node.pods
        .set(names.iter().map(|name| pod(name)).collect())
        .await
        .unwrap();
    for name in names {
        node.running(name).await;
    }
    node.kill().await;
    for sandbox in runtime.sandboxes() {
        if sandbox.pod_uid != uid("wanted") {
            runtime.vanish_sandbox(&sandbox.id);
        }
    }
    volumes.next_life()
}

fn folder(dir: &Path, name: &str) -> std::path::PathBuf {
    dir.join("root/pods").join(uid(name).as_str())
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_life_left_is_unmounted_until_that_works_and_its_folder_stays_so_long() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let later = crash(&runtime, dir, &volumes, &["gone", "held", "again", "wanted"]).await;
    fs::create_dir(folder(dir, "odd").with_file_name("no uid")).unwrap();
    // The first to be asked for.
    later.fail(VolumeOp::Unmount, 1);
    let node = node_on_disk(&runtime, dir, &later);
    node.pods.set(vec![pod("wanted")]).await.unwrap();
    node.until("the others go", |_| later.pods() == [uid("again"), uid("wanted")])
        .await;
    node.until("their folders too", |_| {
        !folder(dir, "gone").exists() && !folder(dir, "held").exists()
    })
    .await;
    assert!(folder(dir, "again").exists());
    node.until("it goes at last", |_| later.pods() == [uid("wanted")]).await;
    node.until("its folder too", |_| !folder(dir, "again").exists()).await;
    let tried = unmounts(&later, &uid("again"));
    assert_eq!(tried.len(), 2);
    assert!(
        tried[1] - tried[0] >= Duration::from_secs(10),
        "{:?}",
        tried[1] - tried[0]
    );
    sleep(Duration::from_secs(900)).await;
    assert_eq!(later.count(VolumeOp::Unmount), 4);
    assert_eq!(later.count_of(VolumeOp::Unmount, &uid("wanted")), 0);
    assert!(folder(dir, "wanted").exists() && later.has(&uid("wanted"), "data"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_left_of_a_pod_that_is_wished_for_again_is_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let later = crash(&runtime, dir, &volumes, &["p", "wanted"]).await;
    later.fail(VolumeOp::Unmount, 3);
    let node = node_on_disk(&runtime, dir, &later);
    node.pods.set(vec![pod("wanted")]).await.unwrap();
    node.until("tried", |_| later.count(VolumeOp::Unmount) == 2).await;
    node.pods.set(vec![pod("wanted"), pod("p")]).await.unwrap();
    node.running("p").await;
    let tried = later.count(VolumeOp::Unmount);
    sleep(Duration::from_secs(900)).await;
    assert_eq!(later.count(VolumeOp::Unmount), tried);
    assert!(later.has(&uid("p"), "data"));
    assert_eq!(node.restarts("p", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn leftovers_that_hang_hold_up_no_other_for_long_and_not_the_end_of_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let later = crash(&runtime, dir, &volumes, &["p", "wanted"]).await;
    later.hang(VolumeOp::Unmount);
    let node = node_on_disk(&runtime, dir, &later);
    node.pods.set(vec![pod("wanted")]).await.unwrap();
    node.until("tried", |_| later.count(VolumeOp::Unmount) == 1).await;
    let mounted = later.count_of(VolumeOp::Mount, &uid("p"));
    // Whoever is wished for under that UID waits no longer than a call may take.
    node.pods.set(vec![pod("wanted"), pod("p")]).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(later.count_of(VolumeOp::Mount, &uid("p")), mounted);
    node.running("p").await;
    node.pods.set(vec![pod("wanted")]).await.unwrap();
    node.until("its end hangs too", |_| later.count(VolumeOp::Unmount) == 2)
        .await;
    assert!(!runs(&runtime, &uid("p")));
    let begun = Instant::now();
    let report = node.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(report.in_flight.is_empty(), "{report:?}");

    // In a sweep, too.
    runtime.vanish_sandbox(
        &runtime
            .sandboxes()
            .into_iter()
            .find(|s| s.pod_uid == uid("wanted"))
            .unwrap()
            .id,
    );
    let tried = later.count(VolumeOp::Unmount);
    let later = later.next_life();
    let node = node_on_disk(&runtime, dir, &later);
    node.pods.set(Vec::new()).await.unwrap();
    node.until("tried", |_| later.count(VolumeOp::Unmount) >= tried + 2)
        .await;
    let begun = Instant::now();
    node.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(folder(dir, "p").exists() && folder(dir, "wanted").exists());
}
