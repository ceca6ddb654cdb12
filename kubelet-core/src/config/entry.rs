//! What one source wishes for, winners of a name and losers alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{PodKey, PodUid, SourceName};
use crate::pod::PodRecord;
use crate::source::{Origin, RawPod, SourceKind};

/// What stays the same while a source changes its mind about a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// The place that it was read from.
    Origin(Origin),
    /// Its UID, where it is from no place of its own.
    Uid(PodUid),
}

impl Slot {
    /// The slot of a pod; none if it has neither an origin nor a UID.
    pub(super) fn of(raw: &RawPod) -> Option<Self> {
        let uid = || raw.pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty());
        match &raw.origin {
            Some(origin) => Some(Self::Origin(origin.clone())),
            None => uid().map(|uid| Self::Uid(PodUid::from(uid))),
        }
    }

    pub(super) fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Origin(origin) => Some(origin),
            Self::Uid(_) => None,
        }
    }
}

/// One pod that a source wishes for.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) record: Arc<PodRecord>,
    /// Hash of its text, if it has one: the same text is not looked at again.
    pub(super) content: Option<u128>,
    /// That another pod has its name, as it was told.
    pub(super) told: Option<String>,
    /// The order of arrival.
    arrival: u64,
}

impl Entry {
    pub(super) fn new(record: Arc<PodRecord>, content: Option<u128>) -> Self {
        Self {
            record,
            content,
            told: None,
            arrival: 0,
        }
    }
}

/// What is to be done to the entries of a source.
#[derive(Debug)]
pub(super) enum EntryEdits {
    Nothing,
    /// Each slot gets an entry or loses it.
    Some(Vec<(Slot, Option<Entry>)>),
    /// These are all, in the order in which the source named them.
    All(Vec<(Slot, Entry)>),
}

impl EntryEdits {
    pub(super) fn put(entries: impl IntoIterator<Item = (Slot, Entry)>) -> Self {
        Self::Some(entries.into_iter().map(|(slot, entry)| (slot, Some(entry))).collect())
    }
}

/// The entries of one source.
#[derive(Debug, Default)]
pub(super) struct Entries {
    by_slot: BTreeMap<Slot, Entry>,
    arrivals: u64,
}

impl Entries {
    pub(super) fn get(&self, slot: &Slot) -> Option<&Entry> {
        self.by_slot.get(slot)
    }

    pub(super) fn get_mut(&mut self, slot: &Slot) -> Option<&mut Entry> {
        self.by_slot.get_mut(slot)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Slot, &Entry)> {
        self.by_slot.iter()
    }

    /// The first pod of a name.
    pub(super) fn named(&self, key: &PodKey) -> Option<&Entry> {
        self.by_slot.values().find(|entry| entry.record.key() == key)
    }

    /// In the order in which they claim a name: by origin, or by arrival where there are no origins.
    pub(super) fn in_order(&self) -> Vec<(&Slot, &Entry)> {
        let mut entries: Vec<_> = self.by_slot.iter().collect();
        entries.sort_by_key(|(slot, entry)| (slot.origin(), entry.arrival));
        entries
    }

    /// Says whether anything changed.
    pub(super) fn edit(&mut self, edits: EntryEdits) -> bool {
        match edits {
            EntryEdits::Nothing => false,
            EntryEdits::Some(edits) => {
                let mut changed = false;
                for (slot, entry) in edits {
                    changed |= match entry {
                        Some(entry) => self.put(slot, entry),
                        None => self.by_slot.remove(&slot).is_some(),
                    };
                }
                changed
            }
            EntryEdits::All(all) => {
                let before = std::mem::take(&mut self.by_slot);
                let mut changed = false;
                for (slot, mut entry) in all {
                    // Of two pods of one place the first is meant, as of two pods of one name.
                    if self.by_slot.contains_key(&slot) {
                        continue;
                    }
                    let old = before.get(&slot);
                    changed |= old.is_none_or(|old| !Arc::ptr_eq(&old.record, &entry.record));
                    self.inherit(old, &mut entry);
                    self.by_slot.insert(slot, entry);
                }
                changed || before.len() != self.by_slot.len()
            }
        }
    }

    fn put(&mut self, slot: Slot, mut entry: Entry) -> bool {
        let old = self.by_slot.remove(&slot);
        let changed = old.as_ref().is_none_or(|old| !Arc::ptr_eq(&old.record, &entry.record));
        self.inherit(old.as_ref(), &mut entry);
        self.by_slot.insert(slot, entry);
        changed
    }

    fn inherit(&mut self, old: Option<&Entry>, entry: &mut Entry) {
        match old {
            Some(old) => {
                entry.arrival = old.arrival;
                entry.told.clone_from(&old.told);
            }
            None => {
                self.arrivals += 1;
                entry.arrival = self.arrivals;
            }
        }
    }
}

/// One source, as the mux sees it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: SourceName,
    pub(super) kind: SourceKind,
    pub(super) ready: bool,
    pub(super) entries: Entries,
    /// What was said of each bad manifest, so that it is said once.
    pub(super) complaints: BTreeMap<Slot, String>,
}

impl Source {
    pub(super) fn new(name: SourceName, kind: SourceKind) -> Self {
        Self {
            name,
            kind,
            ready: false,
            entries: Entries::default(),
            complaints: BTreeMap::new(),
        }
    }
}
