//! Which changes of a running pod's CPU and memory are granted, and when.
//!
//! Source: kubelet 1.36, `allocation_manager.go`, which tries again by timers; here that is done when something is freed.

use std::sync::Arc;

use super::{Entry, SyncLoop};
use crate::admission::{Admission, NodeView, Operation};
use crate::event::{Event, EventSubject, EventType};
use crate::ids::PodUid;
use crate::pod::{PodRecord, QosClass, only_shrinks, resize_summary};
use crate::resources::pod_requests;
use crate::syncer::{PendingResize, ResizeRefusal};

impl Entry {
    /// The pod with what it was granted: what its worker and the ledger work with.
    pub(super) fn granted(&self) -> &Arc<PodRecord> {
        self.granted.as_ref().unwrap_or(&self.pod)
    }

    /// Takes a newer version of the pod, with what was granted before. Says whether it asks for other resources. `is_counted`: it
    /// holds what it was granted, also where it waits for admission, since it ran before the agent did.
    pub(super) fn take_version(&mut self, pod: &Arc<PodRecord>, is_counted: bool) -> bool {
        let before = self.granted().clone();
        self.pod = pod.clone();
        // One that waits for admission and is new was granted nothing yet.
        let has_grant = self.not_yet.is_none() || self.granted.is_some() || is_counted;
        let differs = has_grant && self.working && !self.again && pod.resizes(&before);
        self.granted = differs.then(|| Arc::new(pod.with_resources_of(&before)));
        if !differs {
            self.pending = None;
        }
        differs
    }
}

impl SyncLoop {
    /// What a pod was granted before this life of the agent, where that is other than what it asks for by now. It is admitted with
    /// that, also where nothing of it runs any more.
    pub(super) fn granted_before(&self, pod: &PodRecord) -> Option<Arc<PodRecord>> {
        let told = self.restored.get(pod.uid()).or_else(|| pod.api_status())?;
        let seen = self.shared.cache.current(pod.uid());
        pod.with_resources_told(told, seen.as_deref()).map(Arc::new)
    }

    /// Grants a pod the resources that it asks for, if there is room; else says why not.
    ///
    /// Nothing is granted before every source has spoken: what others hold is not known before.
    pub(super) fn try_resize(&mut self, uid: &PodUid) {
        if !self.looked || !self.config.all_ready() {
            return;
        }
        let Some(entry) = self.entries.get(uid) else { return };
        let is_settled = entry.working && !entry.left && !entry.again && entry.not_yet.is_none();
        let Some(before) = entry.granted.clone().filter(|_| is_settled) else {
            return;
        };
        let ledger = &self.shared.ledger;
        let ends = self
            .shared
            .workers()
            .get(uid)
            .is_none_or(|link| link.wish.borrow().terminate.is_some());
        // What it asks for would be held by a pod that is gone, or that was never let in.
        if ends || !ledger.holds(uid) {
            return;
        }
        let wanted = entry.pod.clone();
        let refusal = match self.infeasible(&wanted, &before) {
            Some(message) => Some((ResizeRefusal::Infeasible, message)),
            // It asks for no more than it has, which is no question of room.
            None if only_shrinks(&wanted, &before) => {
                ledger.resize(&wanted);
                None
            }
            None => match ledger.admit(Operation::Resize, &wanted) {
                Admission::Admit => None,
                Admission::NotYet { message, .. } | Admission::Reject { message, .. } => {
                    Some((ResizeRefusal::Deferred, message))
                }
            },
        };
        match refusal {
            None => self.grant(&wanted, &before),
            Some((refusal, message)) => self.refuse_resize(uid, refusal, message),
        }
    }

    /// Why this node can never do it.
    fn infeasible(&self, wanted: &PodRecord, before: &PodRecord) -> Option<String> {
        let backend = self.shared.gate.borrow();
        if !backend.last_known().is_none_or(|backend| backend.updates_resources) && wanted.resizes_in_place(before) {
            return Some("the runtime cannot change the resources of containers that run".to_owned());
        }
        if only_shrinks(wanted, before) {
            return None;
        }
        beyond_the_node(wanted, &self.shared.ledger.node())
    }

    fn grant(&mut self, wanted: &Arc<PodRecord>, before: &PodRecord) {
        if let Some(entry) = self.entries.get_mut(wanted.uid()) {
            entry.granted = None;
            entry.pending = None;
        }
        self.tell_resize(
            wanted,
            EventType::Normal,
            "ResizeStarted",
            format!("Pod resize started: {}", resize_summary(wanted)),
        );
        self.wish(wanted.uid(), |wish| {
            wish.update(wanted.clone());
            wish.resize = None;
        });
        if !only_shrinks(before, wanted) {
            // Something of it is less than it was.
            self.shared.freed.notify_one();
        }
    }

    fn refuse_resize(&mut self, uid: &PodUid, refusal: ResizeRefusal, message: String) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let generation = entry.pod.generation();
        let before = entry.pending.as_ref();
        let is_news = before.is_none_or(|before| before.refusal != refusal || before.generation != generation);
        if before.is_some_and(|before| !is_news && before.message == message) {
            return;
        }
        let since = before
            .filter(|_| !is_news)
            .map_or(self.resizes_refused, |before| before.since);
        let pending = Arc::new(PendingResize {
            refusal,
            message: message.clone(),
            generation,
            since,
        });
        entry.pending = Some(pending.clone());
        let pod = entry.pod.clone();
        self.resizes_refused += 1;
        if is_news {
            let reason = match refusal {
                ResizeRefusal::Infeasible => "ResizeInfeasible",
                ResizeRefusal::Deferred => "ResizeDeferred",
            };
            self.tell_resize(&pod, EventType::Warning, reason, message);
        }
        self.wish(uid, |wish| {
            wish.resize = Some(pending);
            wish.nudges += 1;
        });
    }

    fn tell_resize(&self, pod: &PodRecord, event_type: EventType, reason: &'static str, message: String) {
        let event = Event::new(EventSubject::pod(pod), event_type, reason, message);
        self.shared.events.record(event);
    }

    /// Tries what pods that were here before ask for, once it is known what all others hold.
    pub(super) fn try_untried_resizes(&mut self) {
        if self.untried_resizes && self.looked && self.config.all_ready() {
            self.untried_resizes = false;
            self.retry_resizes();
        }
    }

    /// Tries all that wait: first those that need no more than they have, then by priority, class and age.
    pub(super) fn retry_resizes(&mut self) {
        let mut waiting: Vec<_> = self
            .entries
            .iter()
            .filter_map(|(uid, entry)| {
                let granted = entry.granted.as_ref()?;
                let since = entry.pending.as_ref().map_or(0, |pending| pending.since);
                let priority = entry.pod.spec().priority.unwrap_or(0);
                let order = (
                    !only_shrinks(&entry.pod, granted),
                    -i64::from(priority),
                    entry.pod.facts().qos != QosClass::Guaranteed,
                    since,
                );
                Some((order, uid.clone()))
            })
            .collect();
        waiting.sort();
        for (_, uid) in waiting {
            self.try_resize(&uid);
        }
    }
}

/// What the node could not give the pod if it were alone on it.
fn beyond_the_node(pod: &PodRecord, node: &NodeView) -> Option<String> {
    let requests = pod_requests(pod.spec());
    ["memory", "cpu"].into_iter().find_map(|name| {
        let (requested, capacity) = (requests.get(name)?, node.allocatable.get(name)?);
        let count = |amount: &crate::quantity::Quantity| match name {
            "cpu" => amount.milli_value(),
            _ => amount.value(),
        };
        (requested > capacity).then(|| {
            let (requested, capacity) = (count(requested), count(capacity));
            format!("Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}")
        })
    })
}
