//! The builder: parts in, a kubelet out.

mod assemble;
mod error;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::admission::{AdmitHandler, NodeFit, NodeSettings, NodeView};
use crate::allocator::ResourceAllocator;
use crate::cgroups::PodCgroups;
use crate::clock::{Clock, RandomSource, SeededRandom, SystemClock};
use crate::containers::Containers;
use crate::dns::ClusterDns;
use crate::event::{EventSink, TracingEvents};
use crate::http::HttpClient;
use crate::image_gc::ImageGcPolicy;
use crate::images::{CredentialProvider, ImageVerification};
use crate::kubelet::OnStop;
use crate::logs::LogRotation;
use crate::metrics::MetricSource;
use crate::objects::ObjectSource;
use crate::probes::Prober;
use crate::runnable::Runnable;
use crate::settings::{ResourceSettings, Settings, UserNamespaceSettings};
use crate::source::PodSource;
use crate::state_dir::StateDir;
use crate::stats::StatsProvider;
use crate::status::StatusSink;
use crate::tokens::TokenSource;
use crate::volumes::VolumeManager;
use crate::whole_pods::WholePods;

pub use error::BuildError;

/// What runs the pods of a node: [`Containers`] or [`WholePods`].
#[derive(Clone, Debug)]
#[must_use = "hand it to Kubelet::builder"]
pub struct Backend(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Containers(Containers),
    WholePods(WholePods),
}

impl From<Containers> for Backend {
    fn from(containers: Containers) -> Self {
        Self(Kind::Containers(containers))
    }
}

impl From<WholePods> for Backend {
    fn from(pods: WholePods) -> Self {
        Self(Kind::WholePods(pods))
    }
}

/// Where the state of a node is kept.
#[derive(Clone, Debug)]
enum Place {
    Disk { root: PathBuf, pod_logs: PathBuf },
    Memory(StateDir),
}

/// Puts a kubelet together. Setters take parts in and cannot fail; [`KubeletBuilder::build`] checks all.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct KubeletBuilder {
    node_name: String,
    backend: Backend,
    sources: Vec<Arc<dyn PodSource>>,
    admit: Vec<Arc<dyn AdmitHandler>>,
    fit: NodeFit,
    node: NodeSettings,
    node_view: Option<NodeView>,
    objects: Option<Arc<dyn ObjectSource>>,
    image_credentials: Vec<Arc<dyn CredentialProvider>>,
    tokens: Option<Arc<dyn TokenSource>>,
    image_verification: ImageVerification,
    status_sinks: Vec<Arc<dyn StatusSink>>,
    events: Arc<dyn EventSink>,
    parts: Vec<Arc<dyn Runnable>>,
    metric_sources: Vec<Arc<dyn MetricSource>>,
    stats: Vec<Arc<dyn StatsProvider>>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn RandomSource>,
    place: Place,
    cluster_dns: ClusterDns,
    resolv_conf: Option<PathBuf>,
    seccomp_default: bool,
    allowed_unsafe_sysctls: Vec<String>,
    resources: ResourceSettings,
    user_namespaces: UserNamespaceSettings,
    allocator: Option<Arc<dyn ResourceAllocator>>,
    prober: Option<Arc<dyn Prober>>,
    cgroups: Option<Arc<dyn PodCgroups>>,
    volumes: Option<Arc<dyn VolumeManager>>,
    http_client: Option<Arc<dyn HttpClient>>,
    settings: Settings,
    log_rotation: LogRotation,
    /// What was said of the links to logs.
    container_logs: Option<Option<PathBuf>>,
    image_gc: ImageGcPolicy,
    on_stop: OnStop,
}

impl KubeletBuilder {
    pub(crate) fn new(node_name: String, backend: Backend) -> Self {
        Self {
            node_name,
            backend,
            sources: Vec::new(),
            admit: Vec::new(),
            fit: NodeFit::default(),
            node: NodeSettings::default(),
            node_view: None,
            objects: None,
            image_credentials: Vec::new(),
            tokens: None,
            image_verification: ImageVerification::default(),
            status_sinks: Vec::new(),
            events: Arc::new(TracingEvents),
            parts: Vec::new(),
            metric_sources: Vec::new(),
            stats: Vec::new(),
            clock: Arc::new(SystemClock),
            random: Arc::new(SeededRandom::from_process()),
            place: Place::Disk {
                root: PathBuf::from("/var/lib/kubelet"),
                pod_logs: PathBuf::from("/var/log/pods"),
            },
            cluster_dns: ClusterDns::default(),
            resolv_conf: Some(PathBuf::from("/etc/resolv.conf")),
            seccomp_default: false,
            allowed_unsafe_sysctls: Vec::new(),
            resources: ResourceSettings::default(),
            user_namespaces: UserNamespaceSettings::default(),
            allocator: None,
            prober: None,
            cgroups: None,
            volumes: None,
            http_client: None,
            settings: Settings::default(),
            log_rotation: LogRotation::default(),
            container_logs: None,
            image_gc: ImageGcPolicy::default(),
            on_stop: OnStop::LeavePods,
        }
    }

    /// Adds a source of pods. Repeatable.
    pub fn source(mut self, source: impl PodSource) -> Self {
        self.sources.push(Arc::new(source));
        self
    }

    /// Who carries out HTTP, TCP and gRPC probes; without one, pods that have such are refused. Commands as probes need none.
    pub fn prober(mut self, prober: impl Prober) -> Self {
        self.prober = Some(Arc::new(prober));
        self
    }

    /// Who sends the requests of HTTP hooks; without one, pods that have such are refused. Other hooks need none, and sources and
    /// probers have clients of their own.
    pub fn http_client(mut self, client: impl HttpClient) -> Self {
        self.http_client = Some(Arc::new(client));
        self
    }

    /// Adds an admission handler. Repeatable; they are asked in the order added, after the check for absent parts and
    /// before the node's own fit.
    pub fn admit(mut self, handler: impl AdmitHandler) -> Self {
        self.admit.push(Arc::new(handler));
        self
    }

    /// Replaces the settings of the built-in node fit.
    pub fn fit(mut self, fit: NodeFit) -> Self {
        self.fit = fit;
        self
    }

    /// What the node is and keeps for itself. Its capacity is read from the machine when the kubelet runs.
    pub fn node(mut self, node: NodeSettings) -> Self {
        self.node = node;
        self
    }

    /// The node as a whole, where it is not this machine: nothing is read from the machine then.
    pub fn node_view(mut self, view: NodeView) -> Self {
        self.node_view = Some(view);
        self
    }

    /// Where secrets, config maps, services, service accounts and runtime classes are read.
    pub fn objects(mut self, objects: impl ObjectSource) -> Self {
        self.objects = Some(Arc::new(objects));
        self
    }

    /// Adds credentials of the node for registries, which every pod may use. Repeatable; they are tried in the order added,
    /// after the pull secrets of the pod. Whole-pod backends look after their own.
    pub fn image_credentials(mut self, provider: impl CredentialProvider) -> Self {
        self.image_credentials.push(Arc::new(provider));
        self
    }

    /// Where tokens of service accounts are had, for those who show them on behalf of pods: credential provider plugins.
    pub fn tokens(mut self, tokens: impl TokenSource) -> Self {
        self.tokens = Some(Arc::new(tokens));
        self
    }

    /// Which images that are present a pod may use only if it could have pulled them. Default: those that this kubelet has
    /// pulled.
    pub fn image_verification(mut self, policy: ImageVerification) -> Self {
        self.image_verification = policy;
        self
    }

    /// Adds somebody who is told statuses. Repeatable.
    pub fn status_sink(mut self, sink: impl StatusSink) -> Self {
        self.status_sinks.push(Arc::new(sink));
        self
    }

    /// Who is told events, instead of the process's tracing subscriber.
    pub fn events(mut self, sink: impl EventSink) -> Self {
        self.events = Arc::new(sink);
        self
    }

    /// Adds a part with work of its own. Repeatable; they start in the order added within their phase.
    pub fn run(mut self, part: impl Runnable) -> Self {
        self.parts.push(Arc::new(part));
        self
    }

    /// Adds a source of what pods use. Repeatable: what a later one knows takes the place of what an earlier one does.
    ///
    /// Where there is one, a memory limit of a pod that runs is lowered only if what is used is known and less than the new limit.
    pub fn stats(mut self, provider: impl StatsProvider) -> Self {
        self.stats.push(Arc::new(provider));
        self
    }

    /// Adds somebody's numbers to the kubelet's metrics. Repeatable.
    pub fn metrics(mut self, source: impl MetricSource) -> Self {
        self.metric_sources.push(Arc::new(source));
        self
    }

    /// Where the wall time comes from. Default: the machine.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Where random choices come from. Default: seeded by the process.
    pub fn random(mut self, random: impl RandomSource) -> Self {
        self.random = Arc::new(random);
        self
    }

    /// Where the node keeps its state and the folders of pods. Default: `/var/lib/kubelet`.
    pub fn root_dir(mut self, path: impl Into<PathBuf>) -> Self {
        let pod_logs = match self.place {
            Place::Disk { pod_logs, .. } => pod_logs,
            Place::Memory(_) => PathBuf::from("/var/log/pods"),
        };
        self.place = Place::Disk {
            root: path.into(),
            pod_logs,
        };
        self
    }

    /// Where the logs of pods are. Default: `/var/log/pods`.
    pub fn pod_logs_dir(mut self, path: impl Into<PathBuf>) -> Self {
        let root = match self.place {
            Place::Disk { root, .. } => root,
            Place::Memory(_) => PathBuf::from("/var/lib/kubelet"),
        };
        self.place = Place::Disk {
            root,
            pod_logs: path.into(),
        };
        self
    }

    /// Where there is a link to the log of each container, for collectors of logs; nothing: nowhere. Default: a folder
    /// `containers` beside [`pod_logs_dir`](Self::pod_logs_dir), if that is called `pods`, as `/var/log/containers`.
    pub fn container_logs_dir(mut self, path: Option<PathBuf>) -> Self {
        self.container_logs = Some(path);
        self
    }

    /// Keeps the state there, and no files of pods at all: for backends that need none, and for simulations.
    pub fn state_only(mut self, state: StateDir) -> Self {
        self.place = Place::Memory(state);
        self
    }

    /// The cluster's DNS domain, such as `cluster.local`. Default: none.
    pub fn cluster_domain(mut self, domain: impl Into<String>) -> Self {
        self.cluster_dns.domain = domain.into();
        self
    }

    /// The cluster's DNS servers. Default: none, so that pods ask those of the host, and a warning says so where a pod
    /// wants the cluster's.
    pub fn cluster_dns(mut self, servers: impl IntoIterator<Item = IpAddr>) -> Self {
        self.cluster_dns.servers = servers.into_iter().collect();
        self
    }

    /// The file that says what the host's resolver is told, and pods that share it. None: such pods ask the node itself.
    /// Default: `/etc/resolv.conf`.
    pub fn resolv_conf(mut self, file: Option<PathBuf>) -> Self {
        self.resolv_conf = file;
        self
    }

    /// Whether containers without a seccomp profile get the runtime's own. Default: no, they are unconfined.
    pub fn seccomp_default(mut self, applies: bool) -> Self {
        self.seccomp_default = applies;
        self
    }

    /// Which kernel settings pods may change beyond those that are safe: names, or beginnings of names and `*`, such as
    /// `net.*`. They must be of namespaces that a pod has to itself. Default: none.
    pub fn allowed_unsafe_sysctls(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed_unsafe_sysctls = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// How the limits of containers become those of the kernel.
    pub fn resources(mut self, settings: ResourceSettings) -> Self {
        self.resources = settings;
        self
    }

    /// Which users of the host pods have that have users of their own.
    pub fn user_namespaces(mut self, settings: UserNamespaceSettings) -> Self {
        self.user_namespaces = settings;
        self
    }

    /// Who gives devices, processors and memory nodes to containers. Default: nobody.
    pub fn allocator(mut self, allocator: impl ResourceAllocator) -> Self {
        self.allocator = Some(Arc::new(allocator));
        self
    }

    /// Who makes the volumes of pods. Default: nobody; pods with volumes that are not images are refused.
    pub fn volumes(mut self, volumes: impl VolumeManager) -> Self {
        self.volumes = Some(Arc::new(volumes));
        self
    }

    /// Who makes the cgroups of pods, so that limits hold for each pod as a whole and for all pods together. Default: nobody;
    /// the runtime then puts its containers where it likes. Whole-pod backends look after their own.
    pub fn cgroups(mut self, cgroups: impl PodCgroups) -> Self {
        self.cgroups = Some(Arc::new(cgroups));
        self
    }

    /// Numbers.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// When the logs of containers are rotated, and how much of them is kept. Default: at 10 MiB, five files of each
    /// container. Whole-pod backends look after their own logs, and so does whoever uses
    /// [`state_only`](Self::state_only).
    pub fn log_rotation(mut self, rotation: LogRotation) -> Self {
        self.log_rotation = rotation;
        self
    }

    /// When unused images are removed. Default: as kubelet 1.36, from 85 % of the disk in use on.
    pub fn image_gc(mut self, policy: ImageGcPolicy) -> Self {
        self.image_gc = policy;
        self
    }

    /// What becomes of the pods when the kubelet stops. Default: they go on.
    pub fn on_stop(mut self, on_stop: OnStop) -> Self {
        self.on_stop = on_stop;
        self
    }
}
