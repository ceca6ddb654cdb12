//! The mux: from what sources say to one set of pods, and to what changed in it.

mod claims;
mod compare;
mod decorate;
mod entry;
mod intake;
mod last_good;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::clock::Clock;
use crate::event::Event;
use crate::ids::{PodUid, SourceName};
use crate::pod::PodRecord;
use crate::source::{SourceItem, SourceKind};
use crate::state_dir::StateDir;
use crate::validation::ApiReference;

use self::claims::Claims;
use self::compare::Difference;
use self::entry::{EntryEdits, Source};
use self::intake::Intake;
use self::last_good::LastGood;

/// Says whether a local [`ObjectSource`](crate::ObjectSource) answers for what a static pod refers to.
pub type ServesLocally = Arc<dyn Fn(ApiReference) -> bool + Send + Sync>;

/// One change of the set of pods.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PodChange {
    /// A pod is no longer wished for.
    Remove(Arc<PodRecord>),
    /// A pod is new.
    Add(Arc<PodRecord>),
    /// A pod is wished for differently.
    Update {
        /// As it was.
        old: Arc<PodRecord>,
        /// As it is to be.
        new: Arc<PodRecord>,
    },
    /// A pod is to end gracefully: it carries a deletion timestamp.
    Delete(Arc<PodRecord>),
    /// Only what the source says of the pod's status changed.
    Reconcile(Arc<PodRecord>),
}

/// What came of one item of a source.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConfigChanges {
    /// Removals, additions by creation time, updates, deletions, reconciliations: in this order.
    pub changes: Vec<PodChange>,
    /// What a person should be able to read.
    pub events: Vec<Event>,
    /// Whether the source became ready with this item, with pods or without.
    pub became_ready: bool,
}

/// Merges the sources into one set of pods.
///
/// - Pods that no API server has checked are defaulted and validated, static ones decorated and refused where they
///   refer to objects that nothing local serves. A pod of a managed source that is a mirror pod is left out.
/// - A bad manifest leaves the pod that last came from its origin in force, over restarts too: the text of each good
///   one is kept in the [`StateDir`] below `sources/`. It is reported once, and again when its error changes.
/// - Of pods with one name (or one UID) only one is taken. Within a source it is the first by origin, or by arrival
///   where there are no origins; between sources the one that is there already, else that of the source named first.
///   The others are reported, and come in when it goes.
/// - A pod keeps its `config.source`, `config.seen` and `config.mirror` annotations for as long as its UID stays. A
///   pod of the same UID with another name is removed and added.
///
/// Source: kubelet 1.36, `config/config.go` and `mux.go`. Upstream keeps no last good version, and lets pods of one
/// name in from several sources.
pub struct PodConfig {
    intake: Intake,
    last_good: LastGood,
    sources: Vec<Source>,
    current: BTreeMap<PodUid, Current>,
    claims: Claims,
}

/// A pod that is taken, and the source that it comes from.
#[derive(Clone, Debug)]
struct Current {
    source: usize,
    record: Arc<PodRecord>,
}

impl PodConfig {
    /// A set without pods. The order of `sources` decides between pods that come at the same time.
    pub fn new(
        node_name: impl Into<Arc<str>>,
        clock: Arc<dyn Clock>,
        state: StateDir,
        local: ServesLocally,
        sources: &[(SourceName, SourceKind)],
    ) -> Self {
        Self {
            intake: Intake::new(node_name.into(), clock, local),
            last_good: LastGood::new(state),
            sources: sources
                .iter()
                .map(|(name, kind)| Source::new(name.clone(), *kind))
                .collect(),
            current: BTreeMap::new(),
            claims: Claims::default(),
        }
    }

    /// Takes in one item. Items of one source are to be given in the order in which it said them.
    ///
    /// A source that was not named to [`new`](Self::new) changes nothing.
    ///
    /// # Cancellation
    /// A dropped call has changed no pod; texts may have been kept or removed.
    pub async fn apply(&mut self, source: &SourceName, item: SourceItem) -> ConfigChanges {
        let Some(index) = self.sources.iter().position(|known| known.name == *source) else {
            tracing::error!(%source, "item of an unknown pod source dropped");
            return ConfigChanges::default();
        };
        let edits = self.plan(index, item).await;
        let state = &mut self.sources[index];
        let became_ready = edits.ready && !state.ready;
        state.ready |= edits.ready;
        let mut events = edits.events;
        let changes = match self.settle_one(index, &edits.entries) {
            Some(changes) => {
                self.sources[index].entries.edit(edits.entries);
                changes
            }
            None if self.sources[index].entries.edit(edits.entries) => self.settle(&mut events),
            None => Vec::new(),
        };
        self.sources[index].complaints.extend(edits.complaints);
        for slot in edits.contented {
            self.sources[index].complaints.remove(&slot);
        }
        ConfigChanges {
            changes,
            events,
            became_ready,
        }
    }

    /// The pods that are wished for now, sorted by UID.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodRecord>> {
        self.current.values().map(|current| &current.record)
    }

    /// One of them.
    #[must_use]
    pub fn pod(&self, uid: &PodUid) -> Option<&Arc<PodRecord>> {
        self.current.get(uid).map(|current| &current.record)
    }

    /// Whether a source has said all its pods once in this life. An unknown source is never ready.
    #[must_use]
    pub fn ready(&self, source: &SourceName) -> bool {
        self.sources.iter().any(|known| known.name == *source && known.ready)
    }

    /// Whether all sources are ready.
    #[must_use]
    pub fn all_ready(&self) -> bool {
        self.sources.iter().all(|source| source.ready)
    }

    /// The short way for the most frequent item, one pod that comes, changes or goes: where nobody else wants its name
    /// or its UID it touches no other, and what it costs does not grow with their number.
    fn settle_one(&mut self, index: usize, edits: &EntryEdits) -> Option<Vec<PodChange>> {
        let EntryEdits::Some(edits) = edits else {
            return None;
        };
        let [(slot, entry)] = edits.as_slice() else {
            return None;
        };
        let new = entry.as_ref().map(|entry| &entry.record);
        let old = self.sources[index].entries.get(slot).map(|entry| &entry.record);
        if let Some(old) = old {
            let current = self.current.get_mut(old.uid())?;
            if !Arc::ptr_eq(old, &current.record) {
                return None;
            }
            if let Some(new) = new.filter(|new| new.uid() == old.uid() && new.key() == old.key()) {
                let winner = Current {
                    source: index,
                    record: Arc::clone(new),
                };
                let change = change(current, &winner);
                *current = winner;
                return Some(change.into_iter().collect());
            }
        }
        if [old, new]
            .into_iter()
            .flatten()
            .any(|record| self.claims.is_disputed(record))
        {
            return None;
        }
        if let Some(new) = new {
            let is_old = |uid: &PodUid| old.is_some_and(|old| old.uid() == uid);
            let named = self.claims.holder(new.key());
            let holders = named
                .into_iter()
                .chain(self.current.get_key_value(new.uid()).map(|(uid, _)| uid));
            if holders.into_iter().any(|uid| !is_old(uid)) {
                return None;
            }
        }
        let mut changes = Vec::new();
        if let Some(old) = old {
            self.current.remove(old.uid());
            self.claims.give_up(old.key());
            changes.push(PodChange::Remove(Arc::clone(old)));
        }
        if let Some(new) = new {
            let record = Arc::clone(new);
            self.claims.take(&record);
            self.current
                .insert(record.uid().clone(), Current { source: index, record });
            changes.push(PodChange::Add(Arc::clone(new)));
        }
        Some(changes)
    }

    /// Finds who has which name now, and what that changes.
    fn settle(&mut self, events: &mut Vec<Event>) -> Vec<PodChange> {
        let (winners, claims) = claims::settle(&mut self.sources, &self.current, events);
        self.claims = claims;
        let mut removed = Vec::new();
        let mut added = Vec::new();
        let mut others = Vec::new();
        let old = std::mem::take(&mut self.current);
        for (uid, current) in &old {
            let goes_on = winners
                .get(uid)
                .is_some_and(|winner| winner.record.key() == current.record.key());
            if !goes_on {
                removed.push(PodChange::Remove(Arc::clone(&current.record)));
            }
        }
        for (uid, winner) in winners {
            match old
                .get(&uid)
                .filter(|before| before.record.key() == winner.record.key())
            {
                None => added.push(Arc::clone(&winner.record)),
                Some(before) => others.extend(change(before, &winner)),
            }
            self.current.insert(uid, winner);
        }
        added.sort_by(|a, b| (a.created_at(), a.key()).cmp(&(b.created_at(), b.key())));
        let mut changes = removed;
        changes.extend(added.into_iter().map(PodChange::Add));
        others.sort_by_key(|change| match change {
            PodChange::Delete(_) => 1,
            PodChange::Reconcile(_) => 2,
            _ => 0,
        });
        changes.extend(others);
        changes
    }
}

/// What it means that a pod of one name and UID is now that.
fn change(before: &Current, now: &Current) -> Option<PodChange> {
    let (old, new) = (Arc::clone(&before.record), Arc::clone(&now.record));
    if Arc::ptr_eq(&old, &new) {
        return None;
    }
    match compare::difference(&old, &new) {
        Difference::None if before.source == now.source => None,
        Difference::Status if before.source == now.source => Some(PodChange::Reconcile(new)),
        Difference::Wish if new.is_deleted() => Some(PodChange::Delete(new)),
        _ => Some(PodChange::Update { old, new }),
    }
}

impl fmt::Debug for PodConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodConfig")
            .field(
                "sources",
                &self.sources.iter().map(|source| &source.name).collect::<Vec<_>>(),
            )
            .field("pods", &self.current.len())
            .finish_non_exhaustive()
    }
}
