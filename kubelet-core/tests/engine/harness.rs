//! One node in simulated time: an engine over the fake runtime.

#![allow(clippy::unwrap_used, reason = "a helper of tests: a panic is the failure")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::{
    Backend, CancellationToken, ChannelHandle, ChannelSource, Containers, Event, EventSink, Kubelet, KubeletBuilder,
    KubeletHandle, NodeView, PodSnapshot, Quantity, RunError, SeededRandom, StateDir, StopReport, TokioClock,
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

    pub(crate) fn count(&self, reason: &str) -> usize {
        self.reasons().iter().filter(|r| *r == reason).count()
    }
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
