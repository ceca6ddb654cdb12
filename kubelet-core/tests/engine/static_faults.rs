//! Faults that kubelets had in public with static pods and what is left of them, each a test of its kind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    ChannelHandle, ChannelSource, ContainerRuntime, ContainerState, CreateContainer, PodUid, SourceKind, StateDir,
    label,
};
use kubelet_testing::{Action, FakeRuntime, FaultKind, Op, PodBuilder, Script};
use tokio::time::{Instant, sleep};

use super::harness::Node;
use super::life::fake;

/// A node with a source of static pods; nobody speaks for the other one, as if its API server were away.
fn with_static(runtime: &FakeRuntime, state: StateDir) -> (Node, ChannelHandle) {
    let (files, source) = ChannelSource::new("file");
    let node = Node::start_with(runtime, state, |b| b.source(source.kind(SourceKind::Static)));
    (node, files)
}

fn web(uid: &str, image: &str) -> Pod {
    PodBuilder::new("web")
        .uid(uid)
        .grace_seconds(30)
        .container("app", |c| c.image(image).args(["term=0", "term-after=20s"]))
        .build()
}

fn running_images(runtime: &FakeRuntime) -> Vec<String> {
    let running = runtime.containers().into_iter();
    let running = running.filter(|c| c.state == ContainerState::Running);
    running.map(|c| c.image).collect()
}

/// The graces that the runtime was asked to give.
fn graces(runtime: &FakeRuntime) -> Vec<u64> {
    let calls = runtime.calls();
    let stops = calls.iter().filter(|call| call.op == Op::StopContainer);
    stops
        .filter_map(|call| call.subject.grace.map(|grace| grace.as_secs()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_that_comes_back_while_another_source_is_away_starts_at_once() {
    // Under its old UID, as a manifest that names one, or under a new one.
    for next in ["s1", "s2"] {
        let runtime = fake();
        let (node, files) = with_static(&runtime, StateDir::in_memory());
        files.set(vec![web("s1", "app:1")]).await.unwrap();
        node.until("runs", |_| running_images(&runtime) == ["app:1"]).await;
        files.set(Vec::new()).await.unwrap();
        node.until("gone", |node| node.named("web-node-1").is_none()).await;
        assert!(runtime.sandboxes().is_empty());
        files.set(vec![web(next, "app:2")]).await.unwrap();
        let begun = Instant::now();
        node.until("runs again", |_| running_images(&runtime) == ["app:2"])
            .await;
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        // The other source comes back and the manifest is changed once more.
        node.pods.set(Vec::new()).await.unwrap();
        files.set(vec![web("s3", "app:3")]).await.unwrap();
        node.until("changed", |_| running_images(&runtime) == ["app:3"]).await;
        sleep(Duration::from_secs(120)).await;
        assert_eq!(running_images(&runtime), ["app:3"]);
        assert_eq!(runtime.count(Op::StartContainer), 3);
        assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_taken_away_or_changed_while_the_agent_was_down_ends_within_its_own_grace() {
    for next in [Vec::new(), vec![web("s2", "app:2")]] {
        let runtime = fake();
        let state = StateDir::in_memory();
        let (node, files) = with_static(&runtime, state.clone());
        files.set(vec![web("s1", "app:1")]).await.unwrap();
        node.until("runs", |_| running_images(&runtime) == ["app:1"]).await;
        node.kill().await;
        let (node, files) = with_static(&runtime, state);
        let wanted: Vec<String> = next.iter().map(|_| "app:2".to_owned()).collect();
        files.set(next).await.unwrap();
        let begun = Instant::now();
        node.until("as it is now", |_| {
            let images = running_images(&runtime);
            assert!(images.len() <= 1, "{images:?}");
            images == wanted
        })
        .await;
        // It takes 20 s to end, and has 30 s.
        let took = begun.elapsed();
        assert!(
            took >= Duration::from_secs(20) && took < Duration::from_secs(25),
            "{took:?}"
        );
        assert_eq!(graces(&runtime), [30]);
        node.until("cleared up", |_| runtime.sandboxes().len() == wanted.len())
            .await;
        node.stop().await;
    }
}

/// Makes a pod that runs, as an earlier life of an agent that did not keep two of one name apart left it.
async fn leave_behind(runtime: &FakeRuntime, of: &FakeRuntime, uid: &str, ends_after: &str) {
    let mut sandbox = (*of.sandbox_config(&of.sandboxes()[0].id).unwrap()).clone();
    let mut container = (*of.container_config(&of.containers()[0].id).unwrap()).clone();
    sandbox.pod_uid = PodUid::from(uid);
    for labels in [&mut sandbox.labels, &mut container.labels] {
        labels.insert(label::POD_UID.to_owned(), uid.to_owned());
    }
    container.args = vec!["term=0".to_owned(), format!("term-after={ends_after}")];
    let id = runtime.run_sandbox(&sandbox, "").await.unwrap();
    let id = runtime
        .create_container(CreateContainer::new(&id, &sandbox, &container))
        .await
        .unwrap();
    runtime.start_container(&id).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_waits_for_all_that_is_left_of_its_name() {
    let model = fake();
    let (node, files) = with_static(&model, StateDir::in_memory());
    files.set(vec![web("s0", "app:1")]).await.unwrap();
    node.until("runs", |_| running_images(&model) == ["app:1"]).await;
    node.kill().await;
    // Whichever of the two ends first.
    for (one, other) in [("5s", "25s"), ("25s", "5s")] {
        let runtime = fake();
        leave_behind(&runtime, &model, "s1", one).await;
        leave_behind(&runtime, &model, "s2", other).await;
        let (node, files) = with_static(&runtime, StateDir::in_memory());
        files.set(vec![web("s3", "app:3")]).await.unwrap();
        node.until("the new one", |_| {
            let images = running_images(&runtime);
            let (new, old): (Vec<_>, Vec<_>) = images.iter().partition(|image| *image == "app:3");
            assert!(new.is_empty() || old.is_empty(), "{images:?}");
            !new.is_empty()
        })
        .await;
        node.running("web-node-1").await;
        assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_waits_for_one_of_its_name_that_cannot_be_inspected() {
    let runtime = fake();
    let (node, files) = with_static(&runtime, StateDir::in_memory());
    files.set(vec![web("s1", "app:1")]).await.unwrap();
    node.until("runs", |_| running_images(&runtime) == ["app:1"]).await;
    node.kill().await;
    let fault = Action::Fault(FaultKind::Unavailable);
    runtime.script(Script::next(Op::SandboxStatus, fault).times(100).of_pod("s1".into()));
    let (node, files) = with_static(&runtime, StateDir::in_memory());
    node.pods
        .set(vec![
            PodBuilder::new("other").container("app", |c| c.image("app:9")).build(),
        ])
        .await
        .unwrap();
    files.set(vec![web("s2", "app:2")]).await.unwrap();
    node.until("the new one alone", |_| {
        let mut images = running_images(&runtime);
        images.retain(|image| image != "app:9");
        assert!(images.len() < 2, "{images:?}");
        images == ["app:2"]
    })
    .await;
    node.running("web-node-1").await;
    // Nobody else was held up.
    node.running("other").await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_starts_where_the_one_of_its_name_vanished_before_its_source_spoke() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let (node, files) = with_static(&runtime, state.clone());
    files.set(vec![web("s1", "app:1")]).await.unwrap();
    node.until("runs", |_| running_images(&runtime) == ["app:1"]).await;
    node.kill().await;
    let (node, files) = with_static(&runtime, state);
    node.pods
        .set(vec![
            PodBuilder::new("other").container("app", |c| c.image("app:9")).build(),
        ])
        .await
        .unwrap();
    node.running("other").await;
    let old = runtime
        .sandboxes()
        .into_iter()
        .find(|sandbox| sandbox.pod_uid.as_str() == "s1");
    runtime.vanish_sandbox(&old.unwrap().id);
    sleep(Duration::from_secs(5)).await;
    files.set(vec![web("s2", "app:2")]).await.unwrap();
    node.running("web-node-1").await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_starts_where_the_one_of_its_name_vanished_before_it_could_be_inspected() {
    let runtime = fake();
    let (node, files) = with_static(&runtime, StateDir::in_memory());
    files.set(vec![web("s1", "app:1")]).await.unwrap();
    node.until("runs", |_| running_images(&runtime) == ["app:1"]).await;
    node.kill().await;
    let fault = Action::Fault(FaultKind::Unavailable);
    runtime.script(Script::next(Op::SandboxStatus, fault).times(1000).of_pod("s1".into()));
    let (node, files) = with_static(&runtime, StateDir::in_memory());
    node.pods.set(Vec::new()).await.unwrap();
    files.set(vec![web("s2", "app:2")]).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(running_images(&runtime), ["app:1"]);
    runtime.vanish_sandbox(&runtime.sandboxes()[0].id);
    node.running("web-node-1").await;
    node.stop().await;
}
