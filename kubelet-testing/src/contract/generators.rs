//! The promises of [`PodLifecycleEventGenerator`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

mod bench;
mod held;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kubelet_core::ContainerState::{Exited, Running};
use kubelet_core::{CacheError, PodLifecycleEventGenerator, PodUid};

use crate::Op;
use crate::contract::check::{eventually, within};
use crate::contract::generators::bench::{runtime, start_pod, with};
use crate::contract::generators::held::LISTS;
use crate::contract::hook::Given;

/// Tells the suite of [`PodLifecycleEventGenerator`] what it needs beside the generator that it checks.
///
/// The suite brings the runtime along: a [`FakeRuntime`](crate::FakeRuntime).
pub struct GeneratorFixture {
    unhurried: Given<Arc<dyn PodLifecycleEventGenerator>>,
    patience: Duration,
}

impl fmt::Debug for GeneratorFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratorFixture")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Default for GeneratorFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl GeneratorFixture {
    /// A fixture for a generator that looks by itself at least every second.
    #[must_use]
    pub fn new() -> Self {
        Self {
            unhurried: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// The same generator, but one that looks by itself no more than once an hour after its first look. Without it the
    /// promises about requests are skipped.
    #[must_use]
    pub fn unhurried(mut self, generator: impl PodLifecycleEventGenerator) -> Self {
        self.unhurried = Given::Here(Arc::new(generator));
        self
    }

    /// How long it may take until a change is seen; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// Every change of a pod reaches the cache, and a signal for that pod follows it.
///
/// # Panics
/// If the promise is broken.
pub async fn every_change_reaches_the_cache_and_a_signal_follows(
    generator: &dyn PodLifecycleEventGenerator,
    fixture: &GeneratorFixture,
) {
    for hints in [false, true] {
        let fake = runtime(hints);
        let before = start_pod(&fake, "before").await;
        with(generator, fixture.patience, fake.clone(), async |bench| {
            bench.woken_to(&before, Some(Running)).await;
            let pod = bench.start_pod("later").await;
            bench.woken_to(&pod, Some(Running)).await;
            fake.kill_container(&pod.container, 1);
            bench.woken_to(&pod, Some(Exited)).await;
            fake.vanish_sandbox(&pod.sandbox);
            bench.woken_to(&pod, None).await;
            assert_eq!(bench.state(&before), Some(Running), "a pod that did not change");
        })
        .await;
    }
}

/// A look takes [`CacheWriter::begin`] before it lists: what changed while it was under way is not what it saw.
///
/// [`CacheWriter::begin`]: kubelet_core::CacheWriter::begin
///
/// # Panics
/// If the promise is broken.
pub async fn a_look_begins_before_it_lists(generator: &dyn PodLifecycleEventGenerator, fixture: &GeneratorFixture) {
    let fake = runtime(false);
    let pod = start_pod(&fake, "a").await;
    with(generator, fixture.patience, fake.clone(), async |bench| {
        bench.shows(&pod, Some(Running)).await;
        bench.runtime.hold_lists(true);
        let listed = bench.runtime.is_waited_for(&[LISTS]);
        within("a list that is under way", fixture.patience, listed).await;
        fake.kill_container(&pod.container, 1);
        let mark = bench.cache.mark();
        bench.runtime.hold_lists(false);
        let seen = bench.since(&pod.uid, mark).await;
        assert_eq!(
            seen,
            Some(Exited),
            "what was listed before a change is taken for newer than it"
        );
    })
    .await;
}

/// [`CacheWriter::looked_at_all`] comes only when all pods that changed are written or marked stale.
///
/// [`CacheWriter::looked_at_all`]: kubelet_core::CacheWriter::looked_at_all
///
/// # Panics
/// If the promise is broken.
pub async fn no_change_is_passed_over_as_unchanged(
    generator: &dyn PodLifecycleEventGenerator,
    fixture: &GeneratorFixture,
) {
    let fake = runtime(false);
    let pod = start_pod(&fake, "a").await;
    with(generator, fixture.patience, fake.clone(), async |bench| {
        bench.shows(&pod, Some(Running)).await;
        bench.runtime.hold_lists(true);
        let listed = bench.runtime.is_waited_for(&[LISTS]);
        within("a list that is under way", fixture.patience, listed).await;
        let statuses = [pod.sandbox.as_str(), pod.container.as_str()];
        bench.runtime.hold_statuses(statuses);
        fake.kill_container(&pod.container, 1);
        let mark = bench.cache.mark();
        bench.runtime.hold_lists(false);
        let inspected = bench.runtime.is_waited_for(&statuses);
        within("the status of a pod that changed", fixture.patience, inspected).await;
        // The look that found the change is later than the mark, and knows nothing of how it is now.
        if let Some(Ok(seen)) = bench.cache.since(&pod.uid, mark).now_or_never() {
            panic!("a pod that changed is taken for what it was before: {seen:?}");
        }
        bench.runtime.release_statuses();
        let seen = bench.since(&pod.uid, mark).await;
        assert_eq!(seen, Some(Exited), "once its status is there");
    })
    .await;
}

/// A failed list changes nothing in the cache but [`CacheWriter::cannot_look`].
///
/// [`CacheWriter::cannot_look`]: kubelet_core::CacheWriter::cannot_look
///
/// # Panics
/// If the promise is broken.
pub async fn a_failed_list_changes_nothing(generator: &dyn PodLifecycleEventGenerator, fixture: &GeneratorFixture) {
    let fake = runtime(false);
    let pod = start_pod(&fake, "a").await;
    with(generator, fixture.patience, fake.clone(), async |bench| {
        bench.shows(&pod, Some(Running)).await;
        fake.go_down();
        for _ in 0..2 {
            let mark = bench.cache.mark();
            let look = within("a failed look", fixture.patience, bench.cache.since(&pod.uid, mark)).await;
            let fails = matches!(look, Err(CacheError::CannotLook { .. }));
            assert!(fails, "a look at a runtime that is away gives {look:?}");
            assert_eq!(bench.state(&pod), Some(Running), "what was seen last");
            let present = bench.cache.present();
            assert!(
                present.contains(&pod.uid),
                "a pod is taken for absent since nobody can look"
            );
        }
        fake.come_up();
        let mark = bench.cache.mark();
        assert_eq!(
            bench.since(&pod.uid, mark).await,
            Some(Running),
            "once it can be listed again"
        );
    })
    .await;
}

/// A request to look at one pod is answered soon, whatever the period.
///
/// # Panics
/// If the promise is broken.
pub async fn a_request_is_answered_whatever_the_period(
    _generator: &dyn PodLifecycleEventGenerator,
    fixture: &GeneratorFixture,
) {
    let lacks = "the fixture has no generator with a long period";
    let promise = "a_request_is_answered_whatever_the_period";
    let Some(unhurried) = fixture.unhurried.or_skip(promise, lacks) else {
        return;
    };
    let fake = runtime(false);
    let pod = start_pod(&fake, "a").await;
    with(&**unhurried, fixture.patience, fake.clone(), async |bench| {
        bench.woken_to(&pod, Some(Running)).await;
        fake.kill_container(&pod.container, 1);
        let mark = bench.cache.mark();
        bench.ask.relist(&pod.uid);
        assert_eq!(bench.since(&pod.uid, mark).await, Some(Exited), "a pod that changed");
        bench.woken_to(&pod, Some(Exited)).await;
        let mark = bench.cache.mark();
        bench.ask.relist(&pod.uid);
        assert_eq!(
            bench.since(&pod.uid, mark).await,
            Some(Exited),
            "a pod that did not change"
        );
        let nobody = PodUid::from("nobody");
        let mark = bench.cache.mark();
        bench.ask.relist(&nobody);
        assert_eq!(bench.since(&nobody, mark).await, None, "a pod that is not there");
    })
    .await;
}

/// A request to inspect one is granted even if its records did not change, and a signal follows.
///
/// # Panics
/// If the promise is broken.
pub async fn a_reinspection_inspects_what_did_not_change(
    _generator: &dyn PodLifecycleEventGenerator,
    fixture: &GeneratorFixture,
) {
    let lacks = "the fixture has no generator with a long period";
    let promise = "a_reinspection_inspects_what_did_not_change";
    let Some(unhurried) = fixture.unhurried.or_skip(promise, lacks) else {
        return;
    };
    let fake = runtime(false);
    let pod = start_pod(&fake, "a").await;
    with(&**unhurried, fixture.patience, fake.clone(), async |bench| {
        bench.woken_to(&pod, Some(Running)).await;
        let inspections = || fake.count(Op::SandboxStatus) + fake.count(Op::ContainerStatus);
        let before = inspections();
        bench.ask.reinspect(&pod.uid);
        let mark = bench.cache.mark();
        assert_eq!(
            bench.since(&pod.uid, mark).await,
            Some(Running),
            "a pod that did not change"
        );
        assert!(inspections() > before, "the pod was not inspected again");
        bench.woken_to(&pod, Some(Running)).await;
    })
    .await;
}

/// One slow pod delays only itself.
///
/// # Panics
/// If the promise is broken.
pub async fn one_slow_pod_delays_only_itself(generator: &dyn PodLifecycleEventGenerator, fixture: &GeneratorFixture) {
    let fake = runtime(false);
    let (slow, other) = (start_pod(&fake, "slow").await, start_pod(&fake, "other").await);
    with(generator, fixture.patience, fake.clone(), async |bench| {
        bench.shows(&slow, Some(Running)).await;
        bench.woken_to(&other, Some(Running)).await;
        let held = [slow.sandbox.as_str(), slow.container.as_str()];
        bench.runtime.hold_statuses(held);
        fake.kill_container(&slow.container, 1);
        within(
            "a look at a pod that changed",
            fixture.patience,
            bench.runtime.is_waited_for(&held),
        )
        .await;
        fake.kill_container(&other.container, 1);
        bench.woken_to(&other, Some(Exited)).await;
        let new = bench.start_pod("new").await;
        bench.woken_to(&new, Some(Running)).await;
        bench.runtime.release_statuses();
        bench.shows(&slow, Some(Exited)).await;
    })
    .await;
}

/// A look at everything that succeeded is told to the health; one that failed is not.
///
/// # Panics
/// If the promise is broken.
pub async fn health_is_told_of_looks_that_succeeded(
    generator: &dyn PodLifecycleEventGenerator,
    fixture: &GeneratorFixture,
) {
    let fake = runtime(false);
    fake.go_down();
    with(generator, fixture.patience, fake.clone(), async |bench| {
        let mark = bench.cache.mark();
        let nobody = PodUid::from("nobody");
        let look = within("a failed look", fixture.patience, bench.cache.since(&nobody, mark)).await;
        assert!(look.is_err(), "a look at a runtime that is away gives {look:?}");
        assert!(
            bench.health.trouble().is_some(),
            "healthy before the first look that succeeds"
        );
        fake.come_up();
        eventually("healthy once a look succeeds", fixture.patience, async || {
            bench.health.trouble().is_none().then_some(())
        })
        .await;
    })
    .await;
}

/// It returns soon after `stop`, whatever the runtime does, and may be run again.
///
/// # Panics
/// If the promise is broken.
pub async fn it_returns_soon_and_may_be_run_again(
    generator: &dyn PodLifecycleEventGenerator,
    fixture: &GeneratorFixture,
) {
    let fake = runtime(false);
    let pod = start_pod(&fake, "a").await;
    for _ in 0..2 {
        with(generator, fixture.patience, fake.clone(), async |bench| {
            bench.shows(&pod, Some(Running)).await;
            bench.runtime.hold_lists(true);
            let listed = bench.runtime.is_waited_for(&[LISTS]);
            within("a list that is under way", fixture.patience, listed).await;
            // The list is never answered; stopping is not to wait for it.
        })
        .await;
    }
}

/// Makes one `#[test]` of each promise of [`PodLifecycleEventGenerator`].
///
/// Takes an async function without arguments that answers `Some((generator, fixture))` with a
/// [`GeneratorFixture`](crate::contract::GeneratorFixture). It is called once per promise. The suite brings a runtime in
/// memory along and runs in real time: the generator should look often, within the fixture's patience at least.
///
/// ```
/// # mod example {
/// # use kubelet_core::{PlegContext, PlegError, PodLifecycleEventGenerator, async_trait, CancellationToken};
/// # #[derive(Debug)]
/// # struct MyGenerator;
/// # impl MyGenerator { fn with_period(_: std::time::Duration) -> Self { Self } }
/// # #[async_trait]
/// # impl PodLifecycleEventGenerator for MyGenerator {
/// #     async fn run(&self, _: PlegContext, stop: CancellationToken) -> Result<(), PlegError> { Ok(stop.cancelled().await) }
/// # }
/// use std::time::Duration;
///
/// use kubelet_testing::contract::GeneratorFixture;
///
/// async fn mine() -> Option<(MyGenerator, GeneratorFixture)> {
///     let unhurried = MyGenerator::with_period(Duration::from_secs(3600));
///     let fixture = GeneratorFixture::new().unhurried(unhurried);
///     Some((MyGenerator::with_period(Duration::from_millis(50)), fixture))
/// }
///
/// kubelet_testing::generator_contract!(mine);
/// # }
/// ```
#[macro_export]
macro_rules! generator_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, generators:
            a_failed_list_changes_nothing
            a_look_begins_before_it_lists
            a_reinspection_inspects_what_did_not_change
            a_request_is_answered_whatever_the_period
            every_change_reaches_the_cache_and_a_signal_follows
            health_is_told_of_looks_that_succeeded
            it_returns_soon_and_may_be_run_again
            no_change_is_passed_over_as_unchanged
            one_slow_pod_delays_only_itself
        }
    };
}
