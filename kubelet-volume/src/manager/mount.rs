//! Having the volumes of a pod there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kubelet_core::k8s_openapi::api::core::v1::Volume;
use kubelet_core::{
    CancellationToken, Event, EventSubject, EventType, PodRecord, PodUid, PodVolumes, VolumeError, error_chain,
    made_volumes,
};
use tokio::time::Instant;

use super::Shared;
use super::pods::{Failure, Stage, VolumeState};
use super::set_up::Failed;
use crate::plugin::{Refresh, VolumeMode};
use crate::seen::Reads;

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
            state.told = None;
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

/// How a volume is after a sync.
struct Outcome<'a> {
    name: &'a str,
    is_there: bool,
    /// Why it is not as it should be, and when that is looked at again.
    failed: Option<Failure>,
    /// Whether that was not so before.
    is_news: bool,
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
            return Err(self.waiting(pod, &unmounted));
        }
        let mut ready = PodVolumes::default();
        ready.again_at = outcomes.iter().filter_map(|outcome| outcome.again_at).min();
        ready.groups = self.groups_of(pod);
        Ok(ready)
    }

    /// What a pod waits for. Told of where it is not told of each volume by itself.
    fn waiting(&self, pod: &PodRecord, unmounted: &[&Outcome<'_>]) -> VolumeError {
        let names = |of: &mut dyn Iterator<Item = &&Outcome<'_>>| of.map(|outcome| outcome.name.to_owned()).collect();
        let why = |outcome: &&Outcome<'_>| {
            let failed = outcome.failed.as_ref()?;
            Some(format!("volume {:?}: {}", outcome.name, failed.message))
        };
        let unprocessed = || {
            let failed = |outcome: &Outcome<'_>| outcome.failed.as_ref().map(|failed| failed.stage);
            unmounted
                .iter()
                .filter(move |outcome| failed(outcome) == Some(Stage::Process))
        };
        let until = |outcome: &&Outcome<'_>| outcome.failed.as_ref().map(|failed| failed.until);
        let error = VolumeError::Waiting {
            unmounted: names(&mut unmounted.iter()),
            unattached: Vec::new(),
            unprocessed: names(&mut unprocessed()),
            detail: unmounted.iter().filter_map(why).collect::<Vec<_>>().join("; "),
            retry_at: unmounted.iter().filter_map(until).min(),
        };
        if unprocessed().any(|outcome| outcome.is_news) {
            self.warn(
                pod,
                "FailedMount",
                format!("Unable to attach or mount volumes: {error}"),
            );
        }
        error
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
        // Said before anything is read.
        self.pods.change(uid, name, VolumeState::begin);
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
            is_news: false,
            again_at: None,
        };
        let failed = match &made {
            Ok(made) => {
                outcome.again_at = made.placed.again_at;
                None
            }
            Err(failed) => {
                let message = error_chain(&failed.fault);
                outcome.is_news = known.failed.as_ref().is_none_or(|before| before.message != message);
                if outcome.is_news {
                    self.tell(pod, failed, &message);
                }
                let (first, longest) = self.settings.backoff;
                let delay = known
                    .failed
                    .as_ref()
                    .map_or(first, |failed| (failed.delay * 2).min(longest));
                let until = Instant::now() + delay;
                // What is there goes on, and is looked at again then.
                outcome.again_at = Some(until);
                let stage = failed.stage;
                Some(Failure {
                    message,
                    delay,
                    until,
                    stage,
                })
            }
        };
        self.pods.change(uid, name, |state| {
            state.failed.clone_from(&failed);
            state.made_from(&objects);
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
            if state.is_stale {
                let pause = failed.as_ref().map_or(Duration::ZERO, |_| self.settings.backoff.0);
                outcome.again_at = Some(Instant::now() + pause);
            }
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
            is_news: false,
            again_at: None,
        };
        if let Some(failed) = &mut outcome.failed {
            if known.is_stale {
                // What it waits for may be there. An object that changes all the time is no reason to try all the time.
                let least = self.settings.backoff.0.min(failed.delay);
                failed.until -= failed.delay - least;
            }
            let until = failed.until;
            outcome.again_at = Some(until);
            return (now < until).then_some(outcome);
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

    /// Tells of one volume why it could not be made.
    pub(super) fn tell(&self, pod: &PodRecord, failed: &Failed, message: &str) {
        let name = &failed.name;
        tracing::debug!(pod = %pod.key(), volume = name, error = message, "volume not set up");
        let (reason, what) = match failed.stage {
            Stage::Process => return,
            Stage::NodeAffinity => ("FailedMount", "MountVolume.NodeAffinity check"),
            Stage::SetUp(VolumeMode::Filesystem) => ("FailedMount", "MountVolume.SetUp"),
            Stage::SetUp(VolumeMode::Block) => ("FailedMapVolume", "MapVolume.MapPodDevice"),
        };
        self.warn(pod, reason, format!("{what} failed for volume {name:?} : {message}"));
    }

    fn warn(&self, pod: &PodRecord, reason: &'static str, message: String) {
        if let Ok(node) = self.node() {
            let event = Event::new(EventSubject::pod(pod), EventType::Warning, reason, message);
            node.context.events.record(event);
        }
    }
}
