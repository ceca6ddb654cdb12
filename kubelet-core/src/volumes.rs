//! Volumes of pods: the seam for those who make them.

mod context;
mod sub_path;
mod work;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::env::Env;
use crate::error::BoxError;
use crate::ids::PodUid;
use crate::pod::PodRecord;
use crate::runtime::Device;
use crate::signals::PodSignals;

pub use context::{NodeViews, VolumeContext};
pub use sub_path::volume_sub_path;
pub(crate) use work::VolumeWork;

/// Why volumes are not as they should be, sorted by what is done next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// It was asked to stop, and did.
    #[error("stopped")]
    Stopped,
    /// Some volumes are not there yet. The pod waits, and it is tried again.
    #[error(
        "unmounted volumes=[{}], unattached volumes=[{}], failed to process volumes=[{}]: {detail}",
        unmounted.join(" "), unattached.join(" "), unprocessed.join(" ")
    )]
    Waiting {
        /// The volumes that are not there, by their names in the pod, sorted.
        unmounted: Vec<String>,
        /// Those of them that the node is not attached to yet.
        unattached: Vec<String>,
        /// Those of them of which it is not known yet what they are, such as claims that are not bound.
        unprocessed: Vec<String>,
        /// What each waits for.
        detail: String,
        /// When it is of use to try again; nothing: at the pod's back-off.
        retry_at: Option<Instant>,
    },
    /// The pod can never have them: its phase becomes `Failed`.
    #[error("{reason}: {message}")]
    RejectPod {
        /// One CamelCase word.
        reason: &'static str,
        /// A sentence.
        message: String,
    },
    /// Something failed. Tried again with back-off.
    #[error("{what}")]
    Failed {
        /// What was attempted on what.
        what: String,
        /// The cause.
        source: BoxError,
    },
}

impl VolumeError {
    /// Something failed, for a cause.
    pub fn failed(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Failed {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// What a pod has once all its volumes are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodVolumes {
    /// Groups that its containers have to be in to use them.
    pub groups: Vec<u32>,
    /// When they are to be looked at again, such as for a token that ends; nothing: at the next sync, whenever that is.
    pub again_at: Option<Instant>,
}

/// Where a volume that a container mounts is found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumePlace {
    /// Which of the container's mounts it is for, counted from 0.
    pub index: usize,
    /// On the host, with the sub-path that the mount asks for.
    pub host_path: PathBuf,
    /// Whether the volume cannot be written, whatever the mount says.
    pub read_only: bool,
    /// Whether the runtime gives it the container's SELinux label, where there is SELinux.
    pub selinux_relabel: bool,
}

impl VolumePlace {
    /// A writable place, for the mount of that number.
    pub fn new(index: usize, host_path: impl Into<PathBuf>) -> Self {
        Self {
            index,
            host_path: host_path.into(),
            read_only: false,
            selinux_relabel: false,
        }
    }
}

/// What one container is given of its pod's volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerVolumes {
    /// Those that it mounts, but for images, in the order of its mounts.
    pub places: Vec<VolumePlace>,
    /// Those that it is given as devices.
    pub devices: Vec<Device>,
}

/// What one volume of a pod uses.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct VolumeUsage {
    /// Its name in the pod.
    pub name: String,
    /// The claim that it is of, if any.
    pub claim: Option<String>,
    /// Whether what it uses is storage of the node that goes with the pod, and counts against the pod's limit.
    pub is_ephemeral: bool,
    /// Bytes in use.
    pub used_bytes: Option<u64>,
    /// Bytes that it has in all.
    pub capacity_bytes: Option<u64>,
    /// Bytes that are free.
    pub available_bytes: Option<u64>,
    /// Inodes in use.
    pub inodes_used: Option<u64>,
    /// Inodes that it has in all.
    pub inodes: Option<u64>,
    /// Inodes that are free.
    pub inodes_free: Option<u64>,
    /// How old that is.
    pub age: Duration,
}

impl VolumeUsage {
    /// A volume of which nothing is known.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            claim: None,
            is_ephemeral: false,
            used_bytes: None,
            capacity_bytes: None,
            available_bytes: None,
            inodes_used: None,
            inodes: None,
            inodes_free: None,
            age: Duration::ZERO,
        }
    }
}

/// Has the volumes of pods ready for their containers, and gone after them.
///
/// Volumes that are images are the runtime's, and never asked for here. A volume that no container of its pod mounts is not made.
///
/// # Contract
/// - After `mount` has succeeded all volumes of the pod that its containers mount are there.
/// - `mount` may be repeated, and loses nothing that was written into a volume; so does one in a later life.
/// - A volume that cannot be made is named, with what it waits for, and others of the pod are made all the same.
/// - `mount` and `unmount` return soon after `stop` is cancelled, and may be repeated then.
/// - A place is in the folder of its pod, or is a path of the host that the pod names.
/// - After `unmount` has succeeded nothing of the pod is mounted, and none of its volumes' folders is left.
/// - Unmounting what is not there succeeds, also for pods that were never seen.
/// - Nothing of one pod's volumes is changed by calls about another.
/// - A call that was dropped may be repeated.
#[async_trait]
pub trait VolumeManager: fmt::Debug + Send + Sync + 'static {
    /// Is told of the node that it works for. Called once, when the kubelet is built; nothing is done yet.
    fn open(&self, context: VolumeContext);

    /// What of the pod can never be had here, such as a type of volume that nobody knows: the pod is refused with that text.
    fn lacks(&self, pod: &PodRecord) -> Option<String>;

    /// Makes the volumes of a pod, as far as they are not there, and brings those up to date that change. Called at every sync of
    /// a pod that has any, before its containers are made.
    ///
    /// What fails is told as events of the pod, each once for as long as it is the same.
    ///
    /// # Errors
    /// [`VolumeError`]. What is there is not given up because it cannot be brought up to date.
    async fn mount(&self, pod: &Arc<PodRecord>, stop: &CancellationToken) -> Result<PodVolumes, VolumeError>;

    /// What a container that is to be made now mounts. Asked after `mount` has succeeded; `env` is what the container is started
    /// with, which paths may refer to.
    ///
    /// # Errors
    /// [`VolumeError`]; the container is not made, and it is tried again.
    async fn container(&self, pod: &PodRecord, container: &str, env: &Env) -> Result<ContainerVolumes, VolumeError>;

    /// Has all volumes of a pod gone. Called once no container of it can run any more, also for pods of earlier lives that nobody
    /// knows now. Data that outlives pods stays.
    ///
    /// # Errors
    /// [`VolumeError`]; repeated with back-off. The pod is not gone until this has succeeded.
    async fn unmount(&self, uid: &PodUid, stop: &CancellationToken) -> Result<(), VolumeError>;

    /// What the volumes of a pod used when that was last measured. Looks at no disk.
    fn usage(&self, uid: &PodUid) -> Arc<[VolumeUsage]>;

    /// Watches what volumes are made from, and measures them, until it is stopped. Pods whose volumes are to be looked at again are
    /// woken.
    ///
    /// # Errors
    /// A text on what went wrong; it is run again with back-off. Pods are synced every minute without it.
    async fn run(&self, wake: PodSignals, stop: CancellationToken) -> Result<(), BoxError>;
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<T: VolumeManager + ?Sized> VolumeManager for Arc<T> {
    fn open(&self, context: VolumeContext) {
        (**self).open(context);
    }
    fn lacks(&self, pod: &PodRecord) -> Option<String> {
        (**self).lacks(pod)
    }
    async fn mount(&self, pod: &Arc<PodRecord>, stop: &CancellationToken) -> Result<PodVolumes, VolumeError> {
        (**self).mount(pod, stop).await
    }
    async fn container(&self, pod: &PodRecord, container: &str, env: &Env) -> Result<ContainerVolumes, VolumeError> {
        (**self).container(pod, container, env).await
    }
    async fn unmount(&self, uid: &PodUid, stop: &CancellationToken) -> Result<(), VolumeError> {
        (**self).unmount(uid, stop).await
    }
    fn usage(&self, uid: &PodUid) -> Arc<[VolumeUsage]> {
        (**self).usage(uid)
    }
    async fn run(&self, wake: PodSignals, stop: CancellationToken) -> Result<(), BoxError> {
        (**self).run(wake, stop).await
    }
}

/// Keeps the trait usable as a trait object.
const _: fn(&dyn VolumeManager) = |_| {};
