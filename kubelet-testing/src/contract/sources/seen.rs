//! What a source has said so far, as the kubelet understands it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    CancellationToken, InvalidManifest, Origin, PodSource, RawPod, Removed, SourceContext, SourceItem, SystemClock,
};
use tokio::time::{Instant, timeout_at};

use crate::contract::check::within;
use crate::contract::sources::fixture::{SourceFixture, Wished};

/// What stays the same while a pod changes: the place that it was read from, or its UID.
type Slot = Result<Origin, String>;

/// An open source.
pub(super) struct Seen {
    items: BoxStream<'static, SourceItem>,
    stop: CancellationToken,
    patience: Duration,
    pub(super) ready: bool,
    pub(super) pods: BTreeMap<Slot, Pod>,
    /// All that was reported as invalid.
    pub(super) invalid: Vec<InvalidManifest>,
    /// How often it could not look.
    pub(super) troubles: usize,
}

impl Seen {
    pub(super) fn open(source: &dyn PodSource, fixture: &SourceFixture) -> Self {
        Self::open_until(source, fixture, CancellationToken::new())
    }

    pub(super) fn open_until(source: &dyn PodSource, fixture: &SourceFixture, stop: CancellationToken) -> Self {
        let cx = SourceContext::new("contract".into(), Arc::new(SystemClock), stop.clone());
        Self {
            items: source.open(cx),
            stop,
            patience: fixture.patience,
            ready: false,
            pods: BTreeMap::new(),
            invalid: Vec::new(),
            troubles: 0,
        }
    }

    /// Takes items until something holds.
    pub(super) async fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + self.patience;
        while !holds(self) {
            match timeout_at(deadline, self.items.next()).await {
                Ok(Some(item)) => self.take(item),
                Ok(None) => panic!("the stream ended before it was stopped; waited for: {what}"),
                Err(_) => panic!("{what}: not within {:?}; {}", self.patience, self.summary()),
            }
        }
    }

    /// Takes items until exactly those pods are wished for.
    pub(super) async fn until_pods(&mut self, what: &str, pods: &[Wished]) {
        self.until(what, |seen| seen.ready && seen.has_exactly(pods)).await;
    }

    pub(super) fn has_exactly(&self, pods: &[Wished]) -> bool {
        self.pods.len() == pods.len() && pods.iter().all(|pod| self.has(pod))
    }

    pub(super) fn has(&self, wished: &Wished) -> bool {
        self.pods
            .values()
            .any(|pod| name(pod) == wished.name && image(pod) == wished.image())
    }

    pub(super) fn named(&self, wished: &str) -> Option<&Pod> {
        self.pods.values().find(|pod| name(pod) == wished)
    }

    /// Stops the source, whose stream must then end. What it still says by then does not count.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        within("the end of a stream that was stopped", self.patience, async {
            while self.items.next().await.is_some() {}
        })
        .await;
    }

    fn take(&mut self, item: SourceItem) {
        match item {
            SourceItem::Snapshot {
                pods,
                invalid,
                remembered,
            } => self.take_snapshot(pods, invalid, remembered),
            SourceItem::Upsert(raw) => {
                self.pods.insert(slot(&raw), raw.pod);
            }
            SourceItem::Remove(Removed::Origin(origin)) => {
                self.pods.remove(&Ok(origin));
            }
            SourceItem::Remove(Removed::Uid(uid)) => self
                .pods
                .retain(|_, pod| pod.metadata.uid.as_deref() != Some(uid.as_str())),
            SourceItem::Invalid(bad) => self.invalid.push(bad),
            SourceItem::Trouble(_) => self.troubles += 1,
            other => panic!("the suite does not know {other:?}"),
        }
    }

    fn take_snapshot(&mut self, pods: Vec<RawPod>, invalid: Vec<InvalidManifest>, remembered: bool) {
        let named: BTreeMap<_, _> = pods.into_iter().map(|raw| (slot(&raw), raw.pod)).collect();
        if remembered {
            // It starts pods, and stops and changes nothing.
            for (slot, pod) in named {
                self.pods.entry(slot).or_insert(pod);
            }
        } else {
            self.ready = true;
            let before = std::mem::replace(&mut self.pods, named);
            for (slot, pod) in before {
                // The last good version of a place with something bad in it goes on.
                let bad = invalid.iter().any(|bad| slot.as_ref() == Ok(&bad.origin));
                if bad {
                    self.pods.entry(slot).or_insert(pod);
                }
            }
        }
        self.invalid.extend(invalid);
    }

    fn summary(&self) -> String {
        let pods: Vec<_> = self
            .pods
            .values()
            .map(|pod| format!("{} with {}", name(pod), image(pod)))
            .collect();
        format!(
            "ready: {}, pods: {pods:?}, reported as invalid: {}, troubles: {}",
            self.ready,
            self.invalid.len(),
            self.troubles
        )
    }
}

fn slot(raw: &RawPod) -> Slot {
    match &raw.origin {
        Some(origin) => Ok(origin.clone()),
        None => Err(raw.pod.metadata.uid.clone().unwrap_or_default()),
    }
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn image(pod: &Pod) -> &str {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container
        .and_then(|container| container.image.as_deref())
        .unwrap_or_default()
}
