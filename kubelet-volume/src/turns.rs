//! Who may do something about a volume: one at a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use kubelet_core::PodUid;

/// What a turn is about: a volume of a pod, by the name of its folder.
pub(crate) type About = (PodUid, String);

#[derive(Debug, Default)]
struct Shared {
    taken: Mutex<BTreeSet<About>>,
    ended: tokio::sync::Notify,
}

/// The turns of all volumes. A cheap clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    shared: Arc<Shared>,
}

/// Something is done about a volume. Whoever does it holds it, also a thread that nobody waits for any more; with the last one it
/// ends.
#[derive(Debug)]
pub(crate) struct Turn {
    shared: Arc<Shared>,
    about: About,
}

impl Turns {
    /// Waits until nobody else does anything about it.
    pub(crate) async fn take(&self, about: &About) -> Arc<Turn> {
        loop {
            let ended = self.shared.ended.notified();
            let is_free = self
                .shared
                .taken
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(about.clone());
            if is_free {
                return Arc::new(Turn {
                    shared: self.shared.clone(),
                    about: about.clone(),
                });
            }
            ended.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shared
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.about);
        self.shared.ended.notify_waiters();
    }
}
