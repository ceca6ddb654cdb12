//! Promises about how pods end.

use std::time::Duration;

use futures::StreamExt;
use kubelet_core::{ContainerState, PodProvider, ProviderHint};

use crate::contract::check::{eventually, within};
use crate::contract::providers::bench::{Bench, LONG_GRACE};
use crate::contract::providers::fixture::ProviderFixture;

/// `delete` returns when the end is asked for; the end itself shows in `list` and `status`.
///
/// # Panics
/// If the promise is broken.
pub async fn delete_returns_when_the_end_is_asked_for(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let bench = Bench::new(provider, fixture);
    let (pod, _) = bench.running(&fixture.forever).await;
    let (other, id) = bench.running(&fixture.forever).await;
    bench.delete(pod.pod.uid(), LONG_GRACE).await;
    bench.until_ended(pod.pod.uid()).await;
    let listed = bench.listed(pod.pod.uid()).await;
    assert!(
        listed.is_none_or(|pod| !pod.observed.may_run()),
        "an ended pod is listed as one that runs"
    );
    bench.until_gone(pod.pod.uid()).await;
    assert_eq!(
        bench.until_running(other.pod.uid()).await,
        id,
        "the container of another pod"
    );
    if let Some(stubborn) = fixture.ignores_term.or_skip(
        "delete_returns_when_the_end_is_asked_for",
        "the fixture has no workload that ignores its end",
    ) {
        let (pod, id) = bench.running(stubborn).await;
        // This returns, although the end is far away.
        bench.delete(pod.pod.uid(), LONG_GRACE).await;
        assert_eq!(
            bench.until_running(pod.pod.uid()).await,
            id,
            "a container whose grace is not over"
        );
    }
}

/// Deleting a pod that is gone is no error.
///
/// # Panics
/// If the promise is broken.
pub async fn deleting_a_pod_that_is_gone_succeeds(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let bench = Bench::new(provider, fixture);
    let never = fixture.pod(&fixture.forever);
    bench.delete(never.pod.uid(), Duration::ZERO).await;
    bench.delete(never.pod.uid(), LONG_GRACE).await;
    let (pod, _) = bench.running(&fixture.forever).await;
    bench.delete(pod.pod.uid(), LONG_GRACE).await;
    bench.until_gone(pod.pod.uid()).await;
    bench.delete(pod.pod.uid(), LONG_GRACE).await;
    bench.delete(pod.pod.uid(), Duration::ZERO).await;
    assert!(
        bench.listed(pod.pod.uid()).await.is_none(),
        "a pod that is gone is listed again"
    );
}

/// Deleting again with less grace takes effect.
///
/// # Panics
/// If the promise is broken.
pub async fn a_second_delete_with_less_grace_takes_effect(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let promise = "a_second_delete_with_less_grace_takes_effect";
    let lacks = "the fixture has no workload that ignores its end";
    let Some(stubborn) = fixture.ignores_term.or_skip(promise, lacks) else {
        return;
    };
    let bench = Bench::new(provider, fixture);
    let (pod, _) = bench.running(stubborn).await;
    bench.delete(pod.pod.uid(), LONG_GRACE).await;
    bench.delete(pod.pod.uid(), Duration::ZERO).await;
    bench.until_gone(pod.pod.uid()).await;
}

/// An ended pod is listed, with its containers exited, until it is deleted.
///
/// # Panics
/// If the promise is broken.
pub async fn an_ended_pod_is_listed_until_it_is_deleted(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let lacks = "the fixture has no workload that ends";
    let Some(exits) = fixture
        .exits
        .or_skip("an_ended_pod_is_listed_until_it_is_deleted", lacks)
    else {
        return;
    };
    let bench = Bench::new(provider, fixture);
    let pods = [(0, fixture.pod(&exits(0))), (3, fixture.pod(&exits(3)))];
    for (code, pod) in &pods {
        bench.create(pod).await;
        let what = format!("a pod has ended with code {code}");
        eventually(&what, fixture.patience, async || {
            let seen = bench.status(pod.pod.uid()).await?;
            (Bench::app(&seen) == Some((ContainerState::Exited, *code))).then_some(())
        })
        .await;
    }
    for (code, pod) in &pods {
        let Some(listed) = bench.listed(pod.pod.uid()).await else {
            panic!("a pod that ended with code {code} is not listed");
        };
        assert_eq!(
            Bench::app(&listed.observed),
            Some((ContainerState::Exited, *code)),
            "how it is listed"
        );
        // That it is created or updated again is no reason to run it again.
        bench.create(pod).await;
        let seen = bench.status(pod.pod.uid()).await;
        let app = seen.as_ref().and_then(Bench::app);
        assert_eq!(
            app,
            Some((ContainerState::Exited, *code)),
            "an ended pod that was created again"
        );
        bench.delete(pod.pod.uid(), LONG_GRACE).await;
        bench.until_gone(pod.pod.uid()).await;
    }
}

/// `changes` may be opened again and again. A hint tells that a pod is to be looked at, once the change shows.
///
/// # Panics
/// If the promise is broken.
pub async fn an_end_that_is_hinted_at_shows(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    drop(provider.changes());
    let mut hints = provider.changes();
    if !fixture.hints {
        return;
    }
    let lacks = "the fixture has no workload that ends";
    let Some(exits) = fixture.exits.or_skip("an_end_that_is_hinted_at_shows", lacks) else {
        return;
    };
    let bench = Bench::new(provider, fixture);
    let pod = fixture.pod(&exits(0));
    bench.create(&pod).await;
    // Hints carry no truth: each one is a reason to look, until a look shows the end.
    within("a hint after which the end shows", fixture.patience, async {
        loop {
            match hints.next().await {
                Some(ProviderHint::Pod(uid)) if uid != *pod.pod.uid() => {}
                Some(_) => {
                    let seen = bench.status(pod.pod.uid()).await;
                    if seen.as_ref().and_then(Bench::app) == Some((ContainerState::Exited, 0)) {
                        return;
                    }
                }
                None => panic!("the stream of hints ended"),
            }
        }
    })
    .await;
}
