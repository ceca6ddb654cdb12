//! Pods as containers of a runtime: the [`PodSyncer`](crate::PodSyncer) of nodes that run their pods themselves.

mod calls;
mod cgroups;
mod config;
mod dead;
mod finish;
mod grace;
mod ground;
mod hooks;
mod image_volumes;
mod images;
mod kill;
mod links;
mod memory;
mod permits;
mod resize;
mod resolver;
mod resources;
mod runtime_class;
mod security;
mod start;
mod start_error;
mod sync;
mod user_namespaces;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::admission::{Ledger, NO_STRICT_GROUPS, PART_MISSING};
use crate::allocator::{ContainerResources, ResourceAllocator};
use crate::clock::{Clock, RandomSource};
use crate::error::BoxError;
use crate::files::NodeFiles;
use crate::http::HttpClient;
use crate::ids::PodUid;
use crate::images::{ImageManager, ImageParts};
use crate::logs::LogPaths;
use crate::objects::ObjectSource;
use crate::pleg::PodLifecycleEventGenerator;
use crate::probes::ProbeManager;
use crate::runtime::{ContainerRuntime, ImageMounts, NETWORK_READY, RUNTIME_READY, RuntimeHandler, RuntimeParts};
use crate::settings::Settings;
use crate::stats::StatsLayers;
use crate::syncer::{AcquireError, BackendStatus, Doomed, PodSyncer, PodWork, Remains, StepContext, SyncError, Synced};
use crate::volumes::VolumeManager;
pub(crate) use cgroups::CgroupKeeper;
pub(crate) use resize::note_all_resized;
pub(crate) use resolver::NodeDns;
pub(crate) use resources::{CgroupFacts, ResourceRules};
pub(crate) use security::SecurityDefaults;
pub(crate) use user_namespaces::UserNamespaces;

use dead::DeadOnNode;
use links::ClearingTurns;
use memory::PodMemory;
use permits::StartPermits;
use volumes::Stays;

/// Runs pods as containers: over a runtime, its images, and a generator that looks at it.
///
/// Handed to [`Kubelet::builder`](crate::Kubelet::builder).
#[derive(Clone, Debug)]
#[must_use = "hand it to Kubelet::builder"]
pub struct Containers {
    pub(crate) parts: RuntimeParts,
    pub(crate) generator: Arc<dyn PodLifecycleEventGenerator>,
}

impl Containers {
    /// Runs pods over a runtime, with a generator that looks at it.
    pub fn new(parts: impl Into<RuntimeParts>, generator: impl PodLifecycleEventGenerator) -> Self {
        Self {
            parts: parts.into(),
            generator: Arc::new(generator),
        }
    }
}

/// What [`Containers`] needs of the node that it works for.
#[derive(Debug)]
pub(crate) struct NodeParts {
    pub(crate) node_name: Arc<str>,
    pub(crate) root_dir: PathBuf,
    pub(crate) files: NodeFiles,
    pub(crate) logs: LogPaths,
    pub(crate) dns: NodeDns,
    pub(crate) security: SecurityDefaults,
    pub(crate) resources: ResourceRules,
    pub(crate) users: UserNamespaces,
    pub(crate) allocator: Option<Arc<dyn ResourceAllocator>>,
    /// Nothing where pods have no cgroups of their own.
    pub(crate) cgroups: Option<Arc<CgroupKeeper>>,
    /// Nothing where there are no volumes but images.
    pub(crate) volumes: Option<Arc<dyn VolumeManager>>,
    pub(crate) http_client: Option<Arc<dyn HttpClient>>,
    pub(crate) objects: Option<Arc<dyn ObjectSource>>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) stats: Arc<StatsLayers>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn RandomSource>,
    pub(crate) settings: Settings,
}

/// What a runtime can do beyond the ordinary.
#[derive(Debug, Default)]
struct RuntimeAbilities {
    handlers: Vec<RuntimeHandler>,
    strict_groups: bool,
    image_mounts: ImageMounts,
    /// Whether containers have no cgroups but those that are made for them.
    lacks_container_cgroups: bool,
}

/// The syncer of one running kubelet.
#[derive(Debug)]
pub(crate) struct ContainerSyncer {
    runtime: Arc<dyn ContainerRuntime>,
    images: ImageManager,
    probes: Arc<ProbeManager>,
    node: NodeParts,
    /// What is remembered of each pod, for as long as it is on the node.
    memory: Mutex<BTreeMap<PodUid, Arc<Mutex<PodMemory>>>>,
    network_not_ready: Mutex<Option<String>>,
    /// What the runtime can do, as it last said when it was ready.
    abilities: Mutex<RuntimeAbilities>,
    calls: AtomicU64,
    permits: StartPermits,
    clearing: ClearingTurns,
    dead: DeadOnNode,
    stays: Stays,
}

impl ContainerSyncer {
    pub(crate) fn new(parts: &RuntimeParts, images: ImageParts, probes: Arc<ProbeManager>, node: NodeParts) -> Self {
        let images = ImageManager::new(parts.images.clone(), node.objects.clone(), images, &node.settings);
        let permits = StartPermits::new(node.settings.start_limits.clone());
        Self {
            runtime: parts.runtime.clone(),
            images,
            probes,
            node,
            memory: Mutex::new(BTreeMap::new()),
            network_not_ready: Mutex::new(None),
            abilities: Mutex::default(),
            calls: AtomicU64::new(0),
            permits,
            clearing: ClearingTurns::default(),
            dead: DeadOnNode::default(),
            stays: Stays::default(),
        }
    }

    fn memory_of(&self, uid: &PodUid) -> Arc<Mutex<PodMemory>> {
        self.memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(uid.clone())
            .or_insert_with(|| Arc::new(Mutex::new(PodMemory::new(&self.node.settings))))
            .clone()
    }

    /// What a container was given beside what its spec says.
    fn given(&self, uid: &PodUid, container: &str) -> ContainerResources {
        let allocator = self.node.allocator.as_ref();
        allocator.map(|all| all.container(uid, container)).unwrap_or_default()
    }

    fn pods_dir(&self) -> PathBuf {
        self.node.root_dir.join("pods")
    }

    fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods_dir().join(uid.as_str())
    }
}

#[async_trait]
impl PodSyncer for ContainerSyncer {
    async fn acquire(&self, _cx: &StepContext, work: &PodWork) -> Result<(), AcquireError> {
        let (has_strict_groups, image_mounts) = {
            let abilities = lock(&self.abilities);
            (abilities.strict_groups, abilities.image_mounts)
        };
        let is_known = self.node.ledger.node().supplemental_groups_policy.is_some();
        if !is_known && !has_strict_groups && security::only_given_groups(&work.pod) {
            let (reason, message) = NO_STRICT_GROUPS;
            return Err(AcquireError::Refused {
                reason: reason.to_owned(),
                message: message.to_owned(),
            });
        }
        let manager = self.node.volumes.as_ref();
        let lack = image_volumes::lack_of_image_mounts(&work.pod, image_mounts)
            .or_else(|| manager.and_then(|manager| manager.lacks(&work.pod)));
        match lack {
            None => Ok(()),
            Some(message) => Err(AcquireError::Refused {
                reason: PART_MISSING.to_owned(),
                message,
            }),
        }
    }

    async fn sync(&self, cx: &StepContext, work: &PodWork) -> Result<Synced, SyncError> {
        self.sync_pod(cx, work).await
    }

    async fn terminate(&self, cx: &StepContext, pod: Doomed<'_>) -> Result<(), SyncError> {
        self.terminate_pod(cx, pod).await
    }

    async fn finish(&self, cx: &StepContext, pod: Doomed<'_>, remains: Remains) -> Result<(), SyncError> {
        self.finish_pod(cx, pod, remains).await
    }

    /// Folders of logs alone tell nothing: several agents may share the place for logs.
    async fn left_behind(&self) -> Vec<PodUid> {
        self.clear_links().await;
        let mut uids = match self.node.files.pods_with_folders(self.pods_dir()).await {
            Ok(uids) => uids,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "folders of pods cannot be listed"
                );
                Vec::new()
            }
        };
        if let Some(keeper) = &self.node.cgroups {
            uids.extend(keeper.list().await);
        }
        uids
    }

    async fn left_behind_unseen(&self) -> Vec<PodUid> {
        match &self.node.cgroups {
            Some(keeper) => keeper.list_missed().await,
            None => Vec::new(),
        }
    }

    async fn sweep(&self, pods: &[PodUid], stop: &CancellationToken) -> Vec<PodUid> {
        // First: what still runs may use what is removed next.
        if let Some(keeper) = &self.node.cgroups {
            keeper.sweep(pods).await;
        }
        let mounted = self.unmount_leftovers(pods, stop).await;
        // Their folders are what tells the next life of them.
        let pods: Vec<PodUid> = pods.iter().filter(|uid| !mounted.contains(uid)).cloned().collect();
        let logs = self.node.logs.root().to_owned();
        let stay = self.node.files.sweep(self.pods_dir(), logs, pods.clone()).await;
        for (uid, why) in &stay {
            let error: &dyn std::error::Error = why;
            tracing::warn!(pod_uid = %uid, error, "the folders of a pod that nobody wishes for stay");
        }
        for uid in pods.iter().filter(|uid| stay.iter().all(|(stays, _)| stays != *uid)) {
            // Its file is gone: what is left to do cannot fail.
            let _ = self.node.users.release(uid).await;
        }
        self.clear_links().await;
        mounted
    }

    fn forget(&self, uid: &PodUid) {
        self.dead.forget(uid);
        self.probes.forget(uid);
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    async fn check(&self) -> Result<BackendStatus, BoxError> {
        let info = self.runtime.info().await?;
        let mut status = BackendStatus::ready(info.name.clone(), info.version.clone());
        status.not_ready = info
            .unmet(RUNTIME_READY)
            .map(|why| format!("runtime is not ready: {why}"));
        status.network_not_ready = info.unmet(NETWORK_READY);
        status.survives_restart = info.survives_restart;
        status.updates_resources = info.updates_resources;
        if let Some(keeper) = &self.node.cgroups {
            keeper.runtime_answered(info.cgroup_driver).await;
        }
        if status.not_ready.is_none() {
            *lock(&self.abilities) = RuntimeAbilities {
                handlers: info.handlers,
                strict_groups: info.supplemental_groups_policy,
                image_mounts: info.image_mounts,
                lacks_container_cgroups: !info.makes_container_cgroups,
            };
        }
        *self.network_not_ready.lock().unwrap_or_else(PoisonError::into_inner) = status.network_not_ready.clone();
        Ok(status)
    }

    fn down_after(&self) -> Duration {
        Duration::from_secs(30)
    }
}

// A panic while the lock is held leaves plain data in a readable state.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
