//! The newest status of each pod, with a cursor per reader.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::Stream;
use tokio::sync::watch;

use super::StatusUpdate;
use crate::ids::PodUid;

/// What a reader of statuses is told of one pod.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StatusChange {
    /// The newest version of its status. Versions in between may have been skipped.
    Updated(StatusUpdate),
    /// The pod left the node; this was its last version, which may not have been told before.
    Forgotten(StatusUpdate),
}

impl StatusChange {
    /// The newest version, or the last one.
    #[must_use]
    pub fn update(&self) -> &StatusUpdate {
        match self {
            Self::Updated(update) | Self::Forgotten(update) => update,
        }
    }
}

#[derive(Debug)]
struct Entry {
    /// Its place among the changes.
    at: u64,
    /// The change with which the pod came: another one means that it left and came again.
    life: u64,
    update: StatusUpdate,
    forgotten: bool,
}

/// What is to become of a pod's newest version.
pub(super) enum Change {
    /// It stays.
    Keep,
    /// It is replaced by one that says the same: nobody is told.
    Refresh(StatusUpdate),
    /// A new version takes its place.
    Put(StatusUpdate),
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    entries: BTreeMap<PodUid, Entry>,
    /// Each entry once, at its newest change: what changed after a point is a range, and no change is a scan.
    changes: BTreeMap<u64, PodUid>,
    /// Changes that are forgotten pods; they go once every reader has passed them.
    tombs: BTreeMap<u64, PodUid>,
    readers: BTreeMap<u64, u64>,
    next_reader: u64,
}

impl State {
    fn put(&mut self, uid: &PodUid, update: StatusUpdate, forgotten: bool) {
        self.last += 1;
        let at = self.last;
        let mut life = at;
        if let Some(old) = self.entries.remove(uid) {
            self.changes.remove(&old.at);
            self.tombs.remove(&old.at);
            if !old.forgotten {
                life = old.life;
            }
        }
        let entry = Entry {
            at,
            life,
            update,
            forgotten,
        };
        self.entries.insert(uid.clone(), entry);
        self.changes.insert(at, uid.clone());
        if forgotten {
            self.tombs.insert(at, uid.clone());
            self.clear_tombs();
        }
    }

    fn clear_tombs(&mut self) {
        let passed = self.readers.values().copied().min().unwrap_or(self.last);
        while let Some((at, uid)) = self.tombs.pop_first() {
            if at > passed {
                self.tombs.insert(at, uid);
                return;
            }
            self.changes.remove(&at);
            self.entries.remove(&uid);
        }
    }
}

/// The newest status of each pod, and who has read how far. A cheap clone.
#[derive(Clone)]
pub(super) struct Journal {
    state: Arc<Mutex<State>>,
    /// Apart from the state, so that a reader sees when the last writer is gone.
    changed: Arc<watch::Sender<u64>>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Journal")
            .field("pods", &state.entries.len())
            .field("changes", &state.last)
            .finish_non_exhaustive()
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl Journal {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, last: u64) {
        // Two writers may announce in either order.
        self.changed.send_modify(|seen| *seen = last.max(*seen));
    }

    /// Lets `change` look at a pod's newest version, and does what it decides. It is given the number of the change,
    /// which is higher than all before.
    pub(super) fn modify<R>(&self, uid: &PodUid, change: impl FnOnce(Option<&StatusUpdate>, u64) -> (Change, R)) -> R {
        let (changed, result) = {
            let mut state = self.lock();
            let next = state.last + 1;
            let current = state.entries.get_mut(uid).filter(|entry| !entry.forgotten);
            let (decision, result) = change(current.as_ref().map(|entry| &entry.update), next);
            let changed = match (decision, current) {
                (Change::Keep, _) => None,
                (Change::Refresh(update), Some(entry)) => {
                    entry.update = update;
                    None
                }
                (Change::Put(update) | Change::Refresh(update), _) => {
                    state.put(uid, update, false);
                    Some(state.last)
                }
            };
            (changed, result)
        };
        if let Some(last) = changed {
            self.announce(last);
        }
        result
    }

    /// The pod left the node. Readers that have not seen so are told.
    pub(super) fn forget(&self, uid: &PodUid) {
        let last = {
            let mut state = self.lock();
            let Some(update) = state
                .entries
                .get(uid)
                .filter(|entry| !entry.forgotten)
                .map(|entry| entry.update.clone())
            else {
                return;
            };
            state.put(uid, update, true);
            state.last
        };
        self.announce(last);
    }

    pub(super) fn get(&self, uid: &PodUid) -> Option<StatusUpdate> {
        let state = self.lock();
        state
            .entries
            .get(uid)
            .filter(|entry| !entry.forgotten)
            .map(|entry| entry.update.clone())
    }

    pub(super) fn snapshot(&self) -> Vec<StatusUpdate> {
        self.snapshot_of(|_| true)
    }

    pub(super) fn snapshot_of(&self, wanted: impl Fn(&StatusUpdate) -> bool) -> Vec<StatusUpdate> {
        let state = self.lock();
        state
            .entries
            .values()
            .filter(|entry| !entry.forgotten && wanted(&entry.update))
            .map(|entry| entry.update.clone())
            .collect()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().entries.values().filter(|entry| !entry.forgotten).count()
    }

    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A reader that is told the newest version of every pod first, then what changes.
    pub(super) fn reader(&self) -> StatusReader {
        // Subscribed before anything is read: a change in between shows as one.
        let changed = self.changed();
        let mut state = self.lock();
        let id = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(id, 0);
        drop(state);
        StatusReader {
            state: self.state.clone(),
            changed,
            id,
            position: 0,
        }
    }
}

/// Reads statuses: the newest version of every pod first, then what changes, each pod's changes coalesced to its newest.
/// However slow it reads, it holds up nobody, and costs one place per forgotten pod that it has not read of.
pub struct StatusReader {
    state: Arc<Mutex<State>>,
    changed: watch::Receiver<u64>,
    id: u64,
    position: u64,
}

impl fmt::Debug for StatusReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusReader")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl StatusReader {
    /// The next change, oldest first, if there is one already.
    pub fn try_next(&mut self) -> Option<StatusChange> {
        self.take().map(|(_, change)| change)
    }

    /// The next change, and the pod's life that it belongs to.
    pub(super) fn take(&mut self) -> Option<(u64, StatusChange)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, uid) = state.changes.range(self.position + 1..).next()?;
        let at = *at;
        let change = state.entries.get(uid).map(|entry| {
            let update = entry.update.clone();
            let change = if entry.forgotten {
                StatusChange::Forgotten(update)
            } else {
                StatusChange::Updated(update)
            };
            (entry.life, change)
        });
        self.position = at;
        state.readers.insert(self.id, at);
        if !state.tombs.is_empty() {
            state.clear_tombs();
        }
        change
    }

    /// Waits for a change after the last call of this; `false` once nobody can make one any more.
    pub(super) async fn changed(&mut self) -> bool {
        self.changed.changed().await.is_ok()
    }

    /// The next change; waits until there is one. Ends when nobody can make one any more.
    ///
    /// # Cancellation
    /// Safe: a change is taken only when this returns.
    pub async fn next(&mut self) -> Option<StatusChange> {
        loop {
            if let Some(change) = self.try_next() {
                return Some(change);
            }
            // A change since the last wait, read of or not, ends the wait at once: none is missed.
            if !self.changed().await {
                return self.try_next();
            }
        }
    }

    /// The changes as a stream.
    pub fn into_stream(self) -> impl Stream<Item = StatusChange> + Send + 'static {
        futures::stream::unfold(self, |mut reader| async move {
            reader.next().await.map(|change| (change, reader))
        })
    }
}

impl Drop for StatusReader {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.readers.remove(&self.id);
        state.clear_tombs();
    }
}

#[cfg(test)]
mod tests;
