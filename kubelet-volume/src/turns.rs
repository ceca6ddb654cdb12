//! Who may do something about a volume, or about what volumes share: one at a time.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use kubelet_core::PodUid;

/// What a turn is about. Who takes several takes them in this order, so that nobody waits for somebody who waits for him.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum About {
    /// A volume of a pod, by the name of its folder.
    Volume(PodUid, String),
    /// What is mounted there for several pods.
    Mount(PathBuf),
    /// What several volumes may be made of, such as a disk.
    Source(PathBuf),
    /// What the volumes of a pod use.
    Usage(PodUid),
}

impl About {
    pub(crate) fn volume(uid: &PodUid, name: &str) -> Self {
        Self::Volume(uid.clone(), name.to_owned())
    }
}

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
            if let Some(turn) = self.try_take(about) {
                return turn;
            }
            ended.await;
        }
    }

    /// Whether anybody does anything about a volume of a pod now.
    pub(crate) fn is_any_of(&self, uid: &PodUid) -> bool {
        let taken = self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken
            .iter()
            .any(|about| matches!(about, About::Volume(of, _) if of == uid))
    }

    /// Waits until nobody does anything about any volume of a pod.
    pub(crate) async fn none_of(&self, uid: &PodUid) {
        loop {
            let ended = self.shared.ended.notified();
            if !self.is_any_of(uid) {
                return;
            }
            ended.await;
        }
    }

    /// Nothing if somebody does something about it now.
    pub(crate) fn try_take(&self, about: &About) -> Option<Arc<Turn>> {
        let mut taken = self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.insert(about.clone()).then(|| {
            Arc::new(Turn {
                shared: self.shared.clone(),
                about: about.clone(),
            })
        })
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
