//! What is there without a wish: pods of an earlier life, late effects of calls that nobody heard the end of.

use std::sync::{Arc, Weak};

use super::{Leftover, SyncLoop};
use crate::engine::names::NameGuard;
use crate::engine::worker::WorkerEnd;
use crate::ids::{PodUid, SourceName};
use crate::source::SourceKind;
use crate::syncer::{KillCause, ORPHAN_GRACE, PodWish, Standing, Termination};

impl SyncLoop {
    pub(super) async fn worker_ended(&mut self, end: WorkerEnd) {
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
            Some(entry) if entry.again => {
                let pod = entry.pod.clone();
                self.entries.remove(&uid);
                self.leave(&uid).await;
                self.start(pod);
            }
            Some(entry) => {
                // A wish that came while the worker ended: a deletion that a sink is to hear of, or remains to clear up.
                let wish = link.map(|link| link.wish.borrow().clone());
                if let Some(wish) = wish.filter(|wish| !wish.is_as_before(&end.taken)) {
                    self.spawn(&uid, wish, None);
                    return;
                }
                if entry.left {
                    self.entries.remove(&uid);
                    self.leave(&uid).await;
                    return;
                }
                entry.working = false;
                if self.shared.cache.current(&uid).is_some_and(|seen| !seen.is_down()) {
                    self.end_late_object(&uid);
                }
            }
            None => self.leave(&uid).await,
        }
    }

    /// Nothing is known of a pod any more.
    async fn leave(&mut self, uid: &PodUid) {
        self.leftovers.remove(uid);
        self.restored.remove(uid);
        self.shared.statuses.forget(uid);
        self.shared.syncer.forget(uid);
        if let Err(error) = self.shared.checkpoints.remove(uid).await {
            tracing::warn!(pod_uid = %uid, error = &error as &dyn std::error::Error, "pod checkpoint not removed");
        }
    }

    /// Something was seen of a pod, or somebody asked for it to be looked into.
    pub(super) fn woken(&mut self, uid: &PodUid) {
        match self.entries.get(uid) {
            Some(entry) if entry.working => self.wish(uid, |wish| wish.nudges += 1),
            Some(_) => {
                if self.shared.cache.current(uid).is_some_and(|seen| !seen.is_down()) {
                    self.end_late_object(uid);
                }
            }
            None if self.leftovers.get(uid).is_some_and(|leftover| leftover.working) => {
                self.wish(uid, |wish| wish.nudges += 1);
            }
            None => {
                if self.looked && self.shared.cache.current(uid).is_some() {
                    self.note_leftover(uid);
                    self.end_leftover_if_unwanted(uid);
                }
            }
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
        let name = seen
            .and_then(|seen| seen.key.clone())
            .filter(|_| !is_managed && known.is_none_or(|known| known.name.is_none()))
            .and_then(|key| self.hold_for_leftover(key.full_name()));
        let leftover = self.leftovers.entry(uid.clone()).or_insert(Leftover {
            source: None,
            name: None,
            working: false,
        });
        leftover.source = source;
        leftover.name = leftover.name.take().or(name);
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
    pub(super) async fn end_leftovers(&mut self) {
        let uids: Vec<PodUid> = self.leftovers.keys().cloned().collect();
        for uid in uids {
            self.end_leftover_if_unwanted(&uid);
        }
        if self.config.all_ready() {
            self.sources_ready
                .send_if_modified(|ready| !std::mem::replace(ready, true));
            let gone: Vec<PodUid> = self
                .restored
                .keys()
                .filter(|uid| !self.entries.contains_key(*uid) && !self.leftovers.contains_key(*uid))
                .cloned()
                .collect();
            for uid in gone {
                self.leave(&uid).await;
            }
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
        // What was not looked at yet comes here again once it was: it tells the time that it gets.
        let Some(seen) = self.shared.cache.current(uid) else {
            return;
        };
        leftover.working = true;
        let name = leftover.name.take();
        tracing::info!(pod_uid = %uid, "ending a pod that nobody wishes for");
        // It gets the time that it would have got had the agent been there when it went.
        let grace = seen.termination_grace.unwrap_or(ORPHAN_GRACE);
        self.spawn(uid, PodWish::end_orphan(grace), name);
    }
}
