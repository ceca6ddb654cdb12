//! What each change of a source's pods means for wishes and workers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::preemption::PREEMPTING;
use super::{Entry, SyncLoop};
use crate::admission::{Admission, Operation};
use crate::config::PodChange;
use crate::engine::worker::status_at_start;
use crate::event::{Event, EventSubject, EventType};
use crate::ids::{PodUid, SourceName};
use crate::pod::PodRecord;
use crate::source::SourceItem;
use crate::status::{StatusOverride, pod_is_terminal};
use crate::syncer::{KillCause, ORPHAN_GRACE, PodWish, Standing, Termination};

/// The reason of a pod that was put out by the node. Source: kubelet 1.36, `eviction/eviction_manager.go`.
const EVICTED: &str = "Evicted";

impl SyncLoop {
    pub(super) async fn source_says(&mut self, source: &SourceName, item: SourceItem) {
        let changes = self.config.apply(source, item).await;
        for event in changes.events {
            self.shared.events.record(event);
        }
        // Before it is known what runs, nothing is decided; what the sources said by then is taken as a whole.
        if !self.looked {
            return;
        }
        let mut changes_of_pods = changes.changes;
        let is_add = |change: &PodChange| matches!(change, PodChange::Add(_));
        for adds in changes_of_pods.chunk_by_mut(|one, next| is_add(one) && is_add(next)) {
            // What was here before is admitted before what is new, as after the first look, and so are critical pods.
            adds.sort_by_key(|change| match change {
                PodChange::Add(pod) => (!self.leftovers.contains_key(pod.uid()), !pod.facts().is_critical),
                _ => (false, false),
            });
        }
        for change in changes_of_pods {
            self.dispatch(change);
        }
        if changes.became_ready {
            self.end_leftovers();
        }
        self.try_untried_resizes();
    }

    /// Everything has been looked at: what the sources said so far is dispatched, and what nobody wants is ended.
    /// What could not be inspected yet is waited for by its own worker only.
    pub(super) fn first_look(&mut self, unseen: BTreeSet<PodUid>) {
        self.looked = true;
        self.unseen = unseen;
        self.wait_for_unseen();
        for uid in self.shared.cache.present() {
            self.note_leftover(&uid);
        }
        // What runs is admitted before what is new, so that it is not refused for lack of room. Of what is new critical pods come
        // first: others would only be pushed out for them.
        let mut pods: Vec<Arc<PodRecord>> = self.config.pods().cloned().collect();
        pods.sort_by_key(|pod| {
            let is_new = !self.leftovers.contains_key(pod.uid());
            let yields = is_new && !pod.facts().is_critical;
            (is_new, yields, pod.created_at(), pod.uid().clone())
        });
        for pod in pods {
            self.add(pod);
        }
        self.end_leftovers();
        self.try_untried_resizes();
    }

    fn dispatch(&mut self, change: PodChange) {
        match change {
            PodChange::Add(pod) => self.add(pod),
            PodChange::Update { new, .. } | PodChange::Delete(new) => self.update(&new),
            PodChange::Reconcile(pod) => self.reconcile(pod),
            PodChange::Remove(pod) => self.remove(&pod),
        }
    }

    fn add(&mut self, pod: Arc<PodRecord>) {
        let uid = pod.uid().clone();
        if let Some(entry) = self.entries.get_mut(&uid) {
            // The same pod is named again while its end goes on: it starts anew after that.
            entry.pod = pod;
            entry.granted = None;
            entry.pending = None;
            entry.again = true;
            entry.left = false;
            entry.not_yet = None;
        } else if self.leftovers.get(&uid).is_some_and(|leftover| leftover.working) {
            self.entries.insert(
                uid,
                Entry {
                    pod,
                    granted: None,
                    pending: None,
                    working: true,
                    again: true,
                    left: false,
                    not_yet: None,
                },
            );
        } else {
            self.start(pod);
        }
    }

    /// Admits a pod and starts its worker.
    pub(super) fn start(&mut self, pod: Arc<PodRecord>) {
        if self.shared.stopping.load(Ordering::Relaxed) {
            return;
        }
        let uid = pod.uid().clone();
        let operation = self.operation(&uid);
        let was_here = self.leftovers.contains_key(&uid) || self.restored.contains_key(&uid);
        let name = self.leftovers.remove(&uid).and_then(|leftover| leftover.name);
        // While something else of its name is left, it waits for its turn like everybody.
        let name = name.and_then(Arc::into_inner);
        let granted = self.granted_before(&pod);
        let held = granted.as_ref().unwrap_or(&pod);
        let mut wish = PodWish::run(held.clone(), Standing::Admitted);
        let mut not_yet = None;
        let mut room = None;
        if let Some(end) = self.end_of(&pod) {
            if end.evicted && operation == Operation::Restored {
                // Whoever it makes room for waits until it has.
                self.shared.ledger.admit_leaving(held);
            }
            wish.end(end);
        } else {
            let decision = self.shared.ledger.admit_or_preempt(operation, held);
            match decision.answer.clone() {
                Admission::Admit => {}
                Admission::NotYet { reason, message } => {
                    self.tell_not_yet(&pod, &reason, &message);
                    if was_here {
                        // It has run here: what it had is not given away because somebody whom it needs, such as a plugin, comes later.
                        self.shared.ledger.hold(held);
                    }
                    not_yet = Some((reason.to_string(), message.clone()));
                    wish.standing = Standing::NotYet {
                        reason: reason.into_owned(),
                        message,
                    };
                }
                Admission::Reject { reason, message } => wish.end(self.rejection(&pod, &reason, message)),
            }
            room = Some(decision);
            if self.unseen.contains(&uid) {
                // It may have ended while the agent was down: nobody is refused for good because of it.
                self.shared.ledger.mark_leaving(&uid);
            }
        }
        self.untried_resizes |= granted.is_some();
        self.entries.insert(
            uid.clone(),
            Entry {
                pod,
                granted,
                pending: None,
                working: true,
                again: false,
                left: false,
                not_yet,
            },
        );
        self.spawn(&uid, wish, name.map(Arc::new));
        if let Some(decision) = room {
            self.make_room(&uid, &decision);
        }
    }

    /// What runs has what it holds. Of what ended meanwhile, as in a reboot, others may have the room by now.
    fn operation(&self, uid: &PodUid) -> Operation {
        let cache = &self.shared.cache;
        if cache
            .current(uid)
            .map_or_else(|| cache.is_present(uid), |seen| seen.may_run())
        {
            Operation::Restored
        } else {
            Operation::New
        }
    }

    /// The end that a pod brings along: its source asks for it, or it came in an earlier life of the agent. Such a pod
    /// is not admitted, and counted only while one runs that was put out to make room.
    fn end_of(&self, pod: &PodRecord) -> Option<Termination> {
        if let Some(grace) = pod.deletion_grace() {
            return Some(Termination::new(KillCause::Deleted, grace));
        }
        let ended = pod.is_finished_in_api() || self.ended_before(pod);
        ended.then(|| {
            let mut end = Termination::new(KillCause::Completed, pod.facts().termination_grace);
            // One that was put out to make room leaves nothing, though the agent was killed meanwhile.
            let restored = self.restored.get(pod.uid());
            let reason = restored.and_then(|status| status.reason.as_deref());
            end.evicted = reason.is_some_and(|reason| [EVICTED, PREEMPTING].contains(&reason));
            end
        })
    }

    pub(super) fn ended_before(&self, pod: &PodRecord) -> bool {
        let restored = self.restored.get(pod.uid());
        if restored.is_some_and(|status| pod_is_terminal(status)) {
            return true;
        }
        self.shared.cache.current(pod.uid()).is_some_and(|observed| {
            let status = status_at_start(&self.shared, pod, &observed, restored.map(|status| &**status));
            !observed.may_run() && pod_is_terminal(&status)
        })
    }

    fn rejection(&self, pod: &PodRecord, reason: &str, message: String) -> Termination {
        self.shared.warn_pod(pod, reason.to_owned(), message.clone());
        Termination::new(KillCause::Rejected, ORPHAN_GRACE).with_status(StatusOverride::new(reason.to_owned(), message))
    }

    fn tell_not_yet(&self, pod: &PodRecord, reason: &str, message: &str) {
        self.shared.events.record(Event::new(
            EventSubject::pod(pod),
            EventType::Warning,
            reason.to_owned(),
            message.to_owned(),
        ));
    }

    fn update(&mut self, pod: &Arc<PodRecord>) {
        let end = match pod.deletion_grace() {
            Some(grace) => Some(Termination::new(KillCause::Deleted, grace)),
            None => pod
                .is_finished_in_api()
                .then(|| Termination::new(KillCause::Completed, pod.facts().termination_grace)),
        };
        let is_counted = self.shared.ledger.holds(pod.uid());
        let Some(entry) = self.entries.get_mut(pod.uid()) else {
            return;
        };
        let resizes = entry.take_version(pod, is_counted);
        if entry.again {
            // The worker that ends is not about this one.
            return;
        }
        if entry.working {
            let held = entry.granted().clone();
            let pending = entry.pending.clone();
            self.shared.ledger.replace(&held);
            if end.is_some() {
                self.shared.ledger.mark_leaving(pod.uid());
            }
            let goes_on = end.is_none();
            self.wish(pod.uid(), |wish| {
                wish.update(held);
                wish.resize = pending;
                if let Some(end) = end {
                    wish.end(end);
                }
            });
            if resizes && goes_on {
                self.untried_resizes |= !self.config.all_ready();
                self.try_resize(pod.uid());
            }
        } else if let Some(end) = end {
            // A pod whose end was dealt with is deleted: its last status is to say so.
            entry.working = true;
            let mut wish = PodWish::run(pod.clone(), Standing::Admitted);
            wish.end(end);
            self.spawn(pod.uid(), wish, None);
        }
    }

    fn reconcile(&mut self, pod: Arc<PodRecord>) {
        let is_counted = self.shared.ledger.holds(pod.uid());
        let Some(entry) = self.entries.get_mut(pod.uid()) else {
            return;
        };
        entry.take_version(&pod, is_counted);
        if entry.again {
            return;
        }
        let held = entry.granted().clone();
        self.wish(pod.uid(), |wish| wish.reconcile(held));
    }

    fn remove(&mut self, pod: &PodRecord) {
        let uid = pod.uid();
        let Some(entry) = self.entries.get_mut(uid) else { return };
        entry.again = false;
        entry.left = true;
        entry.not_yet = None;
        self.shared.ledger.mark_leaving(uid);
        let grace = pod.deletion_grace().unwrap_or(pod.facts().termination_grace);
        let end = Termination::new(KillCause::Removed, grace);
        if entry.working {
            self.wish(uid, |wish| {
                wish.left = true;
                wish.end(end);
            });
        } else {
            entry.working = true;
            let mut wish = PodWish::run(entry.pod.clone(), Standing::Admitted);
            wish.left = true;
            wish.end(end);
            self.spawn(uid, wish, None);
        }
    }

    /// Asks again for the pods that were told "not yet".
    pub(super) fn ask_again(&mut self) {
        if self.shared.stopping.load(Ordering::Relaxed) {
            return;
        }
        let mut waiting: Vec<Arc<PodRecord>> = self
            .entries
            .values()
            .filter(|entry| entry.not_yet.is_some() && entry.working && !entry.left)
            .map(|entry| entry.granted().clone())
            .collect();
        waiting.sort_by_key(|pod| !pod.facts().is_critical);
        for pod in waiting {
            // Nobody makes room for a pod that is being ended.
            if !self.is_ending(pod.uid()) {
                let decision = self.shared.ledger.admit_or_preempt(self.operation(pod.uid()), &pod);
                self.take_answer(&pod, decision.answer.clone());
                self.make_room(pod.uid(), &decision);
            }
        }
        self.retry_resizes();
    }

    fn is_ending(&self, uid: &PodUid) -> bool {
        let workers = self.shared.workers();
        workers
            .get(uid)
            .is_some_and(|link| link.wish.borrow().terminate.is_some())
    }

    fn take_answer(&mut self, pod: &Arc<PodRecord>, answer: Admission) {
        let Some(entry) = self.entries.get_mut(pod.uid()) else {
            return;
        };
        match answer {
            Admission::Admit => {
                entry.not_yet = None;
                self.wish(pod.uid(), |wish| wish.standing = Standing::Admitted);
            }
            Admission::NotYet { reason, message } => {
                let now = (reason.to_string(), message.clone());
                if entry.not_yet.as_ref() == Some(&now) {
                    return;
                }
                // One event per reason; the message may count things.
                let new_reason = entry.not_yet.as_ref().is_none_or(|before| before.0 != now.0);
                entry.not_yet = Some(now);
                if new_reason {
                    self.tell_not_yet(pod, &reason, &message);
                }
                self.wish(pod.uid(), |wish| {
                    wish.standing = Standing::NotYet {
                        reason: reason.into_owned(),
                        message,
                    };
                });
            }
            Admission::Reject { reason, message } => {
                entry.not_yet = None;
                // It may hold what it requests, until its worker is done.
                self.shared.ledger.mark_leaving(pod.uid());
                let end = self.rejection(pod, &reason, message);
                self.wish(pod.uid(), |wish| wish.end(end));
            }
        }
    }
}
