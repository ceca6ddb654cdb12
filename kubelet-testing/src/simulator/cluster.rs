//! A model of the API server: managed pods, their graceful ends, and who is told statuses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_core::{
    Admission, AdmitHandler, AdmitRequest, ChannelHandle, PodUid, Published, StatusSink, StatusUpdate, async_trait,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::dice::Dice;
use super::workload::{HOLD, REJECT};

/// The name of the model's source.
pub(crate) const API: &str = "api";
/// Why pods are told to be rejected.
pub(crate) const REJECTION: &str = "SimulatedRejection";

/// Something that the sink was told.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Status {
        uid: PodUid,
        status: Arc<PodStatus>,
        finished: bool,
    },
    Forgotten(PodUid),
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) pods: BTreeMap<PodUid, Pod>,
    pub(crate) handle: Option<ChannelHandle>,
    /// Whether the node hears of changes.
    pub(crate) linked: bool,
    pub(crate) told: Vec<(Instant, Told)>,
    pub(crate) sink_down: bool,
    pub(crate) sink_slow: bool,
    /// Whether the server echoes statuses, as a watch does.
    pub(crate) echo: bool,
    dice: Dice,
}

/// A cheap clone.
#[derive(Clone, Debug)]
pub(crate) struct Cluster(Arc<Mutex<State>>);

impl Cluster {
    pub(crate) fn new(seed: u64, echo: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            pods: BTreeMap::new(),
            handle: None,
            linked: true,
            told: Vec::new(),
            sink_down: false,
            sink_slow: false,
            echo,
            dice: Dice::new(seed),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take_told(&self) -> Vec<(Instant, Told)> {
        std::mem::take(&mut self.lock().told)
    }

    /// The way to the node, if there is one now.
    fn way(&self) -> Option<ChannelHandle> {
        let state = self.lock();
        state.handle.clone().filter(|_| state.linked)
    }

    /// Hands a change of one pod over, if the node hears of it. Says whether it does.
    pub(crate) async fn send(&self, uid: &PodUid) -> bool {
        let Some(way) = self.way() else { return false };
        let pod = self.lock().pods.get(uid).cloned();
        match pod {
            Some(pod) => way.upsert(pod).await.is_ok(),
            None => way.remove(uid.clone()).await.is_ok(),
        }
    }

    /// Hands everything over, as a list does.
    pub(crate) async fn send_all(&self) -> bool {
        let Some(way) = self.way() else { return false };
        let pods = self.lock().pods.values().cloned().collect();
        way.set(pods).await.is_ok()
    }
}

/// Marks a pod as deleted; the time only gets less.
pub(crate) fn delete(pod: &mut Pod, grace: i64, now: Timestamp) {
    let grace = pod
        .metadata
        .deletion_grace_period_seconds
        .map_or(grace, |before| before.min(grace));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    let end = now.checked_add(kubelet_core::jiff::SignedDuration::from_secs(grace));
    pod.metadata.deletion_timestamp = Some(Time(end.unwrap_or(now)));
}

/// The sink of one life of the agent.
#[derive(Debug)]
pub(crate) struct ModelSink(pub(crate) Cluster);

impl ModelSink {
    fn pause(&self) -> Option<Duration> {
        let state = self.0.lock();
        (state.sink_slow && state.dice.chance(50)).then(|| state.dice.millis(1, 3_000))
    }

    /// What the server does with an update, and whether the node is to hear of it.
    fn take(&self, update: &StatusUpdate) -> (Published, bool) {
        let mut state = self.0.lock();
        if state.sink_down {
            let pause = state.dice.millis(500, 5_000);
            return (Published::Retry(pause), false);
        }
        let uid = update.pod.uid();
        let is_managed = update.pod.source().as_str() == API;
        let echo = state.echo;
        if is_managed {
            let Some(pod) = state.pods.get_mut(uid) else {
                return (Published::Gone, false);
            };
            pod.status = Some((*update.status).clone());
            if update.finished && pod.metadata.deletion_timestamp.is_some() && update.pod.is_deleted() {
                state.pods.remove(uid);
            }
        }
        let gone = is_managed && !state.pods.contains_key(uid);
        state.told.push((
            Instant::now(),
            Told::Status {
                uid: uid.clone(),
                status: update.status.clone(),
                finished: update.finished,
            },
        ));
        (Published::Accepted, is_managed && (gone || echo))
    }
}

#[async_trait]
impl StatusSink for ModelSink {
    async fn publish(&self, update: &StatusUpdate) -> Published {
        if let Some(pause) = self.pause() {
            tokio::time::sleep(pause).await;
        }
        let (answer, tell) = self.take(update);
        if tell {
            self.0.send(update.pod.uid()).await;
        }
        answer
    }

    async fn forget(&self, uid: &PodUid) {
        let told = Told::Forgotten(uid.clone());
        self.0.lock().told.push((Instant::now(), told));
    }
}

/// Holds marked pods back while the gate is shut, and rejects others.
#[derive(Clone, Debug)]
pub(crate) struct Gatekeeper(pub(crate) watch::Sender<bool>);

impl Gatekeeper {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(true))
    }

    pub(crate) fn set(&self, open: bool) {
        self.0.send_if_modified(|now| std::mem::replace(now, open) != open);
    }
}

impl AdmitHandler for Gatekeeper {
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
        let marked = |key: &str| {
            let labels = req.pod.metadata().labels.as_ref();
            labels.is_some_and(|labels| labels.contains_key(key))
        };
        if marked(REJECT) {
            Admission::reject(REJECTION, "this pod is not welcome here")
        } else if marked(HOLD) && !*self.0.borrow() {
            Admission::not_yet("SimulatedWait", "the gate is shut")
        } else {
            Admission::Admit
        }
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        let receiver = self.0.subscribe();
        let changes = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.changed().await.ok()?;
            Some(((), receiver))
        });
        Some(changes.boxed())
    }
}

#[cfg(test)]
mod tests {
    use kubelet_core::NodeView;

    use super::{Gatekeeper, HOLD, REJECT};
    use crate::PodBuilder;
    use crate::contract::{AdmitFixture, now};

    async fn gatekeeper() -> Option<(Gatekeeper, AdmitFixture)> {
        let gate = Gatekeeper::new();
        gate.set(false);
        let opens = gate.clone();
        let fixture = AdmitFixture::new(NodeView::new("node"), &PodBuilder::new("plain").build())
            .rejected(&PodBuilder::new("rejected").label(REJECT, "").build())
            .held_back(&PodBuilder::new("held").label(HOLD, "").build(), move || {
                now(|| opens.set(true))
            });
        Some((gate, fixture))
    }

    crate::admit_contract!(gatekeeper);
}
