//! The volumes of one agent's pods.

mod claims;
mod containers;
#[cfg(test)]
mod kill_tests;
mod mount;
pub(crate) mod paths;
mod pods;
mod set_up;
#[cfg(test)]
mod tests;
mod unmount;
mod usage;
mod watches;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use kubelet_core::env::Env;
use kubelet_core::{
    BoxError, CancellationToken, ContainerVolumes, PodRecord, PodSignals, PodUid, PodVolumes, VolumeContext,
    VolumeError, VolumeManager, VolumeUsage, made_volumes,
};

use crate::ground::mounts::{Mounts, SystemMounts};
use crate::plugin::{PluginNode, VolumePlugin, VolumeSpec};
use crate::plugins;
use crate::turns::Turns;
use pods::Pods;
use watches::Watches;

/// How volumes are made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeSettings {
    /// Secrets and tokens may be on disk, readable by their owner alone, where nothing can be mounted: for an agent that is not
    /// root. Scratch space in memory is not to be had there all the same. `false`.
    pub secrets_on_disk: bool,
    /// How often what volumes use is measured; zero: never. 1 minute.
    pub measure_every: Duration,
    /// The pause after a volume could not be made, and the longest that it grows to. 500 ms, 122 s.
    pub backoff: (Duration, Duration),
    /// How long a volume may take. After that, one that is being made is told of, and one that is brought up to date, or is to be
    /// gone, has failed and is tried again. 123 s.
    pub patience: Duration,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        Self {
            secrets_on_disk: false,
            measure_every: Duration::from_secs(60),
            backoff: (Duration::from_millis(500), Duration::from_secs(122)),
            patience: Duration::from_secs(123),
        }
    }
}

#[derive(Debug)]
struct Shared {
    settings: VolumeSettings,
    plugins: Vec<Arc<dyn VolumePlugin>>,
    mounts: Arc<dyn Mounts>,
    node: OnceLock<PluginNode>,
    pods: Pods,
    turns: Turns,
    watches: Watches,
}

/// Makes the volumes of pods, and has them gone. A clone is another handle to the same one.
///
/// Handed to [`KubeletBuilder::volumes`](kubelet_core::KubeletBuilder::volumes).
#[derive(Clone, Debug)]
pub struct Volumes {
    shared: Arc<Shared>,
}

impl Default for Volumes {
    fn default() -> Self {
        Self::new(VolumeSettings::default())
    }
}

impl Volumes {
    /// With all types of volumes that this crate knows.
    #[must_use]
    pub fn new(settings: VolumeSettings) -> Self {
        Self::with_plugins(settings, plugins::all())
    }

    /// With these types of volumes alone. The first that takes a volume makes it.
    #[must_use]
    pub fn with_plugins(settings: VolumeSettings, plugins: impl IntoIterator<Item = Arc<dyn VolumePlugin>>) -> Self {
        Self::assemble(
            settings,
            plugins.into_iter().collect(),
            Arc::new(SystemMounts::default()),
        )
    }

    fn assemble(settings: VolumeSettings, plugins: Vec<Arc<dyn VolumePlugin>>, mounts: Arc<dyn Mounts>) -> Self {
        Self {
            shared: Arc::new(Shared {
                settings,
                plugins,
                mounts,
                node: OnceLock::new(),
                pods: Pods::default(),
                turns: Turns::default(),
                watches: Watches::default(),
            }),
        }
    }

    /// All types of volumes that this crate knows, to add to or to choose from.
    #[must_use]
    pub fn known_plugins() -> Vec<Arc<dyn VolumePlugin>> {
        plugins::all()
    }
}

impl Shared {
    fn node(&self) -> Result<&PluginNode, VolumeError> {
        self.node
            .get()
            .ok_or_else(|| VolumeError::failed("volumes cannot be made", "the volume manager was not opened"))
    }

    fn plugin_for(&self, volume: &VolumeSpec<'_>) -> Option<&Arc<dyn VolumePlugin>> {
        self.plugins.iter().find(|plugin| plugin.takes(volume))
    }

    fn plugin_named(&self, name: &str) -> Option<&Arc<dyn VolumePlugin>> {
        self.plugins.iter().find(|plugin| plugin.name() == name)
    }
}

#[async_trait]
impl VolumeManager for Volumes {
    fn open(&self, context: VolumeContext) {
        // Said once; a second kubelet has a manager of its own.
        let _ = self.shared.node.set(PluginNode {
            context,
            mounts: self.shared.mounts.clone(),
            secrets_on_disk: self.shared.settings.secrets_on_disk,
            turns: self.shared.turns.clone(),
        });
    }

    fn lacks(&self, pod: &PodRecord) -> Option<String> {
        let unknown: Vec<String> = made_volumes(pod.spec())
            .filter(|volume| volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none())
            .filter(|volume| self.shared.plugin_for(&VolumeSpec::Inline(volume)).is_none())
            .map(|volume| format!("{:?}", volume.name))
            .collect();
        let asks_certificates = made_volumes(pod.spec()).any(|volume| {
            let projected = volume.projected.iter();
            let mut sources = projected.flat_map(|projected| projected.sources.iter().flatten());
            sources.any(|source| source.pod_certificate.is_some())
        });
        if asks_certificates {
            return Some("pod needs certificates of its own, and this node has nobody who gets them".to_owned());
        }
        let names = unknown.join(", ");
        (!unknown.is_empty())
            .then(|| format!("pod needs volumes ({names}), and this node has no volume plugin matched to their types"))
    }

    async fn mount(&self, pod: &Arc<PodRecord>, stop: &CancellationToken) -> Result<PodVolumes, VolumeError> {
        self.shared.mount(pod, stop).await
    }

    async fn container(&self, pod: &PodRecord, container: &str, env: &Env) -> Result<ContainerVolumes, VolumeError> {
        self.shared.container(pod, container, env).await
    }

    async fn unmount(&self, uid: &PodUid, stop: &CancellationToken) -> Result<(), VolumeError> {
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(VolumeError::Stopped),
            gone = self.shared.unmount(uid) => gone,
        }
    }

    fn usage(&self, uid: &PodUid) -> Arc<[VolumeUsage]> {
        self.shared.pods.usage(uid)
    }

    async fn run(&self, wake: PodSignals, stop: CancellationToken) -> Result<(), BoxError> {
        tokio::join!(self.shared.watch(&wake, &stop), self.shared.measure(&stop));
        Ok(())
    }
}
