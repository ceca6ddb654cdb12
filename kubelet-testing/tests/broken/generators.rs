//! Generators that break a promise.
//!
//! A plain one that looks at everything, one pod after the other, keeps all promises but one without a fault of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kubelet_core::futures::future::try_join;
use kubelet_core::{
    CancellationToken, ContainerId, ContainerRecord, ContainerState, PlegContext, PlegError,
    PodLifecycleEventGenerator, PodObservation, PodUid, RuntimeError, SandboxId, SandboxRecord, Scope, Seq, Wake,
    async_trait,
};
use kubelet_testing::contract::GeneratorFixture;
use tokio::time::{Instant, sleep};

use crate::{faults, holds};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    BeginsOnceItHasListed,
    PassesOverWhatItInspects,
    FailedListIsEmpty,
    NeverSignals,
    SignalsBeforeItWrites,
    IgnoresRequests,
    NeverReinspects,
    FailedLooksAreHealthy,
    FinishesItsLooks,
}

#[derive(Debug)]
struct Plain {
    period: Duration,
    fault: Fault,
}

/// What the lists showed of a pod: its sandboxes, its containers.
type Listed = (BTreeSet<SandboxId>, BTreeMap<ContainerId, ContainerState>);

#[async_trait]
impl PodLifecycleEventGenerator for Plain {
    async fn run(&self, mut cx: PlegContext, stop: CancellationToken) -> Result<(), PlegError> {
        let mut known = BTreeMap::new();
        let mut forced = BTreeSet::new();
        loop {
            let look = self.look(&cx, &mut known, std::mem::take(&mut forced));
            tokio::select! {
                biased;
                () = stop.cancelled(), if self.fault != Fault::FinishesItsLooks => return Ok(()),
                () = look => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                request = cx.requests.next(), if self.fault != Fault::IgnoresRequests => {
                    if request.reinspect && self.fault != Fault::NeverReinspects {
                        forced.insert(request.uid);
                    }
                }
                () = sleep(self.period) => {}
            }
        }
    }
}

impl Plain {
    async fn look(&self, cx: &PlegContext, known: &mut BTreeMap<PodUid, Listed>, forced: BTreeSet<PodUid>) {
        let (mut at, begun) = (cx.cache.begin(), Instant::now());
        let lists = try_join(
            cx.runtime.list_sandboxes(Scope::All),
            cx.runtime.list_containers(Scope::All),
        )
        .await;
        if self.fault == Fault::BeginsOnceItHasListed {
            at = cx.cache.begin();
        }
        if self.fault == Fault::FailedLooksAreHealthy {
            cx.health.looked(begun);
        }
        let (sandboxes, containers) = match lists {
            Ok(lists) => lists,
            Err(_) if self.fault == Fault::FailedListIsEmpty => (Vec::new(), Vec::new()),
            Err(error) => {
                cx.health.failed(&error);
                return cx.cache.cannot_look(&error);
            }
        };
        let listed = by_pod(sandboxes, containers);
        if self.fault == Fault::PassesOverWhatItInspects {
            cx.cache.looked_at_all(at);
        }
        for (uid, now) in &listed {
            if known.get(uid) != Some(now) || forced.contains(uid) {
                if self.fault == Fault::SignalsBeforeItWrites {
                    cx.signals.wake(uid, Wake::Runtime);
                    tokio::task::yield_now().await;
                }
                let seen = inspect(cx, uid, now).await;
                self.tell(cx, uid, at, seen);
            }
        }
        for uid in known.keys().filter(|uid| !listed.contains_key(*uid)) {
            self.tell(cx, uid, at, Ok(PodObservation::absent(uid.clone())));
        }
        *known = listed;
        cx.cache.looked_at_all(at);
        cx.health.looked(begun);
    }

    fn tell(&self, cx: &PlegContext, uid: &PodUid, at: Seq, seen: Result<PodObservation, RuntimeError>) {
        cx.cache.put(uid, at, seen);
        if !matches!(self.fault, Fault::NeverSignals | Fault::SignalsBeforeItWrites) {
            cx.signals.wake(uid, Wake::Runtime);
        }
    }
}

fn by_pod(sandboxes: Vec<SandboxRecord>, containers: Vec<ContainerRecord>) -> BTreeMap<PodUid, Listed> {
    let mut listed: BTreeMap<PodUid, Listed> = BTreeMap::new();
    for sandbox in sandboxes {
        listed.entry(sandbox.pod_uid).or_default().0.insert(sandbox.id);
    }
    for container in containers {
        let pod = listed.entry(container.pod_uid).or_default();
        pod.1.insert(container.id, container.state);
    }
    listed
}

async fn inspect(
    cx: &PlegContext,
    uid: &PodUid,
    (sandboxes, containers): &Listed,
) -> Result<PodObservation, RuntimeError> {
    let (mut of_sandboxes, mut of_containers) = (Vec::new(), Vec::new());
    for id in sandboxes {
        of_sandboxes.push(cx.runtime.sandbox_status(id).await?);
    }
    for id in containers.keys() {
        of_containers.push(cx.runtime.container_status(id).await?);
    }
    Ok(PodObservation::from_statuses(uid.clone(), of_sandboxes, of_containers))
}

fn patient(fault: Fault, patience: Duration) -> impl AsyncFnOnce() -> Option<(Plain, GeneratorFixture)> {
    let plain = move |period| Plain { period, fault };
    async move || {
        let unhurried = plain(Duration::from_secs(3600));
        let fixture = GeneratorFixture::new().unhurried(unhurried).patience(patience);
        Some((plain(Duration::from_millis(10)), fixture))
    }
}

fn sound() -> impl AsyncFnOnce() -> Option<(Plain, GeneratorFixture)> {
    patient(Fault::None, Duration::from_secs(20))
}

holds! { generators:
    sound() => a_failed_list_changes_nothing
    sound() => a_look_begins_before_it_lists
    sound() => a_reinspection_inspects_what_did_not_change
    sound() => a_request_is_answered_whatever_the_period
    sound() => every_change_reaches_the_cache_and_a_signal_follows
    sound() => health_is_told_of_looks_that_succeeded
    sound() => it_returns_soon_and_may_be_run_again
}

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Plain, GeneratorFixture)> {
    patient(fault, Duration::from_secs(2))
}

faults! { generators:
    begins_once_it_has_listed: with(Fault::BeginsOnceItHasListed), a_look_begins_before_it_lists, "newer than it";
    passes_over_what_it_inspects: with(Fault::PassesOverWhatItInspects), no_change_is_passed_over_as_unchanged, "before";
    a_failed_list_is_empty: with(Fault::FailedListIsEmpty), a_failed_list_changes_nothing, "a runtime that is away gives";
    never_signals: with(Fault::NeverSignals), every_change_reaches_the_cache_and_a_signal_follows, "a signal after which";
    ignores_requests: with(Fault::IgnoresRequests), a_request_is_answered_whatever_the_period, "a look at pod uid-a";
    never_reinspects: with(Fault::NeverReinspects), a_reinspection_inspects_what_did_not_change, "not inspected again";
    signals_before_it_writes: with(Fault::SignalsBeforeItWrites), every_change_reaches_the_cache_and_a_signal_follows, "which";
    one_pod_after_the_other: with(Fault::None), one_slow_pod_delays_only_itself, "a signal after which";
    failed_looks_are_healthy: with(Fault::FailedLooksAreHealthy), health_is_told_of_looks_that_succeeded, "healthy before";
    finishes_its_looks: with(Fault::FinishesItsLooks), it_returns_soon_and_may_be_run_again, "the end of a generator";
}
