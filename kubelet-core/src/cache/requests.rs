//! Requests to look at one pod now: a set, so that it never overflows and nothing is asked twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::ids::PodUid;

/// A wish that one pod be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelistRequest {
    /// The pod.
    pub uid: PodUid,
    /// Whether it is inspected even if its records did not change.
    pub reinspect: bool,
}

#[derive(Debug, Default)]
struct Shared {
    set: Mutex<Set>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Set {
    order: VecDeque<PodUid>,
    reinspect: BTreeMap<PodUid, bool>,
}

fn lock(set: &Mutex<Set>) -> MutexGuard<'_, Set> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for looks. A cheap clone.
#[derive(Clone, Debug)]
pub struct RelistRequester {
    shared: Arc<Shared>,
}

/// Receives requests; held by the generator.
#[derive(Debug)]
pub struct RelistRequests {
    shared: Arc<Shared>,
}

/// Makes the two ends of an empty set of requests.
#[must_use]
pub fn relist_requests() -> (RelistRequester, RelistRequests) {
    let shared = Arc::new(Shared::default());
    (RelistRequester { shared: shared.clone() }, RelistRequests { shared })
}

impl RelistRequester {
    /// Asks that a pod be looked at soon.
    pub fn relist(&self, uid: &PodUid) {
        self.add(uid, false);
    }

    /// Asks that a pod be inspected at the next look, even if its records did not change.
    ///
    /// Whoever waits for that inspection asks first and takes its [`mark`](crate::PodStatusCache::mark) then: a look begun
    /// between the two would be newer than the mark and know nothing of the wish.
    pub fn reinspect(&self, uid: &PodUid) {
        self.add(uid, true);
    }

    fn add(&self, uid: &PodUid, reinspect: bool) {
        {
            let mut set = lock(&self.shared.set);
            match set.reinspect.get_mut(uid) {
                Some(flag) => *flag |= reinspect,
                None => {
                    set.reinspect.insert(uid.clone(), reinspect);
                    set.order.push_back(uid.clone());
                }
            }
        }
        self.shared.arrived.notify_one();
    }
}

impl RelistRequests {
    /// The next request, in the order of their arrival.
    ///
    /// # Cancellation
    /// Safe: a request is taken only when this returns.
    pub async fn next(&mut self) -> RelistRequest {
        loop {
            if let Some(request) = self.try_next() {
                return request;
            }
            self.shared.arrived.notified().await;
        }
    }

    /// The next request, if there is one.
    pub fn try_next(&mut self) -> Option<RelistRequest> {
        let mut set = lock(&self.shared.set);
        let uid = set.order.pop_front()?;
        let reinspect = set.reinspect.remove(&uid).unwrap_or(false);
        Some(RelistRequest { uid, reinspect })
    }

    /// Takes all requests that are there.
    pub fn drain(&mut self) -> Vec<RelistRequest> {
        std::iter::from_fn(|| self.try_next()).collect()
    }
}
