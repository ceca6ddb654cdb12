//! The status cache: what was last seen of each pod, and when.
//!
//! One relister writes it ([`CacheWriter`] is not `Clone`); workers read it and wait on it. Freshness is a counter, not
//! a time: two looks are ordered even where a clock stands still or jumps.

mod requests;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};

use crate::error::error_chain;
use crate::ids::{PodKey, PodUid};
use crate::observation::PodObservation;
use crate::runtime::{RuntimeError, SandboxState};

pub use requests::{RelistRequest, RelistRequester, RelistRequests, relist_requests};

/// A point in the order of looks and changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u64);

/// Why a wait for a fresh look ended without one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The relister could not look at this pod, or at anything. The wait may be repeated.
    #[error("cannot look at the pod: {why}")]
    CannotLook {
        /// The runtime's error, with its causes.
        why: Arc<str>,
    },
    /// The relister has ended.
    #[error("nobody looks at pods any more")]
    Closed,
}

#[derive(Debug)]
struct Entry {
    at: Seq,
    /// The newest look that saw a change which is not in `seen` yet.
    stale: Option<Seq>,
    seen: Result<Arc<PodObservation>, Arc<str>>,
}

#[derive(Debug)]
struct Waiter {
    mark: Seq,
    wake: oneshot::Sender<Result<(), Arc<str>>>,
}

#[derive(Debug, Default)]
struct State {
    /// The last number given out. Looks and marks share it.
    last: u64,
    /// The newest look at everything that is complete, but for the pods marked stale.
    all: Option<Seq>,
    entries: HashMap<PodUid, Entry>,
    waiters: HashMap<PodUid, Vec<Waiter>>,
    closed: bool,
}

impl State {
    fn freshness(&self, uid: &PodUid) -> Option<Seq> {
        match self.entries.get(uid) {
            // A change was seen and is being looked into: what we hold is older than that look.
            Some(Entry { at, stale: Some(_), .. }) => Some(*at),
            Some(Entry { at, .. }) => Some(self.all.map_or(*at, |all| all.max(*at))),
            None => self.all,
        }
    }

    fn is_fresh(&self, uid: &PodUid, mark: Seq) -> bool {
        self.freshness(uid).is_some_and(|at| at > mark)
    }

    fn read(&self, uid: &PodUid) -> Result<Arc<PodObservation>, CacheError> {
        match self.entries.get(uid) {
            Some(entry) => entry.seen.clone().map_err(|why| CacheError::CannotLook { why }),
            None => Ok(Arc::new(PodObservation::absent(uid.clone()))),
        }
    }

    fn wake_pod(&mut self, uid: &PodUid) {
        let Some(waiting) = self.waiters.remove(uid) else {
            return;
        };
        let (ready, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|w| self.is_fresh(uid, w.mark));
        if !rest.is_empty() {
            self.waiters.insert(uid.clone(), rest);
        }
        for waiter in ready {
            // A waiter that went away is no loss: it comes back with its mark.
            let _ = waiter.wake.send(Ok(()));
        }
    }
}

/// Reads the cache. A cheap clone.
#[derive(Clone, Debug)]
pub struct PodStatusCache {
    state: Arc<Mutex<State>>,
    looked: watch::Receiver<bool>,
}

/// Writes the cache. There is one, and the generator holds it.
#[derive(Debug)]
pub struct CacheWriter {
    state: Arc<Mutex<State>>,
    looked: watch::Sender<bool>,
}

/// Makes an empty cache.
#[must_use]
pub fn pod_status_cache() -> (CacheWriter, PodStatusCache) {
    let state = Arc::new(Mutex::new(State::default()));
    let (looked, has_looked) = watch::channel(false);
    (
        CacheWriter {
            state: state.clone(),
            looked,
        },
        PodStatusCache {
            state,
            looked: has_looked,
        },
    )
}

// A panic while the lock is held leaves plain data in a readable state.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CacheWriter {
    /// Taken before looking: what the look finds is as of this point.
    #[must_use]
    pub fn begin(&self) -> Seq {
        let mut state = lock(&self.state);
        state.last += 1;
        Seq(state.last)
    }

    /// A look begun `at` saw a change of this pod, which is being looked into: until [`CacheWriter::put`] brings a look
    /// begun then or later, [`CacheWriter::looked_at_all`] does not make the pod's entry fresh.
    ///
    /// `key` is what the look says about the pod's name. It is kept as long as nothing else is known of the pod.
    pub fn stale(&self, uid: &PodUid, at: Seq, key: Option<&PodKey>) {
        let mut state = lock(&self.state);
        let entry = state.entries.entry(uid.clone()).or_insert_with(|| Entry {
            at: Seq(0),
            stale: None,
            seen: Ok(Arc::new(PodObservation::absent(uid.clone()))),
        });
        if let Some(key) = key
            && entry
                .seen
                .as_ref()
                .is_ok_and(|seen| seen.is_absent() && seen.key.is_none())
        {
            let mut named = PodObservation::absent(uid.clone());
            named.key = Some(key.clone());
            entry.seen = Ok(Arc::new(named));
        }
        // The newest look counts: what an older one brings still lacks the newer change.
        entry.stale = entry.stale.max(Some(at));
    }

    /// Brings what a look begun `at` saw of a pod, or why it could not. An older look than the entry's is ignored.
    /// Nothing is kept of a pod that is absent.
    ///
    /// A pod that has no addresses any more and no ready sandbox keeps those that it had, so that its last status still
    /// names them. Source: kubelet 1.36, `pleg/generic.go`.
    pub fn put(&self, uid: &PodUid, at: Seq, seen: Result<PodObservation, RuntimeError>) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if state.entries.get(uid).is_some_and(|entry| entry.at > at) {
            return;
        }
        match seen {
            // A pod looked at alone and found absent keeps an entry until the next look at everything,
            // so that its waiters learn how fresh that is.
            Ok(mut seen) => {
                let stale = state
                    .entries
                    .get(uid)
                    .and_then(|entry| entry.stale)
                    .filter(|since| *since > at);
                if let Some(Entry { seen: Ok(old), .. }) = state.entries.get(uid)
                    && seen.ips.is_empty()
                    && !seen.is_absent()
                    && seen.sandboxes.iter().all(|s| s.state != SandboxState::Ready)
                {
                    seen.ips.clone_from(&old.ips);
                }
                let seen = match state.entries.get(uid) {
                    // Keep one allocation where nothing changed.
                    Some(Entry { seen: Ok(old), .. }) if **old == seen => old.clone(),
                    _ => Arc::new(seen),
                };
                state.entries.insert(
                    uid.clone(),
                    Entry {
                        at,
                        stale,
                        seen: Ok(seen),
                    },
                );
                state.wake_pod(uid);
            }
            Err(error) => {
                let why: Arc<str> = error_chain(&error).into();
                match state.entries.get_mut(uid) {
                    Some(entry) => entry.stale = entry.stale.max(Some(at)),
                    None => {
                        state.entries.insert(
                            uid.clone(),
                            Entry {
                                at: Seq(0),
                                stale: Some(at),
                                seen: Err(why.clone()),
                            },
                        );
                    }
                }
                for waiter in state.waiters.remove(uid).unwrap_or_default() {
                    let _ = waiter.wake.send(Err(why.clone()));
                }
            }
        }
    }

    /// A look begun `at` found this pod as its entry shows it, or absent where it has none: makes that as of then and
    /// wakes waiters. Does nothing to a pod that is marked stale, since what is awaited there is not in its entry.
    pub fn unchanged(&self, uid: &PodUid, at: Seq) {
        let mut state = lock(&self.state);
        let entry = state.entries.entry(uid.clone()).or_insert_with(|| Entry {
            at,
            stale: None,
            seen: Ok(Arc::new(PodObservation::absent(uid.clone()))),
        });
        if entry.stale.is_none() {
            entry.at = entry.at.max(at);
            state.wake_pod(uid);
        }
    }

    /// The look at everything that began `at` is complete: pods without an entry are absent as of then, and entries
    /// that are not marked stale are as of then. Wakes waiters.
    pub fn looked_at_all(&self, at: Seq) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.all = Some(state.all.map_or(at, |all| all.max(at)));
        state.entries.retain(|_, entry| {
            entry.stale.is_some() || entry.at > at || !matches!(&entry.seen, Ok(seen) if seen.is_absent())
        });
        let mut woken = Vec::new();
        for uid in state.waiters.keys() {
            woken.push(uid.clone());
        }
        // Sorted, so that a run under simulated time repeats itself.
        woken.sort_unstable();
        for uid in woken {
            state.wake_pod(&uid);
        }
        drop(guard);
        self.looked.send_if_modified(|looked| !std::mem::replace(looked, true));
    }

    /// Like [`CacheWriter::put`], for a look at everything: says whether that changed what was known.
    pub fn put_changed(&self, uid: &PodUid, at: Seq, seen: PodObservation) -> bool {
        let before = lock(&self.state)
            .entries
            .get(uid)
            .and_then(|entry| entry.seen.clone().ok());
        let same = match &before {
            Some(before) => **before == seen,
            None => seen.is_absent(),
        };
        self.put(uid, at, Ok(seen));
        !same
    }

    /// Nothing can be looked at. Waiters get an error instead of waiting for ever.
    pub fn cannot_look(&self, why: &RuntimeError) {
        let why: Arc<str> = error_chain(why).into();
        let mut woken: Vec<(PodUid, Vec<Waiter>)> = lock(&self.state).waiters.drain().collect();
        woken.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for waiter in woken.into_iter().flat_map(|(_, waiters)| waiters) {
            let _ = waiter.wake.send(Err(why.clone()));
        }
    }
}

impl Drop for CacheWriter {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.waiters.clear();
    }
}

impl PodStatusCache {
    /// Taken after a change: only a look begun later shows it.
    #[must_use]
    pub fn mark(&self) -> Seq {
        let mut state = lock(&self.state);
        state.last += 1;
        Seq(state.last)
    }

    /// What was last seen of a pod, however old. Nothing before the first look, and for absent pods.
    #[must_use]
    pub fn current(&self, uid: &PodUid) -> Option<Arc<PodObservation>> {
        lock(&self.state)
            .entries
            .get(uid)
            .and_then(|entry| entry.seen.clone().ok())
            .filter(|seen| !seen.is_absent())
    }

    /// How a pod is called of which something is there, or was when it was last seen. Known as soon as a look has found
    /// it, where the runtime's list tells names.
    pub(crate) fn key(&self, uid: &PodUid) -> Option<PodKey> {
        let state = lock(&self.state);
        state.entries.get(uid)?.seen.as_ref().ok()?.key.clone()
    }

    /// The UIDs of all pods of which something is there, sorted. A pod that a look has found and that is still to be
    /// inspected, or cannot be, counts as there: what runs must never be taken for gone.
    #[must_use]
    pub fn present(&self) -> Vec<PodUid> {
        let state = lock(&self.state);
        let mut uids: Vec<PodUid> = state
            .entries
            .iter()
            .filter(|(_, entry)| entry.stale.is_some() || matches!(&entry.seen, Ok(seen) if !seen.is_absent()))
            .map(|(uid, _)| uid.clone())
            .collect();
        uids.sort_unstable();
        uids
    }

    /// Whether something of a pod is there, or may be: a look has found it, though it could not be inspected yet.
    #[must_use]
    pub fn is_present(&self, uid: &PodUid) -> bool {
        lock(&self.state)
            .entries
            .get(uid)
            .is_some_and(|entry| entry.stale.is_some() || !matches!(&entry.seen, Ok(seen) if seen.is_absent()))
    }

    /// The images of all containers, and those that are mounted into them, under every name that their statuses have for
    /// them. Nothing while a pod could not be inspected: what it uses is not known.
    pub(crate) fn images_in_use(&self) -> Option<BTreeSet<String>> {
        let state = lock(&self.state);
        let mut names = BTreeSet::new();
        for entry in state.entries.values() {
            let seen = entry.seen.as_ref().ok()?;
            if entry.stale.is_some() && seen.is_absent() {
                return None;
            }
            for container in &seen.containers {
                let own = [&container.image, &container.image_ref].into_iter();
                for name in own.chain(&container.mounted_images) {
                    if !names.contains(name) {
                        names.insert(name.clone());
                    }
                }
            }
        }
        Some(names)
    }

    /// Whether everything has been looked at once.
    #[must_use]
    pub fn has_looked(&self) -> bool {
        *self.looked.borrow()
    }

    /// Waits until everything has been looked at once; for ever if the relister ended before.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn first_look(&self) {
        let mut looked = self.looked.clone();
        if looked.wait_for(|looked| *looked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for a look begun after `mark`, and gives what it saw.
    ///
    /// # Errors
    /// [`CacheError::CannotLook`] if a look failed meanwhile, [`CacheError::Closed`] once the relister has ended.
    ///
    /// # Cancellation
    /// Safe: a dropped wait leaves nothing behind but a place in a list that the next look clears.
    pub async fn since(&self, uid: &PodUid, mark: Seq) -> Result<Arc<PodObservation>, CacheError> {
        loop {
            let waiting = {
                let mut state = lock(&self.state);
                if state.is_fresh(uid, mark) {
                    return state.read(uid);
                }
                if state.closed {
                    return Err(CacheError::Closed);
                }
                let (wake, waiting) = oneshot::channel();
                let waiters = state.waiters.entry(uid.clone()).or_default();
                // Waits that were given up are cleared here, so that the list stays as long as there are waiters.
                waiters.retain(|waiter| !waiter.wake.is_closed());
                waiters.push(Waiter { mark, wake });
                waiting
            };
            match waiting.await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return Err(CacheError::CannotLook { why }),
                Err(_) => return Err(CacheError::Closed),
            }
        }
    }
}

#[cfg(test)]
mod tests;
