//! Pods as wholes: the [`PodSyncer`](crate::PodSyncer) of virtual-kubelet style nodes.

mod observer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::admission::Ledger;
use crate::containers::note_all_resized;
use crate::env::{EnvRequest, PodFields, build_env};
use crate::error::BoxError;
use crate::event::{Event, EventSubject, EventType};
use crate::ids::PodUid;
use crate::objects::ObjectSource;
use crate::pod::PodRecord;
use crate::provider::{PodProvider, ProviderError, ResolvedPod};
use crate::syncer::{AcquireError, BackendStatus, Doomed, PodSyncer, PodWork, Remains, StepContext, SyncError, Synced};

pub(crate) use observer::{ObserverContext, observe};

/// Runs pods through a [`PodProvider`].
///
/// Handed to [`Kubelet::builder`](crate::Kubelet::builder).
#[derive(Clone, Debug)]
#[must_use = "hand it to Kubelet::builder"]
pub struct WholePods {
    pub(crate) provider: Arc<dyn PodProvider>,
    pub(crate) poll_period: Duration,
}

impl WholePods {
    /// Runs pods through a provider, whose pods are listed every 5 s beside its hints.
    pub fn new(provider: impl PodProvider) -> Self {
        Self {
            provider: Arc::new(provider),
            poll_period: Duration::from_secs(5),
        }
    }

    /// How often all pods are listed.
    pub fn poll_period(mut self, period: Duration) -> Self {
        self.poll_period = period;
        self
    }
}

/// What was last handed to the provider of a pod, in this life of the agent.
#[derive(Debug, Default)]
struct Handed {
    revision: Option<Arc<PodRecord>>,
    /// The grace that its end was asked for with.
    deleted: Option<Duration>,
}

/// The syncer of one running kubelet.
#[derive(Debug)]
pub(crate) struct WholePodSyncer {
    provider: Arc<dyn PodProvider>,
    node_name: Arc<str>,
    objects: Option<Arc<dyn ObjectSource>>,
    ledger: Arc<Ledger>,
    timeout: Duration,
    handed: Mutex<BTreeMap<PodUid, Handed>>,
}

impl WholePodSyncer {
    pub(crate) fn new(
        provider: Arc<dyn PodProvider>,
        node_name: Arc<str>,
        objects: Option<Arc<dyn ObjectSource>>,
        ledger: Arc<Ledger>,
        timeout: Duration,
    ) -> Self {
        Self {
            provider,
            node_name,
            objects,
            ledger,
            timeout,
            handed: Mutex::new(BTreeMap::new()),
        }
    }

    fn handed(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodUid, Handed>> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn resolve(&self, work: &PodWork) -> Result<ResolvedPod, SyncError> {
        let pod = &work.pod;
        let node = self.ledger.node();
        let allocatable = node.api_allocatable();
        let fields = PodFields::new(pod.pod(), &self.node_name)
            .with_host_ips(node.addresses.iter().copied())
            .with_pod_ips(work.observed.ips.iter().copied());
        let mut resolved = ResolvedPod::new(pod.clone());
        resolved.objects.clone_from(&self.objects);
        for view in pod.containers() {
            let mut request = EnvRequest::new(&fields, view).with_allocatable(&allocatable);
            if let Some(objects) = &self.objects {
                request = request.with_objects(&**objects);
            }
            if pod.is_static() {
                request = request.with_static_pod();
            }
            let env = build_env(&request)
                .await
                .map_err(|error| SyncError::failed(format!("environment of container {}", view.name()), error))?;
            resolved.env.insert(view.name().to_owned(), env.into_vec());
        }
        Ok(resolved)
    }

    /// Hands a pod over, for the first time or changed. A call that does not answer in time is simply made again: it is
    /// idempotent.
    async fn hand_over(&self, cx: &StepContext, work: &PodWork) -> Result<Synced, SyncError> {
        let resolved = match self.resolve(work).await {
            Ok(resolved) => resolved,
            Err(error) => {
                self.show(
                    cx,
                    &work.pod,
                    "CreateContainerConfigError",
                    &crate::error::error_chain(&error),
                );
                return Err(error);
            }
        };
        if cx.stop.is_cancelled() {
            return Err(SyncError::Stopped);
        }
        cx.notes.acted();
        let call = async {
            if work.observed.is_absent() {
                self.provider.create(&resolved).await
            } else {
                self.provider.update(&resolved).await
            }
        };
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(())) => {
                for view in work.pod.containers() {
                    cx.notes.started(view.name());
                }
                note_all_resized(work, &cx.notes);
                self.handed().insert(
                    work.pod.uid().clone(),
                    Handed {
                        revision: Some(work.pod.clone()),
                        deleted: None,
                    },
                );
                Ok(Synced::Settled)
            }
            Ok(Err(ProviderError::Rejected { reason, message })) => Err(SyncError::Rejected { reason, message }),
            Ok(Err(error)) => {
                let text = crate::error::error_chain(&error);
                self.show(cx, &work.pod, "ProviderFailed", &text);
                Err(SyncError::failed("provider did not take the pod", error))
            }
            Err(_) => Err(late()),
        }
    }

    /// Asks that a pod end within `grace`, unless that was asked before.
    async fn end(&self, cx: &StepContext, uid: &PodUid, grace: Duration) -> Result<(), SyncError> {
        let asked = self.handed().get(uid).and_then(|handed| handed.deleted);
        if asked.is_some_and(|asked| asked <= grace) {
            return Ok(());
        }
        cx.notes.acted();
        match tokio::time::timeout(self.timeout, self.provider.delete(uid, grace)).await {
            Ok(Ok(())) => {
                // Also of a pod that this life of the agent has not handed over.
                self.handed().entry(uid.clone()).or_default().deleted = Some(grace);
                Ok(())
            }
            Ok(Err(error)) => Err(SyncError::failed("provider did not end the pod", error)),
            Err(_) => Err(late()),
        }
    }

    fn show(&self, cx: &StepContext, pod: &PodRecord, reason: &'static str, message: &str) {
        for view in pod.containers() {
            cx.notes.start_failed(view.name(), reason, message);
        }
        cx.events
            .record(Event::new(EventSubject::pod(pod), EventType::Warning, reason, message));
    }
}

#[async_trait]
impl PodSyncer for WholePodSyncer {
    async fn acquire(&self, _cx: &StepContext, _pod: &PodWork) -> Result<(), AcquireError> {
        Ok(())
    }

    async fn sync(&self, cx: &StepContext, work: &PodWork) -> Result<Synced, SyncError> {
        let up_to_date = !work.observed.is_absent()
            && self
                .handed()
                .get(work.pod.uid())
                .and_then(|handed| handed.revision.as_ref())
                // One that was there before this life of the agent is handed over once: it may have changed meanwhile.
                .is_some_and(|revision| Arc::ptr_eq(revision, &work.pod) || same_wish(revision, &work.pod));
        if up_to_date {
            return Ok(Synced::Settled);
        }
        self.hand_over(cx, work).await
    }

    async fn terminate(&self, cx: &StepContext, pod: Doomed<'_>) -> Result<(), SyncError> {
        let uid = pod.uid();
        if pod.observed().is_absent() {
            return Ok(());
        }
        let mut wish = cx.wish.clone();
        loop {
            let grace = wish
                .borrow_and_update()
                .terminate
                .as_ref()
                .map_or(Duration::ZERO, |end| end.grace);
            self.end(cx, uid, grace).await?;
            // The end shows in the status; hints come through the wish, and a poll makes up for lost ones.
            match tokio::time::timeout(self.timeout, self.provider.status(uid)).await {
                Ok(Ok(None)) => return Ok(()),
                Ok(Ok(Some(seen))) if !seen.may_run() => return Ok(()),
                Ok(Ok(Some(_))) => {}
                Err(_) => return Err(late()),
                Ok(Err(error)) => return Err(SyncError::failed("provider does not tell how the pod is", error)),
            }
            tokio::select! {
                biased;
                () = cx.stop.cancelled() => return Err(SyncError::Stopped),
                _ = wish.changed() => {}
                () = tokio::time::sleep_until(Instant::now() + Duration::from_secs(1)) => {}
            }
        }
    }

    async fn finish(&self, cx: &StepContext, pod: Doomed<'_>, remains: Remains) -> Result<(), SyncError> {
        if remains == Remains::Keep || pod.observed().is_absent() {
            return Ok(());
        }
        cx.notes.acted();
        match tokio::time::timeout(self.timeout, self.provider.delete(pod.uid(), Duration::ZERO)).await {
            Ok(removed) => removed.map_err(|error| SyncError::failed("provider did not remove the pod", error)),
            Err(_) => Err(late()),
        }
    }

    fn forget(&self, uid: &PodUid) {
        self.handed().remove(uid);
    }

    async fn check(&self) -> Result<BackendStatus, BoxError> {
        self.provider.list().await?;
        Ok(BackendStatus::ready(self.provider.name(), ""))
    }
}

/// A call to the provider took too long; it may happen all the same, which is harmless to repeat.
fn late() -> SyncError {
    SyncError::Failed {
        what: "provider did not answer in time".to_owned(),
        retry_at: None,
        source: None,
    }
}

/// Whether two versions of a pod wish for the same.
fn same_wish(a: &PodRecord, b: &PodRecord) -> bool {
    a.spec() == b.spec()
        && a.metadata().labels == b.metadata().labels
        && a.metadata().annotations == b.metadata().annotations
}
