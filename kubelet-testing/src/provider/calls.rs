//! The calls of the fake backend, and its hints.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kubelet_core::{
    PodObservation, PodProvider, PodUid, ProvidedPod, ProviderError, ProviderHint, ResolvedPod, async_trait,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::fake::sleep_until;
use crate::provider::state::State;
use crate::provider::{FakeProvider, ProviderOp};

fn unavailable(op: &'static str) -> ProviderError {
    ProviderError::Unavailable {
        op,
        source: "the fake provider does not answer".into(),
    }
}

/// A step of a pod that goes on. Dropped, it has ended.
struct Step {
    provider: FakeProvider,
    uid: PodUid,
}

impl Step {
    fn begin(provider: &FakeProvider, uid: &PodUid) -> Self {
        let mut state = provider.lock();
        if !state.busy.insert(uid.clone()) {
            state.violations.push(format!("two steps of pod {uid} overlap"));
        }
        drop(state);
        Self {
            provider: provider.clone(),
            uid: uid.clone(),
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.provider.lock().busy.remove(&self.uid);
    }
}

impl FakeProvider {
    /// Meets the faults of a call, and then does it.
    async fn call<T>(
        &self,
        (op, name): (ProviderOp, &'static str),
        (uid, grace): (Option<&PodUid>, Option<Duration>),
        act: impl FnOnce(&mut State, Instant) -> Result<T, ProviderError>,
    ) -> Result<T, ProviderError> {
        let (hangs, latency) = {
            let mut state = self.lock();
            state.note(op, uid, grace);
            (state.hanging.contains(&op), state.latency)
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let now = Instant::now();
        let mut state = self.lock();
        state.advance(now);
        if state.down {
            return Err(unavailable(name));
        }
        match state.fault() {
            None => act(&mut state, now),
            Some(happens) => {
                if happens {
                    act(&mut state, now)?;
                }
                Err(unavailable(name))
            }
        }
    }
}

#[async_trait]
impl PodProvider for FakeProvider {
    fn name(&self) -> &str {
        "fake"
    }

    async fn list(&self) -> Result<Vec<ProvidedPod>, ProviderError> {
        let list = |state: &mut State, _| Ok(state.listed());
        self.call((ProviderOp::List, "list"), (None, None), list).await
    }

    async fn create(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        let uid = pod.pod.uid();
        let _step = Step::begin(self, uid);
        let create = |state: &mut State, now| {
            if let Some(error) = state.scripted.pop_front() {
                return Err(error);
            }
            match state.pods.get(uid) {
                Some(there) if !there.marked => {
                    let text = format!("pod {uid} is another's, and was created");
                    state.violations.push(text);
                }
                Some(_) => {}
                None => state.insert(pod.pod.clone(), pod.env.clone(), true, now),
            }
            Ok(())
        };
        self.call((ProviderOp::Create, "create"), (Some(uid), None), create)
            .await
    }

    async fn update(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        let uid = pod.pod.uid();
        let _step = Step::begin(self, uid);
        let update = |state: &mut State, _| {
            if let Some(error) = state.scripted.pop_front() {
                return Err(error);
            }
            match state.pods.get_mut(uid) {
                Some(there) if there.marked => {
                    there.record = pod.pod.clone();
                    there.env.clone_from(&pod.env);
                    Ok(())
                }
                _ => {
                    state
                        .violations
                        .push(format!("pod {uid} was updated and never created"));
                    Err(ProviderError::Refused {
                        message: format!("there is no pod {uid}"),
                    })
                }
            }
        };
        self.call((ProviderOp::Update, "update"), (Some(uid), None), update)
            .await
    }

    async fn delete(&self, uid: &PodUid, grace: Duration) -> Result<(), ProviderError> {
        let _step = Step::begin(self, uid);
        let delete = |state: &mut State, now| {
            if state.pods.get(uid).is_some_and(|pod| !pod.marked) {
                state
                    .violations
                    .push(format!("pod {uid} is another's, and was deleted"));
                return Ok(());
            }
            state.delete(uid, grace, now);
            Ok(())
        };
        self.call((ProviderOp::Delete, "delete"), (Some(uid), Some(grace)), delete)
            .await
    }

    async fn status(&self, uid: &PodUid) -> Result<Option<PodObservation>, ProviderError> {
        let status = |state: &mut State, _| Ok(state.observation(uid));
        self.call((ProviderOp::Status, "status"), (Some(uid), None), status)
            .await
    }

    fn changes(&self) -> BoxStream<'static, ProviderHint> {
        let mut state = self.lock();
        if !state.has_hints {
            return stream::pending().boxed();
        }
        let listener = Subscription {
            number: state.hints.open(),
            provider: self.clone(),
        };
        stream::unfold(listener, |mut listener| async move {
            let hint = listener.next().await?;
            Some((hint, listener))
        })
        .boxed()
    }
}

/// Everybody who listens to hints. Those of one pod that wait are one, so that there are at most as many as pods.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    open: BTreeMap<u64, Listener>,
    last: u64,
}

#[derive(Debug, Default)]
struct Listener {
    waiting: VecDeque<PodUid>,
    news: Arc<Notify>,
}

impl Hints {
    fn open(&mut self) -> u64 {
        self.last += 1;
        self.open.insert(self.last, Listener::default());
        self.last
    }

    pub(crate) fn send(&mut self, uid: &PodUid) {
        for listener in self.open.values_mut() {
            if !listener.waiting.contains(uid) {
                listener.waiting.push_back(uid.clone());
            }
            listener.news.notify_one();
        }
    }

    pub(crate) fn break_all(&mut self) {
        for listener in std::mem::take(&mut self.open).into_values() {
            listener.news.notify_one();
        }
    }
}

struct Subscription {
    provider: FakeProvider,
    number: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.provider.lock().hints.open.remove(&self.number);
    }
}

impl Subscription {
    /// The next hint. It sleeps until something happens by itself, so that hints come in time although nobody calls.
    async fn next(&mut self) -> Option<ProviderHint> {
        loop {
            let (until, news) = {
                let mut state = self.provider.lock();
                state.advance(Instant::now());
                let until = state.next_instant();
                let listener = state.hints.open.get_mut(&self.number)?;
                if let Some(uid) = listener.waiting.pop_front() {
                    return Some(ProviderHint::Pod(uid));
                }
                (until, listener.news.clone())
            };
            tokio::select! {
                biased;
                () = news.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}
