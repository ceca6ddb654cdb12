//! The builder: parts in, a kubelet out.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::admission::{
    Abilities, AbsentParts, AdmitHandler, Ledger, NodeFit, NodeSettings, NodeView, Sysctls, kernel_version,
};
use crate::allocator::ResourceAllocator;
use crate::cache::{pod_status_cache, relist_requests};
use crate::clock::{Clock, RandomSource, SeededRandom, SystemClock};
use crate::config::PodConfig;
use crate::containers::{
    CgroupFacts, ContainerSyncer, Containers, NodeDns, NodeParts, ResourceRules, SecurityDefaults, UserNamespaces,
};
use crate::dns::ClusterDns;
use crate::engine::{Checkpoints, EngineMetrics, LogRotator, NameLocks, PartHealth, Shared, gate};
use crate::event::{EventSink, TracingEvents};
use crate::files::NodeFiles;
use crate::handle::{HandleParts, KubeletHandle};
use crate::ids::SourceName;
use crate::image_gc::{ImageCollector, ImageGcPolicy};
use crate::images::{CredentialProvider, ImageParts, ImageVerification, PullRecords};
use crate::kubelet::{Kubelet, Observer, OnStop, RunParts};
use crate::logs::{LogPaths, LogRotation, default_links_dir};
use crate::metrics::MetricSource;
use crate::objects::ObjectSource;
use crate::pleg::PlegHealth;
use crate::runnable::{NodeContext, Runnable};
use crate::settings::{ResourceSettings, Settings, SwapBehavior, UserNamespaceSettings};
use crate::signals::pod_signals;
use crate::source::PodSource;
use crate::state_dir::StateDir;
use crate::stats::{StatsLayers, StatsProvider};
use crate::status::{StatusManager, StatusSettings, StatusSink};
use crate::syncer::PodSyncer;
use crate::validation::ApiReference;
use crate::whole_pods::{WholePodSyncer, WholePods};

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

/// Why a kubelet cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no source, so that no pod would ever run.
    #[error("no pod source: add one with KubeletBuilder::source, such as FileSource or ChannelSource")]
    NoSource,
    /// Two sources have one name, and their pods could not be told apart.
    #[error("two pod sources are named {name}")]
    DuplicateSource {
        /// The name.
        name: SourceName,
    },
    /// The node's name cannot be part of pod names.
    #[error("node name {name:?} is not a DNS subdomain: {why}")]
    NodeName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Images could not be collected as asked for.
    #[error("image garbage collection: {field}: {why}")]
    ImageGc {
        /// The field of [`ImageGcPolicy`].
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// An entry of [`ImageVerification::NeverVerifyAllowlistedImages`] is none.
    #[error("image allowlist entry {entry:?}: {why}")]
    ImageAllowlist {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A folder is relative, so that it would change with the working directory.
    #[error("{what} {path} is not an absolute path")]
    RelativePath {
        /// Which folder.
        what: &'static str,
        /// The path.
        path: String,
    },
    /// A setting has a value that cannot be.
    #[error("{what}: {why}")]
    Setting {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
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

    /// Where secrets, config maps, services and runtime classes are read.
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

    fn check(&self) -> Result<(), BuildError> {
        if self.sources.is_empty() {
            return Err(BuildError::NoSource);
        }
        for (index, source) in self.sources.iter().enumerate() {
            if self.sources[..index].iter().any(|other| other.name() == source.name()) {
                return Err(BuildError::DuplicateSource {
                    name: source.name().clone(),
                });
            }
        }
        let faults = crate::validation::NameKind::Subdomain.faults(&self.node_name);
        if let Some(why) = faults.into_iter().next() {
            return Err(BuildError::NodeName {
                name: self.node_name.clone(),
                why,
            });
        }
        if let Some((field, why)) = self.image_gc.fault() {
            return Err(BuildError::ImageGc { field, why });
        }
        if let Err((entry, why)) = self.image_verification.check() {
            return Err(BuildError::ImageAllowlist { entry, why });
        }
        if let Place::Disk { root, pod_logs } = &self.place {
            let links = self
                .container_logs
                .iter()
                .flatten()
                .map(|links| ("directory of links to logs", links));
            for (what, path) in [("root directory", root), ("pod log directory", pod_logs)]
                .into_iter()
                .chain(links)
            {
                if !path.is_absolute() {
                    return Err(BuildError::RelativePath {
                        what,
                        path: path.display().to_string(),
                    });
                }
            }
        }
        let setting = |what, why: String| Err(BuildError::Setting { what, why });
        let period = self.resources.cpu_cfs_quota_period;
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&period) {
            return setting("CPU quota period", format!("{period:?} is not from 1 ms to 1 s"));
        }
        if let Err(why) = self.user_namespaces.check() {
            return setting("user namespaces", why);
        }
        Ok(())
    }

    /// How limits are set on this machine; a simulated node has the cgroups of none.
    fn resource_rules(&self) -> Result<ResourceRules, BuildError> {
        let cgroups = match &self.place {
            Place::Disk { .. } => CgroupFacts::read(Path::new("/")),
            Place::Memory(_) => CgroupFacts::default(),
        };
        if self.resources.swap == SwapBehavior::LimitedSwap && !cgroups.is_v2 {
            return Err(BuildError::Setting {
                what: "swap behavior",
                why: "LimitedSwap needs cgroup v2".to_owned(),
            });
        }
        Ok(ResourceRules {
            settings: self.resources.clone(),
            cgroups,
        })
    }

    /// Which references of static pods a local object source answers.
    fn serves(&self) -> impl Fn(ApiReference) -> bool + Send + Sync + 'static {
        let objects = self.objects.clone().filter(|objects| objects.is_local());
        move |reference| match (&objects, reference.object_kind()) {
            (Some(objects), Some(kind)) => objects.serves(kind),
            _ => false,
        }
    }

    /// Puts the kubelet together. Reads and starts nothing.
    ///
    /// # Errors
    /// [`BuildError`] names what is missing or wrong.
    pub fn build(mut self) -> Result<Kubelet, BuildError> {
        self.check()?;
        if let Kind::WholePods(_) = self.backend.0 {
            // Nobody could be asked.
            self.node.supplemental_groups_policy.get_or_insert(false);
            if let Some(view) = &mut self.node_view {
                view.supplemental_groups_policy.get_or_insert(false);
            }
        }
        let node_name: Arc<str> = self.node_name.as_str().into();
        let (state, files, root_dir, pod_logs) = match &self.place {
            Place::Disk { root, pod_logs } => (
                StateDir::on_disk(root.join("state")),
                NodeFiles::Disk,
                root.clone(),
                pod_logs.clone(),
            ),
            Place::Memory(state) => (
                state.clone(),
                NodeFiles::Nowhere,
                PathBuf::from("/"),
                PathBuf::from("/"),
            ),
        };
        let machine_root = root_dir.clone();
        let folders = match &self.place {
            Place::Disk { root, pod_logs } => Some((Arc::from(root.as_path()), Arc::from(pod_logs.as_path()))),
            Place::Memory(_) => None,
        };
        let (node_root, node_logs) = folders.unzip();
        let (writer, cache) = pod_status_cache();
        let (relist, requests) = relist_requests();
        let (signals, signal_receiver) = pod_signals();
        let (gate_sender, gate) = gate();
        let (commands, command_receiver) = mpsc::channel(64);
        let view = self.node_view.clone().unwrap_or_else(|| NodeView::new(&*node_name));
        let ledger = Arc::new(Ledger::new(self.handlers()?, Arc::new(view)));
        // Upstream's own folder, so that what it has pulled is known here too.
        let (records, folder) = match &self.place {
            Place::Disk { root, .. } => (StateDir::on_disk(root.join("image_manager")), ""),
            Place::Memory(state) => (state.clone(), "image_manager/"),
        };
        let records = Arc::new(PullRecords::new(records, folder, self.clock.clone()));
        let images = match &self.backend.0 {
            Kind::Containers(containers) => Some(containers.parts.images.clone()),
            Kind::WholePods(_) => None,
        };
        let (syncer, observer, runtime, generator): (Arc<dyn PodSyncer>, _, _, _) = match &self.backend.0 {
            Kind::Containers(containers) => {
                let images = ImageParts {
                    credentials: self.image_credentials.clone(),
                    verification: self.image_verification.clone(),
                    records: records.clone(),
                };
                let node = NodeParts {
                    node_name: node_name.clone(),
                    security: SecurityDefaults::new(self.seccomp_default, &root_dir),
                    resources: self.resource_rules()?,
                    users: UserNamespaces::new(self.user_namespaces.clone(), files, root_dir.join("pods")),
                    allocator: self.allocator.clone(),
                    root_dir,
                    files,
                    logs: match self
                        .container_logs
                        .clone()
                        .unwrap_or_else(|| default_links_dir(&pod_logs))
                    {
                        Some(links) => LogPaths::new(pod_logs).with_links(links),
                        None => LogPaths::new(pod_logs),
                    },
                    dns: NodeDns {
                        cluster: self.cluster_dns.clone(),
                        resolv_conf: self.resolv_conf.clone(),
                    },
                    objects: self.objects.clone(),
                    ledger: ledger.clone(),
                    clock: self.clock.clone(),
                    random: self.random.clone(),
                    settings: self.settings.clone(),
                };
                let runtime = containers.parts.runtime.clone();
                let generator = containers.generator.clone();
                (
                    Arc::new(ContainerSyncer::new(&containers.parts, images, node)),
                    Observer::Generator {
                        generator: generator.clone(),
                        runtime: runtime.clone(),
                    },
                    Some(runtime),
                    Some(generator),
                )
            }
            Kind::WholePods(pods) => (
                Arc::new(WholePodSyncer::new(
                    pods.provider.clone(),
                    node_name.clone(),
                    self.objects.clone(),
                    ledger.clone(),
                    self.settings.runtime_request_timeout,
                )),
                Observer::Provider {
                    provider: pods.provider.clone(),
                    poll_period: pods.poll_period,
                },
                None,
                None,
            ),
        };
        let log_rotator = runtime
            .clone()
            .filter(|_| files == NodeFiles::Disk)
            .map(|runtime| LogRotator {
                runtime,
                cache: cache.clone(),
                clock: self.clock.clone(),
                rotation: self.log_rotation.clone(),
                period: self.settings.log_check_period,
                timeout: self.settings.runtime_request_timeout,
            });
        let image_collector = images.map(|images| ImageCollector {
            images,
            policy: self.image_gc.clone(),
            records,
            is_local: files == NodeFiles::Disk,
            metrics: Arc::default(),
        });
        let threshold = generator
            .as_ref()
            .map_or(std::time::Duration::from_secs(180), |generator| {
                generator.health_threshold()
            });
        let pleg_health = PlegHealth::new(threshold);
        let names: Vec<_> = self
            .sources
            .iter()
            .map(|source| (source.name().clone(), source.kind()))
            .collect();
        let config = PodConfig::new(
            node_name.clone(),
            self.clock.clone(),
            state.clone(),
            Arc::new(self.serves()),
            &names,
        );
        let telling = StatusSettings {
            publish_concurrency: self.settings.parallel_publishes,
            ..StatusSettings::default()
        };
        let statuses = StatusManager::new(self.clock.clone(), telling);
        let shared = Arc::new(Shared {
            node_name: node_name.clone(),
            syncer,
            cache,
            relist,

            statuses,
            checkpoints: Checkpoints::new(state),
            files,
            events: self.events.clone(),
            ledger,
            names: NameLocks::default(),
            gate,
            clock: self.clock.clone(),
            random: self.random.clone(),
            settings: self.settings.clone(),
            metrics: EngineMetrics::default(),
            freed: tokio::sync::Notify::new(),
            stopping: std::sync::atomic::AtomicBool::new(false),
            workers: std::sync::Mutex::default(),
        });
        let part_health = PartHealth::default();
        let handle = KubeletHandle::new(HandleParts {
            shared: shared.clone(),
            runtime,
            generator,
            commands,
            pleg_health: pleg_health.clone(),
            part_health: part_health.clone(),
            metric_sources: self.metric_sources,
            stats: StatsLayers::new(self.stats),
            image_gc: image_collector.as_ref().map(|collector| collector.metrics.clone()),
        });
        let node = NodeContext {
            node_name,
            root_dir: node_root,
            pod_logs_dir: node_logs,
            handle: handle.clone(),
            events: self.events,
            clock: self.clock,
            random: self.random,
        };
        let machine = self.node_view.is_none().then_some((self.node, machine_root));
        Ok(Kubelet::new(
            handle,
            RunParts {
                shared,
                config,
                observer,
                log_rotator,
                image_collector,
                sources: self.sources,
                sinks: self.status_sinks,
                parts: self.parts,
                part_health,
                node,
                pleg_health,
                writer,
                requests,
                signals,
                signal_receiver,
                gate: gate_sender,
                commands: command_receiver,
                machine,
                on_stop: self.on_stop,
            },
        ))
    }

    fn handlers(&self) -> Result<Vec<Arc<dyn AdmitHandler>>, BuildError> {
        let mut handlers: Vec<Arc<dyn AdmitHandler>> = Vec::new();
        let runs_containers = matches!(self.backend.0, Kind::Containers(_));
        if runs_containers {
            let mut abilities = Abilities::default();
            if let Some(objects) = &self.objects {
                abilities = abilities.with_source(&**objects);
            }
            handlers.push(Arc::new(AbsentParts::new(abilities)));
        }
        handlers.extend(self.admit.iter().cloned());
        if runs_containers {
            let sysctls = Sysctls::new(&self.allowed_unsafe_sysctls, kernel_version());
            handlers.push(Arc::new(sysctls.map_err(|(pattern, why)| BuildError::Setting {
                what: "allowed unsafe sysctls",
                why: format!("{pattern:?} is {why}"),
            })?));
        }
        handlers.push(Arc::new(self.fit));
        Ok(handlers)
    }
}
