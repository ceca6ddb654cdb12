//! The seam between pod workers and effects.

mod notes;
mod resized;
mod wish;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::BoxError;
use crate::event::EventSink;
use crate::ids::PodUid;
use crate::observation::PodObservation;
use crate::pod::PodRecord;

pub use notes::StepNotes;
pub use resized::ActualResources;
pub use wish::{KillCause, ORPHAN_GRACE, PendingResize, PodWish, ResizeRefusal, Standing, Termination};

/// What a step is about: the wish and what was seen after the last step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PodWork {
    /// The pod.
    pub pod: Arc<PodRecord>,
    /// What was seen of it, later than anything that an earlier step did.
    pub observed: Arc<PodObservation>,
    /// The status that follows from that.
    pub status: Arc<PodStatus>,
}

impl PodWork {
    /// A pod, what was seen of it, and its status.
    #[must_use]
    pub fn new(pod: Arc<PodRecord>, observed: Arc<PodObservation>, status: Arc<PodStatus>) -> Self {
        Self { pod, observed, status }
    }
}

/// A pod that is to end.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Doomed<'a> {
    /// One that a source wished for.
    Pod(&'a PodWork),
    /// One that nobody wishes for: all that is known of it is what was seen. Its hooks do not run.
    Orphan(&'a Arc<PodObservation>),
}

impl Doomed<'_> {
    /// Its identity.
    #[must_use]
    pub fn uid(&self) -> &PodUid {
        &self.observed().uid
    }

    /// What was seen of it.
    #[must_use]
    pub fn observed(&self) -> &Arc<PodObservation> {
        match self {
            Self::Pod(work) => &work.observed,
            Self::Orphan(observed) => observed,
        }
    }
}

/// What is left behind of a pod that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remains {
    /// The pod is still wished for: the newest ended container of each name stays, or as many as the settings say, so that
    /// its end can be told after a restart of the agent, and its logs can be read.
    Keep,
    /// The pod has left the node, or was evicted: nothing stays. Source for the latter: kubelet 1.36, `pod_workers.go`.
    Remove,
}

/// How a sync went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Synced {
    /// All is as wished.
    Settled,
    /// All is as wished for now; it is to be repeated then at the latest.
    SettledUntil(Instant),
    /// It is to be repeated then.
    Again(Instant),
    /// The pod has come to its end.
    Terminal,
}

impl Synced {
    /// The same, but to be repeated at that time at the latest, unless the pod has come to its end.
    #[must_use]
    pub fn or_at(self, at: Option<Instant>) -> Self {
        match (self, at) {
            (Self::Settled, Some(at)) => Self::SettledUntil(at),
            (Self::SettledUntil(before), Some(at)) => Self::SettledUntil(before.min(at)),
            (Self::Again(before), Some(at)) => Self::Again(before.min(at)),
            (same, _) => same,
        }
    }
}

/// Why a step did not do all that it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The pod's network is not ready. Repeated soon.
    #[error("network is not ready: {why}")]
    NetworkNotReady {
        /// What the runtime says.
        why: String,
    },
    /// It was asked to stop, and did.
    #[error("stopped")]
    Stopped,
    /// The backend can never run this pod: its phase becomes `Failed`.
    #[error("{reason}: {message}")]
    Rejected {
        /// One CamelCase word.
        reason: String,
        /// A sentence.
        message: String,
    },
    /// Something failed. Repeated then, or after the worker's back-off.
    #[error("{what}")]
    Failed {
        /// What was attempted on what.
        what: String,
        /// When it is of use to repeat it, where that is known.
        retry_at: Option<Instant>,
        /// The cause.
        source: Option<BoxError>,
    },
}

impl SyncError {
    /// Something failed, for a cause.
    pub fn failed(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Failed {
            what: what.into(),
            retry_at: None,
            source: Some(source.into()),
        }
    }
}

/// Why a pod that was admitted cannot have what it needs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Never: the pod's phase becomes `Failed`.
    #[error("{reason}: {message}")]
    Refused {
        /// One CamelCase word.
        reason: String,
        /// A sentence.
        message: String,
    },
    /// Not now: shown on the pod and tried again.
    #[error("{reason}: {message}")]
    NotYet {
        /// One CamelCase word.
        reason: String,
        /// A sentence.
        message: String,
    },
    /// It was asked to stop, and did.
    #[error("stopped")]
    Stopped,
}

/// What a step is given.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepContext {
    /// Asks the step to end soon: pulls, waits and back-offs end at once; run_sandbox, create, start and update finish.
    pub stop: CancellationToken,
    /// Cancelled when the kubelet ends; `stop` then is too, but also for a new spec.
    pub(crate) kubelet_stop: CancellationToken,
    /// The wish, which may change while the step runs: a termination's grace may shrink.
    pub wish: watch::Receiver<PodWish>,
    /// Where the step tells how it goes.
    pub notes: Arc<StepNotes>,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
}

impl StepContext {
    /// A context for one step.
    #[must_use]
    pub fn new(
        stop: CancellationToken,
        wish: watch::Receiver<PodWish>,
        notes: Arc<StepNotes>,
        events: Arc<dyn EventSink>,
    ) -> Self {
        Self {
            kubelet_stop: stop.clone(),
            stop,
            wish,
            notes,
            events,
        }
    }
}

/// Carries out what a pod's worker decides. [`crate::Containers`] does it over a runtime, [`crate::WholePods`] over a
/// whole-pod backend.
///
/// # Contract
/// - Steps of one pod never overlap; steps of different pods do.
/// - A step is never dropped while the kubelet runs: `cx.stop` asks, the step returns soon and says where it stands.
/// - Every step may be repeated, also after a crash in the middle of it.
/// - `terminate` returns `Ok` only when no container of the pod can run any more.
#[async_trait]
pub trait PodSyncer: fmt::Debug + Send + Sync + 'static {
    /// After admission, before the first sync in this life of the agent: what the pod holds beside CPU and memory.
    ///
    /// # Errors
    /// [`AcquireError`].
    async fn acquire(&self, cx: &StepContext, pod: &PodWork) -> Result<(), AcquireError> {
        let _ = (cx, pod);
        Ok(())
    }

    /// Brings the pod nearer to its wish.
    ///
    /// # Errors
    /// [`SyncError`]; the worker repeats.
    async fn sync(&self, cx: &StepContext, pod: &PodWork) -> Result<Synced, SyncError>;

    /// Stops all containers of the pod, within the grace of the wish's termination.
    ///
    /// # Errors
    /// [`SyncError`]; the worker repeats.
    async fn terminate(&self, cx: &StepContext, pod: Doomed<'_>) -> Result<(), SyncError>;

    /// Clears up after a pod whose containers have stopped.
    ///
    /// # Errors
    /// [`SyncError`]; the worker repeats.
    async fn finish(&self, cx: &StepContext, pod: Doomed<'_>, remains: Remains) -> Result<(), SyncError>;

    /// The pods of which something is left beside the backend, such as folders. Asked for once, when everything was
    /// looked at and every source has spoken: those that nobody knows of are swept.
    async fn left_behind(&self) -> Vec<PodUid> {
        Vec::new()
    }

    /// Those that [`left_behind`](Self::left_behind) could not tell. Waits until they can be told; where nothing was missed it
    /// ends at once, with none.
    async fn left_behind_unseen(&self) -> Vec<PodUid> {
        Vec::new()
    }

    /// Clears up what is left of these pods: nobody wishes for them, and the backend holds nothing of them. No step of
    /// theirs begins meanwhile. What cannot be cleared up is told, and stays. Ends soon after `stop` is cancelled. Gives those for
    /// which it is of use to try again later; it is called for them again, with back-off, unless somebody wishes for them by then.
    async fn sweep(&self, pods: &[PodUid], stop: &CancellationToken) -> Vec<PodUid> {
        let _ = (pods, stop);
        Vec::new()
    }

    /// Nothing of this pod is asked any more: what is remembered of it can go.
    fn forget(&self, uid: &PodUid);

    /// Asks how the backend is: whether it answers, and what it can do.
    ///
    /// # Errors
    /// A text on why it does not answer.
    async fn check(&self) -> Result<BackendStatus, BoxError>;

    /// How long `check` may fail before the backend counts as down. Source: kubelet 1.36: 30 s.
    fn down_after(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// How a backend is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendStatus {
    /// Its name, which container ids are prefixed with in statuses.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Why nothing can be asked of it, if so.
    pub not_ready: Option<String>,
    /// Why only pods on the host's network can be started, if so.
    pub network_not_ready: Option<String>,
    /// Whether what it runs goes on when the agent ends.
    pub survives_restart: bool,
    /// Whether it can change the resources of containers that run.
    pub updates_resources: bool,
}

impl BackendStatus {
    /// A backend that is ready, and whose pods outlive the agent.
    pub fn ready(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            not_ready: None,
            network_not_ready: None,
            survives_restart: true,
            updates_resources: true,
        }
    }
}
