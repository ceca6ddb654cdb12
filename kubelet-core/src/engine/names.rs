//! A static pod's full name is a lock: two of one name never run at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::ids::PodUid;

#[derive(Debug)]
struct Waiter {
    uid: PodUid,
    hand_over: oneshot::Sender<NameGuard>,
}

#[derive(Debug, Default)]
struct Names {
    /// Held names and who waits for each, in order of arrival.
    held: BTreeMap<String, VecDeque<Waiter>>,
}

/// The names that are held on one node. A cheap clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameLocks {
    names: Arc<Mutex<Names>>,
}

/// Holds a name; dropping it hands the name on to the first that waits, so that no timer and no clean-up is needed.
#[derive(Debug)]
pub(crate) struct NameGuard {
    /// Taken out of a guard that could not be handed over, so that dropping it frees nothing.
    locks: Option<NameLocks>,
    name: String,
}

impl NameLocks {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the name if nobody holds it.
    pub(crate) fn try_claim(&self, name: &str) -> Option<NameGuard> {
        let mut names = self.lock();
        if names.held.contains_key(name) {
            return None;
        }
        names.held.insert(name.to_owned(), VecDeque::new());
        Some(NameGuard {
            locks: Some(self.clone()),
            name: name.to_owned(),
        })
    }

    /// Waits for the name, in order of arrival.
    ///
    /// Cancellation: safe. A wait that is dropped loses its place; a name handed to it meanwhile is handed on.
    pub(crate) async fn claim(&self, name: &str, uid: &PodUid) -> NameGuard {
        loop {
            let waiting = {
                let mut names = self.lock();
                match names.held.get_mut(name) {
                    None => {
                        names.held.insert(name.to_owned(), VecDeque::new());
                        return NameGuard {
                            locks: Some(self.clone()),
                            name: name.to_owned(),
                        };
                    }
                    Some(queue) => {
                        let (hand_over, waiting) = oneshot::channel();
                        queue.retain(|waiter| waiter.uid != *uid && !waiter.hand_over.is_closed());
                        queue.push_back(Waiter {
                            uid: uid.clone(),
                            hand_over,
                        });
                        waiting
                    }
                }
            };
            // The sender is dropped without a word only if this UID asked again, which its one worker does not.
            if let Ok(guard) = waiting.await {
                return guard;
            }
        }
    }
}

impl NameGuard {
    /// The name that it holds.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for NameGuard {
    fn drop(&mut self) {
        let Some(locks) = self.locks.take() else { return };
        loop {
            let next = {
                let mut names = locks.lock();
                match names.held.get_mut(&self.name).and_then(VecDeque::pop_front) {
                    Some(waiter) => waiter,
                    None => {
                        names.held.remove(&self.name);
                        return;
                    }
                }
            };
            let guard = Self {
                locks: Some(locks.clone()),
                name: std::mem::take(&mut self.name),
            };
            match next.hand_over.send(guard) {
                Ok(()) => return,
                // That waiter is gone; the next one gets the name.
                Err(mut guard) => {
                    guard.locks = None;
                    self.name = std::mem::take(&mut guard.name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::NameLocks;
    use crate::ids::PodUid;

    #[tokio::test(start_paused = true)]
    async fn a_name_is_handed_on_in_order_of_arrival() {
        let locks = NameLocks::default();
        let first = locks.try_claim("a_ns").unwrap();
        assert!(locks.try_claim("a_ns").is_none());
        assert!(locks.try_claim("b_ns").is_some());
        let (u2, u3) = (PodUid::from("2"), PodUid::from("3"));
        let second = locks.claim("a_ns", &u2);
        let third = locks.claim("a_ns", &u3);
        tokio::pin!(second, third);
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut second).await.is_err());
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut third).await.is_err());
        drop(first);
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut third).await.is_err());
        drop(second.await);
        drop(third.await);
        assert!(locks.try_claim("a_ns").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wait_passes_the_name_on() {
        let locks = NameLocks::default();
        let first = locks.try_claim("a_ns").unwrap();
        let (u2, u3) = (PodUid::from("2"), PodUid::from("3"));
        {
            let second = locks.claim("a_ns", &u2);
            tokio::pin!(second);
            assert!(tokio::time::timeout(Duration::from_secs(1), &mut second).await.is_err());
        }
        let third = locks.claim("a_ns", &u3);
        tokio::pin!(third);
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut third).await.is_err());
        drop(first);
        drop(tokio::time::timeout(Duration::from_secs(1), third).await.unwrap());
        assert!(locks.try_claim("a_ns").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_handed_to_a_wait_that_is_then_dropped_is_not_lost() {
        let locks = NameLocks::default();
        let first = locks.try_claim("a_ns").unwrap();
        let u2 = PodUid::from("2");
        let mut second = Box::pin(locks.claim("a_ns", &u2));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut second).await.is_err());
        drop(first);
        drop(second);
        assert!(locks.try_claim("a_ns").is_some());
    }
}
