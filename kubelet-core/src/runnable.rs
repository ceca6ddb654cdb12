//! Parts with work of their own.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, RandomSource};
use crate::error::BoxError;
use crate::event::EventSink;
use crate::handle::KubeletHandle;

/// When the engine starts a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum StartPhase {
    /// At once.
    Early,
    /// Once the backend has said that it is ready.
    RuntimeReady,
    /// Once every source has spoken.
    SourcesReady,
}

/// Why a part's work ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnableError {
    /// The kubelet cannot go on without it, and ends.
    #[error("{what}")]
    Fatal {
        /// What failed.
        what: String,
        /// The cause.
        source: BoxError,
    },
    /// It is started again with back-off, and shown in the kubelet's health until it has run for a minute, or has ended
    /// with `Ok`.
    #[error("{what}")]
    Failed {
        /// What failed.
        what: String,
        /// The cause.
        source: BoxError,
    },
}

/// What a part is given. A cheap clone.
///
/// Numbers of a part go to [`KubeletBuilder::metrics`](crate::KubeletBuilder::metrics).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeContext {
    /// The node's name.
    pub node_name: Arc<str>,
    /// Where the node keeps its state and the folders of pods; nothing where it keeps no files.
    pub root_dir: Option<Arc<Path>>,
    /// Where the logs of pods are; nothing where there are none.
    pub pod_logs_dir: Option<Arc<Path>>,
    /// What runs, and a way to end it: the view of pods, their statuses and health.
    pub handle: KubeletHandle,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
    /// The wall time. Durations and deadlines are [`tokio::time`]'s.
    pub clock: Arc<dyn Clock>,
    /// Where random choices come from.
    pub random: Arc<dyn RandomSource>,
}

/// A part with work of its own. The engine starts it at its phase, joins it, and stops parts in reverse order.
///
/// # Contract
/// - Its name is not empty; name and phase stay what they are.
/// - `run` returns soon after `stop` is cancelled, also if that was before the call, and then with `Ok`.
/// - It may be called again after it returned an error.
/// - `Ok` before `stop` means that the part's work is done. That it is done cannot be checked from outside.
#[async_trait]
pub trait Runnable: fmt::Debug + Send + Sync + 'static {
    /// What logs and health call it.
    fn name(&self) -> &str;

    /// When it starts.
    fn phase(&self) -> StartPhase;

    /// Does its work until it is done, or stopped.
    ///
    /// # Errors
    /// [`RunnableError`].
    async fn run(&self, node: NodeContext, stop: CancellationToken) -> Result<(), RunnableError>;
}

#[async_trait]
impl<T: Runnable + ?Sized> Runnable for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn phase(&self) -> StartPhase {
        (**self).phase()
    }
    async fn run(&self, node: NodeContext, stop: CancellationToken) -> Result<(), RunnableError> {
        (**self).run(node, stop).await
    }
}
