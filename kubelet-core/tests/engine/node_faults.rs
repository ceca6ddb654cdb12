//! Faults that kubelets had in public with the node as a whole: slow runtimes, leaks, others' objects.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, ConfigMapKeySelector, EnvVar, EnvVarSource, Pod, PodStatus};
use kubelet_core::{
    ContainerRuntime, ContainerState, Containers, CreateContainer, MapObjects, MemoryDisk, MetricSet, PodUid, Settings,
    StateDir, TokioClock, label,
};
use kubelet_pleg::{GenericPleg, GenericPlegSettings};
use kubelet_testing::{Action, FakeImage, FakeRuntime, FaultKind, Op, PodBuilder, Script};
use tokio::time::{Instant, sleep};

use super::harness::{Node, deleted};
use super::life::fake;

fn app(name: &str) -> Pod {
    PodBuilder::new(name).uid(name).container("app", |c| c).build()
}

fn running(runtime: &FakeRuntime) -> usize {
    let containers = runtime.containers();
    containers.iter().filter(|c| c.state == ContainerState::Running).count()
}

fn pleg_trouble(node: &Node) -> Option<String> {
    let troubles = node.handle.health().troubles;
    troubles
        .into_iter()
        .find(|(what, _)| what == "pleg")
        .map(|(_, why)| why)
}

#[tokio::test(start_paused = true)]
async fn lists_that_take_minutes_are_named_by_health_and_end_or_restart_no_pod() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let mut pods: Vec<Pod> = (0..20).map(|i| app(&format!("p{i}"))).collect();
    node.pods.set(pods.clone()).await.unwrap();
    node.until("all run", |_| running(&runtime) == 20).await;
    sleep(Duration::from_secs(2)).await;
    for op in [Op::ListSandboxes, Op::ListContainers] {
        runtime.set_latency(op, Duration::from_secs(240));
    }
    pods.push(app("late"));
    node.pods.set(pods).await.unwrap();
    let mut swings = Vec::new();
    for _ in 0..1200 {
        sleep(Duration::from_secs(1)).await;
        let trouble = pleg_trouble(&node);
        if swings.last() != Some(&trouble.is_some()) {
            swings.push(trouble.is_some());
        }
        if let Some(why) = trouble {
            assert!(why.contains("no answer within"), "{why}");
        }
        for i in 0..20 {
            assert_eq!(node.phase(&format!("p{i}")).as_deref(), Some("Running"));
        }
    }
    assert_eq!(swings, [false, true], "it does not swing");
    for op in [Op::ListSandboxes, Op::ListContainers] {
        runtime.set_latency(op, Duration::ZERO);
    }
    // Lists under way go on until their deadline; then comes the next one, a period later.
    node.until("healthy", |node| node.handle.health().is_healthy()).await;
    node.running("late").await;
    sleep(Duration::from_secs(60)).await;
    assert!(node.handle.health().is_healthy());
    let counts = [Op::CreateContainer, Op::StopContainer, Op::RemoveContainer].map(|op| runtime.count(op));
    assert_eq!(counts, [21, 0, 0]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_period_of_relists_and_the_threshold_of_health_are_the_embedders() {
    let runtime = FakeRuntime::builder().without_events().all_images_present().build();
    let mut settings = GenericPlegSettings::default();
    settings.period = Duration::from_millis(100);
    settings.health_threshold = Duration::from_secs(5);
    let backend = Containers::new(runtime.clone(), GenericPleg::new(settings));
    let node = Node::start_backend(backend, StateDir::in_memory(), |builder| builder);
    node.pods.set(vec![app("p")]).await.unwrap();
    node.running("p").await;
    sleep(Duration::from_millis(250)).await;
    let before = runtime.count(Op::ListSandboxes);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(runtime.count(Op::ListSandboxes) - before, 100);
    // What happens shows within a period.
    runtime.kill_container(&runtime.containers()[0].id, 1);
    let died = Instant::now();
    node.until("restarted", |_| runtime.count(Op::StartContainer) == 2)
        .await;
    assert!(died.elapsed() <= Duration::from_millis(150), "{:?}", died.elapsed());
    for op in [Op::ListSandboxes, Op::ListContainers] {
        runtime.script(Script::next(op, Action::Fault(FaultKind::Unavailable)).times(10_000));
    }
    sleep(Duration::from_millis(4500)).await;
    assert_eq!(pleg_trouble(&node), None);
    sleep(Duration::from_secs(1)).await;
    assert!(pleg_trouble(&node).unwrap().contains("threshold is 5s"));
    node.stop().await;
}

fn value_of_map(name: &str) -> EnvVar {
    EnvVar {
        name: "VALUE".to_owned(),
        value_from: Some(EnvVarSource {
            config_map_key_ref: Some(ConfigMapKeySelector {
                name: name.to_owned(),
                key: "key".to_owned(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.metadata.namespace = Some("default".to_owned());
    map.data = Some([("key".to_owned(), value.to_owned())].into());
    map
}

fn series(metrics: &MetricSet) -> usize {
    metrics.samples().len()
}

#[tokio::test(start_paused = true)]
async fn pods_that_come_and_go_leave_nothing_behind() {
    let runtime = fake();
    let (disk, objects) = (MemoryDisk::new(), MapObjects::new());
    let state = StateDir::simulated(&disk);
    let node = Node::start_with(&runtime, state.clone(), |b| b.objects(objects.clone()));
    let round = async |round: usize| {
        let mut pods = Vec::new();
        for i in 0..100 {
            let name = format!("p{round}-{i}");
            objects.set(config_map(&name, "x"));
            let pod = PodBuilder::new(&name)
                .uid(&name)
                // So that something is kept of it on disk.
                .restart_policy("OnFailure")
                .container("app", |c| c.with(|c| c.env = Some(vec![value_of_map(&name)])));
            pods.push(pod.build());
        }
        node.pods.set(pods).await.unwrap();
        node.until("all run", |_| running(&runtime) == 100).await;
        node.until("all told", |node| {
            node.handle.pods().iter().all(|pod| {
                let status: Option<&Arc<PodStatus>> = pod.status.as_ref();
                status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
            })
        })
        .await;
        node.pods.set(Vec::new()).await.unwrap();
        node.until("all gone", |node| node.handle.pods().is_empty()).await;
        node.until("cleared up", |_| runtime.sandboxes().is_empty()).await;
    };
    round(0).await;
    let after_one = series(&node.handle.metrics());
    for number in 1..10 {
        round(number).await;
    }
    assert_eq!(series(&node.handle.metrics()), after_one);
    assert!(state.list("pods").await.unwrap().is_empty());
    assert!(
        node.handle
            .observed(&PodUid::from("p3-7"))
            .is_none_or(|seen| seen.is_absent())
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_carries_no_mark_of_ours_is_never_touched() {
    let model = fake();
    let node = Node::start(&model, StateDir::in_memory());
    node.pods.set(vec![app("p")]).await.unwrap();
    node.running("p").await;
    node.kill().await;
    let runtime = fake();
    let mut sandbox = (*model.sandbox_config(&model.sandboxes()[0].id).unwrap()).clone();
    let mut container = (*model.container_config(&model.containers()[0].id).unwrap()).clone();
    for labels in [&mut sandbox.labels, &mut container.labels] {
        labels.remove(label::POD_UID);
    }
    let id = runtime.run_sandbox(&sandbox, "").await.unwrap();
    let id = runtime
        .create_container(CreateContainer::new(&id, &sandbox, &container))
        .await
        .unwrap();
    runtime.start_container(&id).await.unwrap();
    // The fake tells of what this test made.
    let told = runtime.violations().len();
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![app("ours")]).await.unwrap();
    node.running("ours").await;
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("ours").is_none()).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(running(&runtime), 1);
    assert_eq!(runtime.violations().len(), told, "{:?}", runtime.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_made_anew_under_its_name_within_the_grace_of_the_old_one_is_another_pod() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let web = |uid: &str| {
        PodBuilder::new("web")
            .uid(uid)
            .grace_seconds(30)
            .container("app", |c| c.args(["term=0", "term-after=20s"]))
            .build()
    };
    node.pods.set(vec![web("old")]).await.unwrap();
    node.running("web").await;
    node.pods.upsert(deleted(web("old"), 30)).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    // Deleted by force, and made anew at once.
    node.pods.set(vec![web("new")]).await.unwrap();
    let status = |node: &Node, uid: &str| node.handle.pod(&PodUid::from(uid)).and_then(|pod| pod.status);
    node.until("the new one runs", |node| {
        status(node, "new").is_some_and(|status| status.phase.as_deref() == Some("Running"))
    })
    .await;
    node.until("the old one goes", |node| status(node, "old").is_none())
        .await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(status(&node, "new").unwrap().phase.as_deref(), Some("Running"));
    let left: Vec<String> = runtime.sandboxes().iter().map(|s| s.pod_uid.to_string()).collect();
    assert_eq!((left, running(&runtime)), (vec!["new".to_owned()], 1));
    let stops = runtime.calls();
    let stops: Vec<_> = stops.iter().filter(|call| call.op == Op::StopContainer).collect();
    assert!(stops.iter().all(|call| call.subject.pod == Some(PodUid::from("old"))));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_back_off_is_the_embedders_and_starts_over_after_a_quiet_time() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| {
        let mut settings = Settings::default();
        settings.crash_backoff = (Duration::from_secs(2), Duration::from_secs(8));
        b.settings(settings)
    });
    let crash = PodBuilder::new("p")
        .uid("u")
        .container("app", |c| c.args(["exit=1", "after=1s"]))
        .build();
    let pauses = || -> Vec<u64> {
        let calls = runtime.calls();
        let starts: Vec<_> = calls.iter().filter(|call| call.op == Op::StartContainer).collect();
        starts.windows(2).map(|w| (w[1].at - w[0].at).as_secs()).collect()
    };
    node.pods.set(vec![crash]).await.unwrap();
    node.until("six", |_| runtime.count(Op::StartContainer) == 6).await;
    assert_eq!(pauses(), [1, 3, 5, 9, 9]);
    node.stop().await;
    // One that ran for long enough is started at once, and its waits grow from the first one again.
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let lasts = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![lasts]).await.unwrap();
    let kill = || runtime.kill_container(&runtime.containers().last().unwrap().id, 1);
    let mut waits = Vec::new();
    for runs_for in [1, 1, 1, 601, 1, 1] {
        node.until("runs", |_| running(&runtime) == 1).await;
        sleep(Duration::from_secs(runs_for)).await;
        kill();
        let died = Instant::now();
        node.until("runs", |_| running(&runtime) == 1).await;
        waits.push(died.elapsed().as_secs());
    }
    assert_eq!(waits, [0, 10, 20, 0, 10, 20]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_pull_one_image_at_once_are_told_how_long_each_took() {
    let clock = TokioClock::starting_at(Timestamp::from_second(1_700_000_000).unwrap());
    let runtime = FakeRuntime::builder().clock(Arc::new(clock)).build();
    runtime.set_image("big:1", FakeImage::new().pull_latency(Duration::from_secs(10)));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = |name: &str| {
        PodBuilder::new(name)
            .uid(name)
            .container("app", |c| c.image("big:1").pull_policy("Always"))
    };
    node.pods.set(vec![pod("a").build()]).await.unwrap();
    sleep(Duration::from_secs(4)).await;
    node.pods.upsert(pod("b").build()).await.unwrap();
    node.until("both run", |_| running(&runtime) == 2).await;
    let told: Vec<String> = node.events.messages("Pulled");
    assert_eq!(told.len(), 2);
    assert!(told[0].contains(" in 10s (10s including waiting)"), "{told:?}");
    assert!(told[1].contains(" in 10s (16s including waiting)"), "{told:?}");
    node.stop().await;
}
