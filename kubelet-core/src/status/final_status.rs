//! The last status of a pod, once nothing of it is left on the node.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use k8s_openapi::jiff::Timestamp;

use super::conditions::{self, kind};
use super::containers::lost;
use super::normalize::normalize;
use super::phase::PodPhase;
use super::reasons::LOST_WHEN_TERMINATED;
use crate::pod::{ContainerKind, ContainerView, PodRecord};

/// The status that a pod leaves behind: containers that may have run have ended, and a managed pod has a final phase.
/// Static pods keep their phase, since they may be started again under the same UID.
///
/// Source: kubelet 1.36, `status_manager.go`.
#[must_use]
pub fn final_status(pod: &PodRecord, previous: &PodStatus, now: Timestamp) -> PodStatus {
    let mut status = previous.clone();
    if has_initialized(pod, previous) {
        end_all(status.container_statuses.iter_mut().flatten());
    }
    let tried = tried_init(previous.init_container_statuses.as_deref().unwrap_or_default());
    end_all(status.init_container_statuses.iter_mut().flatten().take(tried));
    if !pod.is_static() && !PodPhase::of(&status).is_some_and(PodPhase::is_terminal) {
        status.phase = Some(PodPhase::Failed.as_str().to_owned());
        // They told of the phase before.
        status.reason = None;
        status.message = None;
    }
    deny_readiness(&mut status, previous, now);
    normalize(&mut status, pod);
    status
}

/// A pod that has ended is not ready, and says so.
fn deny_readiness(status: &mut PodStatus, previous: &PodStatus, now: Timestamp) {
    let Some(reason) = PodPhase::of(status).and_then(conditions::end_reason) else {
        return;
    };
    let Some(list) = &mut status.conditions else { return };
    for condition in list.iter_mut() {
        if matches!(condition.type_.as_str(), kind::READY | kind::CONTAINERS_READY) {
            condition.status = "False".to_owned();
            condition.reason = Some(reason.to_owned());
            condition.message = None;
        }
    }
    conditions::keep_transition_times(list, previous, now);
}

fn end_all<'a>(list: impl Iterator<Item = &'a mut ContainerStatus>) {
    for status in list.filter(|status| !has_ended(status)) {
        status.state = Some(lost(LOST_WHEN_TERMINATED));
        status.ready = false;
        status.started = Some(false);
    }
}

fn has_ended(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.terminated.is_some())
}

/// Whether a container ever left the state of waiting.
fn ever_started(status: &ContainerStatus) -> bool {
    let waits = status
        .state
        .as_ref()
        .is_none_or(|state| state.running.is_none() && state.terminated.is_none());
    !waits || status.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
}

/// Whether there is evidence that the regular containers had their turn.
fn has_initialized(pod: &PodRecord, status: &PodStatus) -> bool {
    let Some(last) = ContainerView::init(pod.spec()).next_back() else {
        return true;
    };
    if status.container_statuses.iter().flatten().any(ever_started) {
        return true;
    }
    status
        .init_container_statuses
        .iter()
        .flatten()
        .find(|status| status.name == last.name())
        .is_some_and(|status| match last.kind() {
            ContainerKind::Sidecar => {
                status.started == Some(true) && status.state.as_ref().is_some_and(|state| state.running.is_some())
            }
            _ => [&status.state, &status.last_state]
                .into_iter()
                .flatten()
                .any(|state| state.terminated.as_ref().is_some_and(|end| end.exit_code == 0)),
        })
}

/// How many init containers had their turn: up to the last one that ever started, and at least the first.
fn tried_init(list: &[ContainerStatus]) -> usize {
    list.iter().rposition(ever_started).map_or(1, |last| last + 1)
}
