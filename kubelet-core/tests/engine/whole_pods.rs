//! Pods as wholes: the engine over a provider.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_core::{
    ChannelSource, MapObjects, PodObservation, PodProvider, PodRecord, PodUid, ProvidedPod, ProviderError,
    ProviderHint, ResolvedPod, SourceKind, SourceName, StateDir, WholePods, async_trait,
};
use kubelet_testing::{CheckedStatusSink, FakeProvider, PodBuilder, ProviderOp};
use tokio::time::sleep;

use super::harness::{Cluster, Node};

fn node(provider: &FakeProvider, state: StateDir) -> Node {
    Node::start_backend(WholePods::new(provider.clone()), state, |builder| builder)
}

fn pod(name: &str, uid: &str) -> PodBuilder {
    PodBuilder::new(name).uid(uid).grace_seconds(30).container("app", |c| c)
}

fn deleted(builder: PodBuilder, grace: i64) -> Pod {
    builder
        .metadata(|m| {
            m.deletion_timestamp = Some(Time(Timestamp::from_second(1_700_000_000).unwrap()));
            m.deletion_grace_period_seconds = Some(grace);
        })
        .build()
}

fn phase_is(name: &'static str, phase: &'static str) -> impl FnMut(&Node) -> bool {
    move |node| node.phase(name).as_deref() == Some(phase)
}

fn resolved(pod: Pod, source: &str) -> ResolvedPod {
    let record = PodRecord::new(&pod, SourceName::from(source), SourceKind::Managed).unwrap();
    ResolvedPod::new(Arc::new(record))
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_created_updated_and_deleted() {
    let provider = FakeProvider::new();
    let node = node(&provider, StateDir::in_memory());
    let uid = PodUid::from("u1");
    let web = || pod("web", "u1").spec(|spec| spec.containers[0].env = None);
    node.pods.set(vec![web().build()]).await.unwrap();
    node.until("running", phase_is("web", "Running")).await;
    let status = node.status("web").unwrap();
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(container.container_id.as_deref(), Some("fake://w1"));
    assert!(container.ready);
    // A wish that says the same is no update; one that says more is.
    sleep(Duration::from_secs(600)).await;
    assert_eq!(
        (provider.count(ProviderOp::Create), provider.count(ProviderOp::Update)),
        (1, 0)
    );
    node.pods.upsert(web().label("tier", "front").build()).await.unwrap();
    node.until("updated", |_| provider.count(ProviderOp::Update) == 1).await;
    let labels = provider.record(&uid).unwrap().metadata().labels.clone().unwrap();
    assert_eq!(labels["tier"], "front");
    node.pods.upsert(deleted(web(), 20)).await.unwrap();
    node.until("told to end", |_| provider.count(ProviderOp::Delete) > 0)
        .await;
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("web").is_none()).await;
    assert!(!provider.has(&uid));
    let graces: Vec<_> = provider.calls().into_iter().filter_map(|call| call.grace).collect();
    assert_eq!(graces[0], Duration::from_secs(20));
    assert!(graces.len() <= 2, "{graces:?}");
    assert!(provider.violations().is_empty(), "{:?}", provider.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn less_grace_reaches_a_pod_that_is_being_stopped() {
    let provider = FakeProvider::new();
    let node = node(&provider, StateDir::in_memory());
    let stubborn = || {
        PodBuilder::new("web")
            .uid("u1")
            .container("app", |c| c.args(["ignore-term"]))
    };
    node.pods.set(vec![stubborn().build()]).await.unwrap();
    node.until("running", phase_is("web", "Running")).await;
    node.pods.upsert(deleted(stubborn(), 600)).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(provider.count(ProviderOp::Delete), 1, "asked once, not at each look");
    node.pods.upsert(deleted(stubborn(), 2)).await.unwrap();
    sleep(Duration::from_secs(4)).await;
    assert!(!node.handle.observed(&PodUid::from("u1")).is_some_and(|o| o.may_run()));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_is_another_pod() {
    let provider = FakeProvider::new();
    let node = node(&provider, StateDir::in_memory());
    let slow = |uid| {
        PodBuilder::new("web")
            .uid(uid)
            .grace_seconds(30)
            .container("app", |c| c.args(["term-after=20s"]))
    };
    node.pods.set(vec![slow("u1").build()]).await.unwrap();
    node.until("running", phase_is("web", "Running")).await;
    // Recreated within the grace of the first.
    node.pods.upsert(deleted(slow("u1"), 30)).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    node.pods
        .set(vec![deleted(slow("u1"), 30), slow("u2").build()])
        .await
        .unwrap();
    sleep(Duration::from_secs(5)).await;
    node.pods.set(vec![slow("u2").build()]).await.unwrap();
    node.until("the first is gone", |_| !provider.has(&PodUid::from("u1")))
        .await;
    sleep(Duration::from_secs(300)).await;
    assert!(provider.has(&PodUid::from("u2")));
    assert_eq!(node.phase("web").as_deref(), Some("Running"));
    let ended_second = provider
        .calls()
        .into_iter()
        .any(|call| call.op == ProviderOp::Delete && call.uid == Some(PodUid::from("u2")));
    assert!(!ended_second);
    assert!(provider.violations().is_empty(), "{:?}", provider.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_others_made_is_never_touched() {
    let provider = FakeProvider::new();
    let foreign = provider.add_foreign(&pod("theirs", "f1").build());
    let node = node(&provider, StateDir::in_memory());
    node.pods.set(vec![pod("ours", "u1").build()]).await.unwrap();
    node.until("running", phase_is("ours", "Running")).await;
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("ours").is_none()).await;
    sleep(Duration::from_secs(600)).await;
    assert!(provider.has(&foreign));
    let touched = provider
        .calls()
        .into_iter()
        .any(|call| call.uid == Some(foreign.clone()));
    assert!(!touched);
    assert!(provider.violations().is_empty(), "{:?}", provider.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unknown_pods_end_only_once_their_source_has_spoken() {
    let provider = FakeProvider::new();
    for (name, uid, source) in [("a", "u1", "api"), ("b", "u2", "other"), ("c", "u3", "gone")] {
        provider
            .create(&resolved(pod(name, uid).build(), source))
            .await
            .unwrap();
    }
    let (other, other_source) = ChannelSource::new("other");
    let node = Node::start_backend(WholePods::new(provider.clone()), StateDir::in_memory(), |builder| {
        builder.source(other_source)
    });
    let left = || -> Vec<String> {
        let pods = provider.pods();
        pods.iter().map(|pod| pod.uid.to_string()).collect()
    };
    sleep(Duration::from_secs(300)).await;
    assert_eq!(left(), ["u1", "u2", "u3"], "no source has spoken");
    node.pods.set(Vec::new()).await.unwrap();
    sleep(Duration::from_secs(300)).await;
    assert_eq!(left(), ["u2", "u3"], "one source has spoken");
    other.set(vec![pod("b", "u2").build()]).await.unwrap();
    sleep(Duration::from_secs(300)).await;
    assert_eq!(left(), ["u2"], "all sources have spoken");
    let deletes = provider.count(ProviderOp::Delete);
    assert!(deletes <= 4, "each is asked to end, and then removed: {deletes}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_provider_is_no_truth_about_pods() {
    let provider = FakeProvider::new();
    let node = node(&provider, StateDir::in_memory());
    node.pods.set(vec![pod("web", "u1").build()]).await.unwrap();
    node.until("running", phase_is("web", "Running")).await;
    provider.go_down();
    node.pods.upsert(pod("new", "u2").build()).await.unwrap();
    sleep(Duration::from_secs(300)).await;
    assert_eq!(node.phase("web").as_deref(), Some("Running"));
    assert!(!node.handle.health().is_healthy());
    let creates = provider.count(ProviderOp::Create);
    provider.come_up();
    node.until("the new one runs", phase_is("new", "Running")).await;
    assert_eq!(provider.count(ProviderOp::Create), creates + 1);
    assert_eq!(provider.count(ProviderOp::Delete), 0);
    let first = provider.record(&PodUid::from("u1"));
    assert!(first.is_some());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_call_that_hangs_holds_up_no_other_pod() {
    let provider = FakeProvider::new();
    let node = node(&provider, StateDir::in_memory());
    node.pods.set(vec![pod("a", "u1").build()]).await.unwrap();
    node.until("running", phase_is("a", "Running")).await;
    // A look at one pod that never answers: the list still tells of the others.
    provider.set_hanging(ProviderOp::Status, true);
    provider.end_container(&PodUid::from("u1"), "app", 1);
    sleep(Duration::from_secs(1)).await;
    provider.set_hanging(ProviderOp::Status, false);
    node.pods.upsert(pod("b", "u2").build()).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    assert_eq!(node.phase("b").as_deref(), Some("Running"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_hint_shows_in_the_status_at_once_and_a_poll_makes_up_for_lost_ones() {
    for (provider, within) in [
        (FakeProvider::new(), Duration::from_millis(100)),
        (FakeProvider::new().without_hints(), Duration::from_secs(6)),
    ] {
        let node = node(&provider, StateDir::in_memory());
        let job = PodBuilder::new("job")
            .uid("u1")
            .restart_policy("Never")
            .container("app", |c| c);
        node.pods.set(vec![job.build()]).await.unwrap();
        node.until("running", phase_is("job", "Running")).await;
        provider.end_container(&PodUid::from("u1"), "app", 3);
        sleep(within).await;
        assert_eq!(node.phase("job").as_deref(), Some("Failed"));
        let status = node.status("job").unwrap();
        let state = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap();
        assert_eq!(state.terminated.unwrap().exit_code, 3);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_stream_of_hints_is_opened_again() {
    let provider = FakeProvider::new();
    let node = node(&provider, StateDir::in_memory());
    let job = PodBuilder::new("job")
        .uid("u1")
        .restart_policy("Never")
        .container("app", |c| c);
    node.pods.set(vec![job.build()]).await.unwrap();
    node.until("running", phase_is("job", "Running")).await;
    provider.break_streams();
    sleep(Duration::from_secs(6)).await;
    provider.end_container(&PodUid::from("u1"), "app", 0);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(node.phase("job").as_deref(), Some("Succeeded"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_status_wins_again_after_another_writer() {
    let (provider, cluster) = (FakeProvider::new(), Cluster::default());
    let checked = CheckedStatusSink::new(cluster.clone());
    let backend = WholePods::new(provider.clone());
    let node = Node::start_backend(backend, StateDir::in_memory(), |b| b.status_sink(checked.clone()));
    node.pods.set(vec![pod("web", "u1").build()]).await.unwrap();
    node.until("running", phase_is("web", "Running")).await;
    sleep(Duration::from_secs(10)).await;
    let (told, ours) = {
        let all = cluster.0.lock().unwrap();
        (all.len(), all.last().unwrap().status.clone())
    };
    // Somebody flips Ready in the cluster, and the source reports that.
    let mut theirs: PodStatus = (*ours).clone();
    for condition in theirs.conditions.iter_mut().flatten() {
        if condition.type_ == "Ready" {
            condition.status = "False".to_owned();
        }
    }
    let mut flipped = pod("web", "u1").build();
    flipped.status = Some(theirs);
    node.pods.upsert(flipped).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    {
        let all = cluster.0.lock().unwrap();
        assert!(all.len() > told, "nobody told the cluster what is true");
        let ready = all.last().unwrap().status.conditions.clone().unwrap();
        let ready = ready.into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.status, "True");
        assert!(all.len() <= told + 2, "told {} times", all.len() - told);
    }
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("web").is_none()).await;
    sleep(Duration::from_secs(5)).await;
    assert!(checked.violations().is_empty(), "{:?}", checked.violations());
    assert_eq!(checked.forgotten(), [PodUid::from("u1")]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_takes_its_pods_over_with_what_changed_meanwhile() {
    let (provider, state) = (FakeProvider::new(), StateDir::in_memory());
    let first = node(&provider, state.clone());
    let pods = || vec![pod("a", "u1").build(), pod("b", "u2").build()];
    first.pods.set(pods()).await.unwrap();
    first
        .until("running", |n| {
            ["a", "b"].iter().all(|p| n.phase(p).as_deref() == Some("Running"))
        })
        .await;
    first.kill().await;
    let ids = || -> Vec<String> {
        let pods = provider.pods();
        pods.iter()
            .map(|pod| pod.observed.containers[0].id.to_string())
            .collect()
    };
    let before = ids();
    provider.clear_calls();
    let second = node(&provider, state);
    let mut now = pods();
    now[1].metadata.labels = Some([("changed".to_owned(), "yes".to_owned())].into());
    second.pods.set(now).await.unwrap();
    second
        .until("running", |n| {
            ["a", "b"].iter().all(|p| n.phase(p).as_deref() == Some("Running"))
        })
        .await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(ids(), before, "nothing was started again");
    assert_eq!(provider.count(ProviderOp::Create), 0);
    assert_eq!(provider.count(ProviderOp::Delete), 0);
    let changed = provider.record(&PodUid::from("u2")).unwrap();
    assert!(
        changed
            .metadata()
            .labels
            .as_ref()
            .is_some_and(|l| l.contains_key("changed"))
    );
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_died_while_the_agent_was_away_has_failed() {
    let (provider, state) = (FakeProvider::new(), StateDir::in_memory());
    let job = || {
        PodBuilder::new("job")
            .uid("u1")
            .restart_policy("Never")
            .container("app", |c| c)
    };
    let first = node(&provider, state.clone());
    first.pods.set(vec![job().build()]).await.unwrap();
    first.until("running", phase_is("job", "Running")).await;
    first.kill().await;
    provider.end_container(&PodUid::from("u1"), "app", 7);
    provider.clear_calls();
    let second = node(&provider, state);
    second.pods.set(vec![job().build()]).await.unwrap();
    second.until("failed", phase_is("job", "Failed")).await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(provider.count(ProviderOp::Create), 0);
    assert_eq!(second.phase("job").as_deref(), Some("Failed"));
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_pod_waits_and_a_rejected_one_has_failed() {
    let provider = FakeProvider::new();
    let node = node(&provider, StateDir::in_memory());
    provider.fail_next(ProviderError::Refused {
        message: "quota is used up".to_owned(),
    });
    node.pods.set(vec![pod("web", "u1").build()]).await.unwrap();
    node.until("shown", |node| node.events.count("ProviderFailed") == 1)
        .await;
    let status = node.status("web").unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    node.until("running", phase_is("web", "Running")).await;
    provider.fail_next(ProviderError::Rejected {
        reason: "NoSuchRegion".to_owned(),
        message: "there is no region mars".to_owned(),
    });
    node.pods.upsert(pod("mars", "u2").build()).await.unwrap();
    node.until("failed", phase_is("mars", "Failed")).await;
    let status = node.status("mars").unwrap();
    assert_eq!(status.reason.as_deref(), Some("NoSuchRegion"));
    let creates = provider.count(ProviderOp::Create);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(provider.count(ProviderOp::Create), creates);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_environment_is_resolved_and_objects_are_at_hand() {
    let provider = FakeProvider::new();
    let node = Node::start_backend(WholePods::new(provider.clone()), StateDir::in_memory(), |b| {
        b.objects(MapObjects::new())
    });
    let web = pod("web", "u1").container("side", |c| c.env("A", "x").env("B", "$(A)y"));
    node.pods.set(vec![web.build()]).await.unwrap();
    node.until("running", phase_is("web", "Running")).await;
    let env = provider.env(&PodUid::from("u1"), "side");
    assert!(env.contains(&("B".to_owned(), "xy".to_owned())), "{env:?}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_converge_over_a_provider_that_fails_at_random() {
    for seed in 0..8 {
        let provider = FakeProvider::seeded(seed);
        provider.set_fault_rate(0.3);
        provider.set_latency(Duration::from_millis(200));
        let node = node(&provider, StateDir::in_memory());
        let pods: Vec<Pod> = (0..10)
            .map(|i| pod(&format!("p{i}"), &format!("u{i}")).build())
            .collect();
        node.pods.set(pods.clone()).await.unwrap();
        sleep(Duration::from_secs(30)).await;
        node.pods.set(pods[..5].to_vec()).await.unwrap();
        sleep(Duration::from_secs(30)).await;
        provider.set_fault_rate(0.0);
        sleep(Duration::from_secs(400)).await;
        let there: Vec<String> = provider.pods().iter().map(|pod| pod.uid.to_string()).collect();
        assert_eq!(there, ["u0", "u1", "u2", "u3", "u4"], "seed {seed}");
        for i in 0..5 {
            assert_eq!(node.phase(&format!("p{i}")).as_deref(), Some("Running"), "seed {seed}");
        }
        assert!(provider.violations().is_empty(), "{:?}", provider.violations());
        node.stop().await;
    }
}

/// A provider whose pods never end, whatever it is asked.
#[derive(Debug)]
struct Stubborn(FakeProvider);

#[async_trait]
impl PodProvider for Stubborn {
    fn name(&self) -> &str {
        self.0.name()
    }
    async fn list(&self) -> Result<Vec<ProvidedPod>, ProviderError> {
        self.0.list().await
    }
    async fn create(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        self.0.create(pod).await
    }
    async fn update(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        self.0.update(pod).await
    }
    async fn delete(&self, uid: &PodUid, _grace: Duration) -> Result<(), ProviderError> {
        self.0.delete(uid, Duration::from_secs(1_000_000)).await
    }
    async fn status(&self, uid: &PodUid) -> Result<Option<PodObservation>, ProviderError> {
        self.0.status(uid).await
    }
    fn changes(&self) -> BoxStream<'static, ProviderHint> {
        self.0.changes()
    }
}

#[tokio::test(start_paused = true)]
async fn an_orphan_is_asked_once_to_end() {
    let provider = FakeProvider::new();
    let stubborn = pod("web", "u1")
        .container("app", |c| c.args(["ignore-term"]))
        .spec(|spec| {
            spec.containers.remove(0);
        });
    provider.create(&resolved(stubborn.build(), "api")).await.unwrap();
    let shared: Arc<dyn PodProvider> = Arc::new(Stubborn(provider.clone()));
    let node = Node::start_backend(WholePods::new(shared), StateDir::in_memory(), |builder| builder);
    node.pods.set(Vec::new()).await.unwrap();
    sleep(Duration::from_secs(300)).await;
    assert!(provider.has(&PodUid::from("u1")));
    assert_eq!(provider.count(ProviderOp::Delete), 1);
    // Its status is not told any more either: the agent ends in time all the same.
    provider.set_hanging(ProviderOp::Status, true);
    sleep(Duration::from_secs(5)).await;
    let begun = tokio::time::Instant::now();
    node.stop().await;
    assert!(begun.elapsed() <= Duration::from_secs(11), "{:?}", begun.elapsed());
}
