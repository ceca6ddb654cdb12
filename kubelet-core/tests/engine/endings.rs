//! How pods end: whatever fails or comes in between, they do, within their grace and without anything left.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ExecAction, Lifecycle, LifecycleHandler, Pod, PodStatus};
use kubelet_core::{
    ContainerState, Containers, OnStop, PodUid, Published, Stage, StateDir, StatusSink, StatusUpdate, async_trait,
};
use kubelet_pleg::{GenericPleg, GenericPlegSettings};
use kubelet_testing::{
    Action, ContainerBuilder, ExecAnswer, FakeRuntime, FaultKind, Op, PodBuilder, Program, ProgramFor, Script,
};
use tokio::time::{Instant, sleep};

use super::harness::{Cluster, Node, deleted};
use super::life::fake;

fn is_down(runtime: &FakeRuntime) -> bool {
    runtime.containers().iter().all(|c| c.state != ContainerState::Running)
}

fn with_pre_stop(container: ContainerBuilder) -> ContainerBuilder {
    container.args(["ignore-term"]).with(|container| {
        container.lifecycle = Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                exec: Some(ExecAction {
                    command: Some(vec!["drain".to_owned()]),
                }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        });
    })
}

/// Brings a job to its finish step, which removes one container of an earlier attempt and takes 5 s for that.
async fn finishing(runtime: &FakeRuntime, node: &Node) -> Pod {
    let ends = |code| Program::exit(code).after(Duration::from_secs(1));
    runtime.set_program(ProgramFor::Name("app".into()), ends(1));
    let job = PodBuilder::new("job")
        .uid("u")
        .restart_policy("OnFailure")
        .container("app", |c| c)
        .build();
    node.pods.set(vec![job.clone()]).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    runtime.set_program(ProgramFor::Name("app".into()), ends(0));
    runtime.script(Script::next(Op::RemoveContainer, Action::Delay(Duration::from_secs(5))).times(100));
    node.until("finishing", |node| {
        node.named("job").is_some_and(|job| job.stage == Stage::Terminated)
            && runtime.in_flight(Op::RemoveContainer) == 1
    })
    .await;
    job
}

#[tokio::test(start_paused = true)]
async fn a_removal_while_a_pod_is_cleared_up_leaves_nothing_behind() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    finishing(&runtime, &node).await;
    node.pods.set(Vec::new()).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(node.handle.pods().is_empty());
    assert!(runtime.containers().is_empty(), "{:?}", runtime.containers());
    assert!(runtime.sandboxes().is_empty(), "{:?}", runtime.sandboxes());
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_while_a_pod_is_cleared_up_is_told_as_finished() {
    let runtime = fake();
    let cluster = Cluster::default();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.status_sink(cluster.clone()));
    let job = finishing(&runtime, &node).await;
    node.pods.set(vec![deleted(job, 30)]).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    let last = cluster.last().unwrap();
    assert!(last.finished && last.pod.is_deleted(), "{last:?}");
    assert_eq!(last.status.phase.as_deref(), Some("Succeeded"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn looks_that_fail_while_a_pod_is_stopped_are_made_with_pauses() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .grace_seconds(30)
        .container("slow", |c| c.args(["term=0", "term-after=3s"]))
        .container("fast", |c| c.args(["term=0", "term-after=1s"]))
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.running("p").await;
    node.pods.set(Vec::new()).await.unwrap();
    sleep(Duration::from_millis(2900)).await;
    for op in [Op::ListContainers, Op::ListSandboxes] {
        runtime.script(Script::next(op, Action::Fault(FaultKind::Unavailable)).times(20));
    }
    let before = runtime.count(Op::ListSandboxes);
    sleep(Duration::from_secs(2)).await;
    let looks = runtime.count(Op::ListSandboxes) - before;
    assert!((2..=12).contains(&looks), "{looks} looks in 2 s");
    node.until("gone", |node| node.named("p").is_none()).await;
    assert!(runtime.sandboxes().is_empty());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_without_bounds_ends_nothing_but_the_wait() {
    for asked in [None, Some(i64::MAX)] {
        let runtime = fake();
        let node = Node::start(&runtime, StateDir::in_memory());
        let pod = PodBuilder::new("p")
            .uid("u")
            .grace_seconds(i64::MAX)
            .container("app", |c| c.args(["term=0", "term-after=100s"]))
            .build();
        node.pods.set(vec![pod.clone()]).await.unwrap();
        node.running("p").await;
        match asked {
            None => node.pods.set(Vec::new()).await.unwrap(),
            Some(grace) => node.pods.upsert(deleted(pod, grace)).await.unwrap(),
        }
        sleep(Duration::from_secs(90)).await;
        assert!(!is_down(&runtime), "it has all the time it takes");
        sleep(Duration::from_secs(20)).await;
        assert!(is_down(&runtime), "{asked:?}");
        assert_eq!(runtime.count(Op::StopContainer), 1);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_with_less_than_a_grace_without_bounds_ends_the_pod() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .grace_seconds(i64::MAX)
        .container("app", |c| c.args(["ignore-term"]))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.running("p").await;
    node.pods.upsert(deleted(pod.clone(), i64::MAX)).await.unwrap();
    sleep(Duration::from_secs(3600)).await;
    assert!(!is_down(&runtime));
    let cut = Instant::now();
    node.pods.upsert(deleted(pod, 5)).await.unwrap();
    node.until("down", |_| is_down(&runtime)).await;
    assert!(cut.elapsed() <= Duration::from_secs(7), "{:?}", cut.elapsed());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_status_that_hangs_keeps_no_pod_from_being_deleted() {
    for pull_policy in ["Always", "IfNotPresent"] {
        let runtime = fake();
        let node = Node::start(&runtime, StateDir::in_memory());
        runtime.script(Script::next(Op::ImageStatus, Action::Hang).times(100));
        let pod = PodBuilder::new("p")
            .uid("u")
            .container("app", |c| c.image("x:1").pull_policy(pull_policy))
            .build();
        node.pods.set(vec![pod]).await.unwrap();
        node.until("asked", |_| runtime.in_flight(Op::ImageStatus) == 1).await;
        let removed = Instant::now();
        node.pods.set(Vec::new()).await.unwrap();
        node.until("gone", |node| node.named("p").is_none()).await;
        assert!(removed.elapsed() < Duration::from_secs(5), "{:?}", removed.elapsed());
        assert!(runtime.sandboxes().is_empty());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_stop_is_told_once_and_its_hook_takes_part_of_the_grace() {
    let runtime = fake();
    runtime.on_exec(|_| ExecAnswer::exit(0).after(Duration::from_secs(5)));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .grace_seconds(30)
        .container("app", with_pre_stop)
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.running("p").await;
    runtime.script(Script::next(Op::StopContainer, Action::Fault(FaultKind::Unavailable)).times(3));
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("p").is_none()).await;
    assert_eq!(runtime.count(Op::Exec), 1);
    assert_eq!(node.events.count("Killing"), 1);
    let graces: Vec<u64> = runtime
        .calls()
        .iter()
        .filter(|call| call.op == Op::StopContainer)
        .filter_map(|call| call.subject.grace.map(|grace| grace.as_secs()))
        .collect();
    // The time that the runtime was away is nobody's grace; that of the hook is.
    assert_eq!(graces, [25; 4]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_added_while_all_are_ended_is_not_started() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.on_stop(OnStop::StopPods));
    let pod = |name: &str| {
        PodBuilder::new(name)
            .uid(name)
            .grace_seconds(30)
            .container("app", |c| c.args(["term=0", "term-after=3s"]))
            .build()
    };
    node.pods.set(vec![pod("a")]).await.unwrap();
    node.running("a").await;
    let pods = node.pods.clone();
    let add = async {
        sleep(Duration::from_secs(1)).await;
        pods.set(vec![pod("a"), pod("b")]).await.unwrap();
    };
    let (report, ()) = tokio::join!(node.stop(), add);
    assert!(
        report.in_flight.is_empty() && report.still_running.is_empty(),
        "{report:?}"
    );
    assert!(is_down(&runtime));
    let made: Vec<String> = runtime.sandboxes().iter().map(|s| s.pod_uid.to_string()).collect();
    assert_eq!(made, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_grace_cut_late_ends_a_pod_no_later_than_before() {
    for cut in [None, Some(50), Some(1)] {
        let runtime = fake();
        runtime.on_exec(|_| ExecAnswer::exit(0).after(Duration::from_secs(1000)));
        let node = Node::start(&runtime, StateDir::in_memory());
        let pod = PodBuilder::new("p").uid("u").container("app", with_pre_stop).build();
        node.pods.set(vec![pod.clone()]).await.unwrap();
        node.running("p").await;
        node.pods.set(vec![deleted(pod.clone(), 60)]).await.unwrap();
        let begun = Instant::now();
        sleep(Duration::from_secs(58)).await;
        if let Some(grace) = cut {
            node.pods.set(vec![deleted(pod, grace)]).await.unwrap();
        }
        node.until("down", |_| is_down(&runtime)).await;
        // What a runtime is asked to give at least comes on top of a hook that took all.
        assert!(
            begun.elapsed() <= Duration::from_millis(62_100),
            "{cut:?}: {:?}",
            begun.elapsed()
        );
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_fails_within_a_grace_that_was_cut_does_not_take_the_rest_of_it() {
    let runtime = fake();
    runtime.on_exec(|_| ExecAnswer::exit(0).after(Duration::from_secs(20)));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p").uid("u").container("app", with_pre_stop).build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.running("p").await;
    runtime.script(Script::next(Op::StopContainer, Action::Fault(FaultKind::Unavailable)));
    node.pods.set(vec![deleted(pod.clone(), 60)]).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    // It ends after 25 s, when more than 10 have passed since the stop began.
    node.pods.set(vec![deleted(pod, 10)]).await.unwrap();
    node.until("down", |_| is_down(&runtime)).await;
    let calls = runtime.calls();
    let stops = calls
        .iter()
        .map(|call| call.op)
        .filter(|op| matches!(op, Op::StopContainer | Op::StopSandbox));
    let first: Vec<Op> = stops.take(2).collect();
    assert_eq!(first, [Op::StopContainer; 2], "its sandbox is not stopped before that");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kill_during_a_step_that_fails_is_taken_at_once() {
    let runtime = fake();
    runtime.set_latency(Op::CreateContainer, Duration::from_secs(3));
    runtime.script(Script::next(Op::CreateContainer, Action::Fault(FaultKind::Refused)).times(3));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("asked", |_| runtime.in_flight(Op::CreateContainer) == 1)
        .await;
    sleep(Duration::from_secs(1)).await;
    let removed = Instant::now();
    node.pods.set(Vec::new()).await.unwrap();
    node.until("refused", |_| runtime.in_flight(Op::CreateContainer) == 0)
        .await;
    let refused = Instant::now();
    node.until("gone", |node| node.named("p").is_none()).await;
    assert!(removed.elapsed() < Duration::from_secs(3), "{:?}", removed.elapsed());
    assert!(
        refused.elapsed() < Duration::from_millis(500),
        "{:?}",
        refused.elapsed()
    );
    assert_eq!(runtime.count(Op::CreateContainer), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_which_nothing_ever_ran_finishes_without_a_look_at_everything() {
    let runtime = fake();
    let mut settings = GenericPlegSettings::default();
    settings.period = Duration::from_secs(300);
    let backend = Containers::new(runtime.clone(), GenericPleg::new(settings));
    let node = Node::start_backend(backend, StateDir::in_memory(), |builder| builder);
    let huge = PodBuilder::new("huge")
        .uid("u")
        .container("app", |c| c.request("cpu", "1000"))
        .build();
    let asked = Instant::now();
    node.pods.set(vec![huge]).await.unwrap();
    node.until("finished", |node| {
        node.named("huge").is_some_and(|pod| pod.stage == Stage::Finished)
    })
    .await;
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    assert_eq!(node.phase("huge").as_deref(), Some("Failed"));
    node.stop().await;
}

/// An API server that takes its time.
#[derive(Clone, Debug, Default)]
struct SlowCluster(Arc<Mutex<BTreeMap<PodUid, Arc<PodStatus>>>>);

#[async_trait]
impl StatusSink for SlowCluster {
    async fn publish(&self, update: &StatusUpdate) -> Published {
        sleep(Duration::from_millis(300)).await;
        let mut told = self.0.lock().unwrap();
        told.insert(update.pod.uid().clone(), update.status.clone());
        Published::Accepted
    }
    async fn forget(&self, _uid: &PodUid) {}
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_its_pods_tells_how_they_ended_before_it_goes() {
    let runtime = fake();
    let cluster = SlowCluster::default();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| {
        b.on_stop(OnStop::StopPods).status_sink(cluster.clone())
    });
    let pods: Vec<Pod> = (0..20)
        .map(|i| {
            PodBuilder::new(format!("p{i}"))
                .uid(format!("u{i}"))
                .container("app", |c| c.args(["term=0", "term-after=1s"]))
                .build()
        })
        .collect();
    node.pods.set(pods).await.unwrap();
    node.until("all run", |node| {
        (0..20).all(|i| node.phase(&format!("p{i}")).as_deref() == Some("Running"))
    })
    .await;
    sleep(Duration::from_secs(5)).await;
    let begun = Instant::now();
    let report = node.stop().await;
    assert!(
        report.in_flight.is_empty() && report.still_running.is_empty(),
        "{report:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!((is_down(&runtime), runtime.count(Op::StartContainer)), (true, 20));
    let told = cluster.0.lock().unwrap();
    assert_eq!(told.len(), 20);
    for status in told.values() {
        let state = status.container_statuses.as_ref().unwrap()[0].state.clone();
        let end = state.and_then(|state| state.terminated);
        assert_eq!(end.map(|end| end.exit_code), Some(0), "{status:?}");
    }
}
