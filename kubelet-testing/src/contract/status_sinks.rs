//! The promises of [`StatusSink`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

mod fixture;

use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use kubelet_core::{PodUid, Published, StatusSink, StatusUpdate};

use crate::contract::check::{eventually, within};
use crate::contract::status_sinks::fixture::Told;

pub use fixture::StatusSinkFixture;

/// The longest pause between two tries: a sink that asks for more is told again earlier, as it would be of a change.
const PAUSE: Duration = Duration::from_millis(20);

/// The sink under test and its fixture.
#[derive(Clone, Copy)]
struct Bench<'a> {
    sink: &'a dyn StatusSink,
    fixture: &'a StatusSinkFixture,
}

impl Bench<'_> {
    async fn publish(self, update: &StatusUpdate) -> Published {
        let what = format!("publish version {} of a pod", update.version);
        within(&what, self.fixture.patience, self.sink.publish(update)).await
    }

    /// Tells it until it is taken.
    async fn accepted(self, update: &StatusUpdate) {
        let what = format!("version {} accepted", update.version);
        let tries = async {
            loop {
                match self.sink.publish(update).await {
                    Published::Accepted => return,
                    Published::Retry(after) => tokio::time::sleep(after.min(PAUSE)).await,
                    other => panic!("version {} of a pod that is there gives {other:?}", update.version),
                }
            }
        };
        within(&what, self.fixture.patience, tries).await;
    }

    /// Waits until the other side has that version, and no other.
    async fn shows(self, pod: &Told, text: &str) {
        let Some(shown) = &self.fixture.shown else { return };
        let what = format!("the other side shows {text:?}");
        eventually(&what, self.fixture.patience, async || {
            let status = shown(pod.uid().clone()).await;
            (status.and_then(|status| status.message).as_deref() == Some(text)).then_some(())
        })
        .await;
    }

    /// Told, taken and shown.
    async fn told(self, pod: &Told, version: u64, text: &str) {
        self.accepted(&pod.update(version, text)).await;
        self.shows(pod, text).await;
    }

    async fn forget(self, uid: &PodUid) {
        within("forget a pod", self.fixture.patience, self.sink.forget(uid)).await;
    }
}

/// `Accepted` means that the other side has it, or gets it without being told again.
///
/// # Panics
/// If the promise is broken.
pub async fn what_is_accepted_gets_there(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let bench = Bench { sink, fixture };
    let (a, b) = (fixture.pod("a").await, fixture.pod("b").await);
    bench.accepted(&a.update(1, "a waits")).await;
    bench.accepted(&b.update(2, "b waits")).await;
    bench.accepted(&a.update(3, "a runs")).await;
    bench.shows(&a, "a runs").await;
    bench.shows(&b, "b waits").await;
}

/// Calls for one pod do not overlap; calls for different pods may.
///
/// # Panics
/// If the promise is broken.
pub async fn calls_for_different_pods_may_overlap(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let bench = Bench { sink, fixture };
    let pods = join_all((0..16).map(async |number| fixture.pod(&format!("p{number}")).await)).await;
    let tell = |pod, number: usize| async move {
        for version in 1..=3 {
            bench
                .accepted(&Told::update(pod, version, &format!("{number} at {version}")))
                .await;
        }
    };
    join_all(pods.iter().zip(0..).map(|(pod, number)| tell(pod, number))).await;
    for (number, pod) in pods.iter().enumerate() {
        bench.shows(pod, &format!("{number} at 3")).await;
    }
    join_all(pods.iter().map(|pod| bench.forget(pod.uid()))).await;
}

/// Versions of one pod only grow; gaps are normal, since only the newest is sent.
///
/// # Panics
/// If the promise is broken.
pub async fn versions_grow_with_gaps(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let bench = Bench { sink, fixture };
    let pod = fixture.pod("a").await;
    for version in [3, 4, 1_000, u64::MAX] {
        bench.told(&pod, version, &format!("version {version}")).await;
    }
}

/// The next life of the agent counts versions from the start again, without a `forget` before.
///
/// # Panics
/// If the promise is broken.
pub async fn a_later_life_counts_from_the_start_again(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let bench = Bench { sink, fixture };
    let pod = fixture.pod("a").await;
    for (life, version) in [("first", 5), ("second", 5), ("third", 1)] {
        bench.told(&pod, version, &format!("{life} life")).await;
    }
}

/// Repeating an update that was accepted is harmless.
///
/// # Panics
/// If the promise is broken.
pub async fn repeating_an_accepted_update_is_harmless(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let bench = Bench { sink, fixture };
    let pod = fixture.pod("a").await;
    for _ in 0..3 {
        bench.told(&pod, 7, "runs").await;
    }
    bench.told(&pod, 8, "has ended").await;
}

/// What cannot be told now is `Retry`, with a pause; it is never dropped as `Accepted`.
///
/// # Panics
/// If the promise is broken.
pub async fn what_cannot_be_told_now_is_told_later(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let lacks = "the fixture cannot take the other side away";
    let Some((down, up)) = fixture.outage.or_skip("what_cannot_be_told_now_is_told_later", lacks) else {
        return;
    };
    let bench = Bench { sink, fixture };
    let pod = fixture.pod("a").await;
    bench.told(&pod, 1, "waits").await;
    down(()).await;
    let (first, second) = (pod.update(2, "starts"), pod.update(3, "runs"));
    bench.publish(&first).await;
    let answer = bench.publish(&second).await;
    up(()).await;
    match answer {
        // It says that it will bring it by itself.
        Published::Accepted => {}
        Published::Retry(_) => bench.accepted(&second).await,
        other => panic!("a pod that is there gives {other:?} while the other side is away"),
    }
    bench.shows(&pod, "runs").await;
    bench.told(&pod, 4, "has ended").await;
}

/// A pod that is gone over there is `Gone`, which hurts no other pod.
///
/// # Panics
/// If the promise is broken.
pub async fn a_pod_that_is_gone_over_there_is_gone(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let lacks = "the fixture cannot remove a pod over there";
    let Some(remove) = fixture.removed.or_skip("a_pod_that_is_gone_over_there_is_gone", lacks) else {
        return;
    };
    let bench = Bench { sink, fixture };
    let (a, b) = (fixture.pod("a").await, fixture.pod("b").await);
    bench.told(&a, 1, "a runs").await;
    bench.told(&b, 2, "b runs").await;
    remove(a.uid().clone()).await;
    let gone = async {
        loop {
            match sink.publish(&a.update(3, "a has ended")).await {
                Published::Gone => return,
                Published::Retry(after) => tokio::time::sleep(after.min(PAUSE)).await,
                other => panic!("a pod that is gone over there gives {other:?}"),
            }
        }
    };
    within("gone", fixture.patience, gone).await;
    bench.forget(a.uid()).await;
    bench.told(&b, 4, "b has ended").await;
}

/// `forget` comes last for a pod, unless the kubelet ends before. Of a pod that is not known it does nothing.
///
/// # Panics
/// If the promise is broken.
pub async fn forget_comes_last_and_may_find_nothing(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let bench = Bench { sink, fixture };
    let (never, a, b) = (
        fixture.pod("never").await,
        fixture.pod("a").await,
        fixture.pod("b").await,
    );
    bench.forget(never.uid()).await;
    bench.told(&a, 1, "a runs").await;
    bench.told(&b, 2, "b runs").await;
    bench.forget(a.uid()).await;
    bench.forget(a.uid()).await;
    bench.shows(&b, "b runs").await;
    bench.told(&b, 3, "b has ended").await;
}

/// A pod that was forgotten may come again under its UID.
///
/// # Panics
/// If the promise is broken.
pub async fn a_pod_that_was_forgotten_may_come_again(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let bench = Bench { sink, fixture };
    let pod = fixture.pod("a").await;
    bench.told(&pod, 5, "has ended").await;
    bench.forget(pod.uid()).await;
    bench.told(&pod, 6, "runs again").await;
    bench.forget(pod.uid()).await;
    // Once more in a later life, which does not know how far the one before has counted.
    bench.told(&pod, 1, "runs once more").await;
}

/// A call that is dropped holds up no later one.
///
/// # Panics
/// If the promise is broken.
pub async fn a_dropped_call_holds_up_no_later_one(sink: &dyn StatusSink, fixture: &StatusSinkFixture) {
    let bench = Bench { sink, fixture };
    let (a, b) = (fixture.pod("a").await, fixture.pod("b").await);
    for version in 1..=3 {
        // Begun, and given up at its first wait. That it may be told all the same is no matter.
        let _ = sink.publish(&a.update(version, "dropped")).now_or_never();
        let _ = sink.forget(b.uid()).now_or_never();
    }
    bench.accepted(&a.update(4, "a runs")).await;
    bench.accepted(&b.update(5, "b runs")).await;
    bench.accepted(&a.update(6, "a has ended")).await;
}

/// Makes one `#[test]` of each promise of [`StatusSink`].
///
/// Takes an async function without arguments that answers `Some((sink, fixture))` with a
/// [`StatusSinkFixture`](crate::contract::StatusSinkFixture), or nothing where the sink cannot be had. It is called once per
/// promise. The suite runs in real time.
///
/// ```
/// # mod example {
/// use kubelet_core::WatchSink;
/// use kubelet_testing::contract::{StatusSinkFixture, now};
///
/// async fn watch() -> Option<(WatchSink, StatusSinkFixture)> {
///     let sink = WatchSink::new();
///     let other_side = sink.clone();
///     let shown = move |uid| now(|| other_side.get(&uid).map(|status| (*status).clone()));
///     Some((sink, StatusSinkFixture::new().shown(shown).never_away().never_gone()))
/// }
///
/// kubelet_testing::status_sink_contract!(watch);
/// # }
/// ```
#[macro_export]
macro_rules! status_sink_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, status_sinks:
            a_dropped_call_holds_up_no_later_one
            a_later_life_counts_from_the_start_again
            a_pod_that_is_gone_over_there_is_gone
            a_pod_that_was_forgotten_may_come_again
            calls_for_different_pods_may_overlap
            forget_comes_last_and_may_find_nothing
            repeating_an_accepted_update_is_harmless
            versions_grow_with_gaps
            what_cannot_be_told_now_is_told_later
            what_is_accepted_gets_there
        }
    };
}
