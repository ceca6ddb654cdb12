//! The kubelet itself: runs all parts, and ends them in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::SelectAll;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::admission::{MachineInfo, NodeSettings};
use crate::builder::{Backend, KubeletBuilder};
use crate::cache::{CacheWriter, RelistRequests};
use crate::config::PodConfig;
use crate::containers::CgroupKeeper;
use crate::engine::{
    Command, Feeds, GateKeeper, LogRotator, PartHealth, PartsContext, Shared, Stage, SyncLoop, WorkerEnd, run_parts,
    watch_backend,
};
use crate::handle::KubeletHandle;
use crate::ids::PodUid;
use crate::image_gc::ImageCollector;
use crate::pleg::{PlegContext, PlegError, PlegHealth, PodLifecycleEventGenerator};
use crate::provider::PodProvider;
use crate::runnable::{NodeContext, Runnable, RunnableError};
use crate::runtime::ContainerRuntime;
use crate::signals::{PodSignalReceiver, PodSignals};
use crate::source::{PodSource, SourceContext};
use crate::status::StatusSink;
use crate::syncer::{KillCause, Termination};
use crate::whole_pods::{ObserverContext, observe};

/// What becomes of the pods when a kubelet stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStop {
    /// They go on, and the next start takes them over. Where the backend's pods cannot outlive the agent, they are
    /// stopped all the same.
    #[default]
    LeavePods,
    /// They are stopped, within what [`Settings::stop_within`](crate::Settings::stop_within) leaves. The next start
    /// starts them anew, as their restart policies say.
    StopPods,
}

/// How a kubelet ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Calls that had not ended and are left as uncertain, by pod. The next start looks at what became of them.
    pub in_flight: Vec<(PodUid, Vec<String>)>,
    /// Pods that were to be stopped and may still run.
    pub still_running: Vec<PodUid>,
}

/// Why a kubelet ended that nobody had stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A part of it cannot go on.
    #[error("a part of the kubelet failed for good")]
    Part(#[source] RunnableError),
    /// Nobody can look at the runtime any more.
    #[error("the pod lifecycle event generator failed for good")]
    Generator(#[source] PlegError),
    /// A task of it panicked, which is a bug.
    #[error("a task of the kubelet panicked")]
    Panicked(#[source] JoinError),
    /// The machine cannot be read.
    #[error("cannot read the machine's capacity")]
    Machine(#[source] crate::error::BoxError),
}

/// Who looks at the backend.
#[derive(Debug)]
pub(crate) enum Observer {
    Generator {
        generator: Arc<dyn PodLifecycleEventGenerator>,
        runtime: Arc<dyn ContainerRuntime>,
    },
    Provider {
        provider: Arc<dyn PodProvider>,
        poll_period: Duration,
    },
}

#[derive(Debug)]
pub(crate) struct RunParts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) config: PodConfig,
    pub(crate) observer: Observer,
    /// Nothing where no logs are on disk, or others look after them.
    pub(crate) log_rotator: Option<LogRotator>,
    /// Nothing where whole pods are handed on.
    pub(crate) image_collector: Option<ImageCollector>,
    /// Nothing where pods have no cgroups of their own.
    pub(crate) cgroup_keeper: Option<Arc<CgroupKeeper>>,
    pub(crate) sources: Vec<Arc<dyn PodSource>>,
    pub(crate) sinks: Vec<Arc<dyn StatusSink>>,
    pub(crate) parts: Vec<Arc<dyn Runnable>>,
    pub(crate) part_health: PartHealth,
    /// What the parts are given.
    pub(crate) node: NodeContext,
    pub(crate) pleg_health: PlegHealth,
    pub(crate) writer: CacheWriter,
    pub(crate) requests: RelistRequests,
    pub(crate) signals: PodSignals,
    pub(crate) signal_receiver: PodSignalReceiver,
    pub(crate) gate: GateKeeper,
    pub(crate) commands: mpsc::Receiver<Command>,
    /// What to make of the machine, and the folder whose file system counts.
    pub(crate) machine: Option<(NodeSettings, PathBuf)>,
    pub(crate) on_stop: OnStop,
}

/// A node agent: what [`KubeletBuilder::build`] puts together.
///
/// # Examples
/// ```no_run
/// # async fn example(runtime: kubelet_core::RuntimeParts, generator: impl kubelet_core::PodLifecycleEventGenerator)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use kubelet_core::{CancellationToken, Containers, FileSource, Kubelet};
///
/// let kubelet = Kubelet::builder("edge-7", Containers::new(runtime, generator))
///     .source(FileSource::new("/etc/kubernetes/manifests"))
///     .root_dir("/var/lib/kubelet")
///     .build()?;
/// kubelet.run(CancellationToken::new()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a kubelet does nothing until it runs"]
pub struct Kubelet {
    handle: KubeletHandle,
    parts: RunParts,
}

impl Kubelet {
    /// Starts to put a kubelet together, for a node of that name, with what runs its pods.
    pub fn builder(node_name: impl Into<String>, backend: impl Into<Backend>) -> KubeletBuilder {
        KubeletBuilder::new(node_name.into(), backend.into())
    }

    pub(crate) fn new(handle: KubeletHandle, parts: RunParts) -> Self {
        Self { handle, parts }
    }

    /// A handle to it, good before, while and after it runs.
    #[must_use = "a handle is for asking"]
    pub fn handle(&self) -> KubeletHandle {
        self.handle.clone()
    }

    /// Runs until `stop` is cancelled, and returns when all that was started has ended: at the latest after
    /// [`Settings::stop_within`](crate::Settings::stop_within).
    ///
    /// # Errors
    /// [`RunError`] if it cannot go on. Whatever it was doing is ended first.
    ///
    /// # Cancellation
    /// Dropping the future ends all work at once, like a crash: pods go on, and the next start takes them over.
    pub async fn run(self, stop: CancellationToken) -> Result<StopReport, RunError> {
        let node = self.handle.node_name().to_owned();
        let span = tracing::info_span!("kubelet", node);
        run(self, stop).instrument(span).await
    }
}

/// How one of the engine's own tasks ended.
enum Ended {
    Observer(Result<(), PlegError>),
    Parts(Result<(), RunnableError>),
    Other,
}

async fn run(kubelet: Kubelet, stop: CancellationToken) -> Result<StopReport, RunError> {
    let Kubelet { handle: _, parts } = kubelet;
    let shared = parts.shared.clone();
    if let Some((settings, root_dir)) = parts.machine {
        read_machine(&shared, settings, root_dir).await?;
    }
    // Each level ends after the one before: parts, workers, then those who look and tell.
    let stop_parts = CancellationToken::new();
    let stop_workers = CancellationToken::new();
    let stop_rest = CancellationToken::new();
    let (sources_ready, ready) = watch::channel(false);
    let mut tasks: JoinSet<Ended> = JoinSet::new();
    let backend = watch_backend(
        shared.syncer.clone(),
        shared.settings.runtime_status_period,
        parts.gate,
        stop_rest.clone(),
    );
    tasks.spawn(
        async move {
            backend.await;
            Ended::Other
        }
        .in_current_span(),
    );
    let looking = look(
        parts.observer,
        parts.writer,
        parts.requests,
        parts.signals,
        parts.pleg_health,
        shared.clone(),
        stop_rest.clone(),
    );
    tasks.spawn(async move { Ended::Observer(looking.await) }.in_current_span());
    let telling = {
        let (statuses, sinks, stop) = (shared.statuses.clone(), parts.sinks, stop_rest.clone());
        async move {
            statuses.run(sinks, stop.clone()).await;
            // Without sinks there is nothing to do, which is no reason to end.
            stop.cancelled().await;
        }
    };
    tasks.spawn(
        async move {
            telling.await;
            Ended::Other
        }
        .in_current_span(),
    );
    if let Some(probes) = shared.probes.clone() {
        let stop = stop_rest.clone();
        tasks.spawn(
            async move {
                probes.run(stop).await;
                Ended::Other
            }
            .in_current_span(),
        );
    }
    if let Some(rotator) = parts.log_rotator {
        let rotating = rotator.run(stop_rest.clone());
        tasks.spawn(
            async move {
                rotating.await;
                Ended::Other
            }
            .in_current_span(),
        );
    }
    if let Some(collector) = parts.image_collector {
        let collecting = collector.run(shared.clone(), ready.clone(), stop_rest.clone());
        tasks.spawn(
            async move {
                collecting.await;
                Ended::Other
            }
            .in_current_span(),
        );
    }
    if let Some(keeper) = parts.cgroup_keeper {
        let stop = stop_rest.clone();
        tasks.spawn(
            async move {
                keeper.run(stop).await;
                Ended::Other
            }
            .in_current_span(),
        );
    }
    let working = run_parts(
        parts.parts,
        PartsContext {
            node: parts.node,
            gate: shared.gate.clone(),
            sources_ready: ready,
            health: parts.part_health,
            random: shared.random.clone(),
        },
        stop_parts.clone(),
    );
    let parts_ended = CancellationToken::new();
    let told_by = parts_ended.clone().drop_guard();
    tasks.spawn(
        async move {
            let _told_by = told_by;
            Ended::Parts(working.await)
        }
        .in_current_span(),
    );
    let feeds = feeds(
        &shared,
        &parts.sources,
        parts.signal_receiver,
        parts.commands,
        &stop_workers,
    );
    let kinds = parts
        .sources
        .iter()
        .map(|source| (source.name().clone(), source.kind()))
        .collect();
    let sync_loop = SyncLoop::new(shared.clone(), parts.config, kinds, sources_ready, stop_workers.clone());
    let mut looping: JoinSet<JoinSet<WorkerEnd>> = JoinSet::new();
    looping.spawn(sync_loop.run(feeds).in_current_span());

    let mut outcome = Ok(());
    let mut workers = JoinSet::new();
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        ended = tasks.join_next() => outcome = early_end(ended),
        // The loop ends only when its token is cancelled, or by a panic.
        ended = looping.join_next() => if let Some(Err(error)) = ended {
            outcome = Err(RunError::Panicked(error));
        },
    }
    let deadline = Instant::now() + shared.settings.stop_within;
    let survives = shared
        .gate
        .borrow()
        .status()
        .is_none_or(|status| status.survives_restart);
    let ends_pods = outcome.is_ok() && (parts.on_stop == OnStop::StopPods || !survives);
    // Parts first, while what they work with still answers; they get a part of the time.
    stop_parts.cancel();
    let _ = tokio::time::timeout_at(part_of(deadline, 0.3), parts_ended.cancelled()).await;
    if ends_pods {
        stop_pods(&shared, deadline).await;
    }
    stop_workers.cancel();
    let mut report = StopReport::default();
    let ended = tokio::time::timeout_at(deadline, async {
        if let Some(Ok(left)) = looping.join_next().await {
            workers = left;
        }
        while workers.join_next().await.is_some() {}
    })
    .await;
    if ended.is_err() {
        report.in_flight = in_flight(&shared);
        workers.abort_all();
        looping.abort_all();
        while workers.join_next().await.is_some() {}
        while looping.join_next().await.is_some() {}
    }
    if ends_pods {
        report.still_running = still_running(&shared);
        // Nobody tells it later: the next start starts the pods anew.
        let left = deadline.saturating_duration_since(Instant::now());
        shared.statuses.set_flush_within(left);
    }
    stop_rest.cancel();
    // A part that does not stop in time is dropped like everything else.
    let _ = tokio::time::timeout_at(deadline, async { while tasks.join_next().await.is_some() {} }).await;
    tasks.shutdown().await;
    outcome.map(|()| report)
}

fn early_end(ended: Option<Result<Ended, JoinError>>) -> Result<(), RunError> {
    match ended {
        Some(Ok(Ended::Observer(Err(error)))) => Err(RunError::Generator(error)),
        Some(Ok(Ended::Parts(Err(error)))) => Err(RunError::Part(error)),
        Some(Err(error)) => Err(RunError::Panicked(error)),
        Some(Ok(Ended::Observer(Ok(()))) | Ok(Ended::Parts(Ok(())) | Ended::Other)) | None => {
            Err(RunError::Generator(PlegError::Fatal {
                message: "a task of the kubelet ended without being asked to".to_owned(),
            }))
        }
    }
}

async fn read_machine(shared: &Shared, settings: NodeSettings, root_dir: PathBuf) -> Result<(), RunError> {
    let read = tokio::task::spawn_blocking(move || {
        // Its file system is what pods share; before the first start it may not be there yet.
        let root_dir = root_dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
        MachineInfo::read(Path::new("/"), root_dir)
    })
    .await
    .map_err(RunError::Panicked)?;
    let machine = read.map_err(|error| RunError::Machine(error.into()))?;
    shared
        .ledger
        .set_node(Arc::new(settings.node_view(&shared.node_name, &machine)));
    Ok(())
}

async fn look(
    observer: Observer,
    cache: CacheWriter,
    requests: RelistRequests,
    signals: PodSignals,
    health: PlegHealth,
    shared: Arc<Shared>,
    stop: CancellationToken,
) -> Result<(), PlegError> {
    match observer {
        Observer::Generator { generator, runtime } => {
            let cx = PlegContext::new(runtime, cache, requests, signals, shared.random.clone(), health)
                .with_clock(shared.clock.clone());
            generator.run(cx, stop).await
        }
        Observer::Provider { provider, poll_period } => {
            let cx = ObserverContext {
                cache,
                requests,
                signals,
                health,
                poll_period,
                timeout: shared.settings.runtime_request_timeout,
            };
            observe(provider, cx, stop).await;
            Ok(())
        }
    }
}

fn feeds(
    shared: &Shared,
    sources: &[Arc<dyn PodSource>],
    signals: PodSignalReceiver,
    commands: mpsc::Receiver<Command>,
    stop: &CancellationToken,
) -> Feeds {
    let mut items = SelectAll::new();
    for source in sources {
        let name = source.name().clone();
        let cx = SourceContext::new(shared.node_name.clone(), shared.clock.clone(), stop.child_token());
        items.push(source.open(cx).map(move |item| (name.clone(), item)).boxed());
    }
    let mut admission = SelectAll::new();
    admission.push(shared.ledger.changes());
    Feeds {
        sources: items,
        signals,
        admission,
        commands,
    }
}

/// Ends all pods, as far as the time allows.
async fn stop_pods(shared: &Shared, deadline: Instant) {
    // Nothing is started any more, whatever the sources say meanwhile.
    shared.stopping.store(true, Ordering::Relaxed);
    let links: Vec<_> = shared.workers().values().cloned().collect();
    // Something must be left for the runtime to kill what did not end, and for the end of this run.
    let time = deadline.saturating_duration_since(Instant::now()).mul_f64(0.6);
    for link in &links {
        link.wish.send_modify(|wish| {
            let own = wish.pod.as_ref().map_or(time, |pod| pod.facts().termination_grace);
            wish.end(Termination::new(KillCause::Stopping, own.min(time)));
        });
    }
    let all_down = async {
        for mut link in links {
            // A worker that is gone has come to its end.
            let _ = link.stage.wait_for(|stage| *stage >= Stage::Terminated).await;
        }
    };
    let _ = tokio::time::timeout_at(part_of(deadline, 0.9), all_down).await;
}

/// The time at which that part of what is left until then has passed.
fn part_of(deadline: Instant, part: f64) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now).mul_f64(part)
}

fn in_flight(shared: &Shared) -> Vec<(PodUid, Vec<String>)> {
    shared
        .workers()
        .iter()
        .map(|(uid, link)| (uid.clone(), link.notes.in_flight()))
        .filter(|(_, calls)| !calls.is_empty())
        .collect()
}

fn still_running(shared: &Shared) -> Vec<PodUid> {
    shared
        .workers()
        .iter()
        .filter(|(_, link)| *link.stage.borrow() < Stage::Terminated)
        .map(|(uid, _)| uid.clone())
        .collect()
}
