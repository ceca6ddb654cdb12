//! Faults that kubelets had in public with their runtimes, each a test of its kind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::{ContainerState, RuntimeInfo, SandboxState, StateDir};
use kubelet_testing::{Action, FakeImage, FakeRuntime, FaultKind, Op, PodBuilder, Script};

use super::harness::{Cluster, Node};
use super::life::fake;

fn live(runtime: &FakeRuntime) -> (usize, usize) {
    let sandboxes = runtime
        .sandboxes()
        .iter()
        .filter(|s| s.state == SandboxState::Ready)
        .count();
    let containers = runtime
        .containers()
        .iter()
        .filter(|c| c.state == ContainerState::Running)
        .count();
    (sandboxes, containers)
}

async fn running(node: &Node, pod: &str) {
    node.until("running", |node| node.phase(pod).as_deref() == Some("Running"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_turns_up_after_its_deadline_is_used() {
    for late in [
        Duration::from_secs(5),
        Duration::from_secs(60),
        Duration::from_secs(400),
    ] {
        let runtime = fake();
        runtime.script(Script::next(
            Op::RunSandbox,
            Action::Outlive {
                deadline: Duration::from_secs(2),
                late,
            },
        ));
        let node = Node::start(&runtime, StateDir::in_memory());
        let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
        node.pods.set(vec![pod]).await.unwrap();
        running(&node, "p").await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(live(&runtime), (1, 1), "{late:?}");
        assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_turns_up_after_its_deadline_is_used() {
    for op in [Op::CreateContainer, Op::StartContainer] {
        let runtime = fake();
        runtime.script(Script::next(
            op,
            Action::Outlive {
                deadline: Duration::from_secs(2),
                late: Duration::from_secs(30),
            },
        ));
        let node = Node::start(&runtime, StateDir::in_memory());
        let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
        node.pods.set(vec![pod]).await.unwrap();
        running(&node, "p").await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(live(&runtime), (1, 1), "{op:?}");
        assert_eq!(runtime.containers().len(), 1, "{op:?}");
        assert_eq!(
            node.status("p").unwrap().container_statuses.as_ref().unwrap()[0].restart_count,
            0
        );
        assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_stays_reserved_makes_no_second_object() {
    let runtime = fake();
    runtime.script(Script::next(Op::RunSandbox, Action::Taken).times(20));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![pod]).await.unwrap();
    running(&node, "p").await;
    assert_eq!(live(&runtime), (1, 1));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn hints_that_come_before_the_list_shows_their_object_make_no_second_container() {
    let runtime = fake();
    runtime.set_fault_rate(FaultKind::EarlyHint, 1.0);
    runtime.set_latency(Op::CreateContainer, Duration::from_millis(300));
    runtime.set_latency(Op::StartContainer, Duration::from_millis(300));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    for i in 0..5 {
        let mut pod = pod.clone();
        pod.metadata.labels = Some([("round".to_owned(), i.to_string())].into());
        node.pods.upsert(pod).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    running(&node, "p").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(runtime.count(Op::CreateContainer), 1);
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_vanished_while_the_agent_was_down_is_made_again() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    running(&node, "p").await;
    node.kill().await;
    let sandbox = runtime.sandboxes().pop().unwrap();
    runtime.vanish_sandbox(&sandbox.id);
    let node = Node::start(&runtime, state);
    node.pods.set(vec![pod]).await.unwrap();
    node.until("again", |_| live(&runtime) == (1, 1)).await;
    running(&node, "p").await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_away_loses_no_pod_and_restarts_none() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pods: Vec<_> = (0..10)
        .map(|i| {
            PodBuilder::new(format!("p{i}"))
                .uid(format!("u{i}"))
                .container("app", |c| c)
                .build()
        })
        .collect();
    node.pods.set(pods).await.unwrap();
    node.until("all run", |_| live(&runtime) == (10, 10)).await;
    let creates = runtime.count(Op::CreateContainer);
    runtime.go_down();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!node.handle.health().is_healthy());
    for i in 0..10 {
        assert_eq!(node.phase(&format!("p{i}")).as_deref(), Some("Running"));
    }
    runtime.come_up();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(node.handle.health().is_healthy(), "{:?}", node.handle.health());
    assert_eq!(live(&runtime), (10, 10));
    assert_eq!(runtime.count(Op::CreateContainer), creates);
    assert_eq!(runtime.count(Op::StopContainer), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_while_its_image_is_pulled_goes_at_once() {
    let runtime = FakeRuntime::new();
    runtime.set_image(
        "slow:1",
        kubelet_testing::FakeImage::new().pull_latency(Duration::from_secs(3600)),
    );
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .container("app", |c| c.image("slow:1"))
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("pulling", |_| runtime.in_flight(Op::Pull) == 1).await;
    let asked = tokio::time::Instant::now();
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("p").is_none()).await;
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert_eq!(runtime.count(Op::CreateContainer), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_pulled_backs_off_and_says_why() {
    let runtime = FakeRuntime::new();
    runtime.set_image("gone:1", kubelet_testing::FakeImage::refused("no such thing"));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .container("app", |c| c.image("gone:1"))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    let waiting = |node: &Node| {
        node.status("p")
            .and_then(|s| s.container_statuses.as_ref()?.first()?.state.clone()?.waiting)
            .and_then(|w| Some((w.reason?, w.message?)))
    };
    node.until("failed once", |node| {
        waiting(node).is_some_and(|w| w.0 == "ErrImagePull")
    })
    .await;
    node.until("backs off", |node| {
        waiting(node).is_some_and(|w| w.0 == "ImagePullBackOff")
    })
    .await;
    let (_, message) = waiting(&node).unwrap();
    assert!(
        message.starts_with("Back-off pulling image \"gone:1\": ErrImagePull: "),
        "{message}"
    );
    // Each new label is one more sync in the same back-off.
    for round in 0..5 {
        let mut pod = pod.clone();
        pod.metadata.labels = Some([("round".to_owned(), round.to_string())].into());
        node.pods.upsert(pod).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let pulls = runtime.count(Op::Pull);
    assert!((10..20).contains(&pulls), "{pulls}");
    // Once for each pull that failed.
    assert_eq!(node.events.count("BackOff") as u64, pulls);
    runtime.set_image("gone:1", kubelet_testing::FakeImage::new());
    running(&node, "p").await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_cannot_be_made_says_why_in_the_status() {
    for action in [Action::Taken, Action::Fault(FaultKind::Refused)] {
        for has_init in [false, true] {
            let runtime = fake();
            runtime.script(Script::next(Op::RunSandbox, action).times(8));
            let node = Node::start(&runtime, StateDir::in_memory());
            let mut pod = PodBuilder::new("p").uid("u").container("app", |c| c);
            if has_init {
                pod = pod.init("setup", |c| c.args(["exit=0", "after=1s"]));
            }
            node.pods.set(vec![pod.build()]).await.unwrap();
            let first = if has_init { "setup" } else { "app" };
            node.until("says why", |node| {
                node.waits_for("p", first).as_deref() == Some("CreatePodSandboxError")
            })
            .await;
            assert_eq!(node.phase("p").as_deref(), Some("Pending"));
            let waiting = node.container("p", first).unwrap().state.unwrap().waiting.unwrap();
            assert!(waiting.message.is_some_and(|message| !message.is_empty()), "{action:?}");
            assert!(node.events.count("FailedCreatePodSandBox") >= 1);
            node.running("p").await;
            assert_eq!(node.restarts("p", "app"), Some(0));
            assert_eq!(runtime.sandboxes().len(), 1);
            node.stop().await;
        }
    }
}

/// The container ids of all statuses that were told.
fn told_ids(cluster: &Cluster) -> Vec<String> {
    let told = cluster.0.lock().unwrap();
    let statuses = told
        .iter()
        .flat_map(|update| update.status.container_statuses.iter().flatten());
    statuses.filter_map(|status| status.container_id.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn container_ids_name_their_runtime_while_it_is_not_ready_too() {
    let runtime = FakeRuntime::new();
    let name = "fake-runtime";
    runtime.set_info(RuntimeInfo::new(name, "1"));
    runtime.set_image("fake/app:1", FakeImage::new());
    runtime.set_image("slow:1", FakeImage::new().pull_latency(Duration::from_secs(300)));
    let state = StateDir::in_memory();
    let cluster = Cluster::default();
    let node = Node::start_with(&runtime, state.clone(), |b| b.status_sink(cluster.clone()));
    let pod = PodBuilder::new("p")
        .uid("u")
        .container("app", |c| c)
        .container("late", |c| c.image("slow:1"))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.until("pulling", |node| {
        runtime.in_flight(Op::Pull) == 1
            && node
                .container("p", "app")
                .is_some_and(|c| c.state.unwrap().running.is_some())
    })
    .await;
    let mut info = RuntimeInfo::new(name, "1");
    for condition in &mut info.conditions {
        condition.status = false;
    }
    runtime.set_info(info);
    node.until("not ready", |node| !node.handle.health().is_healthy()).await;
    // The step goes on, and what is seen meanwhile is told.
    let app = runtime.containers().pop().unwrap();
    runtime.kill_container(&app.id, 1);
    node.until("told", |node| {
        node.container("p", "app")
            .is_some_and(|c| c.state.unwrap().terminated.is_some())
    })
    .await;
    node.kill().await;
    // Nobody can say at first how the runtime is called.
    runtime.script(Script::next(Op::Info, Action::Fault(FaultKind::Unavailable)).times(10));
    let node = Node::start_with(&runtime, state, |b| b.status_sink(cluster.clone()));
    node.pods.set(vec![pod]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    runtime.set_info(RuntimeInfo::new(name, "1"));
    node.running("p").await;
    node.stop().await;
    let ids = told_ids(&cluster);
    assert!(!ids.is_empty());
    for id in ids {
        assert!(id.starts_with("fake-runtime://"), "{id}");
    }
}
