//! What pods and containers use: types without a policy, and the seam for those who measure.

mod layers;
mod types;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::BoxError;
use crate::ids::PodUid;

pub(crate) use layers::StatsLayers;
pub use types::{
    ContainerUsage, CpuUsage, FilesystemUsage, InterfaceUsage, MemoryUsage, NetworkUsage, PodUsage, Pressure,
    PressureShare, PressureStalls, StatsSnapshot, SwapUsage,
};

/// Of which pods usage is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StatsScope {
    /// Of all.
    #[default]
    All,
    /// Of one.
    Pod(PodUid),
}

/// Why usage could not be had.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatsError {
    /// Nobody measures.
    #[error("nothing measures what pods use: add a source with KubeletBuilder::stats")]
    NoProvider,
    /// It could not be measured.
    #[error("{what}")]
    Failed {
        /// What failed.
        what: String,
        /// The cause.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl StatsError {
    /// It could not be measured.
    pub fn failed(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Failed {
            what: what.into(),
            source: Arc::from(source.into()),
        }
    }
}

/// One source of usage. Several are layered; merging, sharing and rates are core's.
///
/// Whoever asks for the same while a look is under way shares it, and each look asks the sources one after the other: a source
/// need not share or keep anything itself. One that takes longer than the limit of runtime calls counts as failed, and what
/// the others know is told without it. A source may know less than all: only processors, or only some pods.
///
/// # Contract
/// - It tells only of pods that carry the mark of a kubelet, and of containers that run, of each once.
/// - Asked for one pod it tells of no other; of a pod that is not there it tells nothing, which is no error.
/// - What it does not know is absent, never zero.
/// - A counter of one container id never goes back.
/// - It does not keep calls from each other: they may overlap.
/// - A call may be dropped at any time, and later ones are answered.
#[async_trait]
pub trait StatsProvider: fmt::Debug + Send + Sync + 'static {
    /// Measures now.
    ///
    /// # Errors
    /// [`StatsError`] if nothing could be measured. A pod that cannot be measured is left out. The next look asks again.
    ///
    /// # Cancellation
    /// Safe, as the contract says.
    async fn collect(&self, want: &StatsScope) -> Result<StatsSnapshot, StatsError>;
}

#[async_trait]
impl<T: StatsProvider + ?Sized> StatsProvider for Arc<T> {
    async fn collect(&self, want: &StatsScope) -> Result<StatsSnapshot, StatsError> {
        (**self).collect(want).await
    }
}
