//! What is known of the volumes of each pod in this life of the agent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubelet_core::{ObjectKey, PodUid, VolumeUsage};
use tokio::time::Instant;

use crate::plugin::{Placed, VolumeMode, VolumePlugin};
use crate::seen::Seen;

/// Why a volume is not as it should be.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) delay: Duration,
    /// Not to be tried again before.
    pub(super) until: Instant,
    /// How far it came.
    pub(super) stage: Stage,
}

/// How far a volume came that is not as it should be. Events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not known yet what it is. Told of with all volumes of the pod, and not by itself.
    Process,
    /// Known, and of another node.
    NodeAffinity,
    /// It could not be set up as what it is to be given as.
    SetUp(VolumeMode),
}

/// Where a volume came from, and what was made of it.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) plugin: Arc<dyn VolumePlugin>,
    /// The name of its folder.
    pub(super) inner: String,
    pub(super) mode: VolumeMode,
    /// The claim that it is of.
    pub(super) claim: Option<String>,
    /// Whether it is not written.
    pub(super) read_only: bool,
    pub(super) groups: Vec<u32>,
    pub(super) placed: Placed,
}

#[derive(Clone, Debug, Default)]
pub(super) struct VolumeState {
    /// What is there, as it was last set up.
    pub(super) made: Option<Made>,
    pub(super) failed: Option<Failure>,
    /// Somebody began to have it gone, and did not come to an end: nobody knows what is left.
    pub(super) is_going: bool,
    /// The persistent volume that is its pod's alone, from before it is made until it is gone.
    pub(super) alone: Option<String>,
    /// Something that it was made from changed since.
    pub(super) is_stale: bool,
    /// The objects that it was made from, as they were then.
    pub(super) objects: BTreeMap<ObjectKey, Seen>,
    /// What was told of them since it is being made: an object that changes there and back is not what it is made from.
    pub(super) told: Option<BTreeMap<ObjectKey, Seen>>,
}

impl VolumeState {
    /// It is about to be made: what changes from now on counts.
    pub(super) fn begin(&mut self) {
        self.is_stale = false;
        self.told = Some(BTreeMap::new());
    }

    /// It was made from these objects.
    pub(super) fn made_from(&mut self, objects: &BTreeMap<ObjectKey, Seen>) {
        self.objects.clone_from(objects);
        let told = self.told.take().unwrap_or_default();
        self.is_stale = told
            .iter()
            .any(|(key, last)| objects.get(key).is_some_and(|from| !from.is_same(last)));
    }

    /// A state of an object was told. Says whether it is another one than the volume is made of.
    pub(super) fn is_told(&mut self, key: &ObjectKey, seen: &Seen) -> bool {
        let Some(from) = self.objects.get(key) else {
            return false;
        };
        if let Some(told) = &mut self.told {
            told.insert(key.clone(), seen.clone());
        }
        let is_other = !from.is_same(seen);
        self.is_stale |= is_other;
        is_other
    }
}

#[derive(Debug, Default)]
pub(super) struct PodState {
    /// By their names in the pod.
    pub(super) volumes: BTreeMap<String, VolumeState>,
    pub(super) usage: Option<(Instant, Arc<[VolumeUsage]>)>,
}

/// All pods that have volumes.
#[derive(Debug, Default)]
pub(super) struct Pods(Mutex<BTreeMap<PodUid, PodState>>);

impl Pods {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<PodUid, PodState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of one volume; what was never heard of is new.
    pub(super) fn volume(&self, uid: &PodUid, name: &str) -> VolumeState {
        let pods = self.lock();
        let found = pods.get(uid).and_then(|pod| pod.volumes.get(name));
        found.cloned().unwrap_or_default()
    }

    /// Lets a pod have a persistent volume to itself. False if another one has it, or is about to.
    pub(super) fn reserve(&self, uid: &PodUid, name: &str, volume: &str) -> bool {
        let mut pods = self.lock();
        let mut others = pods.iter().filter(|(other, _)| *other != uid);
        let is_taken = others.any(|(_, pod)| {
            let mut volumes = pod.volumes.values();
            volumes.any(|state| state.alone.as_deref() == Some(volume))
        });
        if !is_taken {
            let pod = pods.entry(uid.clone()).or_default();
            pod.volumes.entry(name.to_owned()).or_default().alone = Some(volume.to_owned());
        }
        !is_taken
    }

    /// The volumes of a pod are about to go.
    pub(super) fn begin_to_go(&self, uid: &PodUid) {
        let mut pods = self.lock();
        for volume in pods.get_mut(uid).into_iter().flat_map(|pod| pod.volumes.values_mut()) {
            volume.is_going = true;
        }
    }

    /// Changes what is known of one volume.
    pub(super) fn change(&self, uid: &PodUid, name: &str, change: impl FnOnce(&mut VolumeState)) {
        let mut pods = self.lock();
        change(
            pods.entry(uid.clone())
                .or_default()
                .volumes
                .entry(name.to_owned())
                .or_default(),
        );
    }

    /// What was last measured, with how old that is now.
    pub(super) fn usage(&self, uid: &PodUid) -> Arc<[VolumeUsage]> {
        let pods = self.lock();
        let Some((at, usage)) = pods.get(uid).and_then(|pod| pod.usage.as_ref()) else {
            return Arc::new([]);
        };
        let age = at.elapsed();
        usage
            .iter()
            .cloned()
            .map(|mut of| {
                of.age = age;
                of
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubelet_core::{ObjectKey, ObjectKind};

    use super::VolumeState;
    use crate::seen::Seen;

    #[test]
    fn what_was_told_last_while_a_volume_was_made_counts() {
        let key = ObjectKey::new(ObjectKind::ConfigMap, "default", "settings");
        let state = |version: &str| Seen::Version(version.to_owned());
        let from = |version: &str| BTreeMap::from([(key.clone(), state(version))]);
        for (told, made_from, is_stale) in [
            (&[][..], "b", false),
            (&["b"], "b", false),
            // There and back: the same as before, and not what it was made from.
            (&["a"], "b", true),
            (&["b", "a"], "b", true),
            (&["b", "c"], "b", true),
            (&["b", "c"], "c", false),
        ] {
            let mut volume = VolumeState::default();
            volume.made_from(&from("a"));
            assert!(volume.is_told(&key, &state("b")));
            volume.begin();
            for version in told {
                volume.is_told(&key, &state(version));
            }
            volume.made_from(&from(made_from));
            assert_eq!(volume.is_stale, is_stale, "{told:?} {made_from}");
            assert!(volume.is_told(&key, &state("z")) && volume.is_stale);
        }
    }
}
