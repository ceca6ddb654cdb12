//! Who gets a name that several pods want.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::Current;
use super::entry::Source;
use crate::event::{Event, EventSubject, EventType};
use crate::ids::PodUid;

/// Finds the pods that are taken. A pod that is not is told of once.
pub(super) fn settle(
    sources: &mut [Source],
    current: &BTreeMap<PodUid, Current>,
    events: &mut Vec<Event>,
) -> BTreeMap<PodUid, Current> {
    let held: HashMap<_, _> = current
        .values()
        .map(|current| (current.record.key(), current.source))
        .collect();
    let mut claims = Vec::new();
    for (source, state) in sources.iter().enumerate() {
        for (slot, entry) in state.entries.in_order() {
            let holds = held.get(entry.record.key()) == Some(&source);
            claims.push((!holds, source, slot, entry));
        }
    }
    // Stable: within a source the order stays.
    claims.sort_by_key(|(waits, source, ..)| (*waits, *source));
    let mut winners = BTreeMap::new();
    let mut names = HashSet::new();
    let mut verdicts = Vec::new();
    for (_, source, slot, entry) in claims {
        let record = &entry.record;
        let taken = if names.contains(record.key()) {
            Some(format!("name {:?}", &*record.key().name))
        } else if winners.contains_key(record.uid()) {
            Some(format!("UID {:?}", record.uid().as_str()))
        } else {
            names.insert(record.key());
            let record = Arc::clone(record);
            winners.insert(record.uid().clone(), Current { source, record });
            None
        };
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
    winners
}
