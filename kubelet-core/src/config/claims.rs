//! Who gets a name that several pods want.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Current;
use super::entry::Source;
use crate::event::{Event, EventSubject, EventType};
use crate::ids::{PodKey, PodUid};
use crate::pod::PodRecord;

/// Who has which name, and who wants one, or a UID, that another has.
#[derive(Debug, Default)]
pub(super) struct Claims {
    holders: HashMap<PodKey, PodUid>,
    losers: Vec<Arc<PodRecord>>,
}

impl Claims {
    /// The pod that has a name.
    pub(super) fn holder(&self, key: &PodKey) -> Option<&PodUid> {
        self.holders.get(key)
    }

    /// Whether a pod that is not taken wants this one's name or UID.
    pub(super) fn is_disputed(&self, record: &PodRecord) -> bool {
        let mut losers = self.losers.iter();
        losers.any(|loser| loser.key() == record.key() || loser.uid() == record.uid())
    }

    /// A pod gets its name, which nobody has.
    pub(super) fn take(&mut self, record: &PodRecord) {
        self.holders.insert(record.key().clone(), record.uid().clone());
    }

    /// Nobody has a name any more.
    pub(super) fn give_up(&mut self, key: &PodKey) {
        self.holders.remove(key);
    }
}

/// Finds the pods that are taken. A pod that is not is told of once.
pub(super) fn settle(
    sources: &mut [Source],
    current: &BTreeMap<PodUid, Current>,
    events: &mut Vec<Event>,
) -> (BTreeMap<PodUid, Current>, Claims) {
    let held: HashMap<_, _> = current
        .values()
        .map(|current| (current.record.key(), current.source))
        .collect();
    let mut wanted = Vec::new();
    for (source, state) in sources.iter().enumerate() {
        for (slot, entry) in state.entries.in_order() {
            let holds = held.get(entry.record.key()) == Some(&source);
            wanted.push((!holds, source, slot, entry));
        }
    }
    // Stable: within a source the order stays.
    wanted.sort_by_key(|(waits, source, ..)| (*waits, *source));
    let mut winners = BTreeMap::new();
    let mut claims = Claims::default();
    let mut verdicts = Vec::new();
    for (_, source, slot, entry) in wanted {
        let record = &entry.record;
        let taken = if claims.holder(record.key()).is_some() {
            Some(format!("name {:?}", &*record.key().name))
        } else if winners.contains_key(record.uid()) {
            Some(format!("UID {:?}", record.uid().as_str()))
        } else {
            claims.take(record);
            let record = Arc::clone(record);
            winners.insert(record.uid().clone(), Current { source, record });
            None
        };
        if taken.is_some() {
            claims.losers.push(Arc::clone(record));
        }
        let verdict = taken.map(|taken| {
            let (pod, from) = (record.describe(), &sources[source].name);
            format!("Error validating pod {pod} from {from} due to duplicate pod {taken}, ignoring")
        });
        if verdict != entry.told {
            if let Some(message) = &verdict {
                let subject = EventSubject::pod(record);
                events.push(Event::new(
                    subject,
                    EventType::Warning,
                    "FailedValidation",
                    message.clone(),
                ));
            }
            verdicts.push((source, slot.clone(), verdict));
        }
    }
    for (source, slot, verdict) in verdicts {
        if let Some(entry) = sources[source].entries.get_mut(&slot) {
            entry.told = verdict;
        }
    }
    (winners, claims)
}
