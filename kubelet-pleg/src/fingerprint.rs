//! What a relist keeps of a pod's objects instead of their ids.

use std::hash::{DefaultHasher, Hash, Hasher};

use kubelet_core::{ContainerRecord, ContainerState, PodObservation, SandboxRecord, SandboxState};

/// A 128-bit sum over ids and states, independent of their order. Two pods' objects that differ have different sums, but
/// for one chance in 2^128: ids are the runtime's, so nobody chooses them to collide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint(u128);

impl Fingerprint {
    /// Of no objects at all.
    pub(crate) const EMPTY: Self = Self(0);

    /// Of what lists showed of one pod.
    pub(crate) fn of_records(sandboxes: &[SandboxRecord], containers: &[ContainerRecord]) -> Self {
        let mut sum = Self::EMPTY;
        for sandbox in sandboxes {
            sum.sandbox(sandbox.id.as_str(), sandbox.state);
        }
        for container in containers {
            sum.container(container.id.as_str(), container.state);
        }
        sum
    }

    /// Of what an inspection showed: equal to that of the lists if both saw the same objects in the same states.
    pub(crate) fn of_observation(seen: &PodObservation) -> Self {
        let mut sum = Self::EMPTY;
        for sandbox in &seen.sandboxes {
            sum.sandbox(sandbox.id.as_str(), sandbox.state);
        }
        for container in &seen.containers {
            sum.container(container.id.as_str(), container.state);
        }
        sum
    }

    fn sandbox(&mut self, id: &str, state: SandboxState) {
        self.add(&(0u8, id, state));
    }

    fn container(&mut self, id: &str, state: ContainerState) {
        self.add(&(1u8, id, state));
    }

    fn add(&mut self, object: &impl Hash) {
        // Its keys are fixed, so that a run repeats itself. The second half comes from the same inner state of 256 bits.
        let mut hasher = DefaultHasher::new();
        object.hash(&mut hasher);
        let high = hasher.finish();
        hasher.write_u8(0xff);
        let low = hasher.finish();
        self.0 = self.0.wrapping_add((u128::from(high) << 64) | u128::from(low));
    }
}

#[cfg(test)]
mod tests {
    use kubelet_core::jiff::Timestamp;
    use kubelet_core::{ContainerId, ContainerRecord, ContainerState, PodUid, SandboxId};

    use super::Fingerprint;

    fn container(id: &str, state: ContainerState) -> ContainerRecord {
        ContainerRecord::new(
            ContainerId::from(id),
            SandboxId::from("s"),
            PodUid::from("u"),
            "app".to_owned(),
            0,
            state,
            Timestamp::UNIX_EPOCH,
        )
    }

    #[test]
    fn ids_and_states_count_and_their_order_does_not() {
        use ContainerState::{Exited, Running};
        let of = |objects: &[(&str, ContainerState)]| {
            let records: Vec<_> = objects.iter().map(|(id, state)| container(id, *state)).collect();
            Fingerprint::of_records(&[], &records)
        };
        assert_eq!(
            of(&[("a", Running), ("b", Exited)]),
            of(&[("b", Exited), ("a", Running)])
        );
        let all = [
            of(&[]),
            of(&[("a", Running)]),
            of(&[("a", Exited)]),
            of(&[("a", Running), ("a", Running)]),
            of(&[("a", Running), ("b", Exited)]),
            of(&[("b", Running), ("a", Exited)]),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other != one), "{i}");
        }
    }
}
