//! Promises about pods that are there.

use futures::future::join_all;
use kubelet_core::{PodProvider, ProviderError, ResolvedPod};

use crate::contract::check::within;
use crate::contract::providers::bench::{Bench, LONG_GRACE};
use crate::contract::providers::fixture::ProviderFixture;

/// `name` is one word that can be part of container ids, and never changes.
///
/// # Panics
/// If the promise is broken.
pub async fn name_can_be_part_of_container_ids(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let name = provider.name().to_owned();
    let named = !name.is_empty() && name.chars().all(fine);
    assert!(named, "the name {name:?} cannot be part of a container id");
    Bench::new(provider, fixture).running(&fixture.forever).await;
    assert_eq!(provider.name(), name, "the name once there is a pod");
}

/// Steps of one pod never overlap; steps of different pods do.
///
/// # Panics
/// If the promise is broken.
pub async fn steps_of_different_pods_overlap(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let bench = Bench::new(provider, fixture);
    let pods: Vec<_> = (0..4).map(|_| fixture.pod(&fixture.forever)).collect();
    join_all(pods.iter().map(|pod| bench.create(pod))).await;
    join_all(pods.iter().map(|pod| bench.until_running(pod.pod.uid()))).await;
    let (gone, kept) = pods.split_at(2);
    let end = async |pod: &ResolvedPod| {
        bench.delete(pod.pod.uid(), LONG_GRACE).await;
        bench.until_gone(pod.pod.uid()).await;
    };
    join_all(gone.iter().map(end)).await;
    for pod in kept {
        bench.until_running(pod.pod.uid()).await;
    }
}

/// What was created shows in every `list` and `status` begun later, until it was deleted and has ended.
///
/// # Panics
/// If the promise is broken.
pub async fn what_was_created_shows(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let bench = Bench::new(provider, fixture);
    let pod = fixture.pod(&fixture.forever);
    let uid = pod.pod.uid();
    assert!(
        bench.status(uid).await.is_none(),
        "a pod that was never created has a status"
    );
    assert!(
        bench.listed(uid).await.is_none(),
        "a pod that was never created is listed"
    );
    bench.create(&pod).await;
    assert!(
        bench.status(uid).await.is_some(),
        "a pod that was created has no status"
    );
    assert!(
        bench.listed(uid).await.is_some(),
        "a pod that was created is not listed"
    );
    bench.until_running(uid).await;
    let Some(listed) = bench.listed(uid).await else {
        panic!("a pod that runs is not listed");
    };
    let source = listed.source.as_ref().is_none_or(|source| source == pod.pod.source());
    assert!(
        source,
        "a pod is listed with source {:?}, and came from {}",
        listed.source,
        pod.pod.source()
    );
    let key = listed.observed.key.as_ref().is_none_or(|key| key == pod.pod.key());
    assert!(key, "pod {} is listed as {:?}", pod.pod.key(), listed.observed.key);
}

/// `list` says of a pod what `status` says.
///
/// # Panics
/// If the promise is broken.
pub async fn list_and_status_agree(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let bench = Bench::new(provider, fixture);
    let (pod, id) = bench.running(&fixture.forever).await;
    let listed = bench.listed(pod.pod.uid()).await;
    let status = bench.status(pod.pod.uid()).await;
    let ids = |seen: &kubelet_core::PodObservation| -> Vec<_> {
        seen.containers.iter().map(|one| (one.id.clone(), one.state)).collect()
    };
    let (listed, status) = (listed.map(|pod| ids(&pod.observed)), status.as_ref().map(ids));
    assert_eq!(listed, status, "a pod in the list, and its status");
    assert!(
        status.is_some_and(|ids| ids.iter().any(|(one, _)| *one == id)),
        "container {id} is gone"
    );
}

/// `create` is idempotent per UID: repeating it for a pod that exists changes nothing.
///
/// # Panics
/// If the promise is broken.
pub async fn create_is_idempotent(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let bench = Bench::new(provider, fixture);
    let (pod, _) = bench.running(&fixture.forever).await;
    let before = bench.app_of(pod.pod.uid()).await;
    for _ in 0..2 {
        bench.create(&pod).await;
        let listed = bench.listed(pod.pod.uid()).await.is_some();
        assert!(listed, "a pod that was created twice is not listed");
        bench.until_running(pod.pod.uid()).await;
        let now = bench.app_of(pod.pod.uid()).await;
        assert_eq!(now, before, "the container of a pod that was created twice");
    }
}

/// `update` with what the pod is already changes nothing.
///
/// # Panics
/// If the promise is broken.
pub async fn update_with_what_the_pod_is_changes_nothing(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let bench = Bench::new(provider, fixture);
    let (pod, _) = bench.running(&fixture.forever).await;
    let before = bench.app_of(pod.pod.uid()).await;
    for _ in 0..2 {
        bench.must("update a pod", provider.update(&pod)).await;
        bench.until_running(pod.pod.uid()).await;
        let now = bench.app_of(pod.pod.uid()).await;
        assert_eq!(now, before, "the container of a pod that was updated with what it was");
    }
}

/// `list` and `status` tell only of pods that carry our mark: what others made is never listed, and so never ended.
///
/// # Panics
/// If the promise is broken.
pub async fn only_pods_with_our_mark_are_told_of(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let lacks = "the fixture cannot make a pod as somebody else does";
    let Some(foreign) = fixture.foreign.or_skip("only_pods_with_our_mark_are_told_of", lacks) else {
        return;
    };
    let bench = Bench::new(provider, fixture);
    let (ours, _) = bench.running(&fixture.forever).await;
    let uid = foreign(fixture.manifest(&fixture.forever)).await;
    assert!(
        bench.listed(&uid).await.is_none(),
        "a pod that somebody else made is listed"
    );
    assert!(
        bench.status(&uid).await.is_none(),
        "a pod that somebody else made has a status"
    );
    assert!(
        bench.listed(ours.pod.uid()).await.is_some(),
        "a pod of ours is not listed"
    );
}

/// An error of `list` or `status` is no truth about pods: without an answer it is `Unavailable`, never nothing.
///
/// # Panics
/// If the promise is broken.
pub async fn no_answer_is_no_truth_about_pods(provider: &dyn PodProvider, fixture: &ProviderFixture) {
    let lacks = "the fixture cannot take the backend away";
    let Some((down, up)) = fixture.outage.or_skip("no_answer_is_no_truth_about_pods", lacks) else {
        return;
    };
    let bench = Bench::new(provider, fixture);
    let (pod, id) = bench.running(&fixture.forever).await;
    down(()).await;
    let patience = fixture.patience;
    let list = within("list pods", patience, provider.list())
        .await
        .map(|list| list.len());
    let status = within("the status of a pod", patience, provider.status(pod.pod.uid())).await;
    up(()).await;
    for (op, answer) in [("list", list), ("status", status.map(|seen| seen.iter().count()))] {
        let unavailable = matches!(answer, Err(ProviderError::Unavailable { .. }));
        assert!(unavailable, "{op} of a backend that is away gives {answer:?}");
    }
    assert_eq!(
        bench.until_running(pod.pod.uid()).await,
        id,
        "the container once the backend is back"
    );
}
