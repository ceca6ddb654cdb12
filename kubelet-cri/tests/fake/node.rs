//! A kubelet over a fake runtime that speaks CRI, in simulated time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kubelet_core::{
    CancellationToken, ChannelHandle, ChannelSource, Containers, Event, EventSink, Kubelet, KubeletBuilder,
    KubeletHandle, NodeView, Quantity, RunError, SourceKind, StateDir, StopReport,
};
use kubelet_cri::{CriRuntime, CriSettings};
use kubelet_pleg::GenericPleg;
use kubelet_testing::{FakeCri, FakeRuntime, PodBuilder};
use tokio::task::JoinSet;
use tracing::field::{Field, Visit};

/// Events, kept for a look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<Event>>>);

impl EventSink for Events {
    fn record(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Events {
    pub(crate) fn count(&self, reason: &str) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|event| event.reason == reason)
            .count()
    }
}

/// The lines that this thread logs at level `WARN` and above, with their fields, while the guard lives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn keep() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// The lines with that text in them.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }

    fn record_error(&mut self, field: &Field, error: &(dyn std::error::Error + 'static)) {
        let mut chain = Some(error);
        while let Some(error) = chain {
            self.0.push_str(&format!("{}={error} ", field.name()));
            chain = error.source();
        }
    }
}

/// What outlives the kubelet: the runtime, and what is on disk.
pub(crate) struct Node {
    pub(crate) cri: FakeCri,
    pub(crate) events: Events,
    pub(crate) settings: CriSettings,
    state: StateDir,
}

/// A kubelet that runs on a node.
pub(crate) struct Agent {
    pub(crate) handle: KubeletHandle,
    pub(crate) pods: ChannelHandle,
    pub(crate) static_pods: ChannelHandle,
    _task: JoinSet<Result<StopReport, RunError>>,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::with(|world| FakeCri::builder(world).without_logs().build())
    }

    pub(crate) fn with(cri: impl FnOnce(FakeRuntime) -> FakeCri) -> Self {
        Self {
            cri: cri(FakeRuntime::builder().all_images_present().build()),
            events: Events::default(),
            settings: CriSettings::default(),
            state: StateDir::in_memory(),
        }
    }

    pub(crate) fn world(&self) -> &FakeRuntime {
        self.cri.runtime()
    }

    /// Starts a kubelet without pods on it.
    pub(crate) async fn start(&self) -> Agent {
        self.start_with(|builder| builder).await
    }

    /// Starts a kubelet of another shape.
    pub(crate) async fn start_with(&self, shape: impl FnOnce(KubeletBuilder) -> KubeletBuilder) -> Agent {
        let channel = self.cri.channel();
        let runtime = CriRuntime::connect_over("fake", channel, self.settings.clone())
            .await
            .unwrap();
        let (pods, source) = ChannelSource::new("api");
        let (static_pods, static_source) = ChannelSource::new("file");
        let builder = Kubelet::builder("node-1", Containers::new(runtime, GenericPleg::default()))
            .source(source)
            .source(static_source.kind(SourceKind::Static))
            .node_view(view())
            .events(self.events.clone())
            .state_only(self.state.clone());
        let kubelet = shape(builder).build().unwrap();
        let handle = kubelet.handle();
        let mut task = JoinSet::new();
        task.spawn(kubelet.run(CancellationToken::new()));
        Agent {
            handle,
            pods,
            static_pods,
            _task: task,
        }
    }

    /// Starts one with these pods, and waits until all run.
    pub(crate) async fn run(&self, pods: Vec<Pod>) -> Agent {
        let agent = self.start().await;
        let names: Vec<String> = pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect();
        agent.pods.set(pods).await.unwrap();
        agent.static_pods.set(Vec::new()).await.unwrap();
        for name in names {
            agent.until_runs(&name).await;
        }
        agent
    }

    /// The ids of the containers that run, by pod and name.
    pub(crate) fn running(&self) -> BTreeMap<String, String> {
        use kubelet_core::{ContainerState, label};
        let all = self.world().containers().into_iter();
        let run = all.filter(|container| container.state == ContainerState::Running);
        run.map(|c| (format!("{}/{}", c.labels[label::POD_NAME], c.name), c.id.to_string()))
            .collect()
    }
}

impl Agent {
    pub(crate) fn statuses(&self) -> BTreeMap<String, PodStatus> {
        let pods = self.handle.pods().into_iter();
        pods.filter_map(|pod| Some((pod.pod.key().name.to_string(), PodStatus::clone(pod.status.as_ref()?))))
            .collect()
    }

    /// Waits, in simulated time, until the statuses of all pods are as they should be.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&BTreeMap<String, PodStatus>) -> bool) {
        let mut changes = self.handle.statuses();
        let wait = async {
            while !is_so(&self.statuses()) {
                changes.next().await.expect("the kubelet runs");
            }
        };
        if tokio::time::timeout(Duration::from_secs(600), wait).await.is_err() {
            panic!("{what}: {:#?}", self.statuses());
        }
    }

    pub(crate) async fn until_runs(&self, pod: &str) {
        self.until(&format!("{pod} runs"), |all| runs(all, pod)).await;
    }
}

pub(crate) fn runs(all: &BTreeMap<String, PodStatus>, pod: &str) -> bool {
    let status = all.get(pod);
    let containers = status
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default();
    status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
        && containers
            .iter()
            .all(|c| c.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// The status of the first container of a pod.
pub(crate) fn first(all: &BTreeMap<String, PodStatus>, pod: &str) -> Option<ContainerStatus> {
    all.get(pod)?.container_statuses.as_ref()?.first().cloned()
}

/// A pod with one container that runs for ever.
pub(crate) fn pod(name: &str) -> Pod {
    builder(name).container("app", |c| c.image("fake/forever")).build()
}

pub(crate) fn builder(name: &str) -> PodBuilder {
    PodBuilder::new(name).uid(format!("uid-of-{name}"))
}

/// A node that has room for everything.
fn view() -> NodeView {
    let mut view = NodeView::new("node-1");
    for (name, amount) in [
        ("cpu", "1k"),
        ("memory", "1Ti"),
        ("pods", "20k"),
        ("ephemeral-storage", "1Ti"),
    ] {
        let amount: Quantity = amount.parse().unwrap();
        view.capacity.insert(name.to_owned(), amount.clone());
        view.allocatable.insert(name.to_owned(), amount);
    }
    view.addresses = vec!["192.0.2.7".parse().unwrap()];
    view
}
