//! Pod status: what is told about pods, and to whom.

mod conditions;
mod containers;
mod equality;
mod final_status;
mod generate;
mod journal;
mod manager;
mod normalize;
mod overrides;
mod phase;
mod reasons;
mod rules;
mod sinks;
mod termination_message;
mod told;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PodStatus;

use crate::ids::PodUid;
use crate::pod::PodRecord;

pub use conditions::is_kubelet_condition;
pub use equality::equal_for_publishing;
pub use final_status::final_status;
pub use generate::{StatusInput, generate_pod_status};
pub use journal::{StatusChange, StatusReader};
pub use manager::{SetOutcome, SetStatus, StatusManager, StatusSettings};
pub use overrides::{StatusOverride, active_deadline, rejected_status, waiting_status};
pub use phase::{PodPhase, pod_is_terminal};
pub use reasons::{StartReason, StartReasons, reason};
pub use sinks::{JsonLinesSink, WatchSink};
pub use termination_message::read_termination_message;
pub(crate) use told::{is_resizing, told_containers, told_id, told_running};

/// One version of a pod's status.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StatusUpdate {
    /// The pod.
    pub pod: Arc<PodRecord>,
    /// Its status.
    pub status: Arc<PodStatus>,
    /// Counts the changes of this pod's status in this life of the agent; later is higher.
    pub version: u64,
    /// Nothing of the pod is left to do: a deleted pod may be removed from its control plane.
    pub finished: bool,
    /// Whether a container of the pod may still run: a final phase is to be held back while it may.
    pub containers_may_run: bool,
}

impl StatusUpdate {
    /// A version of a pod's status.
    #[must_use]
    pub fn new(pod: Arc<PodRecord>, status: Arc<PodStatus>, version: u64) -> Self {
        Self {
            pod,
            status,
            version,
            finished: false,
            containers_may_run: true,
        }
    }
}

/// What a sink says to an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Published {
    /// It has it: nothing older is sent again.
    Accepted,
    /// The pod is gone over there: nothing more is sent of it.
    Gone,
    /// Not now: the newest version is sent again after this time, or earlier if it changes.
    Retry(Duration),
}

/// Is told the statuses of pods.
///
/// # Contract
/// - `Accepted` means that the other side has it, or gets it without being told again.
/// - Calls for one pod do not overlap; calls for different pods may.
/// - Versions of one pod only grow; gaps are normal, since only the newest is sent.
/// - The next life of the agent counts versions from the start again, without a `forget` before.
/// - Repeating an update that was accepted is harmless.
/// - What cannot be told now is `Retry`, with a pause; it is never dropped as `Accepted`.
/// - A pod that is gone over there is `Gone`, which hurts no other pod.
/// - `forget` comes last for a pod, unless the kubelet ends before. Of a pod that is not known it does nothing.
/// - A pod that was forgotten may come again under its UID.
/// - A call that is dropped holds up no later one.
#[async_trait]
pub trait StatusSink: fmt::Debug + Send + Sync + 'static {
    /// Takes one version.
    ///
    /// # Cancellation
    /// Dropped when the kubelet ends; the next life sends the then newest version.
    async fn publish(&self, update: &StatusUpdate) -> Published;

    /// The pod left the node.
    async fn forget(&self, uid: &PodUid);
}

#[async_trait]
impl<T: StatusSink + ?Sized> StatusSink for Arc<T> {
    async fn publish(&self, update: &StatusUpdate) -> Published {
        (**self).publish(update).await
    }
    async fn forget(&self, uid: &PodUid) {
        (**self).forget(uid).await;
    }
}
