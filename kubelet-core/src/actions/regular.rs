//! Which regular containers are started, stopped and kept.

use super::view::{View, kill, kill_unknown};
use super::{ContainerKillCause, KillAction, PodActions};
use crate::observation::ObservedContainer;
use crate::pod::{ContainerView, should_restart};
use crate::runtime::ContainerState;

/// Decides on the regular containers of a pod that is initialised. Says whether the pod goes on: whether any is kept or
/// started.
///
/// Source: kubelet 1.36, `kuberuntime_manager.go`.
pub(super) fn decide(view: &View<'_>, actions: &mut PodActions) -> bool {
    let mut goes_on = false;
    for container in ContainerView::regular(view.pod.spec()) {
        let (stop, then) = verdict(view, &container);
        actions.kill.extend(stop);
        goes_on |= then != Then::Nothing;
        if then == Then::Start {
            actions.regular.push(view.start(&container));
        }
    }
    goes_on
}

/// What comes after what is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Keep,
    Start,
    Nothing,
}

fn verdict(view: &View<'_>, container: &ContainerView<'_>) -> (Option<KillAction>, Then) {
    let pod = view.pod;
    let start_if = |wanted: bool| if wanted { Then::Start } else { Then::Nothing };
    let last = view.last(container);
    let Some(seen) = last.filter(|seen| matches!(seen.state, ContainerState::Running | ContainerState::Unknown)) else {
        return (None, start_if(should_restart(pod, container, last)));
    };
    if seen.state == ContainerState::Unknown {
        let wanted = should_restart(pod, container, last);
        return (Some(kill_unknown(container, seen)), start_if(wanted));
    }
    if view.is_elsewhere(seen) {
        // It is among the strays, and its exit code is not known yet.
        return (None, start_if(view.restarts_by_policy(container) && !pod.is_deleted()));
    }
    match stop_running(view, container, seen) {
        Some((why, then)) => (Some(why), then),
        None => (None, Then::Keep),
    }
}

/// Why a container that runs is stopped, and what comes then.
fn stop_running(
    view: &View<'_>,
    container: &ContainerView<'_>,
    seen: &ObservedContainer,
) -> Option<(KillAction, Then)> {
    if view.definition_changed(seen) {
        let message = format!("Container {} definition changed, will be restarted", seen.name);
        // Whatever the restart policy: the new definition never ran.
        return Some((kill(seen, ContainerKillCause::DefinitionChanged, message), Then::Start));
    }
    let Some((cause, probe)) = view.failed_probe(seen) else {
        return view.resize_restart(seen).map(|kill| (kill, Then::Start));
    };
    // How it ends is no matter of its restart rules: it was stopped from outside.
    let again = view.restarts_by_policy(container) && !view.pod.is_deleted();
    let (suffix, then) = if again {
        (", will be restarted", Then::Start)
    } else {
        ("", Then::Nothing)
    };
    let message = format!("Container {} failed {probe} probe{suffix}", seen.name);
    Some((kill(seen, cause, message), then))
}
