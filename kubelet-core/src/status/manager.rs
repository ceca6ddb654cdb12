//! Keeps the newest status of each pod and tells it to the sinks.

mod delivery;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::delivery::Delivery;
use super::equality::equal_for_publishing;
use super::journal::{Change, Journal, StatusReader};
use super::normalize::normalize;
use super::rules::{continue_from, illegal_restart};
use super::{StatusSink, StatusUpdate};
use crate::clock::Clock;
use crate::ids::PodUid;
use crate::metrics::{Counter, Histogram, MetricSet, MetricSource, MetricValue};
use crate::pod::PodRecord;

/// Upper bounds in seconds. Source: kubelet 1.36, `pod_status_sync_duration_seconds`.
const SYNC_BUCKETS: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// Numbers of the [`StatusManager`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StatusSettings {
    /// How many calls to one sink may go on at once, for different pods; 0 counts as 1.
    pub publish_concurrency: usize,
    /// How long what was not told yet is still told after the stop; zero: nothing more is told.
    pub flush_within: Duration,
}

impl Default for StatusSettings {
    fn default() -> Self {
        Self {
            publish_concurrency: 16,
            flush_within: Duration::ZERO,
        }
    }
}

/// What comes with a status that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetStatus {
    /// Nothing of the pod is left to do. Once said it stays.
    pub finished: bool,
    /// A container of the pod may still run.
    pub containers_may_run: bool,
    /// It is told even if it says what the last one said.
    pub force: bool,
}

impl SetStatus {
    /// Of a pod whose containers may run.
    #[must_use]
    pub fn live() -> Self {
        Self {
            finished: false,
            containers_may_run: true,
            force: false,
        }
    }

    /// Of a pod whose containers are stopped for good, and of which there may be more to clean up.
    #[must_use]
    pub fn stopped() -> Self {
        Self {
            containers_may_run: false,
            ..Self::live()
        }
    }

    /// Of a pod of which nothing is left to do. Told even if it says nothing new.
    #[must_use]
    pub fn finished() -> Self {
        Self {
            finished: true,
            containers_may_run: false,
            force: true,
        }
    }

    /// The same, told even if it says what the last one said.
    #[must_use]
    pub fn forced(mut self) -> Self {
        self.force = true;
        self
    }
}

/// What became of a status that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetOutcome {
    /// It is a new version, and the sinks are told.
    Changed,
    /// It says what the last one said.
    Unchanged,
    /// It says that a container runs again that must not. The last one stays.
    Refused,
}

/// Keeps the newest status of each pod, as versions that only move forward, and tells them to the sinks. A cheap clone.
///
/// Versions are counted over all pods: a pod that comes again under its UID goes on with higher ones.
#[derive(Clone)]
pub struct StatusManager {
    journal: Journal,
    clock: Arc<dyn Clock>,
    settings: StatusSettings,
    /// [`StatusSettings::flush_within`], as it is now.
    flush_within: Arc<Mutex<Duration>>,
    numbers: Arc<Numbers>,
}

#[derive(Debug)]
struct Numbers {
    /// From a change to a sink having it.
    told: Histogram,
    refused: Counter,
}

impl fmt::Debug for StatusManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusManager")
            .field("journal", &self.journal)
            .finish_non_exhaustive()
    }
}

impl StatusManager {
    /// A manager that knows of no pod yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, settings: StatusSettings) -> Self {
        Self {
            journal: Journal::default(),
            clock,
            flush_within: Arc::new(Mutex::new(settings.flush_within)),
            settings,
            numbers: Arc::new(Numbers {
                told: Histogram::new(SYNC_BUCKETS),
                refused: Counter::default(),
            }),
        }
    }

    /// Takes a new status of a pod.
    ///
    /// Compared with the status before, or that of the pod's source: a final phase, restart counts, `observedGeneration` and
    /// the start time do not go back; times are cut to seconds, messages to their length, lists put in order. A status in
    /// which a container runs again that its restart policy does not allow to is refused with a warning.
    ///
    /// A status that says what the last one said is told again once the pod's source reports another one: somebody else
    /// has written it.
    ///
    /// Source: kubelet 1.36, `status_manager.go`.
    pub fn set(&self, pod: &Arc<PodRecord>, mut status: PodStatus, how: SetStatus) -> SetOutcome {
        let now = self.clock.now();
        self.journal.modify(pod.uid(), |last, version| {
            let empty = PodStatus::default();
            let old = last
                .map(|last| &*last.status)
                .or_else(|| pod.api_status().map(|status| &**status))
                .unwrap_or(&empty);
            if let Some(container) = illegal_restart(pod, old, &status) {
                tracing::warn!(pod = %pod.key(), pod_uid = %pod.uid(), container, "status refused, container had ended");
                self.numbers.refused.increment();
                return (Change::Keep, SetOutcome::Refused);
            }
            continue_from(old, &mut status, pod, now);
            let finished = how.finished || last.is_some_and(|last| last.finished);
            let make = |status, version| StatusUpdate {
                finished,
                containers_may_run: how.containers_may_run,
                ..StatusUpdate::new(pod.clone(), status, version)
            };
            match last {
                Some(last)
                    if !how.force
                        && !overwritten(last, pod, &status)
                        && last.finished == finished
                        && last.containers_may_run == how.containers_may_run
                        && equal_for_publishing(&last.status, &status) =>
                {
                    // The pod itself may be a newer one.
                    (Change::Refresh(make(last.status.clone(), last.version)), SetOutcome::Unchanged)
                }
                _ => (Change::Put(make(Arc::new(status), version)), SetOutcome::Changed),
            }
        })
    }

    /// The newest status of a pod.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.journal.get(uid).map(|update| update.status)
    }

    /// The newest version of a pod's status, with all that came with it.
    #[must_use]
    pub fn latest(&self, uid: &PodUid) -> Option<StatusUpdate> {
        self.journal.get(uid)
    }

    /// The newest versions of all pods, by UID.
    #[must_use]
    pub fn snapshot(&self) -> Vec<StatusUpdate> {
        self.journal.snapshot()
    }

    /// Those of them that are wanted, by UID. `wanted` is asked under a lock.
    #[must_use]
    pub fn snapshot_of(&self, wanted: impl Fn(&StatusUpdate) -> bool) -> Vec<StatusUpdate> {
        self.journal.snapshot_of(wanted)
    }

    /// The pod left the node: sinks are told what they have not been told yet, and then that.
    pub fn forget(&self, uid: &PodUid) {
        self.journal.forget(uid);
    }

    /// A number that grows with every change of any pod's status, for those who wait for one.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.journal.changed()
    }

    /// Reads statuses: those of now first, then what changes.
    #[must_use]
    pub fn subscribe(&self) -> StatusReader {
        self.journal.reader()
    }

    /// Changes for how long what was not told yet is still told after the stop. To be called before it.
    pub fn set_flush_within(&self, time: Duration) {
        *self.flush_within.lock().unwrap_or_else(PoisonError::into_inner) = time;
    }

    /// Tells the sinks what changes, until `stop` is cancelled. Each sink goes at its own pace; idle pods cost nothing.
    ///
    /// After the stop nothing more is told, unless [`StatusSettings::flush_within`] says so, and calls that go on are dropped.
    /// To be called once at a time.
    ///
    /// # Panics
    /// If a sink panics, once all the others have ended.
    ///
    /// # Cancellation
    /// Dropping it drops all calls to sinks.
    pub async fn run(&self, sinks: Vec<Arc<dyn StatusSink>>, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        for (number, sink) in sinks.into_iter().enumerate() {
            let span = tracing::info_span!("status_sink", number);
            let delivery = Delivery::new(
                sink,
                self.journal.reader(),
                self.settings.publish_concurrency,
                self.flush_within.clone(),
                self.numbers.clone(),
            );
            tasks.spawn(delivery.run(stop.child_token()).instrument(span));
        }
        let mut panic = None;
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                panic = error.try_into_panic().ok().or(panic);
            }
        }
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Whether the pod's source newly reports a status that is not what was told: another writer was there, and is to be
/// told again. A report that is only late costs one needless version.
fn overwritten(last: &StatusUpdate, pod: &PodRecord, status: &PodStatus) -> bool {
    match pod.api_status() {
        Some(reported) if last.pod.api_status() != Some(reported) => {
            let mut reported = (**reported).clone();
            normalize(&mut reported, pod);
            !equal_for_publishing(&reported, status)
        }
        _ => false,
    }
}

impl MetricSource for StatusManager {
    fn collect(&self, metrics: &mut MetricSet) {
        metrics.add(
            "kubelet_pod_status_sync_duration_seconds",
            "Time from a change of a pod's status until a sink has it",
            &[],
            self.numbers.told.sample(),
        );
        metrics.counter(
            "kubelet_pod_status_refused_total",
            "Statuses refused since a container that had ended for good ran again in them",
            &self.numbers.refused,
        );
        metrics.add(
            "kubelet_pod_statuses",
            "Pods whose status is kept",
            &[],
            MetricValue::Gauge(self.journal.len() as f64),
        );
    }
}

#[cfg(test)]
mod tests;
