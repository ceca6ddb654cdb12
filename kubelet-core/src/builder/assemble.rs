//! Checks what was given to the builder, and puts it together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{BuildError, Kind, KubeletBuilder, Place};
use crate::admission::{Abilities, AbsentParts, AdmitHandler, Ledger, NodeView, Sysctls, kernel_version};
use crate::cache::{pod_status_cache, relist_requests};
use crate::config::PodConfig;
use crate::containers::{
    CgroupFacts, CgroupKeeper, ContainerSyncer, NodeDns, NodeParts, ResourceRules, SecurityDefaults, UserNamespaces,
};
use crate::engine::{Checkpoints, EngineMetrics, LogRotator, NameLocks, PartHealth, Shared, gate};
use crate::files::NodeFiles;
use crate::handle::{HandleParts, KubeletHandle};
use crate::image_gc::ImageCollector;
use crate::images::{ImageParts, PullRecords};
use crate::kubelet::{Kubelet, Observer, RunParts};
use crate::logs::{LogPaths, default_links_dir};
use crate::objects::{ObjectKind, ObjectSource};
use crate::pleg::PlegHealth;
use crate::probes::{ProbeManager, ProbeParts};
use crate::runnable::NodeContext;
use crate::settings::SwapBehavior;
use crate::signals::pod_signals;
use crate::source::PodSource;
use crate::state_dir::StateDir;
use crate::stats::StatsLayers;
use crate::status::{StatusManager, StatusSettings};
use crate::syncer::PodSyncer;
use crate::validation::ApiReference;
use crate::volumes::{NodeViews, VolumeContext, VolumeWork};
use crate::whole_pods::WholePodSyncer;

impl KubeletBuilder {
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
        self.check_tokens()?;
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

    /// Whether providers of credentials that show tokens have where to get them.
    fn check_tokens(&self) -> Result<(), BuildError> {
        let is_asked = matches!(self.backend.0, Kind::Containers(_));
        let mut asking = self
            .image_credentials
            .iter()
            .filter(|one| is_asked && one.needs_tokens());
        let Some(provider) = asking.next() else {
            return Ok(());
        };
        let serves = |objects: &Arc<dyn ObjectSource>| objects.serves(ObjectKind::ServiceAccount);
        let needs = if self.tokens.is_none() {
            "a source of service account tokens: add one with KubeletBuilder::tokens"
        } else if !self.objects.as_ref().is_some_and(serves) {
            "an object source that serves service accounts: add one with KubeletBuilder::objects"
        } else {
            return Ok(());
        };
        let part = provider.name().to_owned();
        Err(BuildError::PartMissing { part, needs })
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
        let stats = Arc::new(StatsLayers::new(
            self.stats.clone(),
            self.settings.runtime_request_timeout,
        ));
        // Upstream's own folder, so that what it has pulled is known here too.
        let (records, folder) = match &self.place {
            Place::Disk { root, .. } => (StateDir::on_disk(root.join("image_manager")), ""),
            Place::Memory(state) => (state.clone(), "image_manager/"),
        };
        let records = Arc::new(PullRecords::new(records, folder, self.clock.clone()));
        let runs_containers = matches!(self.backend.0, Kind::Containers(_));
        let keeper = self.cgroups.clone().filter(|_| runs_containers).map(|cgroups| {
            let owner = format!("{node_name}:{}", root_dir.display());
            Arc::new(CgroupKeeper::new(
                cgroups,
                (self.node.clone(), owner),
                self.resources.cgroup_driver,
                ledger.clone(),
                self.events.clone(),
            ))
        });
        let volumes = self.volumes.clone().filter(|_| runs_containers);
        if let Some(volumes) = &volumes {
            let node = ledger.clone();
            volumes.open(VolumeContext {
                node: NodeViews::new(move || node.node()),
                root_dir: root_dir.clone(),
                objects: self.objects.clone(),
                tokens: self.tokens.clone(),
                events: self.events.clone(),
                clock: self.clock.clone(),
                random: self.random.clone(),
            });
            self.parts
                .push(Arc::new(VolumeWork::new(volumes.clone(), signals.clone())));
        }
        let images = match &self.backend.0 {
            Kind::Containers(containers) => Some(containers.parts.images.clone()),
            Kind::WholePods(_) => None,
        };
        let (syncer, observer, runtime, generator, probes): (Arc<dyn PodSyncer>, _, _, _, _) = match &self.backend.0 {
            Kind::Containers(containers) => {
                let images = ImageParts {
                    credentials: self.image_credentials.clone(),
                    tokens: self.tokens.clone(),
                    verification: self.image_verification.clone(),
                    records: records.clone(),
                };
                let node = NodeParts {
                    node_name: node_name.clone(),
                    security: SecurityDefaults::new(self.seccomp_default, &root_dir),
                    resources: self.resource_rules()?,
                    users: UserNamespaces::new(self.user_namespaces.clone(), files, root_dir.join("pods")),
                    allocator: self.allocator.clone(),
                    cgroups: keeper.clone(),
                    volumes: volumes.clone(),
                    http_client: self.http_client.clone(),
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
                    stats: stats.clone(),
                    clock: self.clock.clone(),
                    random: self.random.clone(),
                    settings: self.settings.clone(),
                };
                let runtime = containers.parts.runtime.clone();
                let generator = containers.generator.clone();
                let probes = Arc::new(ProbeManager::new(ProbeParts {
                    runtime: runtime.clone(),
                    prober: self.prober.clone(),
                    signals: signals.clone(),
                    events: self.events.clone(),
                    clock: self.clock.clone(),
                    random: self.random.clone(),
                    parallel: self.settings.parallel_probes,
                }));
                (
                    Arc::new(ContainerSyncer::new(&containers.parts, images, probes.clone(), node)),
                    Observer::Generator {
                        generator: generator.clone(),
                        runtime: runtime.clone(),
                    },
                    Some(runtime),
                    Some(generator),
                    Some(probes),
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
            probes,
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
            stats,
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
                cgroup_keeper: keeper,
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
            abilities.exec_probes = true;
            abilities.volumes = self.volumes.is_some();
            abilities.tokens = self.tokens.is_some();
            abilities.network_probes = self.prober.is_some();
            abilities.http_hooks = self.http_client.is_some();
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
