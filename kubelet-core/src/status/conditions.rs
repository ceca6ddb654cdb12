//! Conditions of a pod.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus, ResourceRequirements};
use k8s_openapi::jiff::Timestamp;

use super::generate::StatusInput;
use super::normalize::time;
use super::phase::PodPhase;
use super::reasons::{RESTART_ALL_STARTED, reason};
use crate::pod::{ContainerKind, ContainerView, Difference, PodRecord, resizable_containers};

/// Types of conditions.
pub(super) mod kind {
    pub(in crate::status) const SCHEDULED: &str = "PodScheduled";
    pub(in crate::status) const READY: &str = "Ready";
    pub(in crate::status) const INITIALIZED: &str = "Initialized";
    pub(in crate::status) const CONTAINERS_READY: &str = "ContainersReady";
    pub(in crate::status) const READY_TO_START: &str = "PodReadyToStartContainers";
    pub(in crate::status) const RESTARTING_ALL: &str = "AllContainersRestarting";
    pub(in crate::status) const RESIZE_PENDING: &str = "PodResizePending";
    pub(in crate::status) const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
    pub(in crate::status) const DISRUPTION_TARGET: &str = "DisruptionTarget";
}

/// Whether the kubelet is the only one that writes conditions of this type.
#[must_use]
pub fn is_kubelet_condition(condition_type: &str) -> bool {
    matches!(
        condition_type,
        kind::SCHEDULED
            | kind::READY
            | kind::INITIALIZED
            | kind::CONTAINERS_READY
            | kind::READY_TO_START
            | kind::RESTARTING_ALL
            | kind::RESIZE_PENDING
            | kind::RESIZE_IN_PROGRESS
    )
}

/// Whether the kubelet writes conditions of this type, alone or beside others.
pub(super) fn is_written_here(condition_type: &str) -> bool {
    is_kubelet_condition(condition_type) || condition_type == kind::DISRUPTION_TARGET
}

/// The condition of a type.
pub(super) fn condition<'a>(status: &'a PodStatus, condition_type: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == condition_type)
}

/// Whether the condition of a type is there and `True`.
pub(super) fn is_true(status: &PodStatus, condition_type: &str) -> bool {
    condition(status, condition_type).is_some_and(|c| c.status == "True")
}

/// Gives each condition that the kubelet writes the time at which its status last changed: that of the condition before,
/// where its status is the same. Of resizes the reason counts too.
pub(super) fn keep_transition_times(conditions: &mut [PodCondition], previous: &PodStatus, now: Timestamp) {
    for new in conditions.iter_mut().filter(|c| is_written_here(&c.type_)) {
        let is_resize = matches!(new.type_.as_str(), kind::RESIZE_PENDING | kind::RESIZE_IN_PROGRESS);
        new.last_transition_time = condition(previous, &new.type_)
            .filter(|old| old.status == new.status && (!is_resize || old.reason == new.reason))
            .and_then(|old| old.last_transition_time.clone())
            .or_else(|| Some(time(now)));
    }
}

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    const TRUE: Self = Self {
        status: true,
        reason: None,
        message: None,
    };

    fn because(status: bool, reason: &'static str) -> Self {
        Self {
            status,
            reason: Some(reason),
            message: None,
        }
    }

    fn not(reason: &'static str, message: String) -> Self {
        Self {
            status: false,
            reason: Some(reason),
            message: Some(message),
        }
    }

    fn condition(self, condition_type: &str, generation: Option<i64>) -> PodCondition {
        PodCondition {
            type_: condition_type.to_owned(),
            status: if self.status { "True" } else { "False" }.to_owned(),
            reason: self.reason.map(str::to_owned),
            message: self.message,
            observed_generation: generation,
            ..PodCondition::default()
        }
    }
}

/// The container statuses that conditions look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    pub(super) pod: &'a PodRecord,
    pub(super) phase: PodPhase,
    pub(super) init: &'a [ContainerStatus],
    pub(super) regular: &'a [ContainerStatus],
    /// What the pod has as a whole.
    pub(super) resources: Option<&'a ResourceRequirements>,
}

/// All conditions of a status: those of others first, then the kubelet's own.
///
/// Source: kubelet 1.36, `generate.go`.
pub(super) fn conditions(input: &StatusInput<'_>, parts: Parts<'_>, restarting_all: bool) -> Vec<PodCondition> {
    let generation = input.pod.generation();
    let mut list = foreign_conditions(input.pod, input.previous);
    if let Some(disrupted) = condition(input.previous, kind::DISRUPTION_TARGET) {
        list.retain(|c| c.type_ != kind::DISRUPTION_TARGET);
        list.push(disrupted.clone());
    }
    let sandbox = Verdict {
        status: !input.sandbox_needed,
        ..Verdict::TRUE
    };
    list.push(sandbox.condition(kind::READY_TO_START, generation));
    if input.pod.facts().can_restart_all {
        list.push(restarting(parts.phase, restarting_all).condition(kind::RESTARTING_ALL, None));
    }
    push_resize_conditions(&mut list, input, parts);
    push_container_conditions(&mut list, parts, input.previous);
    keep_transition_times(&mut list, input.previous, input.now);
    list
}

/// What is wrong between the resources that a pod asks for, was granted and has. Nothing, where all are the same.
///
/// Source: kubelet 1.36, `status_manager.go`.
fn push_resize_conditions(list: &mut Vec<PodCondition>, input: &StatusInput<'_>, parts: Parts<'_>) {
    if end_reason(parts.phase).is_some() {
        return;
    }
    if let Some(pending) = input.pending_resize {
        let verdict = Verdict {
            reason: Some(pending.refusal.as_str()),
            message: Some(pending.message.clone()),
            ..Verdict::TRUE
        };
        list.push(verdict.condition(kind::RESIZE_PENDING, pending.generation));
    }
    let lags = resizable_containers(parts.pod).any(|view| {
        let told = find(parts.init, view.name()).or_else(|| find(parts.regular, view.name()));
        let running = told.filter(|c| c.state.as_ref().is_some_and(|state| state.running.is_some()));
        running.is_some_and(|c| Difference::between(view.resources(), c.resources.as_ref()).any())
    });
    let whole = parts.pod.spec().resources.as_ref();
    let lags_as_a_whole = whole.is_some() && Difference::between(whole, parts.resources).any();
    if lags || lags_as_a_whole {
        let verdict = Verdict {
            reason: input.resize_error.map(|_| "Error"),
            message: input.resize_error.map(str::to_owned),
            ..Verdict::TRUE
        };
        list.push(verdict.condition(kind::RESIZE_IN_PROGRESS, input.pod.generation()));
    }
}

/// Initialized, Ready, ContainersReady and PodScheduled.
pub(super) fn push_container_conditions(list: &mut Vec<PodCondition>, parts: Parts<'_>, previous: &PodStatus) {
    let generation = parts.pod.generation();
    let was_initialized = is_true(previous, kind::INITIALIZED);
    let containers_ready = containers_ready(parts);
    let ready = ready(parts.pod, &containers_ready, list);
    list.push(initialized(parts, was_initialized).condition(kind::INITIALIZED, generation));
    list.push(ready.condition(kind::READY, generation));
    list.push(containers_ready.condition(kind::CONTAINERS_READY, generation));
    list.push(Verdict::TRUE.condition(kind::SCHEDULED, generation));
}

/// The conditions that others set: on the object of the API where there is one, else on the status before.
pub(super) fn foreign_conditions(pod: &PodRecord, previous: &PodStatus) -> Vec<PodCondition> {
    let base = pod.api_status().map_or(previous, |status| &**status);
    base.conditions
        .iter()
        .flatten()
        .filter(|c| !is_kubelet_condition(&c.type_))
        .cloned()
        .collect()
}

/// The end of a pod, as its readiness conditions say it.
pub(super) fn end_reason(phase: PodPhase) -> Option<&'static str> {
    match phase {
        PodPhase::Succeeded => Some(reason::POD_COMPLETED),
        PodPhase::Failed => Some(reason::POD_FAILED),
        PodPhase::Pending | PodPhase::Running => None,
    }
}

fn restarting(phase: PodPhase, restarting_all: bool) -> Verdict {
    match end_reason(phase) {
        Some(reason) => Verdict::because(false, reason),
        None if restarting_all => Verdict {
            status: true,
            reason: Some(reason::RESTART_ALL_CONTAINERS_STARTED),
            message: Some(RESTART_ALL_STARTED.to_owned()),
        },
        None => Verdict {
            status: false,
            ..Verdict::TRUE
        },
    }
}

fn initialized(parts: Parts<'_>, was_true: bool) -> Verdict {
    if !parts.pod.facts().has_init {
        return match parts.phase {
            PodPhase::Succeeded => Verdict::because(true, reason::POD_COMPLETED),
            _ => Verdict::TRUE,
        };
    }
    if parts.init.is_empty() && parts.regular.is_empty() {
        return Verdict::because(false, reason::UNKNOWN_CONTAINER_STATUSES);
    }
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in ContainerView::init(parts.pod.spec()) {
        match find(parts.init, container.name()) {
            None => unknown.push(container.name()),
            Some(status) => {
                let complete = match container.kind() {
                    ContainerKind::Sidecar => status.started == Some(true),
                    _ => status.ready,
                };
                if !complete {
                    incomplete.push(container.name());
                }
            }
        }
    }
    if parts.phase == PodPhase::Succeeded && unknown.is_empty() {
        return Verdict::because(true, reason::POD_COMPLETED);
    }
    let regular_started = parts.regular.iter().any(|status| {
        status
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    if regular_started || was_true {
        return Verdict::TRUE;
    }
    match names_text(&unknown, "incomplete", &incomplete) {
        Some(message) => Verdict::not(reason::CONTAINERS_NOT_INITIALIZED, message),
        None => Verdict::TRUE,
    }
}

fn containers_ready(parts: Parts<'_>) -> Verdict {
    if parts.init.is_empty() && parts.regular.is_empty() {
        return Verdict::because(false, reason::UNKNOWN_CONTAINER_STATUSES);
    }
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = ContainerView::init(parts.pod.spec()).filter(|c| c.kind() == ContainerKind::Sidecar);
    for (container, list) in sidecars
        .map(|c| (c, parts.init))
        .chain(ContainerView::regular(parts.pod.spec()).map(|c| (c, parts.regular)))
    {
        match find(list, container.name()) {
            None => unknown.push(container.name()),
            Some(status) if !status.ready => unready.push(container.name()),
            Some(_) => {}
        }
    }
    match parts.phase {
        PodPhase::Succeeded if unknown.is_empty() => return Verdict::because(false, reason::POD_COMPLETED),
        PodPhase::Failed => return Verdict::because(false, reason::POD_FAILED),
        _ => {}
    }
    match names_text(&unknown, "unready", &unready) {
        Some(message) => Verdict::not(reason::CONTAINERS_NOT_READY, message),
        None => Verdict::TRUE,
    }
}

fn ready(pod: &PodRecord, containers_ready: &Verdict, list: &[PodCondition]) -> Verdict {
    if !containers_ready.status {
        return containers_ready.clone();
    }
    let closed: Vec<String> = pod
        .spec()
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match list.iter().find(|c| c.type_ == *name) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{name}\" does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if closed.is_empty() {
        Verdict::TRUE
    } else {
        Verdict::not(reason::READINESS_GATES_NOT_READY, closed.join(", "))
    }
}

fn find<'a>(list: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    list.iter().find(|status| status.name == name)
}

fn names_text(unknown: &[&str], what: &str, others: &[&str]) -> Option<String> {
    let part = |what: &str, names: &[&str]| {
        (!names.is_empty()).then(|| format!("containers with {what} status: [{}]", names.join(" ")))
    };
    let parts: Vec<String> = [part("unknown", unknown), part(what, others)]
        .into_iter()
        .flatten()
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests;
