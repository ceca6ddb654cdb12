//! Runs one promise, and cleans up after it whether it holds or not.

use std::env;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kubelet_core::{
    AdmitHandler, ContainerRuntime, EventSink, ImageService, PodProvider, ResourceAllocator, Runnable, RuntimeError,
    error_chain,
};
use tokio::runtime::Builder;
use tokio::time::{self, Instant};

use crate::contract::admission::AdmitFixture;
use crate::contract::allocators::AllocatorFixture;
use crate::contract::events::EventFixture;
use crate::contract::fixture::{ImageFixture, RuntimeFixture};
use crate::contract::providers::ProviderFixture;
use crate::contract::runnables::RunnableFixture;

/// The environment variable that makes a test fail, where it is `1`, instead of skipping what it cannot run. Any other value
/// counts as none.
pub const REQUIRE: &str = "KUBELET_TEST_REQUIRE";

/// How long one promise may take: far more than any needs, so that a call that hangs fails instead of hanging the test.
const LONGEST: Duration = Duration::from_secs(120);

/// Checks one promise on an implementation of its own; `make` answers nothing where there is none, and the check is then
/// skipped.
///
/// # Panics
/// If the promise is broken, or skipped although [`REQUIRE`] is `1`.
pub fn check<T, F>(name: &str, make: impl AsyncFnOnce() -> Option<(T, F)>, promise: impl AsyncFnOnce(&T, &F)) {
    block_on(async {
        let Some((checked, fixture)) = make().await else {
            return skip(name, "there is nothing to check");
        };
        let kept = catch(name, promise(&checked, &fixture)).await;
        kept.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Checks one promise of [`AdmitHandler`], as [`check`] does.
///
/// # Panics
/// If the promise is broken, or skipped although [`REQUIRE`] is `1`.
pub fn check_admission<H: AdmitHandler>(
    name: &str,
    make: impl AsyncFnOnce() -> Option<(H, AdmitFixture)>,
    promise: impl AsyncFnOnce(&Arc<dyn AdmitHandler>, &AdmitFixture),
) {
    // Shared, so that a call which waits for ever can be left behind on its thread.
    let make = async || {
        make()
            .await
            .map(|(handler, fixture)| (Arc::new(handler) as Arc<dyn AdmitHandler>, fixture))
    };
    check(name, make, promise);
}

/// Checks one promise of [`ResourceAllocator`], as [`check`] does.
///
/// # Panics
/// If the promise is broken, or skipped although [`REQUIRE`] is `1`.
pub fn check_allocator<A: ResourceAllocator>(
    name: &str,
    make: impl AsyncFnOnce() -> Option<(A, AllocatorFixture)>,
    promise: impl AsyncFnOnce(&Arc<dyn ResourceAllocator>, &AllocatorFixture),
) {
    // Shared, so that a call which waits for ever can be left behind on its thread.
    let make = async || {
        make()
            .await
            .map(|(allocator, fixture)| (Arc::new(allocator) as Arc<dyn ResourceAllocator>, fixture))
    };
    check(name, make, promise);
}

/// Checks one promise of [`EventSink`], as [`check`] does.
///
/// # Panics
/// If the promise is broken, or skipped although [`REQUIRE`] is `1`.
pub fn check_events<S: EventSink>(
    name: &str,
    make: impl AsyncFnOnce() -> Option<(S, EventFixture)>,
    promise: impl AsyncFnOnce(&Arc<dyn EventSink>, &EventFixture),
) {
    let make = async || {
        make()
            .await
            .map(|(sink, fixture)| (Arc::new(sink) as Arc<dyn EventSink>, fixture))
    };
    check(name, make, promise);
}

/// Checks one promise of [`Runnable`], as [`check`] does.
///
/// # Panics
/// If the promise is broken, or skipped although [`REQUIRE`] is `1`.
pub fn check_runnable<R: Runnable>(
    name: &str,
    make: impl AsyncFnOnce() -> Option<(R, RunnableFixture)>,
    promise: impl AsyncFnOnce(&Arc<dyn Runnable>, &RunnableFixture),
) {
    let make = async || {
        make()
            .await
            .map(|(part, fixture)| (Arc::new(part) as Arc<dyn Runnable>, fixture))
    };
    check(name, make, promise);
}

/// Makes one test of each promise of a suite.
#[doc(hidden)]
#[macro_export]
macro_rules! contract_tests {
    ($make:path, $suite:ident: $($promise:ident)*) => {
        $crate::contract_tests! { $make, $suite, check: $($promise)* }
    };
    ($make:path, $suite:ident, $check:ident: $($promise:ident)*) => { $(
        #[test]
        fn $promise() {
            $crate::contract::$check(stringify!($promise), $make, async |checked, fixture| {
                $crate::contract::$suite::$promise(checked, fixture).await;
            });
        }
    )* };
}

/// Checks one promise of [`ContainerRuntime`] on a runtime of its own; `make` answers nothing where there is none, and
/// the check is then skipped.
///
/// # Panics
/// If the promise is broken, or skipped although [`REQUIRE`] is `1`.
pub fn check_runtime<R: ContainerRuntime>(
    name: &str,
    make: impl AsyncFnOnce() -> Option<(R, RuntimeFixture)>,
    promise: impl AsyncFnOnce(&dyn ContainerRuntime, &RuntimeFixture),
) {
    block_on(async {
        let Some((runtime, fixture)) = make().await else {
            return skip(name, "there is no runtime to check");
        };
        if let Some(why) = fixture.why_not_shown(name) {
            return say_skipped(name, why);
        }
        let checked = catch(name, promise(&runtime, &fixture)).await;
        fixture.clean_up(&runtime).await;
        checked.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Checks one promise of [`PodProvider`], as [`check_runtime`] does.
///
/// # Panics
/// If the promise is broken, or skipped although [`REQUIRE`] is `1`.
pub fn check_provider<P: PodProvider>(
    name: &str,
    make: impl AsyncFnOnce() -> Option<(P, ProviderFixture)>,
    promise: impl AsyncFnOnce(&P, &ProviderFixture),
) {
    block_on(async {
        let Some((provider, fixture)) = make().await else {
            return skip(name, "there is no provider to check");
        };
        let checked = catch(name, promise(&provider, &fixture)).await;
        fixture.clean_up(&provider).await;
        checked.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Checks one promise of [`ImageService`], as [`check_runtime`] does.
///
/// # Panics
/// If the promise is broken, or skipped although [`REQUIRE`] is `1`.
pub fn check_images<I: ImageService>(
    name: &str,
    make: impl AsyncFnOnce() -> Option<(I, ImageFixture)>,
    promise: impl AsyncFnOnce(&dyn ImageService, &ImageFixture),
) {
    block_on(async {
        let Some((images, fixture)) = make().await else {
            return skip(name, "there is no image service to check");
        };
        let checked = catch(name, promise(&images, &fixture)).await;
        fixture.clean_up(&images).await;
        checked.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Says why something is not tested here: because the machine lacks it, say.
///
/// # Panics
/// If [`REQUIRE`] is `1`: then nothing may be skipped.
pub fn skip(name: &str, why: &str) {
    assert!(
        env::var(REQUIRE).as_deref() != Ok("1"),
        "{name} must not be skipped: {why}"
    );
    say_skipped(name, why);
}

#[expect(
    clippy::print_stderr,
    reason = "a skipped test says so where the test runner shows it"
)]
fn say_skipped(name: &str, why: &str) {
    eprintln!("{name} is skipped: {why}");
}

/// The value, or a panic that says what failed and why.
pub(crate) fn must<T>(what: &str, result: Result<T, RuntimeError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {}", error_chain(&error)),
    }
}

/// The value of a future that must be ready within `patience`.
pub(crate) async fn within<T>(what: &str, patience: Duration, future: impl Future<Output = T>) -> T {
    match time::timeout(patience, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {patience:?}"),
    }
}

/// Looks again and again until there is a value, for at most `patience`.
///
/// It polls with short sleeps, which only a suite may: it knows nothing of the implementation but the trait, whose
/// hints are optional, so there is nothing to wait on.
pub(crate) async fn eventually<T>(what: &str, patience: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not within {patience:?}");
        time::sleep(Duration::from_millis(10)).await;
    }
}

async fn catch(name: &str, promise: impl Future<Output = ()>) -> Result<(), Box<dyn std::any::Any + Send>> {
    AssertUnwindSafe(within(name, LONGEST, promise)).catch_unwind().await
}

fn block_on(work: impl Future<Output = ()>) {
    match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => panic!("start a tokio runtime: {error}"),
    }
}
