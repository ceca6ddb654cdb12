//! Volumes are there before their pod's containers, and go after them.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_core::{PodUid, made_volumes};
use tokio::time::Instant;

use super::Checker;
use crate::fake::Op;
use crate::fake::journal::VolumeChange;
use crate::simulator::Invariant;

/// What became of volumes, and of the sandboxes that may use them.
#[derive(Debug, Default)]
pub(crate) struct VolumeBook {
    /// The pods that have all their volumes.
    mounted: BTreeSet<PodUid>,
    /// The sandboxes that are up, and whether each was made by a call whose end nobody heard.
    up: BTreeMap<u64, (PodUid, bool)>,
    /// Pods with volumes that were nowhere in the runtime when a life of the agent began, and that nobody has wished for since. Nothing
    /// but the folders of pods is sure to tell of them, and a simulated node has no folders.
    untold: BTreeSet<PodUid>,
}

impl VolumeBook {
    pub(super) fn sandbox_made(&mut self, sandbox: u64, pod: &PodUid, late: bool) {
        self.up.insert(sandbox, (pod.clone(), late));
    }

    pub(super) fn sandbox_down(&mut self, sandbox: u64) {
        self.up.remove(&sandbox);
    }

    /// Somebody knows of it.
    pub(super) fn told(&mut self, uid: &PodUid) {
        self.untold.remove(uid);
    }
}

impl Checker {
    /// A life of the agent begins, and may not know that these have volumes.
    pub(crate) fn may_be_untold(&mut self, pods: impl IntoIterator<Item = PodUid>) {
        self.volumes.untold.extend(pods);
    }

    pub(crate) fn is_untold(&self, uid: &PodUid) -> bool {
        self.volumes.untold.contains(uid)
    }

    /// Nothing is made or started for a pod that has not got its volumes.
    pub(super) fn check_mounted(&mut self, at: Instant, op: Op, pod: Option<&PodUid>) {
        let Some(uid) = pod.filter(|uid| !self.volumes.mounted.contains(*uid)) else {
            return;
        };
        let has_volumes = |book: &super::Book| made_volumes(book.pod.spec()).next().is_some();
        if self.has_volumes && self.books.get(uid).is_some_and(has_volumes) {
            let what = format!("{} for pod {uid}, whose volumes are not there", op.name());
            self.breach(at, Invariant::VolumesFirst, what);
        }
    }

    pub(super) fn volumes_changed(&mut self, at: Instant, uid: &PodUid, change: &VolumeChange) {
        match change {
            VolumeChange::Mounted => drop(self.volumes.mounted.insert(uid.clone())),
            VolumeChange::Unmounting => {
                self.volumes.mounted.remove(uid);
                self.check_unused(at, uid);
            }
            VolumeChange::Lost => drop(self.volumes.mounted.remove(uid)),
            // What is there is not given up because it cannot be brought up to date.
            VolumeChange::NotMounted(_) | VolumeChange::Unmounted | VolumeChange::NotUnmounted(_) => {}
        }
    }

    /// Nobody uses the volumes of a pod when they go. Not judged is what was made or started by a call whose end nobody heard.
    fn check_unused(&mut self, at: Instant, uid: &PodUid) {
        let running = self.of_pod(uid).find(|(_, instance)| instance.runs() && !instance.late);
        let mut sandboxes = self.volumes.up.iter();
        let sandbox = sandboxes.find(|(_, (pod, late))| pod == uid && !late);
        let user = match (running, sandbox) {
            (Some((container, instance)), _) => format!("c{container} ({}) runs", instance.name),
            (None, Some((sandbox, _))) => format!("s{sandbox} is ready"),
            (None, None) => return,
        };
        let what = format!("the volumes of pod {uid} are unmounted while {user}");
        self.breach(at, Invariant::VolumesLast, what);
    }
}
