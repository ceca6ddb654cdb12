//! What goes wrong again and again: it is tried with pauses, and counted as often as it happened.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::{ContainerRestartRule, ContainerRestartRuleOnExitCodes};
use kubelet_core::{
    CancellationToken, Event, EventSubject, EventType, NodeContext, Runnable, RunnableError, SandboxState, StartPhase,
    StateDir, TokioClock, async_trait,
};
use kubelet_testing::{Action, FakeImage, FakeRuntime, FaultKind, Op, PodBuilder, Program, ProgramFor, Script};
use tokio::time::{Instant, sleep};

use super::harness::Node;
use super::life::fake;

/// When calls of that kind were made.
fn times_of(runtime: &FakeRuntime, op: Op) -> Vec<Duration> {
    let calls = runtime.calls();
    calls.iter().filter(|call| call.op == op).map(|call| call.at).collect()
}

fn pauses(times: &[Duration]) -> Vec<u64> {
    times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_created_container_is_started_without_a_crash_back_off() {
    for fault in [FaultKind::Busy, FaultKind::UncertainNever] {
        let runtime = fake();
        let node = Node::start(&runtime, StateDir::in_memory());
        let crash = PodBuilder::new("p")
            .uid("u")
            .container("app", |c| c.args(["exit=1", "after=1s"]))
            .build();
        node.pods.set(vec![crash]).await.unwrap();
        node.until("crashes", |_| runtime.count(Op::StartContainer) == 5).await;
        runtime.script(Script::next(Op::StartContainer, Action::Fault(fault)));
        node.until("started", |_| runtime.count(Op::StartContainer) >= 7).await;
        let starts: Vec<_> = runtime
            .calls()
            .into_iter()
            .filter(|call| call.op == Op::StartContainer)
            .collect();
        assert_eq!(starts[5].subject.container_id, starts[6].subject.container_id);
        assert_eq!(runtime.count(Op::CreateContainer), 6);
        // A back-off would be one of 160 s here.
        let pause = starts[6].at - starts[5].at;
        assert!(pause <= Duration::from_secs(5), "{fault:?}: {pause:?}");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_stays_taken_is_shown_and_tried_with_growing_pauses() {
    let runtime = fake();
    runtime.script(Script::next(Op::CreateContainer, Action::Taken).times(14));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![pod]).await.unwrap();
    sleep(Duration::from_secs(250)).await;
    assert_eq!(
        node.waits_for("p", "app").as_deref(),
        Some("CreateContainerError"),
        "{:?}",
        node.status("p")
    );
    let pauses = pauses(&times_of(&runtime, Op::CreateContainer));
    assert!(pauses.is_sorted() && pauses.last() == Some(&30), "{pauses:?}");
    assert!(pauses.len() < 14, "{pauses:?}");
    assert_eq!(node.events.count("Failed"), 1);
    assert!(node.events.count("Pulled") <= 2);
    node.running("p").await;
    assert_eq!(node.restarts("p", "app"), Some(0));
    node.stop().await;
}

/// A part that panics at its first runs.
#[derive(Debug, Default)]
struct Shaky(AtomicU32);

const PANICS: u32 = 3;

#[async_trait]
impl Runnable for Shaky {
    fn name(&self) -> &str {
        "shaky"
    }
    fn phase(&self) -> StartPhase {
        StartPhase::RuntimeReady
    }
    async fn run(&self, _node: NodeContext, stop: CancellationToken) -> Result<(), RunnableError> {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) >= PANICS, "this part is shaky");
        stop.cancelled().await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_that_panics_shows_in_health_and_is_started_again() {
    for runs in [2, PANICS + 1] {
        let runtime = fake();
        let shaky = Arc::new(Shaky::default());
        let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.run(shaky.clone()));
        node.pods.set(Vec::new()).await.unwrap();
        node.until("shows", |node| {
            node.handle.health().troubles.iter().any(|trouble| trouble.0 == "shaky")
        })
        .await;
        node.until("again", |_| shaky.0.load(Ordering::SeqCst) >= runs).await;
        let begun = Instant::now();
        let report = node.stop().await;
        assert!(report.in_flight.is_empty());
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}

/// A part that keeps what it was given.
#[derive(Debug, Default)]
struct Curious(std::sync::Mutex<Option<NodeContext>>);

#[async_trait]
impl Runnable for Curious {
    fn name(&self) -> &str {
        "curious"
    }
    fn phase(&self) -> StartPhase {
        StartPhase::Early
    }
    async fn run(&self, node: NodeContext, _stop: CancellationToken) -> Result<(), RunnableError> {
        let event = Event::new(EventSubject::Node, EventType::Normal, "Curious", "a part has started");
        node.events.record(event);
        *self.0.lock().unwrap() = Some(node);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_is_given_what_it_needs_of_its_node() {
    let dir = tempfile::tempdir().unwrap();
    for on_disk in [true, false] {
        let (root, logs) = (dir.path().join("root"), dir.path().join("logs"));
        let runtime = fake();
        let curious = Arc::new(Curious::default());
        let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
            let builder = builder.run(curious.clone());
            if on_disk {
                builder.root_dir(&root).pod_logs_dir(&logs)
            } else {
                builder
            }
        });
        node.until("told", |node| node.events.count("Curious") == 1).await;
        let given = curious.0.lock().unwrap().clone().unwrap();
        assert_eq!(&*given.node_name, "node-1");
        assert_eq!(given.root_dir.as_deref(), on_disk.then_some(&*root));
        assert_eq!(given.pod_logs_dir.as_deref(), on_disk.then_some(&*logs));
        assert_eq!(given.clock.now().as_second() / 1000, 1_700_000);
        assert_ne!(given.random.next_u64(), given.random.next_u64());
        node.pods
            .set(vec![PodBuilder::new("p").uid("u").container("app", |c| c).build()])
            .await
            .unwrap();
        node.running("p").await;
        assert!(given.handle.pod(&"u".into()).is_some());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_that_runs_again_for_a_minute_has_recovered() {
    let runtime = fake();
    let shaky = Arc::new(Shaky::default());
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.run(shaky.clone()));
    node.pods.set(Vec::new()).await.unwrap();
    node.until("runs", |_| shaky.0.load(Ordering::SeqCst) > PANICS).await;
    sleep(Duration::from_secs(50)).await;
    assert!(!node.handle.health().is_healthy(), "it may fail again at once");
    sleep(Duration::from_secs(15)).await;
    assert!(node.handle.health().is_healthy(), "{:?}", node.handle.health());
    assert_eq!(shaky.0.load(Ordering::SeqCst), PANICS + 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn sandboxes_that_do_not_last_are_made_with_growing_pauses() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![pod]).await.unwrap();
    node.running("p").await;
    let end = Instant::now() + Duration::from_secs(170);
    while Instant::now() < end {
        for sandbox in runtime.sandboxes() {
            if sandbox.state == SandboxState::Ready {
                runtime.stop_sandbox_behind(&sandbox.id);
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    let pauses = pauses(&times_of(&runtime, Op::RunSandbox));
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert!((4..=6).contains(&pauses.len()), "{pauses:?}");
    node.running("p").await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restarts_of_all_containers_that_go_round_back_off() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let rule = ContainerRestartRule {
        action: "RestartAllContainers".to_owned(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator: "In".to_owned(),
            values: Some(vec![42]),
        }),
    };
    let pod = PodBuilder::new("p")
        .uid("u")
        .container("app", |c| {
            c.restart_policy("Never")
                .args(["exit=42", "after=10ms"])
                .with(|c| c.restart_policy_rules = Some(vec![rule]))
        })
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    sleep(Duration::from_secs(170)).await;
    let pauses = pauses(&times_of(&runtime, Op::StartContainer));
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert!((4..=6).contains(&pauses.len()), "{pauses:?}");
    assert_eq!(node.restarts("p", "app").unwrap() as usize, pauses.len());
    node.stop().await;
}

/// A node on which one image is there to pull and another is not.
fn with_one_image() -> FakeRuntime {
    // The clock of the node: how long a container is down is told by both.
    let clock = TokioClock::starting_at(Timestamp::from_second(1_700_000_000).unwrap());
    let runtime = FakeRuntime::builder().clock(Arc::new(clock)).build();
    runtime.set_image("good:1", FakeImage::new());
    runtime.set_image(
        "bad:1",
        FakeImage::refused("no such thing").pull_latency(Duration::from_secs(5)),
    );
    runtime
}

fn good_and_bad(policy: &str) -> PodBuilder {
    PodBuilder::new("p")
        .uid("u")
        .restart_policy(policy)
        .container("good", |c| c.image("good:1"))
        .container("bad", |c| c.image("bad:1"))
}

#[tokio::test(start_paused = true)]
async fn a_failed_pull_beside_a_start_raises_no_restart_count() {
    for policy in ["Always", "OnFailure", "Never"] {
        let runtime = with_one_image();
        let node = Node::start(&runtime, StateDir::in_memory());
        node.pods.set(vec![good_and_bad(policy).build()]).await.unwrap();
        for _ in 0..1200 {
            sleep(Duration::from_millis(100)).await;
            if node.status("p").is_some() {
                assert_eq!(node.restarts("p", "good"), Some(0), "{policy}");
                assert_eq!(node.phase("p").as_deref(), Some("Pending"), "{policy}");
            }
        }
        let good = node.container("p", "good").unwrap();
        assert!(good.state.unwrap().running.is_some(), "{policy}");
        assert_eq!(runtime.count(Op::StartContainer), 1, "{policy}");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_beside_a_failed_pull_counts_each_restart_once() {
    let runtime = with_one_image();
    runtime.set_program(
        ProgramFor::Name("good".into()),
        Program::exit(1).after(Duration::from_secs(8)),
    );
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![good_and_bad("Always").build()]).await.unwrap();
    for _ in 0..90 {
        sleep(Duration::from_secs(20)).await;
        let starts = runtime.count(Op::StartContainer);
        assert_eq!(u64::try_from(node.restarts("p", "good").unwrap()).unwrap() + 1, starts);
    }
    let starts = runtime.count(Op::StartContainer);
    assert!((8..=13).contains(&starts), "{starts}");
    node.stop().await;
}
