//! What is there without a wish: pods of an earlier life, late effects of calls that nobody heard the end of.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tracing::Instrument;

use super::{Chore, LATE_LOOK_PATIENCE, Leftover, SyncLoop};
use crate::cache::{CacheError, Seq};
use crate::engine::names::NameGuard;
use crate::engine::worker::WorkerEnd;
use crate::ids::{PodUid, SourceName};
use crate::source::SourceKind;
use crate::syncer::{KillCause, ORPHAN_GRACE, PodWish, Standing, Termination};

/// The first pause after a pod of an earlier life could not be cleared up after, and the longest.
const SWEEP_PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

impl SyncLoop {
    pub(super) fn worker_ended(&mut self, end: WorkerEnd) {
        let uid = end.uid;
        let link = self.shared.workers().remove(&uid);
        if !end.finished {
            return;
        }
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.not_yet = None;
        }
        self.shared.release(&uid);
        match self.entries.get_mut(&uid) {
            // It starts anew once nothing of the old one is left.
            Some(entry) if entry.again => self.leave(&uid),
            Some(entry) => {
                // A wish that came while the worker ended: a deletion that a sink is to hear of, or remains to clear up.
                let wish = link.map(|link| link.wish.borrow().clone());
                if let Some(wish) = wish.filter(|wish| !wish.is_as_before(&end.taken)) {
                    self.spawn(&uid, wish, None);
                    return;
                }
                if entry.left {
                    self.leave(&uid);
                    return;
                }
                entry.working = false;
                if self.shared.cache.current(&uid).is_some_and(|seen| !seen.is_down()) {
                    self.end_late_object(&uid);
                }
            }
            None => self.leave(&uid),
        }
    }

    /// Nothing is known of a pod any more, but that its checkpoint is yet to go.
    fn leave(&mut self, uid: &PodUid) {
        self.restored.remove(uid);
        self.shared.statuses.forget(uid);
        self.shared.syncer.forget(uid);
        if self.shared.checkpoints.may_hold(uid) {
            self.leftovers.insert(uid.clone(), Leftover::being_cleared());
            self.departed.push(uid.clone());
        } else {
            self.cleared(uid);
        }
    }

    /// Has the checkpoints of pods removed that have left, all at once: one after the other they would hold up everything
    /// else on a slow disk.
    pub(super) fn forget_departed(&mut self) {
        if self.departing || self.departed.is_empty() {
            return;
        }
        self.departing = true;
        let (shared, departed) = (self.shared.clone(), std::mem::take(&mut self.departed));
        let forget = async move {
            shared.forget_checkpoints(&departed).await;
            Chore::Departed(departed)
        };
        self.chores.spawn(forget.in_current_span());
    }

    /// Something was seen of a pod, or somebody asked for it to be looked into.
    pub(super) fn woken(&mut self, uid: &PodUid) {
        match self.entries.get(uid) {
            Some(entry) if entry.working => self.wish(uid, |wish| wish.nudges += 1),
            Some(_) if self.shared.cache.current(uid).is_some_and(|seen| !seen.is_down()) => self.end_late_object(uid),
            Some(_) => {}
            None if self.leftovers.get(uid).is_some_and(|leftover| leftover.working) => {
                self.wish(uid, |wish| wish.nudges += 1);
            }
            None if self.looked => {
                if self.shared.cache.current(uid).is_some() {
                    self.note_leftover(uid);
                }
                // It may also be one that went before it could be inspected.
                self.end_leftover_if_unwanted(uid);
            }
            None => {}
        }
    }

    /// Something of a pod whose end was dealt with runs: the late effect of a call that nobody heard the end of.
    fn end_late_object(&mut self, uid: &PodUid) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        entry.working = true;
        let mut wish = PodWish::run(entry.pod.clone(), Standing::Admitted);
        wish.end(Termination::new(KillCause::Completed, ORPHAN_GRACE));
        self.spawn(uid, wish, None);
    }

    pub(super) fn note_leftover(&mut self, uid: &PodUid) {
        let known = self.leftovers.get(uid);
        // One that could not be inspected at first is looked into again: its source and name matter.
        if self.entries.contains_key(uid) || known.is_some_and(|known| known.working || known.source.is_some()) {
            return;
        }
        let seen = self.shared.cache.current(uid);
        let source = seen
            .as_ref()
            .and_then(|seen| seen.source.as_deref())
            .map(SourceName::from);
        // A leftover of a static source, or of an unknown one, holds its name: whoever is wished for under it waits.
        let is_managed = source
            .as_ref()
            .is_some_and(|source| self.kinds.get(source) == Some(&SourceKind::Managed));
        let name = match known.and_then(|known| known.name.clone()) {
            _ if is_managed => None,
            Some(held) => Some(held),
            None => {
                let key = self.shared.cache.key(uid);
                key.and_then(|key| self.hold_for_leftover(key.full_name()))
            }
        };
        let leftover = Leftover {
            source,
            name,
            working: false,
        };
        self.leftovers.insert(uid.clone(), leftover);
    }

    /// Waits for the inspection of what could not be inspected at first, for a time.
    pub(super) fn wait_for_unseen(&self) {
        for uid in self.unseen.iter().cloned() {
            let cache = self.shared.cache.clone();
            self.late_looks.push(Box::pin(async move {
                let inspected = async {
                    // A look that fails is repeated by the relister.
                    while let Err(CacheError::CannotLook { .. }) = cache.since(&uid, Seq::default()).await {}
                };
                let _ = tokio::time::timeout(LATE_LOOK_PATIENCE, inspected).await;
                uid
            }));
        }
    }

    /// Something of an earlier life has been inspected at last, or is not waited for any longer.
    pub(super) fn looked_into(&mut self, uid: &PodUid) {
        self.unseen.remove(uid);
        let Some(entry) = self.entries.get(uid) else { return };
        let (pod, link) = (entry.pod.clone(), self.shared.workers().get(uid).cloned());
        let is_ending = link.is_some_and(|link| link.wish.borrow().terminate.is_some());
        // What has ended is dealt with by its worker, which frees what it holds.
        if !is_ending && !self.ended_before(&pod) {
            self.shared.ledger.mark_staying(uid);
            self.ask_again();
        }
    }

    /// Holds a name for a leftover, together with what else is left of that name: an agent that did not keep two of one
    /// name apart may have left both.
    fn hold_for_leftover(&mut self, name: String) -> Option<Arc<NameGuard>> {
        if let Some(shared) = self.leftover_names.get(&name).and_then(Weak::upgrade) {
            return Some(shared);
        }
        let guard = Arc::new(self.shared.names.try_claim(&name)?);
        self.leftover_names.retain(|_, guard| guard.strong_count() > 0);
        self.leftover_names.insert(name, Arc::downgrade(&guard));
        Some(guard)
    }

    /// Ends the leftovers whose sources have spoken and do not name them.
    pub(super) fn end_leftovers(&mut self) {
        let uids: Vec<PodUid> = self.leftovers.keys().cloned().collect();
        for uid in uids {
            self.end_leftover_if_unwanted(&uid);
        }
        if self.config.all_ready() {
            self.sources_ready
                .send_if_modified(|ready| !std::mem::replace(ready, true));
            if !std::mem::replace(&mut self.swept, true) {
                let syncer = self.shared.syncer.clone();
                let look = async move { Chore::LeftBehind(syncer.left_behind().await) };
                self.chores.spawn(look.in_current_span());
            }
        }
    }

    pub(super) fn chore_done(&mut self, done: Chore) {
        self.departing &= !matches!(done, Chore::Departed(_));
        match done {
            Chore::LeftBehind(uids) => {
                self.sweep(uids, SWEEP_PAUSE.0);
                self.look_for_unseen();
            }
            Chore::LeftBehindUnseen(uids) => self.sweep(uids, SWEEP_PAUSE.0),
            Chore::Swept { uids, stay, pause } => {
                for uid in uids {
                    self.cleared(&uid);
                }
                self.sweep_later(stay, pause);
            }
            Chore::SweepAgain(uids, pause) => self.sweep(uids, pause),
            Chore::Departed(uids) => {
                for uid in uids {
                    self.cleared(&uid);
                }
            }
        }
    }

    /// Waits for what of earlier lives could not be told of yet.
    fn look_for_unseen(&mut self) {
        let (syncer, stop) = (self.shared.syncer.clone(), self.stop.clone());
        let look = async move {
            let unseen = tokio::select! {
                biased;
                // The next life looks again.
                () = stop.cancelled() => Vec::new(),
                unseen = syncer.left_behind_unseen() => unseen,
            };
            Chore::LeftBehindUnseen(unseen)
        };
        self.chores.spawn(look.in_current_span());
    }

    /// Clears up after pods that an earlier life of the agent did not come to clear up after: it left folders or a
    /// checkpoint, and nobody knows of them.
    fn sweep(&mut self, left_behind: Vec<PodUid>, pause: Duration) {
        let mut uids: BTreeSet<PodUid> = left_behind.into_iter().collect();
        uids.extend(self.restored.keys().cloned());
        uids.retain(|uid| {
            let is_wished_for = self.entries.contains_key(uid) || self.config.pod(uid).is_some();
            !is_wished_for && !self.leftovers.contains_key(uid) && !self.shared.cache.is_present(uid)
        });
        if uids.is_empty() {
            return;
        }
        for uid in &uids {
            self.restored.remove(uid);
            self.leftovers.insert(uid.clone(), Leftover::being_cleared());
        }
        let uids: Vec<PodUid> = uids.into_iter().collect();
        if pause == SWEEP_PAUSE.0 {
            tracing::info!(pods = uids.len(), "clearing up after pods of an earlier life");
        }
        let (shared, stop) = (self.shared.clone(), self.stop.clone());
        let sweep = async move {
            let stay = shared.syncer.sweep(&uids, &stop).await;
            // Last, as after every pod: it tells that something is left. Also of those that stay: a pod that is named under
            // their UIDs meanwhile is a new one.
            shared.forget_checkpoints(&uids).await;
            Chore::Swept { uids, stay, pause }
        };
        self.chores.spawn(sweep.in_current_span());
    }

    /// Tries once more, after that time, to clear up after pods that stay.
    fn sweep_later(&mut self, pods: Vec<PodUid>, pause: Duration) {
        if pods.is_empty() {
            return;
        }
        let stop = self.stop.clone();
        let wait = async move {
            tokio::select! {
                biased;
                // The next life finds them.
                () = stop.cancelled() => Chore::SweepAgain(Vec::new(), pause),
                () = tokio::time::sleep(pause) => Chore::SweepAgain(pods, (pause * 2).min(SWEEP_PAUSE.1)),
            }
        };
        self.chores.spawn(wait.in_current_span());
    }

    /// Nothing is left of a pod, on disk either.
    fn cleared(&mut self, uid: &PodUid) {
        self.leftovers.remove(uid);
        if let Some(entry) = self.entries.remove(uid)
            && entry.again
        {
            self.start(entry.pod);
            return;
        }
        // What turned up meanwhile found nobody to tell.
        if self.shared.cache.current(uid).is_some_and(|seen| !seen.is_down()) {
            self.woken(uid);
        }
    }

    fn end_leftover_if_unwanted(&mut self, uid: &PodUid) {
        let Some(leftover) = self.leftovers.get_mut(uid) else {
            return;
        };
        if leftover.working {
            return;
        }
        let spoken = match &leftover.source {
            // A source that is not configured any more has nothing to say: all others have.
            Some(source) if self.kinds.contains_key(source) => self.config.ready(source),
            _ => self.config.all_ready(),
        };
        if !spoken {
            return;
        }
        let seen = self.shared.cache.current(uid);
        // What was not inspected yet comes here again once it was: it tells the time that it gets. What is gone by itself
        // is only cleared up after.
        if seen.is_none() && self.shared.cache.is_present(uid) {
            return;
        }
        leftover.working = true;
        let name = leftover.name.take();
        tracing::info!(pod_uid = %uid, "ending a pod that nobody wishes for");
        // It gets the time that it would have got had the agent been there when it went.
        let grace = seen.and_then(|seen| seen.termination_grace).unwrap_or(ORPHAN_GRACE);
        self.spawn(uid, PodWish::end_orphan(grace), name);
    }
}
