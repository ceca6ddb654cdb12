//! The in-memory whole-pod backend.

mod calls;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{PodRecord, PodUid, ProvidedPod, ProviderError, SourceKind, SourceName};
use tokio::time::Instant;

use crate::provider::state::State;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProviderOp {
    /// `list`.
    List,
    /// `create`.
    Create,
    /// `update`.
    Update,
    /// `delete`.
    Delete,
    /// `status`.
    Status,
}

/// A call that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderCall {
    /// When, since the fake was made.
    pub at: Duration,
    /// Its kind.
    pub op: ProviderOp,
    /// The pod, where it is about one.
    pub uid: Option<PodUid>,
    /// The grace of a `delete`.
    pub grace: Option<Duration>,
}

/// A whole-pod backend in memory. A clone is another handle to the same backend.
///
/// It keeps the contract of [`PodProvider`](kubelet_core::PodProvider), unless a fault says otherwise, and notes in
/// [`FakeProvider::violations`] where its caller does not.
///
/// Containers do what their arguments say, in the words of [`Program`](crate::Program), and are started again 10 s after
/// their end where the pod's restart policy says so. An ended pod stays until it is deleted; one that ends because it was
/// deleted is gone 5 s later, or when it is deleted again.
///
/// Everything follows `tokio::time`, paused or not, and is worked out when somebody looks; it starts no task.
///
/// # Cancellation
/// A call whose future is dropped before its latency has passed does nothing.
#[derive(Clone)]
pub struct FakeProvider {
    shared: Arc<Mutex<State>>,
}

impl fmt::Debug for FakeProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("FakeProvider")
            .field("pods", &state.pods.len())
            .field("calls", &state.calls.len())
            .finish_non_exhaustive()
    }
}

impl Default for FakeProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeProvider {
    /// A backend without pods, faults and latency.
    #[must_use]
    pub fn new() -> Self {
        Self::seeded(0)
    }

    /// The same, whose random faults follow that seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self {
            shared: Arc::new(Mutex::new(State::new(seed))),
        }
    }

    /// Gives no hints, so that it must be polled.
    #[must_use]
    pub fn without_hints(self) -> Self {
        self.lock().has_hints = false;
        self
    }

    /// A test that panicked with the lock in hand must not hide its own message behind a poisoned lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disturb<T>(&self, how: impl FnOnce(&mut State, Instant) -> T) -> T {
        let now = Instant::now();
        let mut state = self.lock();
        state.advance(now);
        how(&mut state, now)
    }
}

/// Faults.
impl FakeProvider {
    /// How long each call takes; zero by default.
    pub fn set_latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    /// Lets every call fail as unavailable, until [`come_up`](Self::come_up). Pods go on.
    pub fn go_down(&self) {
        self.lock().down = true;
    }

    /// Ends [`go_down`](Self::go_down).
    pub fn come_up(&self) {
        self.lock().down = false;
    }

    /// Lets calls of that kind begun from now on never end, or no longer.
    pub fn set_hanging(&self, op: ProviderOp, hanging: bool) {
        let mut state = self.lock();
        if hanging {
            state.hanging.insert(op);
        } else {
            state.hanging.remove(&op);
        }
    }

    /// Lets calls fail as unavailable with a probability between 0 and 1; every second of those has happened all the
    /// same.
    pub fn set_fault_rate(&self, probability: f64) {
        self.lock().fault_rate = probability;
    }

    /// Lets the next `create` or `update` fail with that error, and do nothing.
    pub fn fail_next(&self, error: ProviderError) {
        self.lock().scripted.push_back(error);
    }

    /// Ends all streams of hints. They can be opened again.
    pub fn break_streams(&self) {
        self.lock().hints.break_all();
    }

    /// Lets a pod that somebody else made be there, without our mark.
    ///
    /// # Panics
    /// If the pod lacks a UID or a name.
    pub fn add_foreign(&self, pod: &Pod) -> PodUid {
        let record = PodRecord::new(pod, SourceName::from("elsewhere"), SourceKind::Managed);
        let Ok(record) = record.map(Arc::new) else {
            panic!("a foreign pod lacks a UID or a name");
        };
        let uid = record.uid().clone();
        self.disturb(|state, now| state.insert(record, BTreeMap::new(), false, now));
        uid
    }

    /// Lets a running container end at once with that code.
    pub fn end_container(&self, uid: &PodUid, name: &str, code: i32) {
        self.disturb(|state, now| state.end_container(uid, name, code, now));
    }

    /// Lets a pod be gone, as if somebody else had removed it.
    pub fn vanish(&self, uid: &PodUid) {
        self.disturb(|state, _| state.remove(uid));
    }
}

/// What happened, and what is there. None of these counts as a call or meets a fault.
impl FakeProvider {
    /// All calls, oldest first.
    #[must_use]
    pub fn calls(&self) -> Vec<ProviderCall> {
        self.lock().calls.clone()
    }

    /// Forgets the recorded calls.
    pub fn clear_calls(&self) {
        self.lock().calls.clear();
    }

    /// How many calls of that kind there were.
    #[must_use]
    pub fn count(&self, op: ProviderOp) -> usize {
        self.lock().calls.iter().filter(|call| call.op == op).count()
    }

    /// What the caller did against the contract: overlapping steps of one pod, steps on pods without our mark, updates of
    /// pods that were never created.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// The pods with our mark, by UID.
    #[must_use]
    pub fn pods(&self) -> Vec<ProvidedPod> {
        self.disturb(|state, _| state.listed())
    }

    /// Whether there is such a pod, with our mark or without.
    #[must_use]
    pub fn has(&self, uid: &PodUid) -> bool {
        self.disturb(|state, _| state.pods.contains_key(uid))
    }

    /// The version of a pod that was last taken.
    #[must_use]
    pub fn record(&self, uid: &PodUid) -> Option<Arc<PodRecord>> {
        self.disturb(|state, _| state.pods.get(uid).map(|pod| pod.record.clone()))
    }

    /// The environment that a container of a pod was given.
    #[must_use]
    pub fn env(&self, uid: &PodUid, container: &str) -> Vec<(String, String)> {
        self.disturb(|state, _| {
            let pod = state.pods.get(uid);
            pod.and_then(|pod| pod.env.get(container).cloned()).unwrap_or_default()
        })
    }
}
