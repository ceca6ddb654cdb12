//! All parts of a simulation, and how they are run and read.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::{
    ChannelSource, Clock, Containers, Kubelet, MemoryDisk, NodeView, ORPHAN_GRACE, OnStop, PodLifecycleEventGenerator,
    PodRecord, PodSource, PodUid, Quantity, SeededRandom, Settings, SourceKind, SourceName, StateDir, TokioClock,
};
use tokio::time::Instant;

use super::agent::{Agent, STOP_WITHIN};
use super::checker::{Breach, Checker, Ending};
use super::cluster::{API, Cluster, Gatekeeper, ModelSink, Told};
use super::dice::Dice;
use super::health::{ProbeKills, Sickness, kind_of};
use super::manifests::{FILES, Folder, ManifestSource};
use super::trace::Trace;
use super::volumes::Volumes;
use super::{Invariant, SimulationReport, SimulationSettings, Violation, WrapRuntime, WrapSource, WrapVolumes};
use crate::fake::journal::{Happened, VolumeChange};
use crate::fake::{FakeRuntime, Op};

pub(super) const NODE: &str = "node-1";

/// How many starts are under way at a time at first.
const AT_FIRST: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

pub(super) struct Rig<'a, G> {
    pub(super) seed: u64,
    pub(super) settings: SimulationSettings,
    pub(super) dice: Dice,
    pub(super) trace: Trace,
    pub(super) began: Instant,
    pub(super) clock: TokioClock,
    pub(super) fake: FakeRuntime,
    /// Whose probes fail.
    pub(super) sickness: Sickness,
    probe_kills: ProbeKills,
    /// What pods have beside the runtime, in some seeds.
    pub(super) volumes: Option<Volumes>,
    /// The volumes that are not to be had for now, by pod and name.
    pub(super) held: Vec<(PodUid, String)>,
    pub(super) disk: MemoryDisk,
    pub(super) cluster: Cluster,
    pub(super) folder: Folder,
    pub(super) gate: Gatekeeper,
    pub(super) checker: Checker,
    pub(super) agent: Option<Agent>,
    /// Whether each source has said anything in this life of the agent.
    pub(super) spoken: (bool, bool),
    pub(super) actions: BTreeMap<&'static str, u64>,
    pub(super) transitions: BTreeMap<(String, String), u64>,
    pub(super) pods_made: usize,
    wrap: (WrapRuntime, WrapSource, WrapVolumes),
    generator: &'a dyn Fn() -> G,
    lives: u64,
    known_violations: usize,
}

impl<'a, G: PodLifecycleEventGenerator> Rig<'a, G> {
    pub(super) fn new(
        seed: u64,
        settings: SimulationSettings,
        wrap: (WrapRuntime, WrapSource, WrapVolumes),
        generator: &'a dyn Fn() -> G,
    ) -> Self {
        let start = Timestamp::from_second(1_700_000_000).unwrap_or(Timestamp::UNIX_EPOCH);
        let clock = TokioClock::starting_at(start);
        let dice = Dice::new(seed);
        let mut fake = FakeRuntime::builder()
            .seed(dice.next())
            .clock(Arc::new(clock))
            // The journal tells all.
            .call_limit(0);
        if dice.chance(50) {
            fake = fake.all_images_present();
        }
        if dice.chance(25) {
            fake = fake.without_events();
        }
        let fake = fake.build();
        fake.keep_journal();
        if dice.chance(50) {
            fake.set_latency(Op::StartContainer, Duration::from_millis(40));
            fake.set_latency(Op::RunSandbox, Duration::from_millis(200));
            fake.set_latency(Op::Pull, Duration::from_millis(700));
        }
        let volumes = Volumes::of_seed(seed, settings.volume_share, &fake);
        Self {
            trace: Trace::new(settings.trace_lines),
            began: Instant::now(),
            clock,
            sickness: Sickness::of(&fake),
            probe_kills: ProbeKills::default(),
            fake,
            disk: MemoryDisk::new(),
            cluster: Cluster::new(dice.next(), dice.chance(50)),
            folder: Folder::default(),
            gate: Gatekeeper::new(),
            checker: Checker::new(volumes.is_some()),
            volumes,
            held: Vec::new(),
            agent: None,
            spoken: (false, false),
            actions: BTreeMap::new(),
            transitions: BTreeMap::new(),
            pods_made: 0,
            seed,
            settings,
            dice,
            wrap,
            generator,
            lives: 0,
            known_violations: 0,
        }
    }

    pub(super) async fn run(mut self) -> SimulationReport {
        let steps = self.take_steps().await;
        if self.checker.breaches.is_empty() {
            self.settle().await;
        }
        self.end_life();
        self.report(steps)
    }

    fn report(mut self, steps: usize) -> SimulationReport {
        let breaches = std::mem::take(&mut self.checker.breaches);
        let violations = breaches.into_iter().map(|Breach { at, invariant, what }| Violation {
            at: at.saturating_duration_since(self.began),
            invariant,
            what,
        });
        SimulationReport {
            seed: self.seed,
            violations: violations.collect(),
            pods: self.pods_made,
            steps,
            simulated: self.began.elapsed(),
            actions: self.actions,
            faults: self.fake.fault_counts(),
            resizes: std::mem::take(&mut self.checker.resizes).counts(),
            volumes: self.volumes.map(|volumes| volumes.take_counts()).unwrap_or_default(),
            transitions: self.transitions,
            trace_hash: self.trace.hash(),
            trace: self.trace.text(),
        }
    }

    /// Lets simulated time pass, and judges what happened in it.
    pub(super) async fn pass(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
        self.drain();
    }

    /// Reads what happened and what was told, in order of time.
    pub(super) fn drain(&mut self) {
        let mut happened = self.fake.take_journal().into_iter().peekable();
        let mut told = self.cluster.take_told().into_iter().peekable();
        loop {
            let told_first = match (happened.peek(), told.peek()) {
                (None, None) => break,
                (Some((a, _)), Some((b, _))) => b < a,
                (None, Some(_)) => true,
                (Some(_), None) => false,
            };
            if told_first {
                if let Some((at, told)) = told.next() {
                    self.take_told(at, &told);
                }
            } else if let Some((at, happened)) = happened.next() {
                self.trace_happened(at, &happened);
                self.checker.happened(at, &happened);
            }
        }
        for (at, kill) in self.probe_kills.take() {
            self.trace.line(
                at,
                format_args!("  kill  {} {} for {}", kill.pod, kill.container, kill.kind),
            );
            self.checker.probe_kills(at, &kill);
        }
        let violations = self.fake.violations();
        for text in violations.iter().skip(self.known_violations) {
            self.checker.breach(Instant::now(), Invariant::Contract, text.clone());
        }
        self.known_violations = violations.len();
        if let Some(ended) = self.agent.as_mut().and_then(Agent::early_end) {
            self.checker.breach(Instant::now(), Invariant::Running, ended);
        }
    }

    fn take_told(&mut self, at: Instant, told: &Told) {
        match told {
            Told::Status { uid, status, finished } => {
                self.trace_told(at, uid, status, *finished);
                self.checker.told(at, uid, status, *finished);
            }
            Told::Forgotten(uid) => {
                self.trace.line(at, format_args!("  told  {uid} forgotten"));
                self.checker.forgotten(uid);
            }
        }
    }

    fn trace_told(&mut self, at: Instant, uid: &PodUid, status: &PodStatus, finished: bool) {
        let mut text = format!("  told  {uid} {}", status.phase.as_deref().unwrap_or("-"));
        if let Some(reason) = &status.reason {
            text.push_str(&format!(" ({reason})"));
        }
        let lists = [&status.init_container_statuses, &status.container_statuses];
        for container in lists.into_iter().flatten().flatten() {
            let state = container.state.as_ref();
            let word = match state {
                Some(state) if state.running.is_some() => "running".to_owned(),
                Some(state) => match (&state.terminated, &state.waiting) {
                    (Some(end), _) => format!("ended:{}", end.exit_code),
                    (None, Some(waits)) => waits.reason.clone().unwrap_or_default(),
                    (None, None) => String::new(),
                },
                None => String::new(),
            };
            text.push_str(&format!(" {}#{}={word}", container.name, container.restart_count));
        }
        if finished {
            text.push_str(" finished");
        }
        self.trace.line(at, format_args!("{text}"));
    }

    fn trace_happened(&mut self, at: Instant, happened: &Happened) {
        let text = match happened {
            // They say nothing, and are many.
            Happened::Call { op: Op::Exec, subject } if kind_of(&subject.command).is_some() => return,
            Happened::Execed { success: true, .. } => return,
            Happened::Execed { container, command, .. } => {
                format!("c{container} {} failed", command.first().map_or("", String::as_str))
            }
            Happened::Call { op, subject } => {
                let pod = subject.pod.as_ref().map_or("", |uid| uid.as_str());
                let container = subject.container_id.as_ref().map_or("", |id| id.as_str());
                let name = subject.container.as_deref().unwrap_or("");
                let grace = subject
                    .grace
                    .map(|grace| format!(" grace {grace:?}"))
                    .unwrap_or_default();
                format!("call  {} {pod} {name} {container}{grace}", op.name())
            }
            Happened::Unknown { op, subject } => {
                let pod = subject.pod.as_ref().map_or("", |uid| uid.as_str());
                format!("outcome of {} for {pod} unknown", op.name())
            }
            Happened::Look { .. } => return,
            Happened::SandboxMade {
                sandbox,
                pod,
                key,
                attempt,
                ..
            } => format!("s{sandbox} made, {attempt} of {pod} {key}"),
            Happened::SandboxDown { sandbox, pod, by } => format!("s{sandbox} down, of {pod}, by {by:?}"),
            Happened::SandboxGone { sandbox, pod, by } => format!("s{sandbox} gone, of {pod}, by {by:?}"),
            Happened::Made {
                container,
                sandbox,
                pod,
                name,
                attempt,
                image,
            } => format!("c{container} made, {name} {attempt} of {pod} in {sandbox}, {image}"),
            Happened::Started { container, late } => {
                format!("c{container} started{}", if *late { " late" } else { "" })
            }
            Happened::Stopping { container, kill } => {
                let left = kill.map(|kill| kill.saturating_duration_since(at));
                format!("c{container} stopping, killed in {left:?}")
            }
            Happened::Ended { container, code, by } => format!("c{container} ended with {code} by {by:?}"),
            Happened::Gone { container, by } => format!("c{container} gone by {by:?}"),
            Happened::Reboot => "reboot".to_owned(),
            Happened::Volumes { pod, change } => match change {
                VolumeChange::NotMounted(why) | VolumeChange::NotUnmounted(why) => {
                    format!("volumes of {pod} {}: {why}", change.name())
                }
                _ => format!("volumes of {pod} {}", change.name()),
            },
        };
        self.trace.line(at, format_args!("  world {text}"));
    }

    /// Starts a life of the agent. Its sources say nothing yet.
    pub(super) fn begin_life(&mut self, on_stop: OnStop) {
        self.lives += 1;
        let (channel, api) = ChannelSource::new(API);
        let (sender, files) = ManifestSource::new();
        self.cluster.lock().handle = Some(channel);
        self.folder.sender = Some(sender);
        self.spoken = (false, false);
        let (runtime, source, wrap_volumes) = &self.wrap;
        let mut settings = Settings::default();
        settings.stop_within = STOP_WITHIN;
        // Not by how many processors this machine has: a seed is the same everywhere.
        settings.start_limits.first = AT_FIRST;
        let sources: [Arc<dyn PodSource>; 2] = [source(Arc::new(api)), source(Arc::new(files))];
        let [api, files] = sources;
        let kubelet = Kubelet::builder(NODE, Containers::new(runtime(self.fake.clone()), (self.generator)()))
            .source(api)
            .source(files)
            .admit(self.gate.clone())
            .status_sink(ModelSink(self.cluster.clone()))
            .events(self.probe_kills.clone())
            .node_view(node_view())
            .clock(self.clock)
            .random(SeededRandom::new(self.seed ^ self.lives.wrapping_mul(0x9e37_79b9)))
            .state_only(StateDir::simulated(&self.disk))
            .settings(settings)
            .on_stop(on_stop);
        let kubelet = match &mut self.volumes {
            Some(volumes) => {
                self.checker.may_be_untold(volumes.without_traces());
                kubelet.volumes(wrap_volumes(volumes.begin_life()))
            }
            None => kubelet,
        };
        let kubelet = kubelet.build();
        match kubelet {
            Ok(kubelet) => self.agent = Some(Agent::start(kubelet, on_stop)),
            Err(error) => {
                let what = format!("the kubelet cannot be built: {error}");
                self.checker.breach(Instant::now(), Invariant::Running, what);
            }
        }
    }

    /// Takes the numbers of a life that has ended.
    pub(super) fn end_life(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        for (pair, count) in agent.transitions() {
            *self.transitions.entry(pair).or_default() += count;
        }
        self.cluster.lock().handle = None;
        self.folder.sender = None;
    }

    /// The API server says what became of one pod.
    pub(super) async fn send_pod(&mut self, uid: &PodUid) {
        self.drain();
        // Nothing is said by a change alone before the first list.
        if self.spoken.0 && self.cluster.send(uid).await {
            self.note_managed(uid);
        }
    }

    fn note_managed(&mut self, uid: &PodUid) {
        let now = Instant::now();
        let pod = self.cluster.lock().pods.get(uid).cloned();
        let Some(pod) = pod else {
            self.checker.unwished(uid, None, now);
            return;
        };
        let Ok(record) = PodRecord::new(&pod, SourceName::from(API), SourceKind::Managed) else {
            return;
        };
        let ended = self.checker.books.get(uid).is_some_and(|book| book.ended.is_some());
        if !ended {
            self.checker.wished(&Arc::new(record), now);
        }
        if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
            let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
            self.checker.unwished(uid, Some(grace.max(ORPHAN_GRACE)), now);
        }
    }

    /// The API server says all its pods.
    pub(super) async fn send_all_pods(&mut self) {
        self.drain();
        if !self.cluster.send_all().await {
            return;
        }
        let fresh = !std::mem::replace(&mut self.spoken.0, true);
        let uids: Vec<PodUid> = self.cluster.lock().pods.keys().cloned().collect();
        for uid in &uids {
            self.note_managed(uid);
        }
        self.note_absent(API, &uids, fresh);
    }

    /// The folder says what became of one file.
    pub(super) async fn send_file(&mut self, file: &str) {
        self.drain();
        let before = self.folder.in_force.get(file).cloned();
        if !self.spoken.1 || !self.folder.send(file).await {
            return;
        }
        let now = Instant::now();
        let after = self.folder.in_force.get(file).cloned();
        if let Some(before) = before.filter(|before| after.as_ref().is_none_or(|after| after.uid() != before.uid())) {
            self.checker.unwished(before.uid(), None, now);
        }
        if let Some(after) = after {
            self.checker.wished(&after, now);
        }
    }

    /// The folder says all its files.
    pub(super) async fn send_all_files(&mut self) {
        self.drain();
        if !self.folder.send_all().await {
            return;
        }
        let fresh = !std::mem::replace(&mut self.spoken.1, true);
        let now = Instant::now();
        let in_force: Vec<Arc<PodRecord>> = self.folder.in_force.values().cloned().collect();
        let uids: Vec<PodUid> = in_force.iter().map(|pod| pod.uid().clone()).collect();
        for pod in in_force {
            self.checker.wished(&pod, now);
        }
        self.note_absent(FILES, &uids, fresh);
    }

    /// Pods that a list does not name are wished for no more. An agent that has just started knows nothing of them.
    fn note_absent(&mut self, source: &str, named: &[PodUid], fresh: bool) {
        let now = Instant::now();
        let absent: Vec<(PodUid, bool)> = self
            .checker
            .books
            .iter()
            .filter(|(uid, book)| book.pod.source().as_str() == source && !named.contains(uid))
            .map(|(uid, book)| (uid.clone(), book.ended.is_some()))
            .collect();
        for (uid, ended) in absent {
            if fresh || !ended {
                self.checker.unwished(&uid, None, now);
            }
        }
    }

    pub(super) fn note_stop_of_pods(&mut self) {
        self.checker.stop_pods = Some(Ending {
            since: Instant::now(),
            // What `OnStop::StopPods` leaves to the containers.
            grace: STOP_WITHIN.mul_f64(0.6),
        });
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Enough for all pods, and for one that asks for [`MUCH`](super::changes::MUCH) later, but not for two of those.
pub(super) const NODE_CPU: &str = "64";

fn node_view() -> NodeView {
    let mut view = NodeView::new(NODE);
    for (name, amount) in [
        ("cpu", NODE_CPU),
        ("memory", "256Gi"),
        ("pods", "1000"),
        ("ephemeral-storage", "1Ti"),
    ] {
        if let Ok(amount) = amount.parse::<Quantity>() {
            view.capacity.insert(name.to_owned(), amount.clone());
            view.allocatable.insert(name.to_owned(), amount);
        }
    }
    view.addresses = vec![std::net::IpAddr::from([192, 0, 2, 7])];
    view
}
