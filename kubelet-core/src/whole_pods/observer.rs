//! Who looks at a provider: lists now and then, and looks at a pod when it is hinted at or asked for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::cache::{CacheWriter, RelistRequests, Seq};
use crate::error::error_chain;
use crate::ids::PodUid;
use crate::observation::PodObservation;
use crate::pleg::PlegHealth;
use crate::provider::{PodProvider, ProvidedPod, ProviderError, ProviderHint};
use crate::runtime::RuntimeError;
use crate::signals::{PodSignals, Wake};

/// How many pods are looked at alone at a time.
const MAX_PARALLEL: usize = 8;
/// How soon after lost hints everything is looked at: a provider that loses them all the time is not listed all the time.
const LOST_GAP: Duration = Duration::from_millis(100);

/// What the observer works with.
#[derive(Debug)]
pub(crate) struct ObserverContext {
    pub(crate) cache: CacheWriter,
    pub(crate) requests: RelistRequests,
    pub(crate) signals: PodSignals,
    pub(crate) health: PlegHealth,
    pub(crate) poll_period: Duration,
    /// How long a call may take.
    pub(crate) timeout: Duration,
}

type Listed = (Seq, Instant, Result<Vec<ProvidedPod>, RuntimeError>);
type Looked = (PodUid, Seq, Result<Option<PodObservation>, RuntimeError>);

/// Looks at a provider until it is stopped.
///
/// The list and looks at single pods go on beside each other, each bounded by the timeout, so that one that does not
/// answer delays only itself.
pub(crate) async fn observe(provider: Arc<dyn PodProvider>, mut cx: ObserverContext, stop: CancellationToken) {
    let mut hints = provider.changes();
    let mut hints_open = true;
    let mut ticks = tokio::time::interval(cx.poll_period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pods = Pods::default();
    let mut again = false;
    let mut list: Option<BoxFuture<'static, Listed>> = None;
    let mut looks: FuturesUnordered<BoxFuture<'static, Looked>> = FuturesUnordered::new();
    loop {
        while looks.len() < MAX_PARALLEL
            && let Some(uid) = pods.next_to_look_at()
        {
            looks.push(look_at(provider.clone(), uid, cx.cache.begin(), cx.timeout));
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            // Before the hints, so that a flood of them does not hold up the polls that make up for lost ones.
            _ = ticks.tick(), if list.is_none() => {
                if !hints_open {
                    hints = provider.changes();
                    hints_open = true;
                }
                list = Some(look_at_all(provider.clone(), cx.cache.begin(), cx.timeout));
            }
            listed = running(&mut list) => {
                list = None;
                pods.listed(&cx, listed);
                ticks.reset_after(if std::mem::take(&mut again) { LOST_GAP } else { cx.poll_period });
            }
            Some(looked) = looks.next() => pods.looked(&cx, looked),
            request = cx.requests.next() => pods.ask(request.uid),
            hint = hints.next(), if hints_open => match hint {
                Some(ProviderHint::Pod(uid)) => pods.ask(uid),
                // One under way may have listed before what was missed happened.
                Some(ProviderHint::Lost) if list.is_some() => again = true,
                Some(ProviderHint::Lost) => ticks.reset_after(LOST_GAP),
                // Opened again at the next poll, so that a broken stream does not spin.
                None => hints_open = false,
            },
        }
    }
}

/// Waits for the list under way; for ever where there is none.
async fn running(list: &mut Option<BoxFuture<'static, Listed>>) -> Listed {
    match list {
        Some(list) => list.await,
        None => std::future::pending().await,
    }
}

fn look_at_all(provider: Arc<dyn PodProvider>, at: Seq, timeout: Duration) -> BoxFuture<'static, Listed> {
    Box::pin(async move {
        let begun = Instant::now();
        let listed = answer("list", tokio::time::timeout(timeout, provider.list()).await);
        (at, begun, listed)
    })
}

fn look_at(provider: Arc<dyn PodProvider>, uid: PodUid, at: Seq, timeout: Duration) -> BoxFuture<'static, Looked> {
    Box::pin(async move {
        let seen = answer("status", tokio::time::timeout(timeout, provider.status(&uid)).await);
        (uid, at, seen)
    })
}

fn answer<T, E>(op: &'static str, answer: Result<Result<T, ProviderError>, E>) -> Result<T, RuntimeError> {
    match answer {
        Ok(answer) => answer.map_err(|error| RuntimeError::unavailable(op, error_chain(&error))),
        Err(_) => Err(RuntimeError::unavailable(op, "no answer in time")),
    }
}

/// What is known of the provider's pods, and which are to be looked at.
#[derive(Debug, Default)]
struct Pods {
    /// The pods that were there, and the look that saw them last.
    known: BTreeMap<PodUid, Seq>,
    asked: BTreeSet<PodUid>,
    line: VecDeque<PodUid>,
    /// The pods that are being looked at.
    alone: BTreeSet<PodUid>,
    /// The pods whose last look failed: somebody may wait for a good one.
    failed: BTreeSet<PodUid>,
}

impl Pods {
    fn ask(&mut self, uid: PodUid) {
        if self.asked.insert(uid.clone()) {
            self.line.push_back(uid);
        }
    }

    /// A pod is looked at once at a time, so that a wish which comes during a look is granted by the next one.
    fn next_to_look_at(&mut self) -> Option<PodUid> {
        let place = self.line.iter().position(|uid| !self.alone.contains(uid))?;
        let uid = self.line.remove(place)?;
        self.asked.remove(&uid);
        self.alone.insert(uid.clone());
        Some(uid)
    }

    fn looked(&mut self, cx: &ObserverContext, (uid, at, seen): Looked) {
        self.alone.remove(&uid);
        let seen = match seen {
            Ok(Some(seen)) => {
                self.known.insert(uid.clone(), at);
                seen
            }
            Ok(None) => {
                self.known.remove(&uid);
                PodObservation::absent(uid.clone())
            }
            Err(error) => {
                cx.cache.put(&uid, at, Err(error));
                self.failed.insert(uid);
                return;
            }
        };
        self.failed.remove(&uid);
        if cx.cache.put_changed(&uid, at, seen) {
            cx.signals.wake(&uid, Wake::Runtime);
        }
    }

    fn listed(&mut self, cx: &ObserverContext, (at, begun, listed): Listed) {
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) => {
                cx.health.failed(&error);
                cx.cache.cannot_look(&error);
                return;
            }
        };
        let mut present = BTreeSet::new();
        for pod in listed {
            if cx.cache.put_changed(&pod.uid, at, pod.observed) {
                cx.signals.wake(&pod.uid, Wake::Runtime);
            }
            let seen = self.known.entry(pod.uid.clone()).or_insert(at);
            *seen = (*seen).max(at);
            present.insert(pod.uid);
        }
        // One that was seen by a later look came after the list.
        self.known.retain(|uid, seen| {
            let gone = !present.contains(uid) && *seen < at;
            if gone && cx.cache.put_changed(uid, at, PodObservation::absent(uid.clone())) {
                cx.signals.wake(uid, Wake::Runtime);
            }
            !gone
        });
        cx.cache.looked_at_all(at);
        cx.health.looked(begun);
        // The provider answers again.
        for uid in std::mem::take(&mut self.failed) {
            self.ask(uid);
        }
    }
}
