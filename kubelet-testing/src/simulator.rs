//! The whole engine on [`FakeRuntime`], in simulated time, by seed.

mod agent;
mod changes;
mod checker;
mod cluster;
mod dice;
mod health;
mod manifests;
mod rig;
mod settle;
mod steps;
mod trace;
mod volume_steps;
mod volumes;
mod workload;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{PodLifecycleEventGenerator, PodSource, RuntimeParts, VolumeManager};

use self::rig::Rig;
use crate::fake::{FakeRuntime, FaultKind};

/// What must hold at every step of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Invariant {
    /// Nothing is made for a pod that nobody wants, and once all is settled nothing of it is left.
    Unwanted,
    /// No container runs beside another of its name in its pod, nor beside one of a static pod of the same name.
    Twice,
    /// Init containers run one after the other, before all others, and once per sandbox.
    InitOrder,
    /// What has ended for good by policy and rules does not start again.
    RestartPolicy,
    /// What is stopped gets the least grace that was wished for, from the moment that it was asked to stop.
    Grace,
    /// Restart counts and attempts never go back.
    RestartCount,
    /// A status never leaves a final phase.
    FinalPhase,
    /// A pod that goes on is not told unready.
    Readiness,
    /// What is done and told for probes follows from their runs.
    Probes,
    /// Once faults stop, every wish is met.
    Wish,
    /// Once all is settled, containers have what their pods were granted, and a pod that was not granted what it asks for waits for
    /// a reason: there is no room for it, or never can be.
    Resizes,
    /// Nothing is made or started for a pod that has not got its volumes.
    VolumesFirst,
    /// Volumes are not unmounted while a container of their pod runs, or its sandbox is ready.
    VolumesLast,
    /// Once all is settled, no volumes are left of pods that are gone, and all others have theirs.
    VolumesInEnd,
    /// A pod whose volumes cannot be had hurts no other: all others are as they are wished for once all is settled.
    VolumesApart,
    /// Once all is settled nothing is called but relists and checks, and no status is told.
    Idle,
    /// The contract of the runtime is kept; see [`FakeRuntime::violations`].
    Contract,
    /// The kubelet runs until it is stopped, and ends in time when it is.
    Running,
}

/// An [`Invariant`] that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// When, since the simulation began.
    pub at: Duration,
    /// Which.
    pub invariant: Invariant,
    /// What happened.
    pub what: String,
}

/// How large and how long a simulation is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimulationSettings {
    /// Pods that are wished for from the start; more come and go. 30.
    pub pods: usize,
    /// Random steps. 200.
    pub steps: usize,
    /// The least simulated time of all steps together. 30 min.
    pub least_time: Duration,
    /// How long all may take to settle once faults have stopped. 20 min: the longest crash back-off takes five.
    pub settle_within: Duration,
    /// In how many of a hundred seeds pods have volumes. 40.
    pub volume_share: u64,
    /// Whether an hour follows in which nothing is to happen.
    pub idle_hour: bool,
    /// How many lines of the trace are kept, the newest; its hash is of all.
    pub trace_lines: usize,
}

impl Default for SimulationSettings {
    fn default() -> Self {
        Self {
            pods: 30,
            steps: 200,
            least_time: Duration::from_secs(30 * 60),
            settle_within: Duration::from_secs(20 * 60),
            volume_share: 40,
            idle_hour: false,
            trace_lines: 400,
        }
    }
}

/// What a simulation did and found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SimulationReport {
    /// Its seed: the same one, with the same settings and generator, gives the same report.
    pub seed: u64,
    /// What was wrong. The simulation ends at the first step after which something is.
    pub violations: Vec<Violation>,
    /// How many pods there were.
    pub pods: usize,
    /// How many random steps there were.
    pub steps: usize,
    /// The simulated time.
    pub simulated: Duration,
    /// How often each kind of step was taken.
    pub actions: BTreeMap<&'static str, u64>,
    /// How often each kind of fault was shown.
    pub faults: BTreeMap<FaultKind, u64>,
    /// How often pods that run were told to wait for other resources, and how often they were granted them after that.
    pub resizes: BTreeMap<&'static str, u64>,
    /// What became of volumes, and how often. Nothing where the seed has none.
    pub volumes: BTreeMap<&'static str, u64>,
    /// How often pod workers went from one stage to another, over all lives of the agent.
    pub transitions: BTreeMap<(String, String), u64>,
    /// A hash of the whole trace.
    pub trace_hash: u64,
    /// The newest lines of the trace.
    pub trace: String,
}

impl fmt::Display for SimulationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.trace)?;
        writeln!(
            f,
            "seed {}: {} steps, {} pods, {:?} simulated, trace {:016x}",
            self.seed, self.steps, self.pods, self.simulated, self.trace_hash
        )?;
        for violation in &self.violations {
            writeln!(
                f,
                "VIOLATED {:?} at {:.3} s: {}",
                violation.invariant,
                violation.at.as_secs_f64(),
                violation.what
            )?;
        }
        Ok(())
    }
}

type WrapRuntime = Arc<dyn Fn(FakeRuntime) -> RuntimeParts>;
type WrapVolumes = Arc<dyn Fn(Arc<dyn VolumeManager>) -> Arc<dyn VolumeManager>>;
type WrapSource = Arc<dyn Fn(Arc<dyn PodSource>) -> Arc<dyn PodSource>>;

/// A simulated node: a [`Kubelet`](kubelet_core::Kubelet) over [`FakeRuntime`], with a model of an API server and one of
/// a folder of manifests, a simulated disk, and a seed that decides on all that happens.
///
/// A run takes random steps: pods are added, edited, deleted, made again under the same name, manifests broken and
/// repaired; containers and sandboxes die or vanish, the runtime goes away, the machine reboots; sources and sinks go
/// silent; in a share of the seeds pods have volumes, whose mounts and unmounts hang, fail and wait; the agent is killed at
/// any moment, with calls in flight and unsynced writes lost, or stopped. After each step all [invariants](Invariant) are
/// checked against what really happened. Then faults stop, and every wish has to be met.
///
/// # Determinism
/// Each run has a runtime of its own, on one thread and with paused time. The same seed gives the same trace, byte for
/// byte, as long as generator and wrappers decide by nothing but what they are given.
///
/// # Examples
/// ```no_run
/// # fn generator() -> impl kubelet_core::PodLifecycleEventGenerator {
/// #     #[derive(Debug)] struct None;
/// #     #[kubelet_core::async_trait]
/// #     impl kubelet_core::PodLifecycleEventGenerator for None {
/// #         async fn run(&self, _: kubelet_core::PlegContext, stop: kubelet_core::CancellationToken)
/// #             -> Result<(), kubelet_core::PlegError> { stop.cancelled().await; Ok(()) }
/// #     }
/// #     None
/// # }
/// use kubelet_testing::{Simulation, SimulationSettings};
///
/// let report = Simulation::new(42, SimulationSettings::default()).run(generator);
/// assert!(report.violations.is_empty(), "{report}");
/// ```
#[must_use = "a simulation does nothing until it runs"]
pub struct Simulation {
    seed: u64,
    settings: SimulationSettings,
    runtime: WrapRuntime,
    source: WrapSource,
    volumes: WrapVolumes,
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("seed", &self.seed)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Simulation {
    /// A simulation of that seed.
    pub fn new(seed: u64, settings: SimulationSettings) -> Self {
        Self {
            seed,
            settings,
            runtime: Arc::new(RuntimeParts::from),
            source: Arc::new(|source| source),
            volumes: Arc::new(|volumes| volumes),
        }
    }

    /// Puts something between the engine and the runtime. Called at each start of the agent.
    pub fn wrap_runtime(mut self, wrap: impl Fn(FakeRuntime) -> RuntimeParts + 'static) -> Self {
        self.runtime = Arc::new(wrap);
        self
    }

    /// Puts something between the engine and its sources. Called for each at each start of the agent.
    pub fn wrap_sources(mut self, wrap: impl Fn(Arc<dyn PodSource>) -> Arc<dyn PodSource> + 'static) -> Self {
        self.source = Arc::new(wrap);
        self
    }

    /// Puts something between the engine and the manager of volumes. Called at each start of the agent, where the seed has volumes.
    pub fn wrap_volumes(mut self, wrap: impl Fn(Arc<dyn VolumeManager>) -> Arc<dyn VolumeManager> + 'static) -> Self {
        self.volumes = Arc::new(wrap);
        self
    }

    /// Runs it, with a generator for each life of the agent.
    ///
    /// # Panics
    /// Where the process cannot make a tokio runtime, and where it is called from within one.
    #[must_use]
    pub fn run<G: PodLifecycleEventGenerator>(self, generator: impl Fn() -> G) -> SimulationReport {
        #[expect(
            clippy::expect_used,
            reason = "a runtime of one thread without I/O needs nothing that could be missing"
        )]
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O can be made");
        runtime.block_on(async {
            let rig = Rig::new(
                self.seed,
                self.settings,
                (self.runtime, self.source, self.volumes),
                &generator,
            );
            rig.run().await
        })
    }
}
