//! The one form of a status, so that equal statuses are equal texts.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::termination_message::{cut_to, share_of_message};
use crate::pod::{ContainerView, PodRecord};

/// A time as statuses carry it: whole seconds.
pub(super) fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// Cuts times to seconds and termination messages to their share, and puts container statuses in order: init ones as in
/// the spec, the others by name.
///
/// Source: kubelet 1.36, `status_manager.go`.
pub(super) fn normalize(status: &mut PodStatus, pod: &PodRecord) {
    let share = share_of_message(pod.facts().containers.len());
    cut_time(&mut status.start_time);
    for condition in status.conditions.iter_mut().flatten() {
        cut_time(&mut condition.last_transition_time);
        cut_time(&mut condition.last_probe_time);
    }
    if let Some(list) = &mut status.init_container_statuses {
        let order: Vec<&str> = ContainerView::init(pod.spec()).map(|c| c.name()).collect();
        list.sort_by_key(|status| order.iter().position(|name| *name == status.name).unwrap_or(usize::MAX));
    }
    for list in [&mut status.container_statuses, &mut status.ephemeral_container_statuses]
        .into_iter()
        .flatten()
    {
        list.sort_by(|a, b| a.name.cmp(&b.name));
    }
    for container in each_container(status) {
        for state in [&mut container.state, &mut container.last_state].into_iter().flatten() {
            normalize_state(state, share);
        }
    }
}

/// All container statuses of a pod.
pub(super) fn each_container(status: &mut PodStatus) -> impl Iterator<Item = &mut ContainerStatus> {
    [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
}

fn normalize_state(state: &mut ContainerState, share: usize) {
    if let Some(running) = &mut state.running {
        cut_time(&mut running.started_at);
    }
    if let Some(end) = &mut state.terminated {
        cut_time(&mut end.started_at);
        cut_time(&mut end.finished_at);
        if let Some(message) = &mut end.message {
            cut_to(message, share);
        }
    }
}

fn cut_time(at: &mut Option<Time>) {
    if let Some(at) = at {
        *at = time(at.0);
    }
}
