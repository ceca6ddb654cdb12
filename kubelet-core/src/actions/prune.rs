//! Which dead containers and sandboxes are removed, so that a crash loop piles nothing up.

use std::collections::{BTreeMap, BTreeSet};

use super::view::View;
use super::{PodActions, SandboxAction};
use crate::ids::{ContainerId, SandboxId};
use crate::observation::ObservedContainer;
use crate::runtime::{ContainerState, SandboxState};

/// Adds what can go: of each name all ended containers but the newest few, whose ends and logs are still asked for; what
/// was made and is not going to be started; and sandboxes that hold nothing, but for the newest.
///
/// Source: kubelet 1.36, `kuberuntime_gc.go`, for the number and the age of those that stay. On purpose other than there
/// an end that nothing newer has taken the place of stays even if none are to be kept: what has ended for good would run
/// again.
pub(super) fn fill(view: &View<'_>, actions: &mut PodActions) {
    let adopted: BTreeSet<&ContainerId> = actions.starts().filter_map(|start| start.adopt.as_ref()).collect();
    let replaces = matches!(actions.sandbox, SandboxAction::Create { .. });
    let (mut newer, mut ends): (BTreeSet<&str>, BTreeMap<&str, u32>) = Default::default();
    let is_young = |seen: &ObservedContainer| view.now.dead_made_after.is_some_and(|after| seen.created_at > after);
    let (gone, left): (Vec<&ObservedContainer>, Vec<&ObservedContainer>) =
        view.observed.containers.iter().partition(|seen| {
            let is_init = view.is_init(&seen.name);
            if replaces && is_init {
                return true;
            }
            match seen.state {
                ContainerState::Running | ContainerState::Unknown => {
                    newer.insert(&seen.name);
                    false
                }
                ContainerState::Created => !adopted.contains(&seen.id),
                // The end of an init container in a sandbox that is gone says nothing about this one.
                ContainerState::Exited if is_init && view.is_elsewhere(seen) => true,
                ContainerState::Exited => {
                    let is_newest = newer.insert(&seen.name);
                    let ends = ends.entry(&seen.name).or_default();
                    if is_young(seen) {
                        return false;
                    }
                    *ends += 1;
                    !is_newest && view.now.dead_per_name.is_some_and(|most| *ends > most)
                }
            }
        });
    let remove_containers = gone.into_iter().map(|seen| seen.id.clone()).collect();
    actions.remove_sandboxes = empty_sandboxes(view, &left);
    actions.remove_containers = remove_containers;
}

fn empty_sandboxes(view: &View<'_>, left: &[&ObservedContainer]) -> Vec<SandboxId> {
    // Where a container does not tell its sandbox, any of them may hold it.
    let Some(held) = left
        .iter()
        .map(|seen| seen.sandbox_id.as_ref())
        .collect::<Option<BTreeSet<&SandboxId>>>()
    else {
        return Vec::new();
    };
    view.observed
        .sandboxes
        .iter()
        .skip(1)
        .filter(|sandbox| sandbox.state != SandboxState::Ready && !held.contains(&sandbox.id))
        .map(|sandbox| sandbox.id.clone())
        .collect()
}
