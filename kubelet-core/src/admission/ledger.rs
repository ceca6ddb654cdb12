//! The one place where pods are admitted and counted.

mod rejections;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::stream::{BoxStream, select_all};

use self::rejections::Rejections;
use super::active::ActivePod;
use super::preemption::{Preemptions, REFUSED, choose_victims, may_push_out};
use super::{ActivePods, Admission, AdmitHandler, AdmitRequest, NodeView, Operation, Shortage};
use crate::ids::PodUid;
use crate::metrics::{MetricSet, MetricSource};
use crate::pod::PodRecord;

/// Asks the handlers, and keeps what admitted pods hold until they are released.
///
/// Asking and reserving are one step: of two pods that want the same thing, the one asked about first gets it, whatever
/// task asks. The lock around that step is never held over an await. Handlers run inside it, so a handler must not call
/// the ledger.
///
/// A handler that panics takes down the task that asked; the ledger is as if that pod had not been asked about, and
/// goes on serving the others.
#[derive(Debug)]
pub struct Ledger {
    handlers: Vec<Arc<dyn AdmitHandler>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    active: Arc<ActivePods>,
    node: Arc<NodeView>,
    rejections: Rejections,
    /// Pods that are being ended, or may have ended: what they hold is about to be free.
    leaving: BTreeSet<PodUid>,
    /// Critical pods that wait for room and hold what they request, so that nobody else takes it. Of each the pods that it does
    /// not wait for any longer: they should have ended by now.
    reserved: BTreeMap<PodUid, BTreeSet<PodUid>>,
    preemptions: Preemptions,
}

/// The answer to a pod for which others may be pushed out.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) answer: Admission,
    /// Pods to be ended at once. They are [leaving](Ledger::mark_leaving) already.
    pub(crate) victims: Vec<PodUid>,
    /// All pods whose end the answer waits for and that could be pushed out: these, and such as were leaving before.
    pub(crate) awaited: Vec<PodUid>,
}

impl From<Admission> for Decision {
    fn from(answer: Admission) -> Self {
        Self {
            answer,
            victims: Vec::new(),
            awaited: Vec::new(),
        }
    }
}

impl Ledger {
    /// A ledger without pods, whose handlers are asked in this order.
    #[must_use]
    pub fn new(handlers: Vec<Arc<dyn AdmitHandler>>, node: Arc<NodeView>) -> Self {
        Self {
            handlers,
            state: Mutex::new(State {
                active: Arc::default(),
                node,
                rejections: Rejections::default(),
                leaving: BTreeSet::new(),
                reserved: BTreeMap::new(),
                preemptions: Preemptions::default(),
            }),
        }
    }

    /// Asks whether the pod may run, and reserves what it requests if so; a pod that is already in then holds what
    /// this record requests instead.
    ///
    /// Any other answer leaves what the pod holds as it was, with one exception: a [restored](Operation::Restored) pod
    /// that is told [`Admission::NotYet`] is counted, since its containers go on running meanwhile.
    ///
    /// A pod whose source says that it is finished is answered [`Admission::Admit`], reserves nothing, and nobody is
    /// asked: what it once used is free.
    ///
    /// Nobody is pushed out for a critical pod: that is the engine's to do.
    pub fn admit(&self, operation: Operation, pod: &Arc<PodRecord>) -> Admission {
        self.decide(operation, pod, false).answer
    }

    /// The same, and if the pod is new, critical and lacks resources alone, chooses who is to make room for it. The pod is told
    /// [`Admission::NotYet`] then, and holds what it requests from now on: nobody else gets the room that is made, and it
    /// is asked about again when something is freed. So is what it waits for that was leaving already.
    pub(crate) fn admit_or_preempt(&self, operation: Operation, pod: &Arc<PodRecord>) -> Decision {
        let may_preempt = operation == Operation::New && pod.facts().is_critical;
        self.decide(operation, pod, may_preempt)
    }

    fn decide(&self, operation: Operation, pod: &Arc<PodRecord>, may_preempt: bool) -> Decision {
        if pod.is_finished_in_api() {
            return Admission::Admit.into();
        }
        let mut state = self.lock();
        let State {
            active,
            node,
            rejections,
            leaving,
            reserved,
            preemptions,
        } = &mut *state;
        let mut others = Others::without(Arc::make_mut(active), pod.uid());
        // Who should have ended by now is no reason to wait any longer.
        let overdue = reserved.get(pod.uid()).filter(|_| may_preempt);
        let thinned = overdue
            .filter(|overdue| !overdue.is_empty())
            .map(|overdue| remaining(others.active, overdue));
        let beside = thinned.as_ref().unwrap_or(others.active);
        let request = |beside| AdmitRequest::new(operation, pod, beside, node);
        let mut decision = Decision::from(self.ask(&request(beside)));
        let is_left_by_somebody = || leaving.iter().any(|uid| beside.get(uid).is_some());
        if let Admission::Reject { reason, message } = &decision.answer
            && (may_preempt || is_left_by_somebody())
        {
            // Refused for good only if it would be without the pods that are on their way out: the edited version of a
            // static pod comes while the old one still holds its ports.
            let staying = remaining(beside, leaving);
            let wait = || Admission::not_yet(reason.clone(), message.clone());
            let room = match self.ask(&request(&staying)) {
                Admission::Admit => Room::Left,
                _ if may_preempt => self.make_room(&request(&staying)),
                _ => Room::None,
            };
            match room {
                Room::None => {}
                Room::Refused(refusal) => decision.answer = refusal,
                Room::Left => decision.answer = wait(),
                Room::Made { victims, shortages } => {
                    preemptions.count(&shortages, victims.len());
                    decision.answer = wait();
                    decision.victims = victims;
                }
            }
            if may_preempt && matches!(decision.answer, Admission::NotYet { .. }) {
                // Where it is not resources alone, such as a port, there is no way but to wait.
                if !self.shortages(&request(beside)).is_empty() {
                    let going = leaving.iter().filter_map(|uid| beside.get(uid));
                    let going = going.filter(|other| may_push_out(pod, other));
                    decision.awaited = going.map(|other| other.uid().clone()).collect();
                }
                decision.awaited.extend(decision.victims.iter().cloned());
                leaving.extend(decision.victims.iter().cloned());
                reserved.entry(pod.uid().clone()).or_default();
            }
        }
        match &decision.answer {
            Admission::Admit => {
                reserved.remove(pod.uid());
                others.admit(pod);
            }
            Admission::NotYet { .. } if operation == Operation::Restored || reserved.contains_key(pod.uid()) => {
                others.admit(pod);
            }
            Admission::NotYet { .. } => {}
            // It goes on with what it has.
            Admission::Reject { .. } if operation == Operation::Resize => {}
            Admission::Reject { reason, .. } => rejections.count(reason),
        }
        decision
    }

    /// Who is to go so that a critical pod fits beside the rest of these.
    fn make_room(&self, request: &AdmitRequest<'_>) -> Room {
        let shortages = self.shortages(request);
        if shortages.is_empty() {
            return Room::None;
        }
        let victims = match choose_victims(request.pod, &shortages, request.others) {
            Ok(victims) => victims,
            Err(uncovered) => return Room::Refused(Admission::reject(REFUSED, uncovered.to_string())),
        };
        // Nobody goes for a pod that is refused all the same.
        let staying = remaining(request.others, &victims.iter().cloned().collect());
        match self.ask(&AdmitRequest::new(
            request.operation,
            request.pod,
            &staying,
            request.node,
        )) {
            Admission::Admit => Room::Made { victims, shortages },
            refusal => Room::Refused(refusal),
        }
    }

    /// What the handler that refuses the pod says is missing, if that is all that it has against it.
    fn shortages(&self, request: &AdmitRequest<'_>) -> Vec<Shortage> {
        let refuses = |handler: &&Arc<dyn AdmitHandler>| handler.admit(request) != Admission::Admit;
        let handler = self.handlers.iter().find(refuses);
        handler.map_or_else(Vec::new, |handler| handler.shortages(request))
    }

    /// Counts a pod that is being ended and may still run, without asking anybody.
    pub(crate) fn admit_leaving(&self, pod: &Arc<PodRecord>) {
        let mut state = self.lock();
        Arc::make_mut(&mut state.active).insert(pod.clone());
        state.leaving.insert(pod.uid().clone());
    }

    /// Counts a pod that waits, without asking anybody: nobody else gets its room meanwhile.
    pub(crate) fn hold(&self, pod: &Arc<PodRecord>) {
        Arc::make_mut(&mut self.lock().active).insert(pod.clone());
    }

    /// Says that a pod should have ended by now, and that a critical pod is not to wait for it any longer. False if the latter does
    /// not wait.
    pub(crate) fn give_up_on(&self, awaited: &PodUid, critical: &PodUid) -> bool {
        let mut state = self.lock();
        let is_there = state.active.get(awaited).is_some();
        match state.reserved.get_mut(critical) {
            Some(overdue) if is_there => overdue.insert(awaited.clone()),
            _ => false,
        }
    }

    /// Lets a pod that is in hold what this record requests, which is no more than it held. False if it is not in.
    pub fn resize(&self, pod: &Arc<PodRecord>) -> bool {
        let mut state = self.lock();
        let is_in = state.active.get(pod.uid()).is_some();
        if is_in {
            Arc::make_mut(&mut state.active).insert(pod.clone());
        }
        is_in
    }

    /// Whether a pod is in. One that waits while others make room for it is not.
    #[must_use]
    pub fn holds(&self, uid: &PodUid) -> bool {
        let state = self.lock();
        state.active.get(uid).is_some() && !state.reserved.contains_key(uid)
    }

    /// Frees what a pod holds: it is terminated, or never starts. True if it held anything, so that pods which wait
    /// are worth asking about again.
    pub fn release(&self, uid: &PodUid) -> bool {
        let mut state = self.lock();
        state.leaving.remove(uid);
        state.reserved.remove(uid);
        // Looked up first: a call for nothing must not copy pods that a view still shares.
        state.active.get(uid).is_some() && Arc::make_mut(&mut state.active).remove(uid).is_some()
    }

    /// Says that a pod is being ended, or may have ended already: whoever does not fit only because of it is told to wait.
    pub fn mark_leaving(&self, uid: &PodUid) {
        let mut state = self.lock();
        if state.active.get(uid).is_some() {
            state.leaving.insert(uid.clone());
        }
    }

    /// Takes [`mark_leaving`](Self::mark_leaving) back: it is not being ended after all.
    pub fn mark_staying(&self, uid: &PodUid) {
        self.lock().leaving.remove(uid);
    }

    /// Takes a newer record of an admitted pod. What the pod holds stays as admitted, until a
    /// [resize](Operation::Resize) is. False if the pod is not in.
    pub fn replace(&self, pod: &Arc<PodRecord>) -> bool {
        let mut state = self.lock();
        state.active.get(pod.uid()).is_some() && Arc::make_mut(&mut state.active).replace(pod.clone())
    }

    /// Takes another view of the node. Pods that are in stay in, whatever it says.
    pub fn set_node(&self, node: Arc<NodeView>) {
        self.lock().node = node;
    }

    /// The node as the next pod will meet it.
    #[must_use]
    pub fn node(&self) -> Arc<NodeView> {
        self.lock().node.clone()
    }

    /// The pods that are in, as of now. Cheap to take; one that is kept costs the next change a copy.
    #[must_use]
    pub fn active(&self) -> Arc<ActivePods> {
        self.lock().active.clone()
    }

    /// Fires when pods that were told [`Admission::NotYet`] are to be asked about again, for a reason that a handler
    /// has. It does not fire for [`release`](Self::release). Called once per run; it ends when no handler has more to
    /// say.
    #[must_use]
    pub fn changes(&self) -> BoxStream<'static, ()> {
        select_all(self.handlers.iter().filter_map(|handler| handler.changes())).boxed()
    }

    fn ask(&self, request: &AdmitRequest<'_>) -> Admission {
        self.handlers
            .iter()
            .map(|handler| handler.admit(request))
            .find(|answer| *answer != Admission::Admit)
            .unwrap_or(Admission::Admit)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only a handler can panic in here, and `Others` has put everything back then.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricSource for Ledger {
    fn collect(&self, metrics: &mut MetricSet) {
        let state = self.lock();
        state.rejections.collect(metrics);
        state.preemptions.collect(metrics);
    }
}

/// Where a pod that does not fit is to have its room from.
#[derive(Debug)]
enum Room {
    /// From nowhere.
    None,
    /// The same, for another reason than the first answer had.
    Refused(Admission),
    /// From those who are leaving.
    Left,
    /// Also from these.
    Made {
        victims: Vec<PodUid>,
        shortages: Vec<Shortage>,
    },
}

/// The pods without some of them.
fn remaining(pods: &ActivePods, gone: &BTreeSet<PodUid>) -> ActivePods {
    let mut remaining = pods.clone();
    for uid in gone {
        remaining.remove(uid);
    }
    remaining
}

/// The active pods while one of them is asked about and left out. Dropped, it puts that one back.
#[derive(Debug)]
struct Others<'a> {
    active: &'a mut ActivePods,
    aside: Option<ActivePod>,
}

impl<'a> Others<'a> {
    fn without(active: &'a mut ActivePods, uid: &PodUid) -> Self {
        let aside = active.take(uid);
        Self { active, aside }
    }

    fn admit(&mut self, pod: &Arc<PodRecord>) {
        self.aside = None;
        self.active.insert(pod.clone());
    }
}

impl Drop for Others<'_> {
    fn drop(&mut self) {
        if let Some(active) = self.aside.take() {
            self.active.put(active);
        }
    }
}
