//! Container statuses: what was seen, over what was said before.

use k8s_openapi::api::core::v1::{
    ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, PodStatus, ResourceRequirements,
};

use super::generate::StatusInput;
use super::normalize::time;
use super::reasons::{
    INIT_TAKEN_AS_DONE, LOST_WHEN_DELETED, LOST_WHEN_TERMINATED, REMOVED_TO_RESTART_ALL, UNKNOWN_EXIT_CODE, reason,
};
use crate::observation::{ObservedContainer, PodObservation};
use crate::pod::{ContainerKind, ContainerView, PodRecord, should_restart, should_restart_exited};
use crate::probes::{PodProbes, ProbeKind};
use crate::runtime::ContainerState;

/// The container statuses of a pod, each list in the order of its spec.
#[derive(Debug, Default)]
pub(super) struct ContainerStatuses {
    pub(super) init: Vec<ContainerStatus>,
    pub(super) regular: Vec<ContainerStatus>,
    pub(super) ephemeral: Vec<ContainerStatus>,
}

impl ContainerStatuses {
    /// Makes one status per container of a pod.
    pub(super) fn of_pod(pod: &PodRecord, mut status: impl FnMut(&ContainerView<'_>) -> ContainerStatus) -> Self {
        let mut statuses = Self::default();
        for container in pod.containers() {
            let list = match container.kind() {
                ContainerKind::Init | ContainerKind::Sidecar => &mut statuses.init,
                ContainerKind::Regular => &mut statuses.regular,
                ContainerKind::Ephemeral => &mut statuses.ephemeral,
            };
            list.push(status(&container));
        }
        statuses
    }

    /// Puts the lists into a pod's status; empty ones are left out.
    pub(super) fn into_status(self, status: &mut PodStatus) {
        let some = |mut list: Vec<ContainerStatus>| {
            // One status of every pod is held for as long as the pod is there, and room for three more is a lot.
            list.shrink_to_fit();
            (!list.is_empty()).then_some(list)
        };
        status.init_container_statuses = some(self.init);
        status.container_statuses = some(self.regular);
        status.ephemeral_container_statuses = some(self.ephemeral);
    }
}

/// A container that waits, and of which nothing else is known.
pub(super) fn waiting_container(
    container: &ContainerView<'_>,
    reason: &str,
    message: Option<String>,
) -> ContainerStatus {
    ContainerStatus {
        name: container.name().to_owned(),
        image: container.image().to_owned(),
        state: Some(waiting(Some(reason.to_owned()), message)),
        started: (container.kind() != ContainerKind::Ephemeral).then_some(false),
        allocated_resources: container.resources().and_then(|resources| resources.requests.clone()),
        resources: container.resources().cloned(),
        ..ContainerStatus::default()
    }
}

/// The end of a container of which nobody knows how it ended.
pub(super) fn lost(message: &str) -> ApiState {
    ended_unseen(UNKNOWN_EXIT_CODE, reason::CONTAINER_STATUS_UNKNOWN, message)
}

/// Whether a regular container of the pod was ever made, as far as the runtime still knows.
fn any_regular_created(pod: &PodRecord, observed: &PodObservation) -> bool {
    ContainerView::regular(pod.spec()).any(|container| {
        observed
            .newest(container.name())
            .is_some_and(|seen| seen.state != ContainerState::Unknown)
    })
}

/// The statuses that follow from what was seen and from the statuses before.
///
/// Source: kubelet 1.36, `kubelet_pods.go`.
pub(super) fn container_statuses(input: &StatusInput<'_>, restarting_all: bool) -> ContainerStatuses {
    let initialised = any_regular_created(input.pod, input.observed);
    ContainerStatuses::of_pod(input.pod, |container| {
        let one = One {
            input,
            container: *container,
            old: old_status(input.previous, container),
            restarting_all,
            initialised,
        };
        one.status()
    })
}

fn old_status<'a>(previous: &'a PodStatus, container: &ContainerView<'_>) -> Option<&'a ContainerStatus> {
    let list = match container.kind() {
        ContainerKind::Init | ContainerKind::Sidecar => &previous.init_container_statuses,
        ContainerKind::Regular => &previous.container_statuses,
        ContainerKind::Ephemeral => &previous.ephemeral_container_statuses,
    };
    list.iter().flatten().find(|status| status.name == container.name())
}

/// One container whose status is made.
struct One<'a> {
    input: &'a StatusInput<'a>,
    container: ContainerView<'a>,
    old: Option<&'a ContainerStatus>,
    restarting_all: bool,
    initialised: bool,
}

impl One<'_> {
    fn status(&self) -> ContainerStatus {
        let newest = self.input.observed.newest(self.container.name());
        let mut status = match newest {
            Some(seen) if self.is_of_before(seen) => self.vanished(seen),
            Some(seen) => self.seen(seen),
            None => self.unseen(),
        };
        self.show_failed_start(&mut status, newest);
        self.set_health(&mut status, newest);
        status
    }

    /// Whether the container that was told of is gone and this one ended before that one began: it says nothing about how
    /// that one ended.
    fn is_of_before(&self, seen: &ObservedContainer) -> bool {
        let Some(old) = self.old.filter(|_| seen.state == ContainerState::Exited) else {
            return false;
        };
        if old.container_id.as_deref() == Some(self.full_id(seen).as_str()) {
            return false;
        }
        let began = old
            .state
            .as_ref()
            .and_then(|state| match (&state.running, &state.terminated) {
                (Some(running), _) => running.started_at.as_ref(),
                (None, Some(end)) => end.started_at.as_ref(),
                (None, None) => None,
            });
        began.is_some_and(|began| seen.finished_at.is_some_and(|ended| ended <= began.0))
    }

    /// A container that is gone, of which an earlier one is left.
    fn vanished(&self, left: &ObservedContainer) -> ContainerStatus {
        let policy = self.input.pod.facts().restart_policy;
        let began = self.old.and_then(|old| old.state.as_ref()?.running.as_ref());
        let (Some(old), Some(began)) = (self.old, began) else {
            return self.unseen();
        };
        if should_restart_exited(&self.container, policy, left.exit_code) {
            return self.unseen();
        }
        // It does not run again, and nobody knows how it ended: that is no success.
        let mut state = lost(LOST_WHEN_TERMINATED);
        if let Some(end) = &mut state.terminated {
            end.started_at.clone_from(&began.started_at);
        }
        ContainerStatus {
            state: Some(state),
            ..old.clone()
        }
    }

    fn seen(&self, seen: &ObservedContainer) -> ContainerStatus {
        let id = self.full_id(seen);
        let old_count = self.old.map_or(0, |old| old.restart_count);
        let mut restart_count = i32::try_from(seen.restart_count).unwrap_or(i32::MAX).max(old_count);
        let same = self
            .old
            .is_some_and(|old| old.container_id.as_deref() == Some(id.as_str()));
        let old_end = self.old.and_then(terminated);
        let state = match seen.state {
            ContainerState::Running => {
                // A new container after one that ended is a restart, also where its annotation does not count it. One
                // that ended in an unknown way was counted when that was seen.
                let counted = old_end.is_none_or(|end| is_reason(end, reason::CONTAINER_STATUS_UNKNOWN));
                if !counted && !same && i64::from(old_count) >= i64::from(seen.restart_count) {
                    restart_count = old_count.saturating_add(1);
                }
                ApiState {
                    running: Some(ContainerStateRunning {
                        started_at: seen.started_at.map(time),
                    }),
                    ..ApiState::default()
                }
            }
            ContainerState::Exited => exited(seen, &id),
            ContainerState::Unknown if self.old.is_some_and(is_running) => {
                // Not waiting: a container that ran and may have failed must not look like one that never ran.
                restart_count = restart_count.max(old_count.saturating_add(1));
                lost(LOST_WHEN_TERMINATED)
            }
            // Said to have ended already: a runtime that still cannot tell changes nothing about that.
            ContainerState::Unknown if same && old_end.is_some() => {
                self.old.and_then(|old| old.state.clone()).unwrap_or_default()
            }
            ContainerState::Created | ContainerState::Unknown => waiting(None, None),
        };
        let resources = self.container.resources();
        ContainerStatus {
            name: self.container.name().to_owned(),
            image: if seen.image.is_empty() {
                self.container.image().to_owned()
            } else {
                seen.image.clone()
            },
            image_id: seen.image_ref.clone(),
            restart_count,
            last_state: self.last_state(seen.state, &id, same),
            allocated_resources: resources.and_then(|resources| resources.requests.clone()),
            resources: self.actual_resources(seen, same),
            volume_mounts: self.old.and_then(|old| old.volume_mounts.clone()),
            state: Some(state),
            container_id: Some(id),
            ..ContainerStatus::default()
        }
    }

    /// What the container has: what was noted of it, else what it says, else what was last told of its name. One that is new to this life of the
    /// agent and of which nothing was noted was made by an earlier one, which had told what it was granted before it made it.
    fn actual_resources(&self, seen: &ObservedContainer, same: bool) -> Option<ResourceRequirements> {
        let mut noted = self.input.actual_resources.iter();
        if let Some(actual) = noted.find(|actual| actual.container == seen.id) {
            return actual.resources.clone();
        }
        // One that was never told of was made by an earlier life of the agent, after what is told of its name.
        if let Some(made_with) = seen.resources_made_with().filter(|_| !same) {
            return Some(made_with);
        }
        let before = self.old.filter(|_| same || seen.is_running());
        let before = before.and_then(|old| old.resources.clone());
        before.or_else(|| self.container.resources().cloned())
    }

    fn last_state(&self, state: ContainerState, id: &str, same: bool) -> Option<ApiState> {
        // Its own end, shown as the last one while its restart waits.
        let own = |end: &ContainerStateTerminated| match &end.container_id {
            Some(ended) => ended == id,
            None => is_reason(end, reason::CONTAINER_STATUS_UNKNOWN),
        };
        let waited = self
            .old
            .filter(|old| same && !is_running(old) && terminated(old).is_none());
        let own_end = waited
            .and_then(|old| old.last_state.as_ref())
            .filter(|last| last.terminated.as_ref().is_some_and(own));
        if let (ContainerState::Unknown, Some(end)) = (state, own_end) {
            return Some(end.clone());
        }
        let second = self.input.observed.of_name(self.container.name()).nth(1);
        if let Some(second) = second.filter(|seen| seen.state == ContainerState::Exited) {
            return Some(exited(second, &self.full_id(second)));
        }
        let old = self.old?;
        if !same && terminated(old).is_some() {
            return old.state.clone();
        }
        // Now it is shown as the state.
        old.last_state
            .clone()
            .filter(|_| state != ContainerState::Exited || own_end.is_none())
    }

    fn unseen(&self) -> ContainerStatus {
        let default_reason = if self.input.pod.facts().has_init {
            reason::POD_INITIALIZING
        } else {
            reason::CONTAINER_CREATING
        };
        let mut status = waiting_container(&self.container, default_reason, None);
        if let Some(old) = self.old {
            status.restart_count = old.restart_count;
            status.last_state = old.last_state.clone();
            if self.restarting_all && (is_running(old) || terminated(old).is_some()) {
                status.restart_count = old.restart_count.saturating_add(1);
                status.last_state = Some(ended_unseen(
                    UNKNOWN_EXIT_CODE,
                    reason::RESTARTING_ALL_CONTAINERS,
                    REMOVED_TO_RESTART_ALL,
                ));
                return status;
            }
            if terminated(old).is_some() {
                return old.clone();
            }
        }
        if self.container.kind() == ContainerKind::Init && self.initialised && !self.restarting_all {
            status.state = Some(ended_unseen(0, reason::COMPLETED, INIT_TAKEN_AS_DONE));
            return status;
        }
        let had_end = status.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
        if self.old.is_some_and(is_running) && !had_end {
            status.last_state = Some(lost(LOST_WHEN_DELETED));
            if !self.input.pod.is_deleted() {
                status.restart_count = status.restart_count.saturating_add(1);
            }
        }
        status
    }

    /// Shows why a container that is to be started is not.
    fn show_failed_start(&self, status: &mut ContainerStatus, newest: Option<&ObservedContainer>) {
        let ended_well = newest.is_some_and(|seen| seen.state == ContainerState::Exited && seen.exit_code == 0);
        let starts = match self.container.kind() {
            ContainerKind::Ephemeral => newest.is_none(),
            kind => !(kind.is_init() && ended_well) && should_restart(self.input.pod, &self.container, newest),
        };
        // Of a pod that is stopped for good nothing is started any more: how its containers ended is what counts.
        if !starts || self.input.terminal {
            return;
        }
        let Some(failed) = self.input.reasons.get(self.container.name()) else {
            return;
        };
        let message = (!failed.message.is_empty()).then(|| failed.message.clone());
        let state = Some(waiting(Some(failed.reason.clone().into_owned()), message));
        let before = std::mem::replace(&mut status.state, state);
        if newest.is_none() {
            // What was inherited of a container that is gone was its end, which is now the last state.
            status.container_id = None;
            status.image_id.clear();
        }
        if before.as_ref().is_some_and(|state| state.terminated.is_some()) {
            status.last_state = before;
        }
    }

    /// Without probes a container that runs is started, and one that is started is ready.
    ///
    /// Source: kubelet 1.36, `prober_manager.go`.
    fn set_health(&self, status: &mut ContainerStatus, newest: Option<&ObservedContainer>) {
        let started = is_running(status);
        match self.container.kind() {
            ContainerKind::Regular | ContainerKind::Sidecar => {
                let probes = self.input.probes;
                let passes = |kind| newest.is_some_and(|seen| PodProbes::passed(probes, &self.container, seen, kind));
                let started = started && passes(ProbeKind::Startup);
                status.started = Some(started);
                status.ready = started && passes(ProbeKind::Readiness);
            }
            ContainerKind::Init => {
                status.started = Some(started);
                status.ready = terminated(status).is_some_and(|end| end.exit_code == 0);
            }
            ContainerKind::Ephemeral => {
                status.started = None;
                status.ready = false;
            }
        }
    }

    fn full_id(&self, seen: &ObservedContainer) -> String {
        format!("{}://{}", self.input.runtime_name, seen.id)
    }
}

fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

fn is_reason(end: &ContainerStateTerminated, reason: &str) -> bool {
    end.reason.as_deref() == Some(reason)
}

fn waiting(reason: Option<String>, message: Option<String>) -> ApiState {
    ApiState {
        waiting: Some(ContainerStateWaiting { reason, message }),
        ..ApiState::default()
    }
}

/// The exit code of what SIGKILL ended.
const KILLED: i32 = 137;

/// Why a container ended. Runtimes say `OOMKilled` of every container in which anything was killed for memory, also a child of
/// a program that went on and was ended by something else later.
fn cause(seen: &ObservedContainer) -> &str {
    match (seen.reason.as_str(), seen.exit_code) {
        ("OOMKilled", code) if code != 0 && code != KILLED => "Error",
        (as_told, _) => as_told,
    }
}

fn exited(seen: &ObservedContainer, id: &str) -> ApiState {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ApiState {
        terminated: Some(ContainerStateTerminated {
            exit_code: seen.exit_code,
            reason: some(cause(seen)),
            message: some(&seen.message),
            started_at: seen.started_at.map(time),
            finished_at: seen.finished_at.map(time),
            container_id: some(id),
            signal: None,
        }),
        ..ApiState::default()
    }
}

fn ended_unseen(exit_code: i32, reason: &str, message: &str) -> ApiState {
    ApiState {
        terminated: Some(ContainerStateTerminated {
            exit_code,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ApiState::default()
    }
}

#[cfg(test)]
mod tests;
