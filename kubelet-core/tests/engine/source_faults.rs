//! Faults that kubelets had in public with static pods and several sources, each a test of its kind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, ConfigMapEnvSource, EnvFromSource, Pod};
use kubelet_core::{ChannelHandle, ChannelSource, ContainerState, MapObjects, SourceKind, StateDir};
use kubelet_testing::{FakeRuntime, Op, PodBuilder};

use super::harness::Node;
use super::life::fake;

fn with_static(runtime: &FakeRuntime, state: StateDir) -> (Node, ChannelHandle) {
    let (handle, source) = ChannelSource::new("file");
    let node = Node::start_with(runtime, state, |builder| {
        builder.source(source.kind(SourceKind::Static))
    });
    (node, handle)
}

fn static_pod(image: &str) -> Pod {
    PodBuilder::new("web")
        .without_uid()
        .grace_seconds(30)
        .container("app", |c| c.image(image).args(["term=0", "term-after=20s"]))
        .build()
}

fn running_images(runtime: &FakeRuntime) -> Vec<String> {
    runtime
        .containers()
        .into_iter()
        .filter(|c| c.state == ContainerState::Running)
        .map(|c| c.image)
        .collect()
}

fn with_uid(mut pod: Pod, uid: &str) -> Pod {
    pod.metadata.uid = Some(uid.to_owned());
    pod
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_put_back_fast_runs_once_and_with_its_new_spec() {
    let runtime = fake();
    let (node, files) = with_static(&runtime, StateDir::in_memory());
    node.pods.set(Vec::new()).await.unwrap();
    files.set(vec![with_uid(static_pod("app:1"), "s1")]).await.unwrap();
    node.until("runs", |_| running_images(&runtime) == ["app:1"]).await;
    for round in 0..3 {
        files.set(Vec::new()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        files
            .set(vec![with_uid(static_pod(&format!("app:{}", round + 2)), "s1")])
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    node.until("runs again", |_| running_images(&runtime) == ["app:4"])
        .await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(running_images(&runtime), ["app:4"]);
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_edited_static_pod_starts_only_after_its_old_version_is_gone_and_had_its_grace() {
    let runtime = fake();
    let (node, files) = with_static(&runtime, StateDir::in_memory());
    node.pods.set(Vec::new()).await.unwrap();
    files.set(vec![with_uid(static_pod("app:1"), "s1")]).await.unwrap();
    node.until("runs", |_| running_images(&runtime) == ["app:1"]).await;
    files.set(vec![with_uid(static_pod("app:2"), "s2")]).await.unwrap();
    let begun = tokio::time::Instant::now();
    loop {
        let images = running_images(&runtime);
        assert!(images.len() <= 1, "{images:?}");
        if images == ["app:2"] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    assert!(begun.elapsed() >= Duration::from_secs(20), "{:?}", begun.elapsed());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_changed_while_the_agent_was_down_waits_for_the_old_one_though_another_source_never_speaks() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let (node, files) = with_static(&runtime, state.clone());
    node.pods.set(Vec::new()).await.unwrap();
    files.set(vec![with_uid(static_pod("app:1"), "s1")]).await.unwrap();
    node.until("runs", |_| running_images(&runtime) == ["app:1"]).await;
    node.kill().await;
    let (node, files) = with_static(&runtime, state);
    files.set(vec![with_uid(static_pod("app:2"), "s2")]).await.unwrap();
    node.until("the new one alone", |_| {
        let images = running_images(&runtime);
        assert!(images.len() <= 1, "{images:?}");
        images == ["app:2"]
    })
    .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_has_not_spoken_stops_nothing() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.until("runs", |_| running_images(&runtime).len() == 1).await;
    node.kill().await;
    let node = Node::start(&runtime, state);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(running_images(&runtime).len(), 1);
    assert_eq!(runtime.count(Op::StopContainer), 0);
    node.pods.set(vec![pod]).await.unwrap();
    node.until("known", |node| node.phase("p").as_deref() == Some("Running"))
        .await;
    assert_eq!(runtime.count(Op::StopContainer), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_pods_that_want_one_host_port_have_one_loser_whatever_comes_first() {
    let mut losers = std::collections::BTreeSet::new();
    for round in 0..20 {
        let runtime = fake();
        runtime.set_latency(Op::ListContainers, Duration::from_millis(500));
        let (node, files) = with_static(&runtime, StateDir::in_memory());
        let from_file = with_uid(
            PodBuilder::new("f").container("app", |c| c.host_port(8080)).build(),
            "f",
        );
        let from_api = PodBuilder::new("a")
            .uid("a")
            .container("app", |c| c.host_port(8080))
            .build();
        if round % 2 == 0 {
            files.set(vec![from_file]).await.unwrap();
            node.pods.set(vec![from_api]).await.unwrap();
        } else {
            node.pods.set(vec![from_api]).await.unwrap();
            files.set(vec![from_file]).await.unwrap();
        }
        node.until("one lost", |node| {
            node.handle
                .pods()
                .iter()
                .filter(|p| {
                    p.status
                        .as_ref()
                        .is_some_and(|s| s.reason.as_deref() == Some("NodePorts"))
                })
                .count()
                == 1
        })
        .await;
        let loser = node
            .handle
            .pods()
            .into_iter()
            .find(|p| p.status.as_ref().unwrap().phase.as_deref() == Some("Failed"))
            .unwrap();
        losers.insert(loser.pod.uid().to_string());
        node.stop().await;
    }
    assert_eq!(losers.len(), 1, "{losers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_may_use_what_a_local_source_serves() {
    let objects = MapObjects::new();
    let mut map = ConfigMap::default();
    map.metadata.name = Some("settings".to_owned());
    map.metadata.namespace = Some("default".to_owned());
    map.data = Some([("COLOUR".to_owned(), "blue".to_owned())].into());
    objects.set(map);
    let runtime = fake();
    let (files, source) = ChannelSource::new("file");
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
        builder.source(source.kind(SourceKind::Static)).objects(objects)
    });
    node.pods.set(Vec::new()).await.unwrap();
    let pod = PodBuilder::new("web")
        .without_uid()
        .container("app", |c| {
            c.with(|container| {
                container.env_from = Some(vec![EnvFromSource {
                    config_map_ref: Some(ConfigMapEnvSource {
                        name: "settings".to_owned(),
                        optional: None,
                    }),
                    ..EnvFromSource::default()
                }]);
            })
        })
        .build();
    files.set(vec![with_uid(pod, "s1")]).await.unwrap();
    node.until("runs", |_| running_images(&runtime).len() == 1).await;
    let container = runtime.containers().pop().unwrap();
    let config = runtime.container_config(&container.id).unwrap();
    assert!(config.env.contains(&("COLOUR".to_owned(), "blue".to_owned())));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_hundred_kubelets_run_in_one_process() {
    let mut nodes = Vec::new();
    for i in 0..200 {
        let runtime = fake();
        let node = Node::start(&runtime, StateDir::in_memory());
        let pod = PodBuilder::new("p")
            .uid(format!("u{i}"))
            .container("app", |c| c)
            .build();
        node.pods.set(vec![pod]).await.unwrap();
        nodes.push((runtime, node));
    }
    for (runtime, node) in &nodes {
        node.until("runs", |_| running_images(runtime).len() == 1).await;
        let metrics = node.handle.metrics();
        assert_eq!(
            metrics.get("kubelet_pod_workers_started_total"),
            Some(&kubelet_core::MetricValue::Counter(1))
        );
    }
    for (_, node) in nodes {
        assert!(node.stop().await.in_flight.is_empty());
    }
}
