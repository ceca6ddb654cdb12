//! The one place where pods are admitted and counted.

mod rejections;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::stream::{BoxStream, select_all};

use self::rejections::Rejections;
use super::active::ActivePod;
use super::{ActivePods, Admission, AdmitHandler, AdmitRequest, NodeView, Operation};
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
    pub fn admit(&self, operation: Operation, pod: &Arc<PodRecord>) -> Admission {
        if pod.is_finished_in_api() {
            return Admission::Admit;
        }
        let mut state = self.lock();
        let State {
            active,
            node,
            rejections,
            leaving,
        } = &mut *state;
        let mut others = Others::without(Arc::make_mut(active), pod.uid());
        let mut answer = self.ask(&AdmitRequest::new(operation, pod, others.active, node));
        if let Admission::Reject { reason, message } = &answer
            && leaving.iter().any(|uid| others.active.get(uid).is_some())
        {
            // Refused for good only if it would be without the pods that are on their way out: the edited version of a
            // static pod comes while the old one still holds its ports.
            let mut staying = others.active.clone();
            for uid in leaving.iter() {
                staying.remove(uid);
            }
            if self.ask(&AdmitRequest::new(operation, pod, &staying, node)) == Admission::Admit {
                answer = Admission::not_yet(reason.clone(), message.clone());
            }
        }
        match &answer {
            Admission::Admit => others.admit(pod),
            Admission::NotYet { .. } if operation == Operation::Restored => others.admit(pod),
            Admission::NotYet { .. } => {}
            // It goes on with what it has.
            Admission::Reject { .. } if operation == Operation::Resize => {}
            Admission::Reject { reason, .. } => rejections.count(reason),
        }
        answer
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

    /// Whether a pod is in.
    #[must_use]
    pub fn holds(&self, uid: &PodUid) -> bool {
        self.lock().active.get(uid).is_some()
    }

    /// Frees what a pod holds: it is terminated, or never starts. True if it held anything, so that pods which wait
    /// are worth asking about again.
    pub fn release(&self, uid: &PodUid) -> bool {
        let mut state = self.lock();
        state.leaving.remove(uid);
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
        self.lock().rejections.collect(metrics);
    }
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
