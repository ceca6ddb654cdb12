//! A handle to a running kubelet: what runs, and the few things that can be asked of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::mpsc;

use crate::engine::{Command, Gate, PartHealth, Shared, Stage};
use crate::event::{Event, EventSubject, EventType};
use crate::ids::{ContainerId, PodUid};
use crate::image_gc::GcMetrics;
use crate::logs::{LogError, LogLiveness, LogOptions, LogReader};
use crate::metrics::{MetricSet, MetricSource, MetricValue};
use crate::observation::{ObservedContainer, PodObservation};
use crate::pleg::{PlegHealth, PodLifecycleEventGenerator};
use crate::pod::PodRecord;
use crate::runtime::{ContainerRuntime, ContainerState, ExecOutput, ExecRequest, RuntimeError};
use crate::stats::{StatsError, StatsLayers, StatsScope, StatsSnapshot};
use crate::status::{StatusOverride, StatusReader, StatusUpdate};
use crate::syncer::{KillCause, Termination};

/// A pod, as the kubelet has it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PodSnapshot {
    /// The pod.
    pub pod: Arc<PodRecord>,
    /// Its status, once there is one.
    pub status: Option<Arc<PodStatus>>,
    /// How far its worker has come.
    pub stage: Stage,
}

impl PodSnapshot {
    /// A pod without a worker is done with.
    fn new(update: StatusUpdate, stage: Option<Stage>) -> Self {
        Self {
            pod: update.pod,
            status: Some(update.status),
            stage: stage.unwrap_or(Stage::Finished),
        }
    }
}

/// Which container a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerTarget {
    /// The pod.
    pub pod: PodUid,
    /// The container's name.
    pub container: String,
    /// The container before the present one.
    pub previous: bool,
}

impl ContainerTarget {
    /// The present container of that name.
    pub fn new(pod: PodUid, container: impl Into<String>) -> Self {
        Self {
            pod,
            container: container.into(),
            previous: false,
        }
    }

    /// The one before it.
    #[must_use]
    pub fn previous(mut self) -> Self {
        self.previous = true;
        self
    }
}

/// Why a request to a kubelet failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// There is no such pod.
    #[error("pod {uid} not found")]
    NoPod {
        /// The UID.
        uid: PodUid,
    },
    /// The pod has no such container, or none that the request can be about.
    #[error("{message}")]
    NoContainer {
        /// What is missing, and why.
        message: String,
    },
    /// The backend cannot do that.
    #[error("this node's backend does not support {what}")]
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// The runtime did not do it.
    #[error(transparent)]
    Runtime(RuntimeError),
    /// The log cannot be read.
    #[error(transparent)]
    Log(LogError),
    /// The kubelet does not run, or not any more.
    #[error("the kubelet does not run")]
    NotRunning,
    /// The pod did not go down in time; its end goes on.
    #[error("pod {uid} did not end within {after:?}")]
    TimedOut {
        /// The pod.
        uid: PodUid,
        /// How long was waited.
        after: Duration,
    },
}

/// What is wrong with a kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// One line per trouble: what, and why. Empty means healthy.
    pub troubles: Vec<(String, String)>,
}

impl Health {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.troubles.is_empty()
    }
}

#[derive(Debug)]
pub(crate) struct HandleParts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runtime: Option<Arc<dyn ContainerRuntime>>,
    pub(crate) generator: Option<Arc<dyn PodLifecycleEventGenerator>>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) pleg_health: PlegHealth,
    pub(crate) part_health: PartHealth,
    pub(crate) metric_sources: Vec<Arc<dyn MetricSource>>,
    pub(crate) image_gc: Option<Arc<GcMetrics>>,
    pub(crate) stats: Arc<StatsLayers>,
}

/// A handle to a kubelet. A cheap clone, good before, while and after it runs.
#[derive(Clone, Debug)]
pub struct KubeletHandle {
    parts: Arc<HandleParts>,
}

impl KubeletHandle {
    pub(crate) fn new(parts: HandleParts) -> Self {
        Self { parts: Arc::new(parts) }
    }

    /// The node's name.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.parts.shared.node_name
    }

    /// All pods that the kubelet works on or keeps the status of, sorted by UID. What it gives is shared, not copied.
    #[must_use]
    pub fn pods(&self) -> Vec<PodSnapshot> {
        self.with_stages(self.parts.shared.statuses.snapshot())
    }

    /// One pod, at a cost that hardly grows with their number.
    #[must_use]
    pub fn pod(&self, uid: &PodUid) -> Option<PodSnapshot> {
        let update = self.parts.shared.statuses.latest(uid)?;
        let stage = self.parts.shared.workers().get(uid).map(|link| *link.stage.borrow());
        Some(PodSnapshot::new(update, stage))
    }

    /// The pods that a namespace and a name stand for: more than one where an old one is still ending.
    #[must_use]
    pub fn pods_named(&self, namespace: &str, name: &str) -> Vec<PodSnapshot> {
        let is_named = |update: &StatusUpdate| {
            let key = update.pod.key();
            &*key.namespace == namespace && &*key.name == name
        };
        self.with_stages(self.parts.shared.statuses.snapshot_of(is_named))
    }

    /// Adds how far the worker of each pod has come. Both are sorted by UID, so that one walk over both does it.
    fn with_stages(&self, updates: Vec<StatusUpdate>) -> Vec<PodSnapshot> {
        let workers = self.parts.shared.workers();
        let few = updates.len() * 8 < workers.len();
        let mut walk = workers.iter().peekable();
        let stage_of = |update: StatusUpdate| {
            let uid = update.pod.uid();
            let link = if few {
                workers.get(uid)
            } else {
                while walk.next_if(|(other, _)| *other < uid).is_some() {}
                walk.next_if(|(other, _)| *other == uid).map(|(_, link)| link)
            };
            let stage = link.map(|link| *link.stage.borrow());
            PodSnapshot::new(update, stage)
        };
        updates.into_iter().map(stage_of).collect()
    }

    /// The statuses of all pods: those of now first, then the newest of each as they change.
    #[must_use]
    pub fn statuses(&self) -> StatusReader {
        self.parts.shared.statuses.subscribe()
    }

    /// What the runtime was last seen to hold of a pod.
    #[must_use]
    pub fn observed(&self, uid: &PodUid) -> Option<Arc<PodObservation>> {
        self.parts.shared.cache.current(uid)
    }

    /// Reads a container's log.
    ///
    /// # Errors
    /// [`HandleError::NoContainer`] if there is no log that the target can mean.
    pub async fn logs(&self, target: &ContainerTarget, options: LogOptions) -> Result<LogReader, HandleError> {
        let container = self.find(target, |c| c.state != ContainerState::Created)?;
        let path = container
            .log_path
            .clone()
            .ok_or(HandleError::Unsupported { what: "logs" })?;
        let liveness = Arc::new(StillRuns {
            handle: self.clone(),
            pod: target.pod.clone(),
            id: container.id,
        });
        LogReader::open(&path, options, liveness)
            .await
            .map_err(HandleError::Log)
    }

    /// Runs a command in a container and collects its output.
    ///
    /// # Errors
    /// [`HandleError::NoContainer`] if it does not run.
    pub async fn exec(&self, target: &ContainerTarget, request: ExecRequest) -> Result<ExecOutput, HandleError> {
        let runtime = self
            .parts
            .runtime
            .as_ref()
            .ok_or(HandleError::Unsupported { what: "exec" })?;
        let container = self.find(target, ObservedContainer::is_running)?;
        runtime.exec(&container.id, request).await.map_err(HandleError::Runtime)
    }

    /// Measures what pods use, now. Whoever asks for the same at the same time gets the same answer.
    ///
    /// # Errors
    /// [`StatsError::NoProvider`] without a source of usage, [`StatsError::Failed`] if none could measure.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn stats(&self, of: StatsScope) -> Result<Arc<StatsSnapshot>, StatsError> {
        self.parts.stats.collect(of).await
    }

    fn find(
        &self,
        target: &ContainerTarget,
        fits: impl Fn(&ObservedContainer) -> bool,
    ) -> Result<ObservedContainer, HandleError> {
        let observed = self.observed(&target.pod).ok_or_else(|| HandleError::NoPod {
            uid: target.pod.clone(),
        })?;
        let mut fitting = observed.of_name(&target.container).filter(|c| fits(c));
        let found = if target.previous {
            fitting.nth(1)
        } else {
            fitting.next()
        };
        found.cloned().ok_or_else(|| HandleError::NoContainer {
            message: match (target.previous, observed.newest(&target.container)) {
                (true, _) => format!("previous terminated container \"{}\" not found", target.container),
                (false, Some(_)) => format!("container \"{}\" is not running", target.container),
                (false, None) => format!(
                    "container \"{}\" is waiting to start or is not in the pod",
                    target.container
                ),
            },
        })
    }

    /// Ends a pod, as an eviction does: its phase becomes `Failed`, with this reason and message. Returns when it is down.
    ///
    /// # Errors
    /// [`HandleError::TimedOut`] after half as much again as the grace, and at least 10 s.
    ///
    /// # Cancellation
    /// The end goes on.
    pub async fn kill(&self, uid: &PodUid, grace: Option<Duration>, status: StatusOverride) -> Result<(), HandleError> {
        let missing = || HandleError::NoPod { uid: uid.clone() };
        let shared = &self.parts.shared;
        let link = shared.workers().get(uid).cloned().ok_or_else(missing)?;
        let grace = grace.unwrap_or_else(|| {
            let wish = link.wish.borrow();
            wish.pod
                .as_ref()
                .map_or(Duration::ZERO, |pod| pod.facts().termination_grace)
        });
        let termination = Termination::new(KillCause::Evicted, grace).with_status(status);
        let command = Command::Kill {
            uid: uid.clone(),
            termination,
        };
        self.parts
            .commands
            .send(command)
            .await
            .map_err(|_| HandleError::NotRunning)?;
        // Source: kubelet 1.36, `pod_workers.go`.
        let patience = Duration::from_secs(10).max(grace.mul_f64(1.5));
        let mut stage = link.stage.clone();
        let down = stage.wait_for(|stage| *stage >= Stage::Terminated);
        let pod = link.wish.borrow().pod.clone();
        match tokio::time::timeout(patience, down).await {
            // A worker that is gone has come to its end.
            Ok(_) => Ok(()),
            Err(_) => {
                if let Some(pod) = pod {
                    shared.events.record(Event::new(
                        EventSubject::pod(&pod),
                        EventType::Warning,
                        "ExceededGracePeriod",
                        "Container runtime did not kill the pod within specified grace period.",
                    ));
                }
                Err(HandleError::TimedOut {
                    uid: uid.clone(),
                    after: patience,
                })
            }
        }
    }

    /// What is wrong, if anything.
    #[must_use]
    pub fn health(&self) -> Health {
        let runtime = self.parts.shared.gate.borrow().trouble();
        let network = match &*self.parts.shared.gate.borrow() {
            Gate::Open(status) => status.network_not_ready.clone(),
            Gate::Unknown(_) | Gate::Down(..) => None,
        };
        let mut troubles: Vec<(String, String)> = [
            ("runtime", runtime),
            ("network", network),
            ("pleg", self.parts.pleg_health.trouble()),
        ]
        .into_iter()
        .filter_map(|(what, why)| why.map(|why| (what.to_owned(), why)))
        .collect();
        troubles.extend(self.parts.part_health.troubles());
        Health { troubles }
    }

    /// All numbers of the kubelet.
    #[must_use]
    pub fn metrics(&self) -> MetricSet {
        let mut metrics = MetricSet::default();
        let engine = &self.parts.shared.metrics;
        metrics.counter("kubelet_pod_syncs_total", "Syncs of pods.", &engine.syncs);
        metrics.counter(
            "kubelet_pod_sync_errors_total",
            "Steps of pod workers that failed.",
            &engine.sync_errors,
        );
        metrics.counter(
            "kubelet_pod_workers_started_total",
            "Pod workers that were started.",
            &engine.workers_started,
        );
        metrics.add(
            "kubelet_pod_worker_duration_seconds",
            "How long syncs of pods took.",
            &[("operation_type", "sync")],
            engine.sync_duration.sample(),
        );
        for ((from, to), count) in engine.transitions() {
            let labels = [("from", format!("{from:?}")), ("to", format!("{to:?}"))];
            let labels: Vec<(&'static str, &str)> =
                labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            metrics.add(
                "kubelet_pod_worker_transitions_total",
                "Changes of the stage of pod workers.",
                &labels,
                MetricValue::Counter(count),
            );
        }
        if let Some(generator) = &self.parts.generator {
            generator.collect(&mut metrics);
        }
        if let Some(images) = &self.parts.image_gc {
            images.collect(&mut metrics);
        }
        if let Some(probes) = &self.parts.shared.probes {
            probes.collect(&mut metrics);
        }
        self.parts.shared.ledger.collect(&mut metrics);
        self.parts.shared.statuses.collect(&mut metrics);
        for source in &self.parts.metric_sources {
            source.collect(&mut metrics);
        }
        metrics
    }
}

/// Tells a reader of a log whether there is more to come.
#[derive(Debug)]
struct StillRuns {
    handle: KubeletHandle,
    pod: PodUid,
    id: ContainerId,
}

#[async_trait]
impl LogLiveness for StillRuns {
    async fn still_running(&self) -> bool {
        self.handle
            .observed(&self.pod)
            .is_some_and(|seen| seen.containers.iter().any(|c| c.id == self.id && c.is_running()))
    }
}
