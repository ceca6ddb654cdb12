//! Agents that end in the middle of a resize, and what the next one makes of it.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ContainerResizePolicy, Pod};
use kubelet_core::{ChannelHandle, ChannelSource, ContainerState, SourceKind, StateDir, Target};
use kubelet_testing::{Action, CgroupOp, FakeCgroups, FakeRuntime, FaultKind, Op, Script};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;
use super::resize::{MI, condition, limits, pod, small, told};

/// A container of it is started anew for other memory.
fn restarting(memory: &str) -> Pod {
    let mut pod = pod("web", "1", memory);
    pod.spec.as_mut().unwrap().containers[0].resize_policy = Some(vec![ContainerResizePolicy {
        resource_name: "memory".to_owned(),
        restart_policy: "RestartContainer".to_owned(),
    }]);
    pod
}

/// A runtime that takes its time, so that an agent can end between any two steps.
fn slow() -> FakeRuntime {
    let runtime = fake();
    for op in [
        Op::UpdateResources,
        Op::UpdateSandbox,
        Op::StopContainer,
        Op::CreateContainer,
        Op::StartContainer,
        Op::ContainerStatus,
    ] {
        runtime.set_latency(op, Duration::from_millis(100));
    }
    runtime
}

/// CPU quota and memory in MiB of the container that runs.
fn has(runtime: &FakeRuntime) -> (i64, i64) {
    let containers = runtime.containers();
    let running = containers.iter().find(|c| c.state == ContainerState::Running).unwrap();
    let updated = runtime.updated_resources(Target::Container(&running.id));
    let all = updated.unwrap_or_else(|| runtime.container_config(&running.id).unwrap().resources.clone());
    (all.cpu_quota, all.memory_limit_bytes / MI)
}

/// How many containers there were before the one that runs.
fn attempt(runtime: &FakeRuntime) -> u32 {
    let containers = runtime.containers();
    let running = containers.iter().find(|c| c.state == ContainerState::Running);
    running.unwrap().attempt
}

/// The moments at which agents end, in steps of 50 ms, until well after all is done.
fn moments() -> impl Iterator<Item = Duration> {
    (0..40).map(|step| Duration::from_millis(step * 50 + 5))
}

#[tokio::test(start_paused = true)]
async fn a_container_is_started_anew_once_whenever_the_agent_ends() {
    for moment in moments() {
        let (runtime, state) = (slow(), StateDir::in_memory());
        let node = Node::start(&runtime, state.clone());
        node.pods.set(vec![restarting("100Mi")]).await.unwrap();
        node.running("web").await;
        sleep(Duration::from_secs(5)).await;
        node.pods.set(vec![restarting("200Mi")]).await.unwrap();
        sleep(moment).await;
        node.kill().await;
        let node = Node::start(&runtime, state);
        node.pods.set(vec![restarting("200Mi")]).await.unwrap();
        sleep(Duration::from_secs(120)).await;
        assert_eq!(node.phase("web").as_deref(), Some("Running"));
        assert_eq!(attempt(&runtime), 1, "ended after {moment:?}");
        assert_eq!(has(&runtime), (100_000, 200));
        assert_eq!(condition(&node, "web", "PodResizeInProgress"), None);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wish_that_changes_while_the_agent_is_away_costs_one_start_more_at_most() {
    for moment in moments() {
        let (runtime, state) = (slow(), StateDir::in_memory());
        let node = Node::start_with(&runtime, state.clone(), small("4", "1Gi"));
        node.pods.set(vec![restarting("100Mi")]).await.unwrap();
        node.running("web").await;
        sleep(Duration::from_secs(5)).await;
        node.pods.set(vec![restarting("200Mi")]).await.unwrap();
        sleep(moment).await;
        node.kill().await;
        let node = Node::start_with(&runtime, state, small("4", "1Gi"));
        // What cannot be changes nothing of what was granted.
        node.pods.set(vec![restarting("2Gi")]).await.unwrap();
        sleep(Duration::from_secs(120)).await;
        assert_eq!(node.phase("web").as_deref(), Some("Running"));
        assert!(condition(&node, "web", "PodResizePending").is_some());
        assert!(attempt(&runtime) <= 1, "ended after {moment:?}");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_is_taken_back_while_the_agent_is_away_is_taken_back_whenever_it_ended() {
    for moment in moments() {
        let (runtime, state, cgroups) = (slow(), StateDir::in_memory(), FakeCgroups::new());
        let node = Node::start_with(&runtime, state.clone(), |builder| builder.cgroups(cgroups.clone()));
        node.pods.set(vec![pod("web", "1", "100Mi")]).await.unwrap();
        node.running("web").await;
        sleep(Duration::from_secs(5)).await;
        node.pods.set(vec![pod("web", "2", "50Mi")]).await.unwrap();
        sleep(moment).await;
        node.kill().await;
        let again = cgroups.next_life();
        let node = Node::start_with(&runtime, state, |builder| builder.cgroups(again.clone()));
        node.pods.set(vec![pod("web", "1", "100Mi")]).await.unwrap();
        sleep(Duration::from_secs(120)).await;
        assert_eq!(has(&runtime), (100_000, 100), "ended after {moment:?}");
        let cgroup = again.limits(&"uid-web".into()).unwrap().cgroup;
        assert_eq!(
            (cgroup.cpu_quota, cgroup.memory_bytes),
            (Some(100_000), Some(100 << 20)),
            "ended after {moment:?}"
        );
        let sandbox = runtime.sandboxes().remove(0).id;
        let whole = runtime.updated_sandbox(&sandbox);
        assert!(
            whole.is_none_or(|(whole, _)| (whole.cpu_quota, whole.memory_limit_bytes) == (100_000, 100 * MI)),
            "ended after {moment:?}"
        );
        assert_eq!(node.restarts("web", "app"), Some(0));
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_came_half_way_is_taken_back_as_a_whole() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    runtime.set_latency(Op::UpdateResources, Duration::from_secs(2));
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
        builder.cgroups(cgroups.clone())
    });
    node.pods.set(vec![pod("web", "1", "100Mi")]).await.unwrap();
    node.running("web").await;
    node.pods.set(vec![pod("web", "1", "50Mi")]).await.unwrap();
    // Its container has less by then, and its cgroup does not get less.
    sleep(Duration::from_secs(1)).await;
    cgroups.fail(CgroupOp::Apply, 1);
    node.until("told", |node| node.events.count("ResizeError") == 1).await;
    assert_eq!(has(&runtime), (100_000, 50));
    node.pods.set(vec![pod("web", "1", "100Mi")]).await.unwrap();
    node.until("taken back", |_| has(&runtime) == (100_000, 100)).await;
    let updates = runtime.count(Op::UpdateResources);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(runtime.count(Op::UpdateResources), updates, "once");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_granted_and_not_given_yet_is_nobody_elses_in_the_next_life() {
    let (runtime, state) = (fake(), StateDir::in_memory());
    let node = Node::start_with(&runtime, state.clone(), small("4", "8Gi"));
    node.pods.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
    node.running("web").await;
    runtime.script(Script::next(Op::UpdateResources, Action::Fault(FaultKind::Refused)).times(3));
    node.pods.set(vec![pod("web", "3", "1Gi")]).await.unwrap();
    node.until("granted", |node| node.events.count("ResizeError") == 1)
        .await;
    node.kill().await;
    let node = Node::start_with(&runtime, state, small("4", "8Gi"));
    node.pods
        .set(vec![pod("new", "2", "1Gi"), pod("web", "3", "1Gi")])
        .await
        .unwrap();
    node.until("refused", |node| node.phase("new").as_deref() == Some("Failed"))
        .await;
    node.until("given", |_| limits(&runtime, "web") == Some((300_000, 1024 * MI)))
        .await;
    assert_eq!(node.events.count("ResizeStarted"), 0, "it had begun");
    node.stop().await;
}

/// A node of that much CPU whose static pods have UIDs of their own.
fn with_static(runtime: &FakeRuntime, state: StateDir, cpu: &str) -> (Node, ChannelHandle) {
    let (files, source) = ChannelSource::new("file");
    let node = Node::start_with(runtime, state, |builder| {
        small(cpu, "8Gi")(builder).source(source.kind(SourceKind::Static))
    });
    (node, files)
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_under_the_same_uid_has_in_the_next_life_what_it_was_granted() {
    let (runtime, state) = (fake(), StateDir::in_memory());
    let (node, files) = with_static(&runtime, state.clone(), "4");
    node.pods.set(Vec::new()).await.unwrap();
    files.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
    node.running("web-node-1").await;
    files.set(vec![pod("web", "2", "1Gi")]).await.unwrap();
    node.until("done", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    files.set(vec![pod("web", "5", "1Gi")]).await.unwrap();
    let is_pending = |node: &Node| condition(node, "web-node-1", "PodResizePending").is_some();
    node.until("refused", is_pending).await;
    node.kill().await;

    // It is not taken for what its manifest says by now.
    let (node, files) = with_static(&runtime, state.clone(), "4");
    node.pods.set(Vec::new()).await.unwrap();
    files.set(vec![pod("web", "5", "1Gi")]).await.unwrap();
    node.until("still refused", is_pending).await;
    assert_eq!(told(&node, "web-node-1"), ("2".to_owned(), "2".to_owned()));
    node.kill().await;
    let (node, files) = with_static(&runtime, state, "8");
    node.pods.set(Vec::new()).await.unwrap();
    files.set(vec![pod("web", "5", "1Gi")]).await.unwrap();
    node.until("there is room", |_| has(&runtime) == (500_000, 1024)).await;
    assert_eq!(node.restarts("web-node-1", "app"), Some(0));
    assert_eq!(runtime.count(Op::UpdateResources), 2);
    node.stop().await;
}
