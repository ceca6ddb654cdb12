//! Wake-ups: a set of pods with causes, so that there is no queue to overflow and nothing is lost.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::ids::PodUid;

/// Why a pod is to be looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Wake {
    /// What the runtime holds of the pod changed.
    Runtime,
    /// An object that it refers to changed.
    Object,
    /// Something was freed that it may wait for.
    Capacity,
    /// Somebody asked.
    Asked,
    /// Probes of its containers have come to another result.
    Probe,
}

impl Wake {
    fn bit(self) -> u8 {
        1 << match self {
            Self::Runtime => 0,
            Self::Object => 1,
            Self::Capacity => 2,
            Self::Asked => 3,
            Self::Probe => 4,
        }
    }
}

/// A set of causes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Wakes(u8);

impl Wakes {
    /// Whether the cause is among them.
    #[must_use]
    pub fn contains(self, cause: Wake) -> bool {
        self.0 & cause.bit() != 0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(
                [Wake::Runtime, Wake::Object, Wake::Capacity, Wake::Asked, Wake::Probe]
                    .into_iter()
                    .filter(|cause| self.contains(*cause)),
            )
            .finish()
    }
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<BTreeMap<PodUid, u8>>,
    arrived: Notify,
}

/// Sends wake-ups. Carries no truth: whoever is woken reads the wish and the cache. A cheap clone.
#[derive(Clone, Debug)]
pub struct PodSignals {
    shared: Arc<Shared>,
}

/// Receives wake-ups; held by the engine.
#[derive(Debug)]
pub struct PodSignalReceiver {
    shared: Arc<Shared>,
}

/// Makes the two ends.
#[must_use]
pub fn pod_signals() -> (PodSignals, PodSignalReceiver) {
    let shared = Arc::new(Shared::default());
    (PodSignals { shared: shared.clone() }, PodSignalReceiver { shared })
}

impl PodSignals {
    /// Asks that a pod be looked into. Coalesced per pod; never blocks, never full.
    pub fn wake(&self, uid: &PodUid, cause: Wake) {
        {
            let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
            match pending.get_mut(uid) {
                Some(causes) => *causes |= cause.bit(),
                None => {
                    pending.insert(uid.clone(), cause.bit());
                }
            }
        }
        self.shared.arrived.notify_one();
    }
}

impl PodSignalReceiver {
    /// All pods that were woken since the last call, sorted; waits until there is one.
    ///
    /// # Cancellation
    /// Safe: signals are taken only when this returns.
    pub async fn next(&mut self) -> BTreeMap<PodUid, Wakes> {
        loop {
            let taken = std::mem::take(&mut *self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.is_empty() {
                return taken.into_iter().map(|(uid, bits)| (uid, Wakes(bits))).collect();
            }
            self.shared.arrived.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Wake, pod_signals};
    use crate::ids::PodUid;

    #[tokio::test]
    async fn signals_are_coalesced_per_pod_and_none_is_lost() {
        let (signals, mut receiver) = pod_signals();
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        signals.wake(&b, Wake::Runtime);
        signals.wake(&a, Wake::Asked);
        signals.wake(&b, Wake::Object);
        let woken = receiver.next().await;
        assert_eq!(woken.len(), 2);
        assert!(woken[&b].contains(Wake::Runtime) && woken[&b].contains(Wake::Object));
        assert!(!woken[&a].contains(Wake::Runtime));
    }
}
