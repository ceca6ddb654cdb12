//! One node in simulated time: an engine over the fake runtime.

#![allow(clippy::unwrap_used, reason = "a helper of tests: a panic is the failure")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_core::{
    Backend, CancellationToken, ChannelHandle, ChannelSource, Containers, Event, EventSink, Kubelet, KubeletBuilder,
    KubeletHandle, NodeView, PodSnapshot, PodUid, Published, Quantity, RunError, SeededRandom, SourceKind, StateDir,
    StatusSink, StatusUpdate, StopReport, TokioClock, async_trait,
};
use kubelet_pleg::GenericPleg;
use kubelet_testing::FakeRuntime;
use tokio::task::JoinSet;

/// Events, kept for a look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<Event>>>);

impl EventSink for Events {
    fn record(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Events {
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|e| e.reason.to_string()).collect()
    }

    /// The messages of the events with that reason.
    pub(crate) fn messages(&self, reason: &str) -> Vec<String> {
        let events = self.0.lock().unwrap();
        let fitting = events.iter().filter(|event| event.reason == reason);
        fitting.map(|event| event.message.clone()).collect()
    }

    pub(crate) fn count(&self, reason: &str) -> usize {
        self.reasons().iter().filter(|r| *r == reason).count()
    }
}

/// What an API server would hold: all statuses that it was sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster(pub(crate) Arc<Mutex<Vec<StatusUpdate>>>);

#[async_trait]
impl StatusSink for Cluster {
    async fn publish(&self, update: &StatusUpdate) -> Published {
        self.0.lock().unwrap().push(update.clone());
        Published::Accepted
    }
    async fn forget(&self, _uid: &PodUid) {}
}

impl Cluster {
    /// The phases that were told, each once until it changed.
    pub(crate) fn phases(&self) -> Vec<String> {
        let told = self.0.lock().unwrap();
        let mut phases: Vec<String> = told.iter().filter_map(|u| u.status.phase.clone()).collect();
        phases.dedup();
        phases
    }

    pub(crate) fn last(&self) -> Option<StatusUpdate> {
        self.0.lock().unwrap().last().cloned()
    }
}

/// The pod once its deletion was asked for.
pub(crate) fn deleted(mut pod: Pod, grace: i64) -> Pod {
    pod.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(1_700_000_100).unwrap()));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

/// A node with a source of static pods beside the usual one, which names none.
pub(crate) async fn node_with_static_pods(runtime: &FakeRuntime) -> (Node, ChannelHandle) {
    let (handle, source) = ChannelSource::new("file");
    let node = Node::start_with(runtime, StateDir::in_memory(), |builder| {
        builder.source(source.kind(SourceKind::Static))
    });
    node.pods.set(Vec::new()).await.unwrap();
    (node, handle)
}

pub(crate) fn node_view() -> NodeView {
    let mut view = NodeView::new("node-1");
    for (name, amount) in [
        ("cpu", "64"),
        ("memory", "256Gi"),
        ("pods", "20000"),
        ("ephemeral-storage", "1Ti"),
    ] {
        let amount: Quantity = amount.parse().unwrap();
        view.capacity.insert(name.to_owned(), amount.clone());
        view.allocatable.insert(name.to_owned(), amount);
    }
    view.addresses = vec!["192.0.2.7".parse().unwrap()];
    view
}

/// A running node.
pub(crate) struct Node {
    pub(crate) handle: KubeletHandle,
    pub(crate) pods: ChannelHandle,
    pub(crate) events: Events,
    stop: CancellationToken,
    task: JoinSet<Result<StopReport, RunError>>,
}

impl Node {
    pub(crate) fn start(runtime: &FakeRuntime, state: StateDir) -> Self {
        Self::start_with(runtime, state, |builder| builder)
    }

    pub(crate) fn start_with(
        runtime: &FakeRuntime,
        state: StateDir,
        shape: impl FnOnce(KubeletBuilder) -> KubeletBuilder,
    ) -> Self {
        Self::start_backend(Containers::new(runtime.clone(), GenericPleg::default()), state, shape)
    }

    pub(crate) fn start_backend(
        backend: impl Into<Backend>,
        state: StateDir,
        shape: impl FnOnce(KubeletBuilder) -> KubeletBuilder,
    ) -> Self {
        let (pods, source) = ChannelSource::new("api");
        let events = Events::default();
        let builder = Kubelet::builder("node-1", backend)
            .source(source)
            .node_view(node_view())
            .events(events.clone())
            .clock(TokioClock::starting_at(Timestamp::from_second(1_700_000_000).unwrap()))
            .random(SeededRandom::new(1))
            .state_only(state);
        let kubelet = shape(builder).build().unwrap();
        let handle = kubelet.handle();
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(kubelet.run(stop.clone()));
        Self {
            handle,
            pods,
            events,
            stop,
            task,
        }
    }

    pub(crate) async fn stop(mut self) -> StopReport {
        self.stop.cancel();
        self.task.join_next().await.unwrap().unwrap().unwrap()
    }

    /// Ends the agent as a crash does.
    pub(crate) async fn kill(mut self) {
        self.task.shutdown().await;
    }

    pub(crate) fn named(&self, name: &str) -> Option<PodSnapshot> {
        self.handle.pods_named("default", name).pop()
    }

    pub(crate) fn status(&self, name: &str) -> Option<Arc<PodStatus>> {
        self.named(name).and_then(|pod| pod.status)
    }

    pub(crate) fn phase(&self, name: &str) -> Option<String> {
        self.status(name).and_then(|status| status.phase.clone())
    }

    /// The status of one container.
    pub(crate) fn container(&self, pod: &str, name: &str) -> Option<ContainerStatus> {
        let status = self.status(pod)?;
        [&status.init_container_statuses, &status.container_statuses]
            .into_iter()
            .flatten()
            .flatten()
            .find(|c| c.name == name)
            .cloned()
    }

    pub(crate) fn restarts(&self, pod: &str, name: &str) -> Option<i32> {
        self.container(pod, name).map(|c| c.restart_count)
    }

    /// Why a container waits, if it does.
    pub(crate) fn waits_for(&self, pod: &str, name: &str) -> Option<String> {
        self.container(pod, name)?.state?.waiting?.reason
    }

    pub(crate) async fn running(&self, pod: &str) {
        self.until("running", |node| node.phase(pod).as_deref() == Some("Running"))
            .await;
    }

    /// Waits, in simulated time, until a condition holds.
    pub(crate) async fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        for _ in 0..40_000 {
            if holds(self) {
                return;
            }
            assert!(!self.task.is_empty());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "never: {what}; events: {:?}; health: {:?}",
            self.events.reasons(),
            self.handle.health()
        );
    }
}
