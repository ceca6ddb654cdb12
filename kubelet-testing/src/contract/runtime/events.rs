//! Promises about the stream of hints.

use futures::StreamExt;
use kubelet_core::{ContainerRuntime, RuntimeError, RuntimeHint};

use crate::contract::check::{skip, within};
use crate::contract::fixture::RuntimeFixture;
use crate::contract::runtime::bench::Bench;

/// The first item is `Ready`, or the stream ends with `Unsupported`.
///
/// # Panics
/// If the promise is broken.
pub async fn events_begin_with_ready_or_end_as_unsupported(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let mut events = runtime.events();
    match within("the first hint", fixture.patience, events.next()).await {
        Some(Ok(RuntimeHint::Ready)) => {}
        Some(Err(RuntimeError::Unsupported { .. })) => {
            let after = within("the end of the stream", fixture.patience, events.next()).await;
            assert!(after.is_none(), "the stream goes on after Unsupported, with {after:?}");
        }
        other => panic!("the first item of events is {other:?}"),
    }
}

/// Hints that something happened: a container that ends by itself makes its pod be looked at.
///
/// # Panics
/// If the promise is broken.
pub async fn an_end_gives_a_hint(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let mut events = runtime.events();
    match within("the first hint", fixture.patience, events.next()).await {
        Some(Ok(RuntimeHint::Ready)) => {}
        _ => return skip("an_end_gives_a_hint", "the runtime has no events"),
    }
    let (pod, sandbox) = bench.sandbox().await;
    let id = bench.start(&pod, &sandbox, "app", &(fixture.exits)(0)).await;
    // Hints carry no truth: each one is a reason to look, until a look shows the end.
    within("a hint after which the end shows", fixture.patience, async {
        loop {
            match events.next().await {
                Some(Ok(RuntimeHint::Pod(uid))) if uid != *pod.uid() => {}
                Some(Ok(_)) => {
                    if bench.state(&pod, &id).await == Some(kubelet_core::ContainerState::Exited) {
                        return;
                    }
                }
                Some(Err(error)) => panic!("the stream broke: {}", kubelet_core::error_chain(&error)),
                None => panic!("the stream ended"),
            }
        }
    })
    .await;
}
