//! Having the volumes of a pod there.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use futures::future::join_all;
use kubelet_core::k8s_openapi::api::core::v1::Volume;
use kubelet_core::{
    CancellationToken, Event, EventSubject, EventType, PodRecord, PodUid, PodVolumes, VolumeError, error_chain,
    made_volumes,
};
use tokio::time::Instant;

use super::Shared;
use super::paths;
use super::pods::{Failure, Made, VolumeState};
use crate::ground::crash::step;
use crate::plugin::{Ownership, Placed, Refresh, SetUp, VolumeFault, VolumeMode};
use crate::seen::Reads;
use crate::turns::About;

/// A set-up whose outcome is not known yet. If it never is, since nobody waited for it, the volume is set up again.
struct Unsaid<'a> {
    shared: &'a Shared,
    uid: &'a PodUid,
    name: &'a str,
    is_said: bool,
}

impl Drop for Unsaid<'_> {
    fn drop(&mut self) {
        if self.is_said {
            return;
        }
        if let Some(pod) = self.shared.pods.lock().get_mut(self.uid)
            && let Some(state) = pod.volumes.get_mut(self.name)
        {
            state.is_stale = true;
            forget_fingerprint(state);
        }
    }
}

/// What is on disk may be made of something newer than what was last set up.
fn forget_fingerprint(state: &mut VolumeState) {
    if let Some(made) = &mut state.made {
        made.placed.fingerprint = None;
    }
}

/// Why a volume was not set up, and what is there all the same.
struct Failed {
    fault: VolumeFault,
    there: Option<Made>,
}

impl From<VolumeFault> for Failed {
    fn from(fault: VolumeFault) -> Self {
        Self { fault, there: None }
    }
}

/// How a volume is after a sync.
struct Outcome<'a> {
    name: &'a str,
    is_there: bool,
    /// Why it is not as it should be, and when that is looked at again.
    failed: Option<Failure>,
    again_at: Option<Instant>,
}

impl Shared {
    pub(super) async fn mount(
        &self,
        pod: &Arc<PodRecord>,
        stop: &CancellationToken,
    ) -> Result<PodVolumes, VolumeError> {
        self.node()?;
        let volumes = made_volumes(pod.spec()).map(|volume| self.mount_one(pod, volume, stop));
        let outcomes = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(VolumeError::Stopped),
            outcomes = join_all(volumes) => outcomes,
        };
        let mut unmounted: Vec<&Outcome<'_>> = outcomes.iter().filter(|outcome| !outcome.is_there).collect();
        if !unmounted.is_empty() {
            unmounted.sort_by_key(|outcome| outcome.name);
            let why = |outcome: &&Outcome<'_>| {
                let failed = outcome.failed.as_ref()?;
                Some(format!("volume {:?}: {}", outcome.name, failed.message))
            };
            let until = |outcome: &&Outcome<'_>| outcome.failed.as_ref().map(|failed| failed.until);
            return Err(VolumeError::Waiting {
                unmounted: unmounted.iter().map(|outcome| outcome.name.to_owned()).collect(),
                detail: unmounted.iter().filter_map(why).collect::<Vec<_>>().join("; "),
                retry_at: unmounted.iter().filter_map(until).min(),
            });
        }
        let mut ready = PodVolumes::default();
        ready.again_at = outcomes.iter().filter_map(|outcome| outcome.again_at).min();
        ready.groups = self.groups_of(pod);
        Ok(ready)
    }

    /// The groups of the volumes of a pod that it does not have by itself.
    fn groups_of(&self, pod: &PodRecord) -> Vec<u32> {
        let context = pod.spec().security_context.as_ref();
        let own = context
            .and_then(|c| c.supplemental_groups.as_deref())
            .unwrap_or_default();
        let pods = self.pods.lock();
        let volumes = pods.get(pod.uid()).into_iter().flat_map(|known| known.volumes.values());
        let all: BTreeSet<u32> = volumes
            .filter_map(|volume| volume.made.as_ref())
            .flat_map(|made| made.groups.iter().copied())
            .filter(|group| !own.contains(&i64::from(*group)))
            .collect();
        all.into_iter().collect()
    }

    /// Has one volume there. What is there and needs nothing is not touched.
    async fn mount_one<'a>(&self, pod: &PodRecord, volume: &'a Volume, stop: &CancellationToken) -> Outcome<'a> {
        let (uid, name) = (pod.uid(), volume.name.as_str());
        let mut known = self.pods.volume(uid, name);
        if known.is_going {
            (known.made, known.failed) = (None, None);
        }
        if let Some(outcome) = self.at_rest(name, &known) {
            return outcome;
        }
        let reads = Reads::default();
        // Said before it is read: what changes from then on counts.
        self.pods.change(uid, name, |state| state.is_stale = false);
        let mut unsaid = Unsaid {
            shared: self,
            uid,
            name,
            is_said: false,
        };
        let made = self.set_up(pod, volume, (&known, &reads), stop).await;
        let mut objects = reads.take();
        if made.as_ref().is_ok_and(|made| made.placed.refresh == Refresh::Never) {
            // It is made, and never made anew.
            objects.clear();
        }
        let mut outcome = Outcome {
            name,
            is_there: false,
            failed: None,
            again_at: None,
        };
        let failed = match &made {
            Ok(made) => {
                outcome.again_at = made.placed.again_at;
                None
            }
            Err(failed) => {
                let message = error_chain(&failed.fault);
                self.tell(pod, volume, &known, &message);
                let (first, longest) = self.settings.backoff;
                let delay = known
                    .failed
                    .as_ref()
                    .map_or(first, |failed| (failed.delay * 2).min(longest));
                let until = Instant::now() + delay;
                // What is there goes on, and is looked at again then.
                outcome.again_at = Some(until);
                Some(Failure { message, delay, until })
            }
        };
        self.pods.change(uid, name, |state| {
            state.failed.clone_from(&failed);
            state.objects.clone_from(&objects);
            match made {
                Ok(made) => {
                    state.made = Some(made);
                    state.is_going = false;
                }
                Err(failed) => {
                    state.made = state.made.take().or(failed.there);
                    forget_fingerprint(state);
                }
            }
            outcome.is_there = state.made.is_some() && !state.is_going;
        });
        unsaid.is_said = true;
        // Last: who is told of a change finds what it changes.
        self.watches.follow(uid, &known.objects, &objects);
        outcome.failed = failed;
        outcome
    }

    /// How a volume is about which there is nothing to do now.
    fn at_rest<'a>(&self, name: &'a str, known: &VolumeState) -> Option<Outcome<'a>> {
        let now = Instant::now();
        let mut outcome = Outcome {
            name,
            is_there: known.made.is_some(),
            failed: known.failed.clone(),
            again_at: None,
        };
        if let Some(failed) = &known.failed {
            outcome.again_at = Some(failed.until);
            return (now < failed.until && !known.is_stale).then_some(outcome);
        }
        let made = known.made.as_ref()?;
        outcome.again_at = made.placed.again_at;
        let is_due = made.placed.again_at.is_some_and(|at| at <= now);
        let looks = match made.placed.refresh {
            Refresh::Never => false,
            // Without somebody who watches it has to be looked at each time.
            Refresh::Objects => known.is_stale || !self.watches.run(),
            Refresh::Pod => true,
        };
        (!looks && !is_due).then_some(outcome)
    }

    async fn set_up(
        &self,
        pod: &PodRecord,
        volume: &Volume,
        (known, reads): (&VolumeState, &Reads),
        stop: &CancellationToken,
    ) -> Result<Made, Failed> {
        let node = self.node().map_err(|error| VolumeFault::new(error.to_string()))?;
        let resolved = self.resolve(node, pod, volume, reads).await?;
        let spec = resolved.spec(volume);
        let plugin = self.plugin_for(&spec).ok_or_else(|| {
            let kind = resolved.kind(volume);
            VolumeFault::new(format!(
                "no volume plugin matched: nobody here makes volumes of type {kind:?}"
            ))
        })?;
        let features = plugin.features();
        let mode = resolved.mode(pod, volume)?;
        if mode == VolumeMode::Block && !features.block {
            let text = format!("volumes of {} cannot be given as devices", plugin.name());
            return Err(VolumeFault::new(text).into());
        }
        if !features.mount_options && !spec.mount_options().is_empty() {
            return Err(VolumeFault::new("mount options are not supported for this volume type").into());
        }
        let inner = spec.name().to_owned();
        if !paths::is_folder_name(&inner) {
            return Err(VolumeFault::new(format!("{inner:?} is no name of a volume")).into());
        }
        let pod_dir = node.pod_dir(pod.uid());
        let dir = paths::volume(&pod_dir, mode, plugin.name(), &inner);
        let scratch = paths::scratch(&pod_dir, plugin.name(), &inner);
        let turn = self.turns.take(&About::volume(pod.uid(), &inner)).await;
        let cx = SetUp {
            node,
            pod,
            volume: spec,
            mode,
            dir: &dir,
            scratch: &scratch,
            ownership: Ownership::of(pod),
            fingerprint: known.made.as_ref().and_then(|made| made.placed.fingerprint),
            is_repeated: known.made.is_some(),
            stop,
            reads,
            turn: &turn,
        };
        // Once is enough: a volume that is looked at at each sync costs the disk nothing.
        if !features.is_elsewhere && known.made.is_none() {
            let above = dir.clone();
            cx.blocking(move |_| make_above(&above)).await?;
        }
        step("what a volume is in is made");
        let made = |mut placed: Placed| {
            placed.read_only |= resolved.read_only();
            Made {
                plugin: plugin.clone(),
                inner: inner.clone(),
                mode,
                claim: resolved.claim().map(str::to_owned),
                read_only: placed.read_only,
                groups: resolved.groups(),
                placed,
            }
        };
        match plugin.set_up(&cx).await {
            Ok(placed) => Ok(made(placed)),
            Err(mut fault) => {
                let there = fault.there.take().map(|placed| made(*placed));
                Err(Failed { fault, there })
            }
        }
    }

    /// Tells of a failure that was not told of yet.
    fn tell(&self, pod: &PodRecord, volume: &Volume, known: &VolumeState, message: &str) {
        if known.failed.as_ref().is_some_and(|before| before.message == message) {
            return;
        }
        let Ok(node) = self.node() else { return };
        tracing::debug!(pod = %pod.key(), volume = volume.name, error = message, "volume not set up");
        node.context.events.record(Event::new(
            EventSubject::pod(pod),
            EventType::Warning,
            "FailedMount",
            format!("MountVolume.SetUp failed for volume {:?} : {message}", volume.name),
        ));
    }
}

/// The mode of the folders around volumes. Source: kubelet 1.36, `kubelet_getters.go`.
const FOLDER_MODE: u32 = 0o750;

/// Makes the folder that a volume's own is in.
fn make_above(dir: &Path) -> std::io::Result<()> {
    let Some(above) = dir.parent() else { return Ok(()) };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(above)
        .map_err(|error| std::io::Error::new(error.kind(), format!("cannot make {}: {error}", above.display())))
}
