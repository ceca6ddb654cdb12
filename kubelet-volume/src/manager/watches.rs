//! Following the objects that volumes are made from.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::stream::SelectAll;
use kubelet_core::{CancellationToken, ObjectKey, PodSignals, PodUid, Wake};
use tokio::sync::Notify;

use super::Shared;
use crate::seen::Seen;

/// Who is told of an object, and what ends that.
#[derive(Debug, Default)]
struct Followed {
    pods: BTreeMap<PodUid, usize>,
    /// Ends its watch, once there is one.
    end: Option<CancellationToken>,
}

/// The objects that are followed.
#[derive(Debug, Default)]
pub(super) struct Watches {
    followed: Mutex<BTreeMap<ObjectKey, Followed>>,
    /// Told when there are new ones.
    news: Notify,
    /// Whether somebody follows them.
    runs: AtomicBool,
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Followed>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether changes are noticed by themselves.
    pub(super) fn run(&self) -> bool {
        self.runs.load(Ordering::Acquire)
    }

    /// A volume of a pod is made from other objects than before.
    pub(super) fn follow(&self, uid: &PodUid, before: &BTreeMap<ObjectKey, Seen>, now: &BTreeMap<ObjectKey, Seen>) {
        let mut followed = self.lock();
        for key in now.keys().filter(|key| !before.contains_key(key)) {
            let of = followed.entry(key.clone()).or_default();
            *of.pods.entry(uid.clone()).or_default() += 1;
            if of.end.is_none() {
                self.news.notify_one();
            }
        }
        for key in before.keys().filter(|key| !now.contains_key(key)) {
            let Some(of) = followed.get_mut(key) else { continue };
            if let Some(count) = of.pods.get_mut(uid) {
                *count -= 1;
                if *count == 0 {
                    of.pods.remove(uid);
                }
            }
            if of.pods.is_empty()
                && let Some(gone) = followed.remove(key)
                && let Some(end) = gone.end
            {
                end.cancel();
            }
        }
    }

    /// The objects that nobody watches yet, each with what ends its watch.
    fn take_new(&self) -> Vec<(ObjectKey, CancellationToken)> {
        let mut followed = self.lock();
        let new = followed.iter_mut().filter(|(_, of)| of.end.is_none());
        new.map(|(key, of)| {
            let end = CancellationToken::new();
            of.end = Some(end.clone());
            (key.clone(), end)
        })
        .collect()
    }

    fn pods_of(&self, key: &ObjectKey) -> Vec<PodUid> {
        let followed = self.lock();
        followed
            .get(key)
            .map(|of| of.pods.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// Nobody watches any more: what is followed is watched anew by whoever comes next.
    fn end(&self) {
        self.runs.store(false, Ordering::Release);
        for of in self.lock().values_mut() {
            of.end = None;
        }
    }
}

/// Ends the watching, however it ends.
struct Running<'a>(&'a Watches);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Shared {
    /// Watches objects, and wakes the pods that have volumes made from them when they change.
    pub(super) async fn watch(&self, wake: &PodSignals, stop: &CancellationToken) {
        let Some(objects) = self.node.get().and_then(|node| node.context.objects.clone()) else {
            stop.cancelled().await;
            return;
        };
        self.watches.runs.store(true, Ordering::Release);
        let _running = Running(&self.watches);
        let mut streams = SelectAll::new();
        loop {
            for (key, end) in self.watches.take_new() {
                let states = objects.watch(&key).take_until(end.cancelled_owned());
                streams.push(states.map(move |state| (key.clone(), Seen::of_watched(&state))).boxed());
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.watches.news.notified() => {}
                Some((key, seen)) = streams.next(), if !streams.is_empty() => self.changed(&key, &seen, wake),
            }
        }
    }

    /// A state of an object was told: of use to volumes that were made from another one.
    fn changed(&self, key: &ObjectKey, seen: &Seen, wake: &PodSignals) {
        for uid in self.watches.pods_of(key) {
            let mut is_of_use = false;
            if let Some(pod) = self.pods.lock().get_mut(&uid) {
                for volume in pod.volumes.values_mut() {
                    is_of_use |= volume.is_told(key, seen);
                }
            }
            if is_of_use {
                wake.wake(&uid, Wake::Object);
            }
        }
    }
}
