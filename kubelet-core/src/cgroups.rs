//! Cgroups of pods: the seam for those who make them, and what is written into them.

mod limits;
mod values;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::BoxError;
use crate::ids::PodUid;
use crate::pod::PodRecord;
use crate::runtime::{CgroupDriver, LinuxResources};

pub use limits::{NodeLimits, PodLimits};
pub(crate) use values::page_size_name;
pub use values::{CgroupLimits, cpu_quota, cpu_shares, cpu_weight};

/// Why something about cgroups failed, sorted by what is done next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// [`PodCgroups::open`] has not succeeded yet. What needs it is tried again at the pod's back-off.
    #[error("cgroups are not open yet")]
    NotOpen,
    /// This machine, or this user, cannot have such cgroups. Tried again all the same: an administrator may see to it.
    #[error("cgroups cannot be used: {why}")]
    Unsupported {
        /// What is missing.
        why: String,
    },
    /// Something in a cgroup does not end. Tried again with back-off.
    #[error("{what} does not end")]
    Busy {
        /// What was to end.
        what: String,
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

impl CgroupError {
    /// Something failed, for a cause.
    pub fn failed(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Failed {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// What [`PodCgroups::open`] is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CgroupContext {
    /// How the runtime names cgroups, and who makes them.
    pub driver: CgroupDriver,
    /// Whose cgroups they are: the same over restarts of an agent, and another one for each agent of a machine. What another
    /// owner made is never listed.
    pub owner: String,
}

impl CgroupContext {
    /// For a driver and an owner.
    pub fn new(driver: CgroupDriver, owner: impl Into<String>) -> Self {
        Self {
            driver,
            owner: owner.into(),
        }
    }
}

/// A cgroup that was made for a container, for a runtime that makes none itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerCgroup {
    /// The folders to join, by writing a process id into `cgroup.procs` of each: one with cgroup v2, one of each hierarchy
    /// with v1.
    pub folders: Vec<PathBuf>,
}

impl ContainerCgroup {
    /// A cgroup of these folders.
    pub fn new(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            folders: folders.into_iter().collect(),
        }
    }
}

/// Makes the cgroups of pods, gives them their limits, and removes them.
///
/// The limits are computed by the engine; this is who writes them. Calls about one pod come one at a time.
///
/// # Contract
/// - Before `open` has succeeded nothing is made: what would be fails.
/// - `open` may be repeated, also in a later life, and leaves what is there as it is.
/// - The parent of a pod does not change while the pod is on the node, and no two pods have the same.
/// - `apply` makes what is missing of a pod's cgroup, and may be repeated; `exists` tells whether all of it is there.
/// - The cgroup of a container is made inside of that of its pod, which is made if need be, and goes with it.
/// - `list` tells of the pods whose cgroups its owner made, in an earlier life too, and of no others.
/// - `destroy` ends what still runs in the cgroup of a pod, and removes all of it.
/// - Destroying what is not there succeeds.
/// - Calls about different pods may overlap.
/// - A call that was dropped may be repeated.
#[async_trait]
pub trait PodCgroups: fmt::Debug + Send + Sync + 'static {
    /// Makes ready what the cgroups of all pods are in. Called once the runtime's driver is known, and again after a failure.
    ///
    /// # Errors
    /// [`CgroupError::Unsupported`] if the machine or the user cannot have them, else [`CgroupError::Failed`]. The kubelet
    /// goes on; pods that are to be started wait.
    async fn open(&self, context: &CgroupContext) -> Result<(), CgroupError>;

    /// Sets what all pods together may use, and what the node keeps for itself, as far as that is to be enforced; and sees to
    /// the shares of the classes of pods. Repeated each minute.
    ///
    /// # Errors
    /// [`CgroupError`], which is told as an event of the node.
    async fn enforce(&self, node: &NodeLimits) -> Result<(), CgroupError>;

    /// The cgroup that a runtime is to put the pod's sandbox and containers in, in the form of the driver. It does not wait,
    /// and is asked after `open` has succeeded.
    fn parent(&self, pod: &PodRecord) -> String;

    /// Whether the pod's cgroup is there as a whole.
    ///
    /// # Errors
    /// [`CgroupError`].
    async fn exists(&self, pod: &PodRecord) -> Result<bool, CgroupError>;

    /// Makes the pod's cgroup, as far as it is not there, and sets its limits. A limit that is absent stays what it is.
    ///
    /// # Errors
    /// [`CgroupError`]; told on the pod, and repeated.
    async fn apply(&self, pod: &PodRecord, limits: &PodLimits) -> Result<(), CgroupError>;

    /// Makes a cgroup for a container, as far as it is not there, and sets its limits: for runtimes that make none. It is
    /// empty when it is handed over.
    ///
    /// # Errors
    /// [`CgroupError`].
    async fn container(
        &self,
        pod: &PodRecord,
        container: &str,
        limits: &LinuxResources,
    ) -> Result<ContainerCgroup, CgroupError>;

    /// The pods of which there is a cgroup.
    ///
    /// # Errors
    /// [`CgroupError`] if it cannot be known.
    async fn list(&self) -> Result<Vec<PodUid>, CgroupError>;

    /// Kills what still runs in the pod's cgroup, within a bounded time, and removes it.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] if something does not end; [`CgroupError::Failed`]. Repeated with back-off.
    async fn destroy(&self, uid: &PodUid) -> Result<(), CgroupError>;
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<T: PodCgroups + ?Sized> PodCgroups for Arc<T> {
    async fn open(&self, context: &CgroupContext) -> Result<(), CgroupError> {
        (**self).open(context).await
    }
    async fn enforce(&self, node: &NodeLimits) -> Result<(), CgroupError> {
        (**self).enforce(node).await
    }
    fn parent(&self, pod: &PodRecord) -> String {
        (**self).parent(pod)
    }
    async fn exists(&self, pod: &PodRecord) -> Result<bool, CgroupError> {
        (**self).exists(pod).await
    }
    async fn apply(&self, pod: &PodRecord, limits: &PodLimits) -> Result<(), CgroupError> {
        (**self).apply(pod, limits).await
    }
    async fn container(
        &self,
        pod: &PodRecord,
        container: &str,
        limits: &LinuxResources,
    ) -> Result<ContainerCgroup, CgroupError> {
        (**self).container(pod, container, limits).await
    }
    async fn list(&self) -> Result<Vec<PodUid>, CgroupError> {
        (**self).list().await
    }
    async fn destroy(&self, uid: &PodUid) -> Result<(), CgroupError> {
        (**self).destroy(uid).await
    }
}

/// Keeps the trait usable as a trait object.
const _: fn(&dyn PodCgroups) = |_| {};
