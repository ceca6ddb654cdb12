//! From what was seen of a pod to its status: a function of its arguments.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{HostIP, PodCondition, PodIP, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;

use super::conditions::{self, Parts, kind};
use super::containers::{ContainerStatuses, container_statuses};
use super::normalize::{normalize, time};
use super::overrides::{StatusOverride, active_deadline};
use super::phase::{PhaseFacts, PodPhase, compute_phase, pod_is_terminal};
use super::reasons::StartReasons;
use crate::observation::PodObservation;
use crate::pod::{ContainerView, PodRecord, restart_all_requested};
use crate::probes::PodProbes;
use crate::runtime::SandboxState;
use crate::syncer::{ActualResources, PendingResize};

static NO_REASONS: StartReasons = BTreeMap::new();

/// Everything that a status follows from.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StatusInput<'a> {
    /// The pod.
    pub pod: &'a PodRecord,
    /// What a look at the runtime showed of it.
    pub observed: &'a PodObservation,
    /// The status before: the last one made here, else that of the API, else an empty one.
    pub previous: &'a PodStatus,
    /// Why the last starts of its containers failed.
    pub reasons: &'a StartReasons,
    /// The runtime's name: the scheme of container ids.
    pub runtime_name: &'a str,
    /// Wall time.
    pub now: Timestamp,
    /// The time by which the pod's active time is judged: wall time too, but for clocks that were set while it was active.
    pub active_now: Timestamp,
    /// The node's addresses, primary first, as far as they are known. The first, and the first of the other family, count.
    pub host_ips: &'a [IpAddr],
    /// What the probes of its containers have come to; nothing: they are taken for passed.
    pub probes: Option<&'a PodProbes>,
    /// What containers have, where that is not in the status before.
    pub actual_resources: &'a [ActualResources],
    /// What the pod as a whole has, where that is not in the status before.
    pub resources_as_a_whole: Option<&'a ResourceRequirements>,
    /// Other resources that the pod asks for and was not granted.
    pub pending_resize: Option<&'a PendingResize>,
    /// Why its containers could not be given what they were granted.
    pub resize_error: Option<&'a str>,
    /// All containers are stopped for good, whatever their restart policies say.
    pub terminal: bool,
    /// The pod has no sandbox in which its containers can be started.
    pub sandbox_needed: bool,
    /// The kubelet's own word on the pod, which wins over what its containers say.
    pub status_override: Option<&'a StatusOverride>,
}

impl<'a> StatusInput<'a> {
    /// An input without failed starts, host addresses, probes or override, of a pod that has its sandbox and goes on running.
    #[must_use]
    pub fn new(
        pod: &'a PodRecord,
        observed: &'a PodObservation,
        previous: &'a PodStatus,
        runtime_name: &'a str,
        now: Timestamp,
    ) -> Self {
        Self {
            pod,
            observed,
            previous,
            reasons: &NO_REASONS,
            runtime_name,
            now,
            active_now: now,
            host_ips: &[],
            probes: None,
            actual_resources: &[],
            resources_as_a_whole: None,
            pending_resize: None,
            resize_error: None,
            terminal: false,
            sandbox_needed: false,
            status_override: None,
        }
    }
}

/// The status of a pod: container statuses, phase, conditions, addresses.
///
/// A phase that is final in the status before, or at the pod's source, stays: it wins over what the containers say and
/// over an override. Restart counts never go back, and the time of a condition changes only with its status. Restart
/// counts grow when an end is first seen, so the result is to be the `previous` of the next call.
///
/// Without a status before, here or at the source, the pod has started when its oldest sandbox was made, else now.
///
/// Source: kubelet 1.36, `kubelet_pods.go`, which lets a failed pod succeed afterwards; here it stays failed. It takes the
/// start of a static pod for now after each restart, unless a mirror pod tells it.
#[must_use]
pub fn generate_pod_status(input: &StatusInput<'_>) -> PodStatus {
    let restarting_all = is_restarting_all(input);
    let statuses = container_statuses(input, restarting_all);
    let outcome = outcome(input, &statuses);
    let whole = resources_as_a_whole(input);
    let parts = Parts {
        pod: input.pod,
        phase: outcome.phase,
        init: &statuses.init,
        regular: &statuses.regular,
        resources: whole.as_ref(),
    };
    let records_left = ContainerView::init(input.pod.spec())
        .chain(ContainerView::regular(input.pod.spec()))
        .any(|container| input.observed.newest(container.name()).is_some());
    let mut conditions = conditions::conditions(input, parts, restarting_all && records_left);
    if let Some(disruption) = outcome.disruption {
        conditions.retain(|c| c.type_ != kind::DISRUPTION_TARGET);
        conditions.push(disruption);
        conditions::keep_transition_times(&mut conditions, input.previous, input.now);
    }
    conditions.shrink_to_fit();
    let mut status = PodStatus {
        phase: Some(outcome.phase.as_str().to_owned()),
        reason: outcome.reason,
        message: outcome.message,
        conditions: Some(conditions),
        allocated_resources: granted_as_a_whole(input.pod),
        resources: whole,
        ..base_status(input.pod, input.previous, seen_since(input))
    };
    statuses.into_status(&mut status);
    set_addresses(&mut status, input);
    normalize(&mut status, input.pod);
    status
}

fn granted_as_a_whole(pod: &PodRecord) -> Option<BTreeMap<String, Quantity>> {
    pod.spec().resources.as_ref()?.requests.clone()
}

/// What a pod that has resources as a whole has of them. As long as nothing of it runs that is what it was granted: its cgroup is
/// made anew, or seen to, before anything is started.
fn resources_as_a_whole(input: &StatusInput<'_>) -> Option<ResourceRequirements> {
    let granted = input.pod.spec().resources.as_ref()?;
    let runs = input.observed.containers.iter().any(|seen| seen.is_running());
    let actual = input.resources_as_a_whole.or(input.previous.resources.as_ref());
    Some(actual.filter(|_| runs).unwrap_or(granted).clone())
}

/// When a pod of which no status is known was there for certain: an agent that takes it over after a restart did not start
/// it. Containers are not asked, since whole-pod backends may not know when theirs were made.
fn seen_since(input: &StatusInput<'_>) -> Timestamp {
    let sandboxes = input.observed.sandboxes.iter().map(|sandbox| sandbox.created_at);
    sandboxes.fold(input.now, Timestamp::min)
}

/// What every status of a pod says: class, start and generation. `start` counts where no start is known.
pub(super) fn base_status(pod: &PodRecord, previous: &PodStatus, start: Timestamp) -> PodStatus {
    let api = pod.api_status();
    PodStatus {
        qos_class: api
            .and_then(|status| status.qos_class.clone())
            .or_else(|| Some(pod.facts().qos.as_str().to_owned())),
        start_time: previous
            .start_time
            .clone()
            .or_else(|| api.and_then(|status| status.start_time.clone()))
            .or_else(|| Some(time(start))),
        observed_generation: pod.generation().max(previous.observed_generation),
        ..PodStatus::default()
    }
}

/// A restart of all containers was asked for, or goes on.
fn is_restarting_all(input: &StatusInput<'_>) -> bool {
    input.pod.facts().can_restart_all
        && (conditions::is_true(input.previous, kind::RESTARTING_ALL)
            || restart_all_requested(input.pod, input.observed))
}

struct Outcome {
    phase: PodPhase,
    reason: Option<String>,
    message: Option<String>,
    disruption: Option<PodCondition>,
}

fn outcome(input: &StatusInput<'_>, statuses: &ContainerStatuses) -> Outcome {
    let api = input.pod.api_status().map(|status| &**status);
    // What the API knows as final can no longer change there; what was said here as final must not change either.
    let ended = [api, Some(input.previous)]
        .into_iter()
        .flatten()
        .find(|status| pod_is_terminal(status));
    let phase = ended.and_then(PodPhase::of).unwrap_or_else(|| {
        let facts = PhaseFacts {
            terminal: input.terminal,
            regular_in_sandbox: regular_in_sandbox(input),
        };
        compute_phase(input.pod, &statuses.init, &statuses.regular, facts)
    });
    if ended.is_none() {
        let deadline = active_deadline(input.pod, input.previous)
            .is_some_and(|deadline| input.active_now >= deadline)
            .then(StatusOverride::deadline_exceeded);
        if let Some(word) = input.status_override.or(deadline.as_ref()) {
            return Outcome {
                phase: PodPhase::Failed,
                reason: Some(word.reason.clone()),
                message: Some(word.message.clone()),
                disruption: word.disruption_condition(input.pod.generation()),
            };
        }
    }
    // Reason and message belong to their phase.
    let same: Vec<&PodStatus> = [Some(input.previous), api]
        .into_iter()
        .flatten()
        .filter(|status| PodPhase::of(status) == Some(phase))
        .collect();
    Outcome {
        phase,
        reason: same.iter().find_map(|status| status.reason.clone()),
        message: same.iter().find_map(|status| status.message.clone()),
        disruption: None,
    }
}

fn regular_in_sandbox(input: &StatusInput<'_>) -> bool {
    let Some(sandbox) = input
        .observed
        .newest_sandbox()
        .filter(|s| s.state == SandboxState::Ready)
    else {
        return false;
    };
    ContainerView::regular(input.pod.spec()).any(|container| {
        input
            .observed
            .of_name(container.name())
            .any(|seen| seen.sandbox_id.as_ref().is_none_or(|id| *id == sandbox.id))
    })
}

/// The first address, and the first of the other family.
fn one_per_family(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let Some(first) = addresses.first() else {
        return Vec::new();
    };
    let other = addresses.iter().find(|ip| ip.is_ipv4() != first.is_ipv4());
    [Some(first), other].into_iter().flatten().copied().collect()
}

fn set_addresses(status: &mut PodStatus, input: &StatusInput<'_>) {
    let host = one_per_family(input.host_ips);
    if let Some(first) = host.first() {
        status.host_ip = Some(first.to_string());
        status.host_ips = Some(host.iter().map(|ip| HostIP { ip: ip.to_string() }).collect());
    }
    let pod = if input.pod.facts().host_network {
        host
    } else {
        one_per_family(&input.observed.ips)
    };
    if let Some(first) = pod.first() {
        status.pod_ip = Some(first.to_string());
        status.pod_ips = Some(pod.iter().map(|ip| PodIP { ip: ip.to_string() }).collect());
        return;
    }
    // A pod that has ended keeps the address that it had; one whose sandbox lives has none but that one's.
    let lives = input.observed.sandboxes.iter().any(|s| s.state == SandboxState::Ready);
    if !lives || input.pod.facts().host_network {
        status.pod_ip = input.previous.pod_ip.clone();
        status.pod_ips = input.previous.pod_ips.clone();
    }
}

#[cfg(test)]
mod tests;
