//! Which init containers are started: one after the other, and sidecars kept running.

use super::view::{View, kill, kill_unknown};
use super::{ContainerKillCause, PodActions};
use crate::observation::ObservedContainer;
use crate::pod::{ContainerKind, ContainerView, should_restart_exited};
use crate::runtime::ContainerState;

/// How far a pod's init containers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Initialization {
    /// The regular containers may run.
    Done,
    /// They have to wait.
    Pending,
    /// One has failed for good, and the pod with it.
    Failed,
}

/// Decides on the init containers of a pod whose sandbox stays.
///
/// They are looked at from the last to the first. The first one found, if it is the last that was started, tells how far
/// the pod is; of those before it only the sidecars matter. So the records of earlier ones may be missing.
///
/// Source: kubelet 1.36, `kuberuntime_manager.go`.
pub(super) fn decide(view: &View<'_>, actions: &mut PodActions) -> Initialization {
    let containers: Vec<ContainerView<'_>> = ContainerView::init(view.pod.spec()).collect();
    if containers.is_empty() {
        return Initialization::Done;
    }
    let mut done = view.is_initialized();
    // Whether one further behind was found, or is known to have been: those before it have had their turn.
    let mut past = done;
    let mut starts: Vec<usize> = Vec::new();
    let mut kills = Vec::new();
    for (index, container) in containers.iter().enumerate().rev() {
        let is_sidecar = container.kind() == ContainerKind::Sidecar;
        let Some(seen) = view.last(container) else {
            if past && is_sidecar {
                starts.push(index);
            }
            continue;
        };
        if past && !is_sidecar {
            continue;
        }
        let mut passed = false;
        match (seen.state, is_sidecar) {
            (ContainerState::Created, _) | (ContainerState::Exited, true) => starts.push(index),
            (ContainerState::Running, false) => {}
            (ContainerState::Running, true) => {
                passed = view.has_come_up(container, seen);
                if let Some(why) = stop_sidecar(view, seen) {
                    kills.push(why);
                    starts.push(index);
                }
            }
            (ContainerState::Exited, false) => match outcome(view, container, seen) {
                Outcome::Succeeded => passed = true,
                Outcome::Again => starts.push(index),
                Outcome::FailedForGood => return Initialization::Failed,
            },
            (ContainerState::Unknown, _) => {
                if !is_sidecar && !view.restarts_by_policy(container) {
                    return Initialization::Failed;
                }
                kills.push(kill_unknown(container, seen));
                starts.push(index);
            }
        }
        if passed && !past {
            if index + 1 == containers.len() {
                done = true;
            } else {
                starts.push(index + 1);
            }
        }
        past = true;
    }
    if !past {
        starts.push(0);
    }
    starts.sort_unstable();
    actions.kill.extend(kills.into_iter().rev());
    actions.init = starts
        .into_iter()
        .filter_map(|index| containers.get(index))
        .map(|container| view.start(container))
        .collect();
    if done {
        Initialization::Done
    } else {
        Initialization::Pending
    }
}

/// Whether an init container has failed and is not tried again, which is the end of the pod in any sandbox.
pub(super) fn has_failed_for_good(view: &View<'_>) -> bool {
    ContainerView::init(view.pod.spec())
        .filter(|container| container.kind() == ContainerKind::Init)
        .any(|container| {
            view.observed.newest(container.name()).is_some_and(|seen| {
                seen.state == ContainerState::Exited && outcome(view, &container, seen) == Outcome::FailedForGood
            })
        })
}

/// Why a sidecar that runs is stopped and started again.
fn stop_sidecar(view: &View<'_>, seen: &ObservedContainer) -> Option<super::KillAction> {
    let name = &seen.name;
    if view.definition_changed(seen) {
        let message = format!("Init container {name} definition changed");
        return Some(kill(seen, ContainerKillCause::DefinitionChanged, message));
    }
    let Some((cause, probe)) = view.failed_probe(seen) else {
        return view.resize_restart(seen);
    };
    Some(kill(seen, cause, format!("Init container {name} failed {probe} probe")))
}

/// What the end of an init container means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Succeeded,
    Again,
    FailedForGood,
}

fn outcome(view: &View<'_>, container: &ContainerView<'_>, seen: &ObservedContainer) -> Outcome {
    // A process of the container may be killed for memory while the first one ends well.
    let out_of_memory = seen.reason == "OOMKilled";
    if seen.exit_code == 0 && !out_of_memory {
        return Outcome::Succeeded;
    }
    let policy = view.pod.facts().restart_policy;
    let again = should_restart_exited(container, policy, seen.exit_code)
        // By exit code 0 `OnFailure` would not try again, though this is a failure.
        || (seen.exit_code == 0 && view.restarts_by_policy(container));
    if again { Outcome::Again } else { Outcome::FailedForGood }
}
