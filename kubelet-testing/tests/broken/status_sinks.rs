//! Sinks of statuses that break a promise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::{PodUid, Published, StatusSink, StatusUpdate, async_trait};
use kubelet_testing::contract::{StatusSinkFixture, now};

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    AcceptsAndForgetsIt,
    DropsWhileAway,
    TakesOnlyHigherVersions,
    TakesOnlyTheNextVersion,
    OneCallAtATime,
    BusyAfterADroppedCall,
    RefusesRepetition,
    NeverTakesAPodAgain,
    RetriesForAPodThatIsGone,
    PanicsOfAnUnknownPod,
}

#[derive(Debug, Default)]
struct World {
    /// What the other side has.
    told: BTreeMap<PodUid, StatusUpdate>,
    gone: BTreeSet<PodUid>,
    forgotten: BTreeSet<PodUid>,
    away: bool,
}

#[derive(Clone, Debug)]
struct Memory {
    world: Arc<Mutex<World>>,
    busy: Arc<AtomicBool>,
    fault: Fault,
}

const LATER: Published = Published::Retry(Duration::from_millis(5));

#[async_trait]
impl StatusSink for Memory {
    async fn publish(&self, update: &StatusUpdate) -> Published {
        let uid = update.pod.uid();
        let alone = matches!(self.fault, Fault::OneCallAtATime | Fault::BusyAfterADroppedCall);
        if alone && self.busy.swap(true, Ordering::SeqCst) {
            assert_ne!(self.fault, Fault::OneCallAtATime, "another call goes on");
            return LATER;
        }
        tokio::task::yield_now().await;
        self.busy.store(false, Ordering::SeqCst);
        let mut world = self.world.lock().unwrap();
        let before = world.told.get(uid).map_or(0, |last| last.version);
        match self.fault {
            Fault::AcceptsAndForgetsIt => return Published::Accepted,
            Fault::DropsWhileAway if world.away => return Published::Accepted,
            Fault::TakesOnlyHigherVersions if update.version <= before => return Published::Accepted,
            Fault::TakesOnlyTheNextVersion if before > 0 && update.version > before + 1 => return LATER,
            Fault::RefusesRepetition if update.version == before => return LATER,
            Fault::NeverTakesAPodAgain if world.forgotten.contains(uid) => return Published::Gone,
            _ => {}
        }
        if world.gone.contains(uid) && self.fault != Fault::RetriesForAPodThatIsGone {
            return Published::Gone;
        }
        if world.away || world.gone.contains(uid) {
            return LATER;
        }
        world.told.insert(uid.clone(), update.clone());
        Published::Accepted
    }

    async fn forget(&self, uid: &PodUid) {
        let mut world = self.world.lock().unwrap();
        let known = world.told.remove(uid).is_some();
        assert!(
            known || self.fault != Fault::PanicsOfAnUnknownPod,
            "pod {uid} is not known"
        );
        world.forgotten.insert(uid.clone());
    }
}

fn memory(fault: Fault, patience: Duration) -> (Memory, StatusSinkFixture) {
    let sink = Memory {
        world: Arc::default(),
        busy: Arc::default(),
        fault,
    };
    let (told, gone, down, up) = (
        sink.world.clone(),
        sink.world.clone(),
        sink.world.clone(),
        sink.world.clone(),
    );
    let shown = move |uid| {
        let world = told.lock().unwrap();
        now(|| world.told.get(&uid).map(|update| (*update.status).clone()))
    };
    let fixture = StatusSinkFixture::new()
        .shown(shown)
        .removed(move |uid| now(|| gone.lock().unwrap().gone.extend([uid])))
        .outage(
            move || now(|| down.lock().unwrap().away = true),
            move || now(|| up.lock().unwrap().away = false),
        )
        .patience(patience);
    (sink, fixture)
}

async fn sound() -> Option<(Memory, StatusSinkFixture)> {
    Some(memory(Fault::None, Duration::from_secs(20)))
}

kubelet_testing::status_sink_contract!(sound);

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Memory, StatusSinkFixture)> {
    async move || Some(memory(fault, Duration::from_secs(2)))
}

faults! { status_sinks:
    accepts_and_forgets_it: with(Fault::AcceptsAndForgetsIt), what_is_accepted_gets_there, "shows";
    drops_while_away: with(Fault::DropsWhileAway), what_cannot_be_told_now_is_told_later, "shows \"runs\"";
    takes_only_higher_versions: with(Fault::TakesOnlyHigherVersions), a_later_life_counts_from_the_start_again, "second life";
    takes_only_the_next_version: with(Fault::TakesOnlyTheNextVersion), versions_grow_with_gaps, "version 1000 accepted";
    one_call_at_a_time: with(Fault::OneCallAtATime), calls_for_different_pods_may_overlap, "another call goes on";
    busy_after_a_dropped_call: with(Fault::BusyAfterADroppedCall), a_dropped_call_holds_up_no_later_one, "not within";
    refuses_repetition: with(Fault::RefusesRepetition), repeating_an_accepted_update_is_harmless, "version 7 accepted";
    never_takes_a_pod_again: with(Fault::NeverTakesAPodAgain), a_pod_that_was_forgotten_may_come_again, "gives Gone";
    retries_for_a_pod_that_is_gone: with(Fault::RetriesForAPodThatIsGone), a_pod_that_is_gone_over_there_is_gone, "gone: not";
    panics_of_an_unknown_pod: with(Fault::PanicsOfAnUnknownPod), forget_comes_last_and_may_find_nothing, "is not known";
}
