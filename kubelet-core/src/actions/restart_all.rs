//! A restart of all containers in their sandbox, by a rule of one of them.

use super::view::View;
use super::{ContainerKillCause, PodActions, ResetAction, SandboxAction, view};
use crate::observation::ObservedContainer;
use crate::pod::{ContainerView, asks_restart_all, restart_all_requested};
use crate::runtime::ContainerState;

/// Clears all regular and init containers away, if that is asked for and any is left: first those that did not ask, so
/// that the request outlives a crash in the middle.
///
/// Source: kubelet 1.36, `kuberuntime_manager.go`. There a sandbox that has to be replaced is replaced in the same round;
/// here in the next.
pub(super) fn decide(view: &View<'_>) -> Option<PodActions> {
    if !view.now.restarting_all && !restart_all_requested(view.pod, view.observed) {
        return None;
    }
    let mut listed: Vec<(bool, ContainerView<'_>)> = ContainerView::regular(view.pod.spec())
        .chain(ContainerView::init(view.pod.spec()))
        .filter_map(|container| {
            let newest = view.observed.newest(container.name())?;
            Some((asks_restart_all(&container, newest), container))
        })
        .collect();
    if listed.is_empty() {
        return None;
    }
    // Stable: regular before init within either half.
    listed.sort_by_key(|(asks, _)| *asks);
    let mut actions = PodActions {
        sandbox: view.present().cloned().map_or(SandboxAction::None, SandboxAction::Keep),
        ..PodActions::default()
    };
    for (_, container) in listed {
        let name = container.name();
        let mut running = view.observed.of_name(name).filter(|seen| may_run(seen));
        let first = running.next().map(|seen| seen.id.clone());
        actions.kill.extend(running.map(|seen| {
            let message = format!("Stopping container {name}");
            view::kill(seen, ContainerKillCause::Superfluous, message)
        }));
        actions.reset.push(ResetAction {
            name: name.to_owned(),
            running: first,
            remove: view.observed.of_name(name).map(|seen| seen.id.clone()).collect(),
        });
    }
    Some(actions)
}

fn may_run(seen: &ObservedContainer) -> bool {
    matches!(seen.state, ContainerState::Running | ContainerState::Unknown)
}
