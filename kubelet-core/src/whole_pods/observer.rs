//! Who looks at a provider: lists now and then, and looks at a pod when it is hinted at or asked for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::cache::{CacheWriter, RelistRequests};
use crate::error::error_chain;
use crate::ids::PodUid;
use crate::observation::PodObservation;
use crate::pleg::PlegHealth;
use crate::provider::{PodProvider, ProviderError, ProviderHint};
use crate::runtime::RuntimeError;
use crate::signals::{PodSignals, Wake};

/// What the observer works with.
#[derive(Debug)]
pub(crate) struct ObserverContext {
    pub(crate) cache: CacheWriter,
    pub(crate) requests: RelistRequests,
    pub(crate) signals: PodSignals,
    pub(crate) health: PlegHealth,
    pub(crate) poll_period: Duration,
}

/// Looks at a provider until it is stopped.
pub(crate) async fn observe(provider: Arc<dyn PodProvider>, mut cx: ObserverContext, stop: CancellationToken) {
    let mut known: BTreeSet<PodUid> = BTreeSet::new();
    let mut hints = provider.changes();
    let mut hints_open = true;
    let mut ticks = tokio::time::interval(cx.poll_period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let look = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            request = cx.requests.next() => Some(request.uid),
            hint = hints.next(), if hints_open => match hint {
                Some(ProviderHint::Pod(uid)) => Some(uid),
                Some(ProviderHint::Lost) => None,
                None => {
                    // Opened again at the next poll, so that a broken stream does not spin.
                    hints_open = false;
                    continue;
                }
            },
            _ = ticks.tick() => {
                if !hints_open {
                    hints = provider.changes();
                    hints_open = true;
                }
                None
            }
        };
        let looked = async {
            match look {
                Some(uid) => look_at(&*provider, &cx, &mut known, uid).await,
                None => look_at_all(&*provider, &cx, &mut known).await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = looked => {}
        }
    }
}

async fn look_at(provider: &dyn PodProvider, cx: &ObserverContext, known: &mut BTreeSet<PodUid>, uid: PodUid) {
    let at = cx.cache.begin();
    let seen = match provider.status(&uid).await {
        Ok(Some(seen)) => {
            known.insert(uid.clone());
            Ok(seen)
        }
        Ok(None) => {
            known.remove(&uid);
            Ok(PodObservation::absent(uid.clone()))
        }
        Err(error) => Err(unavailable(error)),
    };
    cx.cache.put(&uid, at, seen);
    cx.signals.wake(&uid, Wake::Runtime);
}

async fn look_at_all(provider: &dyn PodProvider, cx: &ObserverContext, known: &mut BTreeSet<PodUid>) {
    let begun = Instant::now();
    let at = cx.cache.begin();
    let pods = match provider.list().await {
        Ok(pods) => pods,
        Err(error) => {
            cx.cache.cannot_look(&unavailable(error));
            return;
        }
    };
    let mut present = BTreeSet::new();
    for pod in pods {
        let changed = cx.cache.put_changed(&pod.uid, at, pod.observed);
        if changed {
            cx.signals.wake(&pod.uid, Wake::Runtime);
        }
        present.insert(pod.uid);
    }
    for gone in known.difference(&present) {
        if cx.cache.put_changed(gone, at, PodObservation::absent(gone.clone())) {
            cx.signals.wake(gone, Wake::Runtime);
        }
    }
    *known = present;
    cx.cache.looked_at_all(at);
    cx.health.looked(begun);
}

fn unavailable(error: ProviderError) -> RuntimeError {
    RuntimeError::unavailable("list", error_chain(&error))
}
