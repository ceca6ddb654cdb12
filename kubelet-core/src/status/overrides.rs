//! Statuses that the kubelet decides on, whatever the containers say.

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::conditions::{self, Parts, kind};
use super::containers::{ContainerStatuses, waiting_container};
use super::generate::base_status;
use super::normalize::normalize;
use super::phase::PodPhase;
use super::reasons::{DEADLINE_MESSAGE, reason};
use crate::pod::PodRecord;

/// The kubelet's own word on a pod that it ends: the phase becomes `Failed`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatusOverride {
    /// One word, such as `Evicted`.
    pub reason: String,
    /// What happened, for people.
    pub message: String,
    /// The message of the condition `DisruptionTarget`, where the pod is ended for the node's sake and may be made anew.
    pub disruption: Option<String>,
}

impl StatusOverride {
    /// A failure with a reason and a message, without a disruption.
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
            disruption: None,
        }
    }

    /// The same, with the condition `DisruptionTarget` and this message.
    #[must_use]
    pub fn with_disruption(mut self, message: impl Into<String>) -> Self {
        self.disruption = Some(message.into());
        self
    }

    /// A pod that was active for longer than its `activeDeadlineSeconds`.
    ///
    /// Source: kubelet 1.36, `active_deadline.go`.
    #[must_use]
    pub fn deadline_exceeded() -> Self {
        Self::new(reason::DEADLINE_EXCEEDED, DEADLINE_MESSAGE)
    }

    pub(super) fn disruption_condition(&self, generation: Option<i64>) -> Option<PodCondition> {
        self.disruption.as_ref().map(|message| PodCondition {
            type_: kind::DISRUPTION_TARGET.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason::TERMINATION_BY_KUBELET.to_owned()),
            message: Some(message.clone()),
            observed_generation: generation,
            ..PodCondition::default()
        })
    }
}

/// When a pod with `activeDeadlineSeconds` is no longer to be active; nothing without one, and before the pod has started.
/// Counted from the start time of the status before, else from that of its source.
#[must_use]
pub fn active_deadline(pod: &PodRecord, previous: &PodStatus) -> Option<Timestamp> {
    let after = SignedDuration::try_from(pod.facts().active_deadline?).unwrap_or(SignedDuration::MAX);
    let start = previous
        .start_time
        .as_ref()
        .or_else(|| pod.api_status().and_then(|status| status.start_time.as_ref()))?;
    Some(start.0.checked_add(after).unwrap_or(Timestamp::MAX))
}

/// The status of a pod that is not let in: failed for good, without container statuses and without own conditions.
///
/// Source: kubelet 1.36, `kubelet.go`.
#[must_use]
pub fn rejected_status(pod: &PodRecord, reason: &str, message: &str, now: Timestamp) -> PodStatus {
    let empty = PodStatus::default();
    let foreign = conditions::foreign_conditions(pod, &empty);
    let mut status = PodStatus {
        phase: Some(PodPhase::Failed.as_str().to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        conditions: (!foreign.is_empty()).then_some(foreign),
        ..base_status(pod, &empty, now)
    };
    normalize(&mut status, pod);
    status
}

/// The status of a pod that is not let in yet: pending, all its containers waiting for one reason.
#[must_use]
pub fn waiting_status(pod: &PodRecord, reason: &str, message: &str, now: Timestamp) -> PodStatus {
    let empty = PodStatus::default();
    let text = (!message.is_empty()).then(|| message.to_owned());
    let statuses = ContainerStatuses::of_pod(pod, |container| waiting_container(container, reason, text.clone()));
    let mut conditions = conditions::foreign_conditions(pod, &empty);
    let parts = Parts {
        pod,
        phase: PodPhase::Pending,
        init: &statuses.init,
        regular: &statuses.regular,
        resources: None,
    };
    conditions::push_container_conditions(&mut conditions, parts, &empty);
    let before = pod.api_status().map_or(&empty, |status| &**status);
    conditions::keep_transition_times(&mut conditions, before, now);
    let mut status = PodStatus {
        phase: Some(PodPhase::Pending.as_str().to_owned()),
        conditions: Some(conditions),
        ..base_status(pod, &empty, now)
    };
    statuses.into_status(&mut status);
    normalize(&mut status, pod);
    status
}
