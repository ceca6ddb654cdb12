//! A node over the fake runtime.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_core::{
    CancellationToken, ChannelHandle, ChannelSource, Containers, Event, EventSink, Kubelet, KubeletBuilder,
    KubeletHandle, NodeView, PodUid, Published, Quantity, RunError, StateDir, StatusChange, StatusSink, StatusUpdate,
    StopReport, async_trait,
};
use kubelet_pleg::{GenericPleg, GenericPlegSettings};
use kubelet_testing::{FakeRuntime, Op};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The calls that an idle node may make.
const READS: [Op; 3] = [Op::ListSandboxes, Op::ListContainers, Op::Info];

/// Drops events.
#[derive(Debug)]
pub(crate) struct Unheard;

impl EventSink for Unheard {
    fn record(&self, _event: Event) {}
}

/// Counts what it is told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes(Arc<AtomicU64>);

impl Writes {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl StatusSink for Writes {
    async fn publish(&self, _update: &StatusUpdate) -> Published {
        self.0.fetch_add(1, Ordering::Relaxed);
        Published::Accepted
    }

    async fn forget(&self, _uid: &PodUid) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A kubelet that runs, and what is around it.
pub(crate) struct Node {
    pub(crate) handle: KubeletHandle,
    pub(crate) pods: ChannelHandle,
    pub(crate) writes: Writes,
    pub(crate) fake: FakeRuntime,
    /// When the fake's time began.
    pub(crate) made: Instant,
    task: JoinSet<Result<StopReport, RunError>>,
    _state: tempfile::TempDir,
}

/// A fake with every image, which keeps so many calls.
pub(crate) fn fake(calls: usize) -> FakeRuntime {
    FakeRuntime::builder().all_images_present().call_limit(calls).build()
}

impl Node {
    /// Starts one that relists every `period`. To be called inside a runtime.
    pub(crate) fn start(period: Duration) -> Self {
        Self::start_with(period, |builder| builder)
    }

    /// The same, with more parts.
    pub(crate) fn start_with(period: Duration, shape: impl FnOnce(KubeletBuilder) -> KubeletBuilder) -> Self {
        let made = Instant::now();
        let fake = fake(64);
        let mut relists = GenericPlegSettings::default();
        relists.period = period;
        let (pods, source) = ChannelSource::new("api");
        let writes = Writes::default();
        // On disk as on a node: what is remembered of pods is no memory of the kubelet.
        let state = tempfile::tempdir().expect("a folder");
        let builder = Kubelet::builder("node-1", Containers::new(fake.clone(), GenericPleg::new(relists)))
            .source(source)
            .node_view(view())
            .events(Unheard)
            .status_sink(writes.clone())
            .state_only(StateDir::on_disk(state.path()));
        let kubelet = shape(builder).build().expect("all parts are there");
        let handle = kubelet.handle();
        let mut task = JoinSet::new();
        task.spawn(kubelet.run(CancellationToken::new()));
        Self {
            handle,
            pods,
            writes,
            fake,
            made,
            task,
            _state: state,
        }
    }

    /// Starts one with pods, and waits until all run.
    pub(crate) async fn with(period: Duration, pods: Vec<Pod>) -> Self {
        let node = Self::start(period);
        let count = pods.len();
        node.pods.set(pods).await.expect("the kubelet runs");
        node.until_running(count).await;
        node
    }

    pub(crate) async fn until_running(&self, count: usize) {
        let mut reader = self.handle.statuses();
        let mut running = BTreeSet::new();
        while running.len() < count {
            match reader.next().await {
                Some(StatusChange::Updated(update)) if all_run(&update.status) => {
                    running.insert(update.pod.uid().clone());
                }
                Some(_) => {}
                None => panic!("the kubelet ended early"),
            }
        }
    }

    /// How many calls there were that change something or look at single pods.
    pub(crate) fn calls_but_relists(&self) -> u64 {
        ALL_OPS
            .into_iter()
            .filter(|op| !READS.contains(op))
            .map(|op| self.fake.count(op))
            .sum()
    }

    /// Drops the kubelet, as a crash does, and gives back what its fake holds.
    pub(crate) async fn kill(mut self) -> FakeRuntime {
        let Self { fake, task, .. } = &mut self;
        let fake = fake.clone();
        task.shutdown().await;
        drop(self);
        // Tasks of tasks are aborted too, and dropped when the runtime comes by.
        tokio::time::sleep(Duration::from_millis(50)).await;
        fake
    }
}

const ALL_OPS: [Op; 17] = [
    Op::ListSandboxes,
    Op::ListContainers,
    Op::SandboxStatus,
    Op::ContainerStatus,
    Op::RunSandbox,
    Op::StopSandbox,
    Op::RemoveSandbox,
    Op::CreateContainer,
    Op::StartContainer,
    Op::StopContainer,
    Op::RemoveContainer,
    Op::Exec,
    Op::UpdateResources,
    Op::UpdateSandbox,
    Op::ImageStatus,
    Op::ListImages,
    Op::Pull,
];

pub(crate) fn all_run(status: &PodStatus) -> bool {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    status.phase.as_deref() == Some("Running")
        && containers
            .iter()
            .all(|c| c.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// A node that has room for everything.
pub(crate) fn view() -> NodeView {
    let mut view = NodeView::new("node-1");
    for (name, amount) in [
        ("cpu", "100k"),
        ("memory", "1Pi"),
        ("pods", "100k"),
        ("ephemeral-storage", "1Pi"),
    ] {
        let amount: Quantity = amount.parse().expect("an amount");
        view.capacity.insert(name.to_owned(), amount.clone());
        view.allocatable.insert(name.to_owned(), amount);
    }
    view.addresses = vec!["192.0.2.7".parse().expect("an address")];
    view
}
