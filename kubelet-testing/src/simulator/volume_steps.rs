//! Random troubles of volumes, beside the random steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{PodLifecycleEventGenerator, PodRecord, PodSnapshot, PodUid, Stage, made_volumes};
use tokio::time::Instant;

use super::Invariant;
use super::rig::Rig;
use super::volumes::{Curse, Volumes};
use crate::volumes::VolumeOp;

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Hold,
    Release,
    MountsHang,
    UnmountsHang,
    LetGo,
    MountsFail,
    UnmountsFail,
    PlacesFail,
    WorkFails,
    LookAgain,
}

fn name_of(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Hold => "HoldVolume",
        Trouble::Release => "ReleaseVolumes",
        Trouble::MountsHang => "MountsHang",
        Trouble::UnmountsHang => "UnmountsHang",
        Trouble::LetGo => "LetVolumesGo",
        Trouble::MountsFail => "MountsFail",
        Trouble::UnmountsFail => "UnmountsFail",
        Trouble::PlacesFail => "PlacesFail",
        Trouble::WorkFails => "VolumeWorkFails",
        Trouble::LookAgain => "LookAtVolumesAgain",
    }
}

/// The names of the volumes that a pod has to have.
fn names(pod: &PodRecord) -> Vec<String> {
    made_volumes(pod.spec()).map(|volume| volume.name.clone()).collect()
}

fn number(volumes: &Volumes, low: u64, high: u64) -> u32 {
    u32::try_from(volumes.dice.between(low, high)).unwrap_or(1)
}

impl<G: PodLifecycleEventGenerator> Rig<'_, G> {
    /// A pod that has volumes.
    fn some_furnished(&self, volumes: &Volumes) -> Option<Arc<PodRecord>> {
        let books = self.checker.books.values();
        let furnished: Vec<_> = books
            .filter(|book| book.ended.is_none() && !names(&book.pod).is_empty())
            .map(|book| book.pod.clone())
            .collect();
        volumes.dice.pick(&furnished).cloned()
    }

    /// Gives a new pod volumes, where there are any.
    pub(super) fn furnish(&self, pod: &mut Pod) {
        if let Some(volumes) = &self.volumes {
            volumes.furnish(pod, self.pods_made);
        }
    }

    /// The machine has started anew: sometimes its mounts are gone.
    pub(super) fn lose_mounts(&self) {
        if let Some(volumes) = self.volumes.as_ref().filter(|volumes| volumes.dice.chance(70)) {
            volumes.lose();
        }
    }

    /// Something happens to volumes, or nothing.
    pub(super) fn trouble_volumes(&mut self) {
        let Some(volumes) = self.volumes.clone() else { return };
        if !volumes.dice.chance(30) {
            return;
        }
        let choices = [
            (8, Trouble::Hold),
            (8, Trouble::Release),
            (2, Trouble::MountsHang),
            (2, Trouble::UnmountsHang),
            (8, Trouble::LetGo),
            (4, Trouble::MountsFail),
            (4, Trouble::UnmountsFail),
            (2, Trouble::PlacesFail),
            (1, Trouble::WorkFails),
            (4, Trouble::LookAgain),
        ];
        let trouble = volumes.dice.weighted(&choices, Trouble::LetGo);
        let name = name_of(trouble);
        *self.actions.entry(name).or_default() += 1;
        self.trace.line(Instant::now(), format_args!("step  {name}"));
        match trouble {
            Trouble::Hold => {
                let Some(pod) = self.some_furnished(&volumes) else {
                    return;
                };
                if let Some(name) = volumes.dice.pick(&names(&pod)) {
                    let after = volumes.dice.chance(50).then(|| volumes.dice.millis(100, 60_000));
                    volumes.fake.hold(name, after);
                    self.held.push((pod.uid().clone(), name.clone()));
                }
            }
            Trouble::Release => self.release_volumes(&volumes),
            Trouble::MountsHang => volumes.fake.hang(VolumeOp::Mount),
            Trouble::UnmountsHang => volumes.fake.hang(VolumeOp::Unmount),
            Trouble::LetGo => {
                volumes.fake.let_go(VolumeOp::Mount);
                volumes.fake.let_go(VolumeOp::Unmount);
            }
            Trouble::MountsFail => volumes.fake.fail(VolumeOp::Mount, number(&volumes, 1, 8)),
            Trouble::UnmountsFail => volumes.fake.fail(VolumeOp::Unmount, number(&volumes, 1, 4)),
            Trouble::PlacesFail => volumes.fake.fail(VolumeOp::Container, number(&volumes, 1, 3)),
            // The next life's, or that of the next attempt.
            Trouble::WorkFails => volumes.fake.fail(VolumeOp::Run, number(&volumes, 1, 3)),
            Trouble::LookAgain => {
                if let Some(pod) = self.some_furnished(&volumes) {
                    let at = Instant::now() + volumes.dice.millis(0, 90_000);
                    volumes.fake.set_again_at(pod.uid(), at);
                }
            }
        }
    }

    /// What volumes were waiting for is there. Sometimes those who wait are told.
    fn release_volumes(&mut self, volumes: &Volumes) {
        for (uid, name) in self.held.drain(..) {
            volumes.fake.release(&name);
            if volumes.dice.chance(50) {
                volumes.fake.wake(&uid);
            }
        }
    }

    /// No more troubles, but for those of pods that have them for ever.
    pub(super) fn calm_volumes(&mut self) {
        let Some(volumes) = self.volumes.clone() else { return };
        self.release_volumes(&volumes);
        for op in [VolumeOp::Mount, VolumeOp::Unmount, VolumeOp::Container] {
            volumes.fake.let_go(op);
            volumes.fake.fail(op, 0);
        }
    }

    /// Whether a pod cannot be as it is wished for, for its volumes.
    pub(super) fn is_cursed(&self, pod: &PodRecord) -> bool {
        let curse = Curse::of(pod);
        match curse {
            None | Some(Curse::MountRejects) => false,
            // A mount that fails keeps no pod from going.
            Some(curse) => curse.is_of_unmount() || !pod.is_deleted(),
        }
    }

    /// Whether a pod that is not wished for any more cannot go, for its volumes.
    pub(super) fn cannot_go(&self, uid: &PodUid) -> bool {
        let curse = self.volumes.as_ref().and_then(|volumes| volumes.curse_of(uid));
        curse.is_some_and(Curse::is_of_unmount)
    }

    /// Which invariant it is that a pod is not as it is wished for: one whose volumes cannot be had may be the reason.
    pub(super) fn wish_of(&self, wanted: &BTreeMap<PodUid, Arc<PodRecord>>) -> Invariant {
        let volumes = self.volumes.as_ref();
        let left = volumes.is_some_and(|volumes| volumes.fake.pods().iter().any(|uid| self.cannot_go(uid)));
        if left || wanted.values().any(|pod| self.is_cursed(pod)) {
            Invariant::VolumesApart
        } else {
            Invariant::Wish
        }
    }

    /// Once all is settled, each pod that goes on has its volumes, and no other has any.
    pub(super) fn check_volumes(
        &mut self,
        wanted: &BTreeMap<PodUid, Arc<PodRecord>>,
        snapshots: &BTreeMap<PodUid, PodSnapshot>,
    ) {
        let Some(volumes) = self.volumes.clone() else { return };
        let goes_on = |uid: &PodUid| {
            let snapshot = snapshots.get(uid);
            wanted.contains_key(uid) && snapshot.is_some_and(|snapshot| snapshot.stage != Stage::Finished)
        };
        let mut found = Vec::new();
        for uid in volumes.fake.pods() {
            if !goes_on(&uid) && !self.cannot_go(&uid) && !self.checker.is_untold(&uid) {
                let left = volumes.fake.of_pod(&uid);
                found.push(format!("of pod {uid}, which is gone, the volumes {left:?} are left"));
            }
        }
        for (uid, pod) in wanted.iter().filter(|(uid, pod)| goes_on(uid) && !self.is_cursed(pod)) {
            let there = volumes.fake.of_pod(uid);
            let lacking: Vec<String> = names(pod).into_iter().filter(|name| !there.contains(name)).collect();
            if !lacking.is_empty() {
                found.push(format!("pod {uid} has no volumes {lacking:?}"));
            }
        }
        for what in found {
            self.checker.breach(Instant::now(), Invariant::VolumesInEnd, what);
        }
    }

    /// In an hour in which nothing happens volumes are looked at when their pods are, and none is unmounted.
    pub(super) fn check_idle_volumes(&mut self, since: Instant) {
        let Some(volumes) = self.volumes.clone() else { return };
        let mut mounts: BTreeMap<PodUid, u32> = BTreeMap::new();
        let mut found = Vec::new();
        for call in volumes.fake.calls().into_iter().filter(|call| call.at > since) {
            let Some(uid) = call.pod else { continue };
            match call.op {
                VolumeOp::Mount => *mounts.entry(uid).or_default() += 1,
                _ => found.push(format!("{:?} of the volumes of pod {uid}", call.op)),
            }
        }
        let often = since.elapsed().as_secs() / Duration::from_secs(30).as_secs();
        let many = mounts.into_iter().filter(|(_, count)| u64::from(*count) > often);
        found.extend(many.map(|(uid, count)| format!("{count} mounts for pod {uid}")));
        for what in found {
            self.checker.breach(Instant::now(), Invariant::Idle, what);
        }
    }
}
