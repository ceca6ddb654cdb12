//! Sources of objects that break a promise: the embedder's memory, with something between it and its caller.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::futures::stream::{self, StreamExt};
use kubelet_core::{
    Freshness, MapObjects, Object, ObjectError, ObjectKey, ObjectKind, ObjectQuery, ObjectSource, ObjectWatch, Watched,
    async_trait,
};
use kubelet_testing::contract::{ObjectFixture, now};

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    NotServedIsNotFound,
    NotServedIsWatchedForEver,
    NoAnswerIsNotFound,
    NoAnswerIsAnEmptyList,
    OnlyLiveIsFresh,
    OneReadAtATime,
    BusyAfterADroppedRead,
    ListIsUnsorted,
    ListHasAllNamespaces,
    WatchTellsOnlyChanges,
    WatchRepeatsItself,
    WatchTellsTroubleAsAbsence,
    WatchIsNeverReleased,
}

#[derive(Clone, Debug)]
struct Memory {
    map: MapObjects,
    fault: Fault,
    down: Arc<AtomicBool>,
    busy: Arc<AtomicBool>,
    cache: Arc<Mutex<BTreeMap<ObjectKey, Object>>>,
}

fn unavailable(what: impl ToString) -> ObjectError {
    ObjectError::Unavailable {
        what: what.to_string(),
        source: "it is away".into(),
    }
}

impl Memory {
    async fn turn(&self) -> Result<(), ObjectError> {
        let alone = matches!(self.fault, Fault::OneReadAtATime | Fault::BusyAfterADroppedRead);
        if alone && self.busy.swap(true, Ordering::SeqCst) {
            return Err(unavailable("what another read reads"));
        }
        tokio::task::yield_now().await;
        self.busy.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn is_down(&self) -> bool {
        self.down.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ObjectSource for Memory {
    fn serves(&self, kind: ObjectKind) -> bool {
        self.map.serves(kind)
    }

    fn is_local(&self) -> bool {
        true
    }

    async fn get(&self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError> {
        self.turn().await?;
        if self.fault == Fault::NotServedIsNotFound && !self.serves(key.kind) {
            return Err(ObjectError::NotFound { key: key.clone() });
        }
        if self.is_down() {
            return Err(match self.fault {
                Fault::NoAnswerIsNotFound => ObjectError::NotFound { key: key.clone() },
                _ => unavailable(key),
            });
        }
        if self.fault == Fault::OnlyLiveIsFresh && want != Freshness::Live {
            let cached = self.cache.lock().unwrap().get(key).cloned();
            if let Some(cached) = cached {
                return Ok(cached);
            }
        }
        let object = self.map.get(key, want).await?;
        self.cache.lock().unwrap().insert(key.clone(), object.clone());
        Ok(object)
    }

    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        self.turn().await?;
        if self.is_down() {
            return match self.fault {
                Fault::NoAnswerIsAnEmptyList => Ok(Vec::new()),
                _ => Err(unavailable(query)),
            };
        }
        let all = ObjectQuery::new(query.kind);
        let query = if self.fault == Fault::ListHasAllNamespaces {
            &all
        } else {
            query
        };
        let mut list = self.map.list(query).await?;
        if self.fault == Fault::ListIsUnsorted {
            list.sort_by_key(|object| (object.key().name, object.key().namespace));
        }
        Ok(list)
    }

    fn watch(&self, key: &ObjectKey) -> ObjectWatch {
        if !self.serves(key.kind) {
            return match self.fault {
                Fault::NotServedIsWatchedForEver => ObjectWatch::new(stream::pending()),
                _ => ObjectWatch::ended(),
            };
        }
        let states = self.map.watch(key);
        match self.fault {
            Fault::WatchTellsOnlyChanges => ObjectWatch::new(states.skip(1)),
            Fault::WatchRepeatsItself => ObjectWatch::new(states.flat_map(|item| stream::iter([item.clone(), item]))),
            Fault::WatchTellsTroubleAsAbsence => {
                let down = self.down.clone();
                let troubled = stream::unfold(down, |down| async move {
                    while !down.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    Some((Watched::Absent, down))
                });
                ObjectWatch::new(stream::select(states, troubled.take(1)))
            }
            Fault::WatchIsNeverReleased => {
                std::mem::forget(self.map.watch(key));
                states
            }
            _ => states,
        }
    }
}

fn memory(fault: Fault, patience: Duration) -> (Memory, ObjectFixture) {
    let source = Memory {
        map: MapObjects::new().kinds([ObjectKind::Secret, ObjectKind::Service]),
        fault,
        down: Arc::default(),
        busy: Arc::default(),
        cache: Arc::default(),
    };
    let (put, remove, held) = (source.map.clone(), source.map.clone(), source.map.clone());
    let (down, up) = (source.down.clone(), source.down.clone());
    let fixture = ObjectFixture::new(
        move |object| now(|| put.set(object)),
        move |key| now(|| remove.remove(&key)),
    )
    .outage(
        move || now(|| down.store(true, Ordering::SeqCst)),
        move || now(|| up.store(false, Ordering::SeqCst)),
    )
    .held(move || held.watched())
    .patience(patience);
    (source, fixture)
}

async fn sound() -> Option<(Memory, ObjectFixture)> {
    Some(memory(Fault::None, Duration::from_secs(20)))
}

kubelet_testing::object_contract!(sound);

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Memory, ObjectFixture)> {
    async move || Some(memory(fault, Duration::from_secs(2)))
}

faults! { objects:
    not_served_is_not_found: with(Fault::NotServedIsNotFound), a_kind_that_is_not_served_is_said_to_be_so, "NotFound";
    not_served_is_watched_for_ever: with(Fault::NotServedIsWatchedForEver), a_kind_that_is_not_served_is_said_to_be_so, "the end of a watch";
    no_answer_is_not_found: with(Fault::NoAnswerIsNotFound), not_found_is_a_fact, "NotFound";
    no_answer_is_an_empty_list: with(Fault::NoAnswerIsAnEmptyList), not_found_is_a_fact, "a list gives";
    only_live_is_fresh: with(Fault::OnlyLiveIsFresh), get_answers_with_the_state_that_was_asked_for, "asked for";
    one_read_at_a_time: with(Fault::OneReadAtATime), all_methods_may_overlap, "another read";
    busy_after_a_dropped_read: with(Fault::BusyAfterADroppedRead), reads_may_be_dropped_at_any_time, "another read";
    a_list_is_unsorted: with(Fault::ListIsUnsorted), a_list_is_whole_and_sorted, "of all namespaces";
    a_list_has_all_namespaces: with(Fault::ListHasAllNamespaces), a_list_is_whole_and_sorted, "of one namespace";
    a_watch_tells_only_changes: with(Fault::WatchTellsOnlyChanges), a_watch_yields_what_is_known_and_then_what_changes, "shows";
    a_watch_repeats_itself: with(Fault::WatchRepeatsItself), a_watch_yields_what_is_known_and_then_what_changes, "says twice";
    a_watch_tells_trouble: with(Fault::WatchTellsTroubleAsAbsence), a_watch_outlives_troubles, "Absent";
    a_watch_is_never_released: with(Fault::WatchIsNeverReleased), dropping_a_watch_releases_everything, "is released";
}
