//! What an item of a source asks for, found out before anything is changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::compare::{self, Difference};
use super::entry::{Entry, EntryEdits, Slot};
use super::{PodConfig, intake};
use crate::error::error_chain;
use crate::event::{Event, EventSubject, EventType};
use crate::fnv::fnv1a_128;
use crate::ids::{PodKey, PodUid};
use crate::pod::PodRecord;
use crate::runtime::annotation;
use crate::source::{InvalidManifest, RawPod, Removed, SourceItem, SourceKind};

/// What is to be done to a source.
pub(super) struct Edits {
    pub(super) entries: EntryEdits,
    pub(super) events: Vec<Event>,
    /// What is now wrong with which slot.
    pub(super) complaints: Vec<(Slot, String)>,
    /// Slots with which nothing is wrong any more.
    pub(super) contented: Vec<Slot>,
    pub(super) ready: bool,
}

impl Edits {
    fn new() -> Self {
        Self {
            entries: EntryEdits::Nothing,
            events: Vec::new(),
            complaints: Vec::new(),
            contented: Vec::new(),
            ready: false,
        }
    }
}

/// A pod or manifest that is no good.
struct Bad {
    slot: Option<Slot>,
    /// The name that it would have here.
    key: Option<PodKey>,
    /// How it is called in messages.
    subject: EventSubject,
    message: String,
}

impl PodConfig {
    /// Changes nothing but the texts that are kept.
    pub(super) async fn plan(&self, index: usize, item: SourceItem) -> Edits {
        let mut edits = Edits::new();
        let source = &self.sources[index];
        match item {
            SourceItem::Snapshot { remembered: true, .. } if source.ready => {}
            SourceItem::Snapshot {
                pods,
                invalid,
                remembered,
            } => self.plan_snapshot(index, pods, invalid, remembered, &mut edits).await,
            SourceItem::Upsert(raw) => {
                if !is_mirror(&raw, source.kind) {
                    let outcome = self.evaluate(index, &raw, &mut edits).await;
                    let entry = match outcome {
                        Ok(entry) => Some(entry),
                        Err(bad) => self.fall_back(index, bad, None, &mut edits).await,
                    };
                    edits.entries = EntryEdits::put(entry);
                }
            }
            SourceItem::Invalid(bad) => {
                let bad = self.describe(index, bad);
                edits.entries = EntryEdits::put(self.fall_back(index, bad, None, &mut edits).await);
            }
            SourceItem::Remove(removed) => {
                let slots: Vec<_> = match removed {
                    Removed::Origin(origin) => vec![Slot::Origin(origin)],
                    Removed::Uid(uid) => {
                        let named = source.entries.iter().filter(|(_, entry)| *entry.record.uid() == uid);
                        named.map(|(slot, _)| slot.clone()).collect()
                    }
                };
                for origin in slots.iter().filter_map(Slot::origin) {
                    self.last_good.forget(&source.name, origin).await;
                }
                edits.contented.clone_from(&slots);
                edits.entries = EntryEdits::Some(slots.into_iter().map(|slot| (slot, None)).collect());
            }
            SourceItem::Trouble(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, source = %source.name, "pod source cannot look, its pods stay as they are");
            }
        }
        edits
    }

    async fn plan_snapshot(
        &self,
        index: usize,
        pods: Vec<RawPod>,
        invalid: Vec<InvalidManifest>,
        remembered: bool,
        edits: &mut Edits,
    ) {
        let source = &self.sources[index];
        let mut entries = Vec::new();
        let mut bad: Vec<_> = invalid.into_iter().map(|bad| self.describe(index, bad)).collect();
        for raw in pods.iter().filter(|raw| !is_mirror(raw, source.kind)) {
            match self.evaluate(index, raw, edits).await {
                Ok(entry) => entries.push(entry),
                Err(error) => bad.push(error),
            }
        }
        let mut good: BTreeSet<_> = entries.iter().map(|(_, entry)| entry.record.key().clone()).collect();
        let mut named: BTreeSet<_> = entries.iter().map(|(slot, _)| slot.clone()).collect();
        for bad in bad {
            named.extend(bad.slot.clone());
            // In a list pods move from one place to another: the name says more than the place, and what is good
            // elsewhere is not kept here too.
            let moved = bad.key.as_ref().and_then(|key| source.entries.named(key)).cloned();
            let kept = self.fall_back(index, bad, moved, edits).await;
            if let Some((slot, entry)) = kept
                && good.insert(entry.record.key().clone())
            {
                entries.push((slot, entry));
            }
        }
        if remembered {
            // It stops nothing, so it does not change what is there either.
            entries.retain(|(slot, _)| source.entries.get(slot).is_none());
            edits.entries = EntryEdits::put(entries);
            return;
        }
        self.last_good
            .forget_others(&source.name, named.iter().filter_map(Slot::origin))
            .await;
        let gone = source.complaints.keys().filter(|slot| !named.contains(*slot));
        edits.contented.extend(gone.cloned());
        edits.entries = EntryEdits::All(entries);
        edits.ready = true;
    }

    /// Makes a pod an entry, or says what is wrong with it. Its text is kept first.
    async fn evaluate(&self, index: usize, raw: &RawPod, edits: &mut Edits) -> Result<(Slot, Entry), Bad> {
        let source = &self.sources[index];
        let content = raw.text.as_deref().map(fnv1a_128);
        let slot = Slot::of(raw);
        let before = slot.as_ref().and_then(|slot| Some((slot, source.entries.get(slot)?)));
        if let Some((slot, before)) = before
            && content.is_some()
            && before.content == content
        {
            edits.contented.push(slot.clone());
            return Ok((slot.clone(), before.clone()));
        }
        let record = self
            .record(index, raw, slot.as_ref())
            .map_err(|message| self.bad(index, raw, slot.clone(), message))?;
        let slot = slot.unwrap_or_else(|| Slot::Uid(record.uid().clone()));
        if let (Some(origin), Some(text)) = (slot.origin(), &raw.text) {
            self.last_good.keep(&source.name, origin, text).await;
        }
        if let Some(message) = intake::unknown_fields(raw) {
            let subject = EventSubject::pod(&record);
            edits
                .events
                .push(Event::new(subject, EventType::Warning, "UnknownField", message));
        }
        edits.contented.push(slot.clone());
        Ok((slot, Entry::new(record, content)))
    }

    /// The record of a pod: the one of before if nothing changed.
    fn record(&self, index: usize, raw: &RawPod, slot: Option<&Slot>) -> Result<Arc<PodRecord>, String> {
        let source = &self.sources[index];
        let mut pod = self.intake.check(raw, source.kind)?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let in_slot = slot
            .and_then(|slot| source.entries.get(slot))
            .map(|entry| &entry.record);
        let taken = self
            .current
            .get(&PodUid::from(uid))
            .filter(|current| current.source == index);
        let old = in_slot
            .filter(|record| record.uid().as_str() == uid)
            .or_else(|| taken.map(|current| &current.record));
        match old {
            Some(old) => compare::keep_local(&mut pod, old),
            None => self.intake.mark(&mut pod, &source.name),
        }
        let record =
            PodRecord::new(&pod, source.name.clone(), source.kind).map_err(|error| format!("invalid pod: {error}"))?;
        Ok(match old.filter(|old| old.key() == record.key()) {
            Some(old) if compare::difference(old, &record) == Difference::None => Arc::clone(old),
            _ => Arc::new(record),
        })
    }

    fn describe(&self, index: usize, bad: InvalidManifest) -> Bad {
        let kind = self.sources[index].kind;
        Bad {
            key: bad.pod.map(|key| self.intake.key_here(&key, kind)),
            subject: EventSubject::Manifest(bad.origin.to_string()),
            slot: Some(Slot::Origin(bad.origin)),
            message: error_chain(&bad.error),
        }
    }

    fn bad(&self, index: usize, raw: &RawPod, slot: Option<Slot>, message: String) -> Bad {
        let source = &self.sources[index];
        let text = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
        let namespace = text(&raw.pod.metadata.namespace).unwrap_or_else(|| "default".to_owned());
        let key = text(&raw.pod.metadata.name).map(|name| PodKey::new(namespace, name));
        let key = key.map(|key| {
            if raw.checked {
                key
            } else {
                self.intake.key_here(&key, source.kind)
            }
        });
        let (subject, message) = match (&slot, &key) {
            (Some(Slot::Origin(origin)), _) => (
                EventSubject::Manifest(origin.to_string()),
                format!("{origin}: {message}"),
            ),
            (Some(Slot::Uid(uid)), Some(key)) => {
                let (uid, key) = (uid.clone(), key.clone());
                (
                    EventSubject::Pod {
                        uid,
                        key,
                        field_path: None,
                    },
                    message,
                )
            }
            _ => (
                EventSubject::Manifest(format!("{} pod without a UID", source.name)),
                message,
            ),
        };
        Bad {
            slot,
            key,
            subject,
            message,
        }
    }

    /// Tells of something bad, and finds the pod that stays in force in its place: `moved`, if there is one.
    async fn fall_back(
        &self,
        index: usize,
        bad: Bad,
        moved: Option<Entry>,
        edits: &mut Edits,
    ) -> Option<(Slot, Entry)> {
        let source = &self.sources[index];
        let kept = match (&bad.slot, moved) {
            (Some(Slot::Origin(_)), Some(moved)) => Some(moved),
            (Some(slot), _) => self.last_good(index, slot).await,
            (None, _) => None,
        };
        let message = match &kept {
            Some(_) => format!("{}; the last good version stays in force", bad.message),
            None => bad.message,
        };
        let told = bad.slot.as_ref().and_then(|slot| source.complaints.get(slot));
        if told != Some(&message) {
            edits.events.push(Event::new(
                bad.subject,
                EventType::Warning,
                "FailedValidation",
                message.clone(),
            ));
        }
        let slot = bad.slot?;
        edits.complaints.push((slot.clone(), message));
        kept.map(|entry| (slot, entry))
    }

    async fn last_good(&self, index: usize, slot: &Slot) -> Option<Entry> {
        let source = &self.sources[index];
        if let Some(entry) = source.entries.get(slot) {
            return Some(entry.clone());
        }
        let raw = self.last_good.recall(&source.name, slot.origin()?).await?;
        let content = raw.text.as_deref().map(fnv1a_128);
        match self.record(index, &raw, Some(slot)) {
            Ok(record) => Some(Entry::new(record, content)),
            Err(error) => {
                tracing::warn!(error, source = %source.name, "last good manifest is no longer good");
                None
            }
        }
    }
}

/// Mirror pods show static pods to an API server; they are never run.
fn is_mirror(raw: &RawPod, kind: SourceKind) -> bool {
    let annotations = raw.pod.metadata.annotations.as_ref();
    kind == SourceKind::Managed && annotations.is_some_and(|all| all.contains_key(annotation::CONFIG_MIRROR))
}
