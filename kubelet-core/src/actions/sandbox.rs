//! Whether a pod needs a new sandbox, and what is started in it.

use super::view::View;
use super::{PodActions, SandboxAction, StartAction, init};
use crate::ids::SandboxId;
use crate::observation::PodObservation;
use crate::pod::{ContainerView, PodRecord, RestartPolicy, should_restart_exited};
use crate::runtime::{ContainerState, SandboxState};

/// Which sandbox a pod needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SandboxNeed<'a> {
    /// The one there is.
    Keep(&'a SandboxId),
    /// A new one.
    Create {
        /// Its number.
        attempt: u32,
        /// The one that it replaces.
        replaces: Option<&'a SandboxId>,
    },
}

/// Tells which sandbox a pod needs.
///
/// Source: kubelet 1.36, `kuberuntime/util/util.go`.
pub(super) fn need<'a>(pod: &PodRecord, observed: &'a PodObservation) -> SandboxNeed<'a> {
    let Some(newest) = observed.newest_sandbox() else {
        return SandboxNeed::Create {
            attempt: 0,
            replaces: None,
        };
    };
    let create = |replaces| SandboxNeed::Create {
        attempt: newest.attempt.saturating_add(1),
        replaces,
    };
    let ready = observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready);
    if ready.count() > 1 || newest.state != SandboxState::Ready {
        return create(Some(&newest.id));
    }
    let host_network = pod.facts().host_network;
    if newest.host_network != host_network {
        return create(None);
    }
    if !host_network && !newest.has_ip {
        return create(Some(&newest.id));
    }
    SandboxNeed::Keep(&newest.id)
}

/// What is done where a new sandbox is needed: all that runs is stopped, and one is made if anything is left to run.
pub(super) fn create(view: &View<'_>, attempt: u32, replaces: Option<SandboxId>) -> PodActions {
    let (pod, observed) = (view.pod, view.observed);
    let start: Vec<StartAction> = ContainerView::regular(pod.spec())
        .filter(|container| runs_in_new_sandbox(view, container))
        .map(|container| view.start(&container))
        .collect();
    let is_over = pod.is_deleted()
        || start.is_empty()
        || (attempt != 0 && ran_once_and_for_all(view))
        || init::has_failed_for_good(view);
    if is_over {
        return PodActions::end(observed);
    }
    let mut actions = PodActions {
        // A sandbox that is down may still hold its network.
        kill_pod: observed.may_run() || !observed.sandboxes.is_empty(),
        sandbox: SandboxAction::Create { attempt, replaces },
        ..PodActions::default()
    };
    match ContainerView::init(pod.spec()).next() {
        Some(first) => actions.init.push(view.start(&first)),
        None => actions.regular = start,
    }
    actions
}

/// Whether the pod is of the kind that runs once, and did.
///
/// Source: kubelet 1.36 counts init containers too, and no rules of containers: a pod whose sandbox dies between its init
/// containers and the others, or while a container waits to be restarted by its rules, then stays as it is for ever.
fn ran_once_and_for_all(view: &View<'_>) -> bool {
    if view.pod.facts().restart_policy != RestartPolicy::Never {
        return false;
    }
    let mut ran = false;
    for container in ContainerView::regular(view.pod.spec()) {
        match view.observed.newest(container.name()) {
            // One that was made and never started did not run: a crash in between must not be the end of the pod.
            Some(last) if last.state != ContainerState::Created => {
                ran = true;
                if runs_in_new_sandbox(view, &container) {
                    return false;
                }
            }
            _ => {}
        }
    }
    ran
}

/// Whether a container would be started again after its end: the new sandbox is that end for those that run.
fn runs_in_new_sandbox(view: &View<'_>, container: &ContainerView<'_>) -> bool {
    let policy = view.pod.facts().restart_policy;
    match view.observed.newest(container.name()) {
        None => true,
        Some(last) => match last.state {
            ContainerState::Created => true,
            ContainerState::Running | ContainerState::Unknown => {
                RestartPolicy::of_container(container, policy) != RestartPolicy::Never
            }
            ContainerState::Exited => should_restart_exited(container, policy, last.exit_code),
        },
    }
}
