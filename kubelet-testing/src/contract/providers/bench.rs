//! Steps that many promises begin with.

use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{
    ContainerId, ContainerState, PodObservation, PodProvider, PodUid, ProvidedPod, ProviderError, ResolvedPod,
    error_chain,
};

use crate::contract::check::{eventually, within};
use crate::contract::fixture::Workload;
use crate::contract::providers::fixture::ProviderFixture;

/// More grace than any test waits for.
pub(super) const LONG_GRACE: Duration = Duration::from_secs(600);

/// The provider under test and its fixture.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    pub(super) provider: &'a dyn PodProvider,
    pub(super) fixture: &'a ProviderFixture,
}

impl<'a> Bench<'a> {
    pub(super) fn new(provider: &'a dyn PodProvider, fixture: &'a ProviderFixture) -> Self {
        Self { provider, fixture }
    }

    /// The answer of a call, which must come soon.
    pub(super) async fn must<T>(self, what: &str, call: impl Future<Output = Result<T, ProviderError>>) -> T {
        match within(what, self.fixture.patience, call).await {
            Ok(value) => value,
            Err(error) => panic!("{what}: {}", error_chain(&error)),
        }
    }

    pub(super) async fn create(self, pod: &ResolvedPod) {
        self.must("create a pod", self.provider.create(pod)).await;
    }

    pub(super) async fn delete(self, uid: &PodUid, grace: Duration) {
        self.must("delete a pod", self.provider.delete(uid, grace)).await;
    }

    pub(super) async fn status(self, uid: &PodUid) -> Option<PodObservation> {
        let status = self.must("the status of a pod", self.provider.status(uid)).await;
        if let Some(seen) = &status {
            assert_eq!(seen.uid, *uid, "the status of a pod is another one's");
        }
        status
    }

    pub(super) async fn list(self) -> Vec<ProvidedPod> {
        self.must("list pods", self.provider.list()).await
    }

    /// A pod in the list, which has it once at most.
    pub(super) async fn listed(self, uid: &PodUid) -> Option<ProvidedPod> {
        let mut listed: Vec<_> = self.list().await.into_iter().filter(|pod| pod.uid == *uid).collect();
        assert!(listed.len() <= 1, "pod {uid} is listed {} times", listed.len());
        listed.pop()
    }

    /// A new pod whose container runs.
    pub(super) async fn running(self, runs: &Workload) -> (ResolvedPod, ContainerId) {
        let pod = self.fixture.pod(runs);
        self.create(&pod).await;
        let id = self.until_running(pod.pod.uid()).await;
        (pod, id)
    }

    pub(super) async fn until_running(self, uid: &PodUid) -> ContainerId {
        eventually("a pod that was created runs", self.fixture.patience, async || {
            let status = self.status(uid).await?;
            let app = status.newest("app")?;
            app.is_running().then(|| app.id.clone())
        })
        .await
    }

    /// What tells the container of a pod from another one, and from its next start.
    pub(super) async fn app_of(self, uid: &PodUid) -> Option<(ContainerId, u32, u32, Timestamp)> {
        let status = self.status(uid).await?;
        let app = status.newest("app")?;
        Some((app.id.clone(), app.attempt, app.restart_count, app.created_at))
    }

    /// Waits until nothing of a pod runs.
    pub(super) async fn until_ended(self, uid: &PodUid) {
        eventually("a pod has ended", self.fixture.patience, async || {
            let status = self.status(uid).await;
            status.is_none_or(|seen| !seen.may_run()).then_some(())
        })
        .await;
    }

    /// Waits until a pod is gone from everywhere; what has ended is deleted once more, as the engine does.
    pub(super) async fn until_gone(self, uid: &PodUid) {
        self.until_ended(uid).await;
        self.delete(uid, Duration::ZERO).await;
        eventually("a pod that was deleted is gone", self.fixture.patience, async || {
            let there = self.status(uid).await.is_some() || self.listed(uid).await.is_some();
            (!there).then_some(())
        })
        .await;
    }

    /// The state and exit code of the container of a pod.
    pub(super) fn app(seen: &PodObservation) -> Option<(ContainerState, i32)> {
        seen.newest("app").map(|app| (app.state, app.exit_code))
    }
}
