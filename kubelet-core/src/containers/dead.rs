//! How many dead containers stay: of each name, and on the whole node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{ContainerSyncer, lock};
use crate::actions::PodActions;
use crate::ids::{ContainerId, PodUid};
use crate::observation::{ObservedContainer, PodObservation};
use crate::runtime::ContainerState;

/// A dead container that stays as far as its own pod is concerned.
#[derive(Clone, Debug)]
struct Dead {
    id: ContainerId,
    name: String,
    created_at: Timestamp,
    /// A newer one of its name is there: nothing is decided by this one.
    spare: bool,
}

/// The dead containers of all pods, kept only where their number is bounded.
#[derive(Debug, Default)]
pub(super) struct DeadOnNode(Mutex<BTreeMap<PodUid, Vec<Dead>>>);

impl DeadOnNode {
    pub(super) fn forget(&self, uid: &PodUid) {
        lock(&self.0).remove(uid);
    }

    fn note(&self, uid: &PodUid, dead: Vec<Dead>) {
        let mut all = lock(&self.0);
        if dead.is_empty() {
            all.remove(uid);
        } else {
            all.insert(uid.clone(), dead);
        }
    }

    /// Those that have to go for no more than `most` to be left, as far as they can: first what a name has beyond an equal
    /// share, then the oldest.
    ///
    /// Source: kubelet 1.36, `kuberuntime_gc.go`.
    fn excess(&self, most: u32) -> BTreeSet<ContainerId> {
        let all = lock(&self.0);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let total = all.values().map(Vec::len).sum::<usize>();
        let mut excess = BTreeSet::new();
        if total <= most {
            return excess;
        }
        let mut by_name: BTreeMap<(&PodUid, &str), Vec<&Dead>> = BTreeMap::new();
        for (uid, dead) in all
            .iter()
            .flat_map(|(uid, all)| all.iter().map(move |dead| (uid, dead)))
        {
            by_name.entry((uid, &dead.name)).or_default().push(dead);
        }
        let share = (most / by_name.len().max(1)).max(1);
        let mut left: Vec<&Dead> = Vec::new();
        for dead in by_name.values_mut() {
            dead.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
            for (place, one) in dead.iter().enumerate().filter(|(_, one)| one.spare) {
                if place >= share {
                    excess.insert(one.id.clone());
                } else {
                    left.push(one);
                }
            }
        }
        left.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        let too_many = (total - excess.len()).saturating_sub(most);
        excess.extend(left.into_iter().take(too_many).map(|one| one.id.clone()));
        excess
    }
}

impl ContainerSyncer {
    /// Dead containers made after this stay, however many there are; nothing: their age does not matter.
    pub(super) fn young_after(&self) -> Option<Timestamp> {
        let age = self.node.settings.container_gc.min_age;
        let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
        let after = || self.node.clock.now().checked_sub(age).unwrap_or(Timestamp::MIN);
        (!age.is_zero()).then(after)
    }

    /// Adds the dead containers that there are too many of on the node. The other pods remove theirs with their own syncs.
    pub(super) fn bound_dead(&self, observed: &PodObservation, actions: &mut PodActions) {
        let Some(most) = self.node.settings.container_gc.max_total else {
            return;
        };
        let going: BTreeSet<&ContainerId> = actions.remove_containers.iter().collect();
        let stays = |container: &ObservedContainer| !going.contains(&container.id);
        self.note_dead(observed, stays);
        let excess = self.dead.excess(most);
        let of_pod = observed.containers.iter().filter(|c| excess.contains(&c.id));
        let of_pod: Vec<ContainerId> = of_pod.map(|container| container.id.clone()).collect();
        actions.remove_containers.extend(of_pod);
    }

    /// Keeps in mind what is dead of a pod, where it counts.
    pub(super) fn note_dead(&self, observed: &PodObservation, stays: impl Fn(&ObservedContainer) -> bool) {
        if self.node.settings.container_gc.max_total.is_none() {
            return;
        }
        let young = self.young_after();
        let dead = observed.containers.iter().filter(|c| {
            let is_young = young.is_some_and(|after| c.created_at > after);
            c.state == ContainerState::Exited && !is_young && stays(c)
        });
        let dead = dead.map(|c| Dead {
            id: c.id.clone(),
            name: c.name.clone(),
            created_at: c.created_at,
            spare: {
                let mut newer = observed.of_name(&c.name).take_while(|newer| newer.id != c.id);
                newer.any(|newer| newer.state != ContainerState::Created)
            },
        });
        self.dead.note(&observed.uid, dead.collect());
    }

    /// Whether a dead container of a pod that has ended stays, after so many newer ones of its name.
    pub(super) fn stays_after_end(&self, container: &ObservedContainer, newer: u32) -> bool {
        let policy = &self.node.settings.container_gc;
        // Nobody syncs this pod any more, to remove what is too much: only what has to stay does.
        let most = match policy.max_total {
            Some(_) => Some(1),
            None => policy.max_per_container,
        };
        newer == 0
            || most.is_none_or(|most| newer < most)
            || self.young_after().is_some_and(|after| container.created_at > after)
    }
}

#[cfg(test)]
mod tests {
    use super::{Dead, DeadOnNode};
    use crate::ids::{ContainerId, PodUid};
    use crate::jiff::Timestamp;

    /// Dead containers such as `a3 a1* b2`: a name and a time; `*`: spare.
    fn dead(text: &str) -> Vec<Dead> {
        let one = |word: &str| Dead {
            id: ContainerId::from(word.trim_end_matches('*')),
            name: word[..1].to_owned(),
            created_at: Timestamp::from_second(word[1..].trim_end_matches('*').parse().unwrap()).unwrap(),
            spare: word.ends_with('*'),
        };
        text.split_whitespace().map(one).collect()
    }

    #[test]
    fn too_many_are_taken_in_equal_shares_and_then_the_oldest_first() {
        for (pods, most, want) in [
            (["a9 a8* a7*", "b6*"], 4, ""),
            (["a9 a8* a7*", "b6*"], 3, "a7 a8"),
            (["a9 a8* a7*", "b6*"], 2, "a7 a8"),
            (["a9 a8* a7*", "b6*"], 1, "a7 a8 b6"),
            (["a9* a5* a4*", "b3* b2*"], 4, "a4"),
            (["a9* a5* a4* c8* c7* c6*", "b3* b2*"], 7, "a4 c6"),
            (["a9* a5* a4* c8* c7* c6*", "b3* b2*"], 0, "a4 a5 a9 b2 b3 c6 c7 c8"),
            // What decides stays, whatever the bound.
            (["a9 c8", "b7"], 0, ""),
            (["", "b7 b6*"], 0, "b6"),
        ] {
            let node = DeadOnNode::default();
            for (uid, pod) in ["u", "v"].into_iter().zip(pods) {
                node.note(&PodUid::from(uid), dead(pod));
            }
            let excess = node.excess(most);
            let excess: Vec<&str> = excess.iter().map(ContainerId::as_str).collect();
            assert_eq!(excess.join(" "), want, "{pods:?} {most}");
            node.forget(&PodUid::from("u"));
            node.note(&PodUid::from("v"), Vec::new());
            assert!(node.excess(0).is_empty());
        }
    }
}
