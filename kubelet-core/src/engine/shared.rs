//! What the parts of one running engine share.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::checkpoint::Checkpoints;
use super::gate::GateView;
use super::names::NameLocks;
use crate::admission::Ledger;
use crate::cache::{PodStatusCache, RelistRequester};
use crate::clock::{Clock, RandomSource, jittered};
use crate::event::{Event, EventSink, EventSubject, EventType};
use crate::files::NodeFiles;
use crate::ids::PodUid;
use crate::metrics::{Counter, Histogram};
use crate::pod::PodRecord;
use crate::probes::ProbeManager;
use crate::settings::Settings;
use crate::status::StatusManager;
use crate::syncer::{PodSyncer, PodWish, StepNotes};

/// Upstream's factor for resyncs and back-offs.
const JITTER: f64 = 0.5;

/// How far a pod's worker has come, for whoever waits for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// It waits for its admission, or for its name.
    Waiting,
    /// It is being brought to its wish.
    Syncing,
    /// It is being stopped.
    Terminating,
    /// None of its containers can run any more; it is being cleared up.
    Terminated,
    /// Nothing is left to do for it.
    Finished,
}

/// The engine's side of one worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerLink {
    pub(crate) wish: Arc<watch::Sender<PodWish>>,
    pub(crate) stage: watch::Receiver<Stage>,
    pub(crate) notes: Arc<StepNotes>,
}

/// Counts of what the engine did.
#[derive(Debug, Default)]
pub(crate) struct EngineMetrics {
    pub(crate) syncs: Counter,
    pub(crate) sync_errors: Counter,
    pub(crate) sync_duration: Histogram,
    pub(crate) workers_started: Counter,
    transitions: Mutex<BTreeMap<(Stage, Stage), u64>>,
}

impl EngineMetrics {
    /// How often workers went from one stage to another.
    pub(crate) fn transitions(&self) -> BTreeMap<(Stage, Stage), u64> {
        self.transitions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node_name: Arc<str>,
    pub(crate) syncer: Arc<dyn PodSyncer>,
    pub(crate) cache: PodStatusCache,
    pub(crate) relist: RelistRequester,
    pub(crate) statuses: StatusManager,
    /// Nothing where whole pods are handed on: their backend looks after their probes.
    pub(crate) probes: Option<Arc<ProbeManager>>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) files: NodeFiles,
    pub(crate) events: Arc<dyn EventSink>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) names: NameLocks,
    pub(crate) gate: GateView,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn RandomSource>,
    pub(crate) settings: Settings,
    pub(crate) metrics: EngineMetrics,
    /// Something was given back to the ledger: pods that were told "not yet" may be asked again.
    pub(crate) freed: Notify,
    /// The kubelet ends its pods: none is started any more.
    pub(crate) stopping: AtomicBool,
    pub(crate) workers: Mutex<BTreeMap<PodUid, WorkerLink>>,
}

impl Shared {
    pub(crate) fn workers(&self) -> MutexGuard<'_, BTreeMap<PodUid, WorkerLink>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn jittered(&self, base: Duration) -> Duration {
        jittered(base, JITTER, &*self.random)
    }

    pub(crate) fn warn_pod(&self, pod: &PodRecord, reason: impl Into<std::borrow::Cow<'static, str>>, message: String) {
        self.events
            .record(Event::new(EventSubject::pod(pod), EventType::Warning, reason, message));
    }

    pub(crate) fn host_ips(&self) -> Vec<IpAddr> {
        self.ledger.node().addresses.clone()
    }

    /// The backend's name. While it is down too: what it runs is still its own.
    pub(crate) fn runtime_name(&self) -> String {
        self.gate
            .borrow()
            .last_known()
            .map_or_else(String::new, |status| status.name.clone())
    }

    /// Removes the checkpoints of pods that are gone.
    pub(crate) async fn forget_checkpoints(&self, uids: &[PodUid]) {
        if let Err(error) = self.checkpoints.remove(uids).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "pod checkpoint not removed");
        }
    }

    /// Gives a pod's reservation back.
    pub(crate) fn release(&self, uid: &PodUid) {
        if self.ledger.release(uid) {
            self.freed.notify_one();
        }
    }

    pub(crate) fn count_transition(&self, from: Stage, to: Stage) {
        *self
            .metrics
            .transitions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry((from, to))
            .or_default() += 1;
    }
}
