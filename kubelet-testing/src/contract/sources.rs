//! The promises of [`PodSource`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

mod fixture;
mod seen;

use kubelet_core::{CancellationToken, PodSource, SourceKind};

use crate::contract::sources::fixture::{Wished, wished};
use crate::contract::sources::seen::Seen;

pub use fixture::SourceFixture;

/// `open` is called once per run; the stream ends only once `stop` is cancelled, and then soon.
///
/// # Panics
/// If the promise is broken.
pub async fn the_stream_ends_only_once_stop_is_cancelled(source: &dyn PodSource, fixture: &SourceFixture) {
    fixture.set(&[wished("a", 1)]).await;
    let mut seen = Seen::open(source, fixture);
    seen.until_pods("the first pod", &[wished("a", 1)]).await;
    fixture.set(&[wished("a", 2)]).await;
    seen.until_pods("a change of it", &[wished("a", 2)]).await;
    seen.stop().await;
}

/// `open` is called once per run; the stream ends only once `stop` is cancelled, and then soon.
///
/// Also if that was so before the stream was opened.
///
/// # Panics
/// If the promise is broken.
pub async fn a_source_that_is_stopped_when_it_is_opened_ends(source: &dyn PodSource, fixture: &SourceFixture) {
    fixture.set(&[wished("a", 1)]).await;
    let stop = CancellationToken::new();
    stop.cancel();
    Seen::open_until(source, fixture, stop).stop().await;
}

/// `name` is not empty; it and `kind` never change.
///
/// # Panics
/// If the promise is broken.
pub async fn name_and_kind_never_change(source: &dyn PodSource, fixture: &SourceFixture) {
    let (name, kind) = (source.name().clone(), source.kind());
    assert!(!name.as_str().is_empty(), "the source has no name");
    fixture.set(&[wished("a", 1)]).await;
    let mut seen = Seen::open(source, fixture);
    seen.until_pods("the first pod", &[wished("a", 1)]).await;
    assert_eq!(
        (source.name(), source.kind()),
        (&name, kind),
        "name and kind once it is open"
    );
    seen.stop().await;
    assert_eq!(
        (source.name(), source.kind()),
        (&name, kind),
        "name and kind at the end"
    );
}

/// A source is ready from its first [`SourceItem::Snapshot`] that is not `remembered`.
///
/// [`SourceItem::Snapshot`]: kubelet_core::SourceItem::Snapshot
///
/// # Panics
/// If the promise is broken.
pub async fn a_source_is_ready_from_its_first_live_snapshot(source: &dyn PodSource, fixture: &SourceFixture) {
    fixture.set(&[wished("a", 1)]).await;
    let mut seen = Seen::open(source, fixture);
    seen.until("a snapshot that is not remembered", |seen| seen.ready).await;
    let first = seen.has_exactly(&[wished("a", 1)]);
    assert!(first, "the first snapshot names {:?}", seen.pods.values());
    seen.stop().await;
}

/// Without pods its snapshot is empty; a source that says nothing holds up all that waits for the sources.
///
/// # Panics
/// If the promise is broken.
pub async fn a_source_without_pods_says_so(source: &dyn PodSource, fixture: &SourceFixture) {
    if fixture.one_pod {
        return;
    }
    fixture.set(&[]).await;
    let mut seen = Seen::open(source, fixture);
    seen.until_pods("an empty snapshot", &[]).await;
    fixture.set(&[wished("a", 1)]).await;
    seen.until_pods("the first pod", &[wished("a", 1)]).await;
    fixture.set(&[]).await;
    seen.until_pods("the end of the only pod", &[]).await;
    seen.stop().await;
}

/// A snapshot is the whole truth of the source: what it does not name is no longer wished for.
///
/// # Panics
/// If the promise is broken.
pub async fn a_snapshot_is_the_whole_truth(source: &dyn PodSource, fixture: &SourceFixture) {
    let steps: [&[Wished]; 4] = if fixture.one_pod {
        [
            &[wished("a", 1)],
            &[wished("b", 1)],
            &[wished("b", 2)],
            &[wished("a", 3)],
        ]
    } else {
        [
            &[wished("a", 1), wished("b", 1)],
            &[wished("b", 2), wished("c", 1)],
            &[wished("a", 3), wished("b", 2), wished("c", 1)],
            &[wished("c", 2)],
        ]
    };
    fixture.set(steps[0]).await;
    let mut seen = Seen::open(source, fixture);
    for (number, step) in steps.into_iter().enumerate() {
        if number > 0 {
            fixture.set(step).await;
        }
        seen.until_pods(&format!("{step:?}"), step).await;
    }
    seen.stop().await;
}

/// What changes while nobody polls the stream is told when it is polled again; states in between may be left out.
///
/// # Panics
/// If the promise is broken.
pub async fn what_changes_while_nobody_polls_is_told_later(source: &dyn PodSource, fixture: &SourceFixture) {
    fixture.set(&[wished("a", 1)]).await;
    let mut seen = Seen::open(source, fixture);
    seen.until_pods("the first pod", &[wished("a", 1)]).await;
    for tag in 2..=4 {
        fixture.set(&[wished("a", tag)]).await;
    }
    fixture.set(&[wished("b", 5)]).await;
    seen.until_pods("the last change", &[wished("b", 5)]).await;
    seen.stop().await;
}

/// What cannot be read is [`SourceItem::Trouble`], never an empty snapshot.
///
/// [`SourceItem::Trouble`]: kubelet_core::SourceItem::Trouble
///
/// # Panics
/// If the promise is broken.
pub async fn what_cannot_be_read_is_trouble(source: &dyn PodSource, fixture: &SourceFixture) {
    let lacks = "the fixture cannot make what the source reads unreadable";
    let Some((down, up)) = fixture.outage.or_skip("what_cannot_be_read_is_trouble", lacks) else {
        return;
    };
    fixture.set(&[wished("a", 1)]).await;
    let mut seen = Seen::open(source, fixture);
    seen.until_pods("the first pod", &[wished("a", 1)]).await;
    down(()).await;
    let kept = |seen: &Seen| {
        assert!(
            !seen.pods.is_empty(),
            "a pod is no longer wished for since it cannot be read"
        );
        seen.troubles > 0
    };
    seen.until("trouble that is told", kept).await;
    up(()).await;
    fixture.set(&[wished("a", 2)]).await;
    let back = |seen: &Seen| kept(seen) && seen.has_exactly(&[wished("a", 2)]);
    seen.until("a change once it can be read again", back).await;
    // And a source that is in trouble can be stopped.
    down(()).await;
    seen.until("trouble that is told again", |seen| seen.troubles > 1).await;
    seen.stop().await;
    up(()).await;
}

/// What cannot be read is [`SourceItem::Trouble`], never an empty snapshot.
///
/// Such a source is not ready.
///
/// [`SourceItem::Trouble`]: kubelet_core::SourceItem::Trouble
///
/// # Panics
/// If the promise is broken.
pub async fn a_source_that_was_never_read_is_not_ready(source: &dyn PodSource, fixture: &SourceFixture) {
    let lacks = "the fixture cannot make what the source reads unreadable";
    let Some((down, up)) = fixture
        .outage
        .or_skip("a_source_that_was_never_read_is_not_ready", lacks)
    else {
        return;
    };
    fixture.set(&[wished("a", 1)]).await;
    down(()).await;
    let mut seen = Seen::open(source, fixture);
    seen.until("trouble that is told", |seen| {
        assert!(!seen.ready, "there is a snapshot of what cannot be read");
        seen.troubles > 0
    })
    .await;
    up(()).await;
    seen.until("the first pod once it can be read", |seen| {
        let whole = seen.has_exactly(&[wished("a", 1)]);
        assert!(
            whole || !seen.ready,
            "there is an empty snapshot of what could not be read"
        );
        whole
    })
    .await;
    seen.stop().await;
}

/// A pod that cannot be understood is reported as invalid, with its origin, and hurts no other pod.
///
/// # Panics
/// If the promise is broken.
pub async fn a_pod_that_cannot_be_understood_hurts_no_other(source: &dyn PodSource, fixture: &SourceFixture) {
    let lacks = "the fixture cannot put in something that is no pod";
    let Some(spoil) = fixture
        .spoil
        .or_skip("a_pod_that_cannot_be_understood_hurts_no_other", lacks)
    else {
        return;
    };
    let both = [wished("a", 1), wished("b", 1)];
    let pods = if fixture.one_pod { &both[..1] } else { &both };
    fixture.set(pods).await;
    let mut seen = Seen::open(source, fixture);
    seen.until_pods("the pods", pods).await;
    spoil(()).await;
    let unhurt = |seen: &Seen| {
        for pod in pods {
            assert!(seen.has(pod), "pod {} is hurt by something that is no pod", pod.name);
        }
        seen.invalid.last().is_some()
    };
    seen.until("something that is no pod, reported as invalid", unhurt)
        .await;
    for bad in &seen.invalid {
        assert!(
            !bad.origin.to_string().is_empty(),
            "an invalid manifest without an origin: {bad:?}"
        );
    }
    if !fixture.one_pod {
        let more = [wished("a", 2), wished("b", 1), wished("c", 1)];
        fixture.set(&more).await;
        seen.until_pods("changes once it is gone", &more).await;
    }
    let mended = [wished("a", 3)];
    fixture.set(&mended).await;
    seen.until_pods("a change once all is well", &mended).await;
    seen.stop().await;
}

/// Pods of a managed source carry a UID that never changes, and is never used again for another pod.
///
/// # Panics
/// If the promise is broken.
pub async fn pods_of_a_managed_source_carry_a_uid(source: &dyn PodSource, fixture: &SourceFixture) {
    if source.kind() != SourceKind::Managed || fixture.one_pod {
        return;
    }
    let uid = |seen: &Seen, name: &str| {
        let uid = seen.named(name).and_then(|pod| pod.metadata.uid.clone());
        let uid = uid.filter(|uid| !uid.is_empty());
        uid.unwrap_or_else(|| panic!("pod {name} has no UID"))
    };
    fixture.set(&[wished("a", 1), wished("b", 1)]).await;
    let mut seen = Seen::open(source, fixture);
    seen.until_pods("two pods", &[wished("a", 1), wished("b", 1)]).await;
    let (a, b) = (uid(&seen, "a"), uid(&seen, "b"));
    assert_ne!(a, b, "the UIDs of two pods");
    fixture.set(&[wished("a", 2), wished("b", 1)]).await;
    seen.until_pods("a change", &[wished("a", 2), wished("b", 1)]).await;
    assert_eq!(uid(&seen, "a"), a, "the UID of a pod that changed");
    assert_eq!(uid(&seen, "b"), b, "the UID of a pod that did not");
    fixture.set(&[wished("b", 1)]).await;
    seen.until_pods("the end of a pod", &[wished("b", 1)]).await;
    let again = Wished {
        life: 2,
        ..wished("a", 3)
    };
    fixture.set(&[again, wished("b", 1)]).await;
    seen.until_pods("another pod of its name", &[again, wished("b", 1)])
        .await;
    assert_ne!(uid(&seen, "a"), a, "the UID of another pod of the same name");
    seen.stop().await;
}

/// Makes one `#[test]` of each promise of [`PodSource`].
///
/// Takes an async function without arguments that answers `Some((source, fixture))` with a
/// [`SourceFixture`](crate::contract::SourceFixture), or nothing where the source cannot be had. It is called once per
/// promise, and the source is opened at most once. The suite runs in real time: a source that looks now and then should do
/// so often, within the fixture's patience at least.
///
/// ```
/// # mod example {
/// use kubelet_core::ChannelSource;
/// use kubelet_testing::contract::SourceFixture;
///
/// async fn channel() -> Option<(ChannelSource, SourceFixture)> {
///     let (handle, source) = ChannelSource::new("embedder");
///     let set = move |pods| {
///         let handle = handle.clone();
///         async move { handle.set(pods).await.unwrap() }
///     };
///     Some((source, SourceFixture::new(set).always_readable().only_pods()))
/// }
///
/// kubelet_testing::source_contract!(channel);
/// # }
/// ```
#[macro_export]
macro_rules! source_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, sources:
            a_pod_that_cannot_be_understood_hurts_no_other
            a_snapshot_is_the_whole_truth
            a_source_is_ready_from_its_first_live_snapshot
            a_source_that_is_stopped_when_it_is_opened_ends
            a_source_that_was_never_read_is_not_ready
            a_source_without_pods_says_so
            name_and_kind_never_change
            pods_of_a_managed_source_carry_a_uid
            the_stream_ends_only_once_stop_is_cancelled
            what_cannot_be_read_is_trouble
            what_changes_while_nobody_polls_is_told_later
        }
    };
}
