//! What the fake backend holds, and how it goes on with time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::jiff::{SignedDuration, Timestamp};
use kubelet_core::{
    ContainerId, ContainerState, ObservedContainer, PodObservation, PodRecord, PodUid, ProvidedPod, ProviderError,
    RandomSource, SeededRandom,
};
use tokio::time::Instant;

use crate::fake::Program;
use crate::provider::calls::Hints;
use crate::provider::{ProviderCall, ProviderOp};

/// From a container's end to its next start.
const RESTART_PAUSE: Duration = Duration::from_secs(10);
/// How long a deleted pod is still listed once it has ended.
const LINGER: Duration = Duration::from_secs(5);
/// The code of a process that was killed.
const KILLED: i32 = 137;

#[derive(Debug)]
pub(crate) struct State {
    begun: Instant,
    pub(crate) pods: BTreeMap<PodUid, HeldPod>,
    pub(crate) calls: Vec<ProviderCall>,
    pub(crate) violations: Vec<String>,
    /// The pods of which a step goes on.
    pub(crate) busy: BTreeSet<PodUid>,
    pub(crate) latency: Duration,
    pub(crate) down: bool,
    pub(crate) hanging: BTreeSet<ProviderOp>,
    pub(crate) fault_rate: f64,
    pub(crate) scripted: VecDeque<ProviderError>,
    pub(crate) has_hints: bool,
    pub(crate) hints: Hints,
    random: SeededRandom,
    last_id: u64,
}

#[derive(Debug)]
pub(crate) struct HeldPod {
    pub(crate) record: Arc<PodRecord>,
    pub(crate) env: BTreeMap<String, Vec<(String, String)>>,
    pub(crate) marked: bool,
    containers: Vec<HeldContainer>,
    /// Its end was asked for: nothing is started again, and it is gone some time after it has ended.
    deleted: bool,
}

#[derive(Debug)]
struct HeldContainer {
    id: ContainerId,
    name: String,
    image: String,
    program: Program,
    attempt: u32,
    started: Instant,
    /// When and how it ends, or has ended.
    end: Option<(Instant, i32)>,
    ended: bool,
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            begun: Instant::now(),
            pods: BTreeMap::new(),
            calls: Vec::new(),
            violations: Vec::new(),
            busy: BTreeSet::new(),
            latency: Duration::ZERO,
            down: false,
            hanging: BTreeSet::new(),
            fault_rate: 0.0,
            scripted: VecDeque::new(),
            has_hints: true,
            hints: Hints::default(),
            random: SeededRandom::new(seed),
            last_id: 0,
        }
    }

    pub(crate) fn note(&mut self, op: ProviderOp, uid: Option<&PodUid>, grace: Option<Duration>) {
        self.calls.push(ProviderCall {
            at: self.begun.elapsed(),
            op,
            uid: uid.cloned(),
            grace,
        });
    }

    /// Whether chance lets this call fail, and if so whether it happens all the same.
    pub(crate) fn fault(&mut self) -> Option<bool> {
        if self.fault_rate <= 0.0 {
            return None;
        }
        let bits = self.random.next_u64();
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
        (unit < self.fault_rate).then_some(bits & 1 == 1)
    }

    pub(crate) fn insert(
        &mut self,
        record: Arc<PodRecord>,
        env: BTreeMap<String, Vec<(String, String)>>,
        marked: bool,
        now: Instant,
    ) {
        let mut containers = Vec::new();
        for view in record.spec().containers.iter() {
            self.last_id += 1;
            let words = view.args.iter().flatten().map(String::as_str);
            // A malformed word is as good as none: this backend refuses only what it is told to.
            let image = view.image.as_deref().unwrap_or_default();
            let program = Program::from_words(words).ok().flatten();
            let program = program.or_else(|| Program::from_image(image)).unwrap_or_default();
            containers.push(HeldContainer {
                id: ContainerId::new(format!("w{}", self.last_id)),
                name: view.name.clone(),
                image: view.image.clone().unwrap_or_default(),
                end: program.natural_end(0).map(|(after, code)| (now + after, code)),
                program,
                attempt: 0,
                started: now,
                ended: false,
            });
        }
        let uid = record.uid().clone();
        self.pods.insert(
            uid.clone(),
            HeldPod {
                record,
                env,
                marked,
                containers,
                deleted: false,
            },
        );
        self.hint(&uid);
    }

    pub(crate) fn remove(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.hint(uid);
    }

    pub(crate) fn end_container(&mut self, uid: &PodUid, name: &str, code: i32, now: Instant) {
        let container = self
            .pods
            .get_mut(uid)
            .and_then(|pod| pod.containers.iter_mut().find(|c| c.name == name));
        if let Some(container) = container.filter(|c| !c.ended) {
            container.end = Some((now, code));
        }
        self.advance(now);
    }

    /// Asks a pod to end within `grace`; one that has ended is gone at once.
    pub(crate) fn delete(&mut self, uid: &PodUid, grace: Duration, now: Instant) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        pod.deleted = true;
        let killed = (now + grace, KILLED);
        for container in pod.containers.iter_mut().filter(|c| !c.ended) {
            let asked = container.program.on_term.map(|(after, code)| (now + after, code));
            let end = asked.filter(|asked| asked.0 <= killed.0).unwrap_or(killed);
            if container.end.is_none_or(|before| end.0 < before.0) {
                container.end = Some(end);
            }
        }
        if pod.containers.iter().all(|c| c.ended) {
            self.remove(uid);
        } else {
            self.hint(uid);
        }
        self.advance(now);
    }

    /// Lets everything happen that is due.
    pub(crate) fn advance(&mut self, now: Instant) {
        let mut changed = Vec::new();
        self.pods.retain(|uid, pod| {
            let mut changes = false;
            while let Some(index) = (0..pod.containers.len()).find(|i| pod.due(*i).is_some_and(|due| due <= now)) {
                pod.step(index);
                changes = true;
            }
            let gone = pod.gone_at().is_some_and(|at| at <= now);
            if changes || gone {
                changed.push(uid.clone());
            }
            !gone
        });
        for uid in changed {
            self.hint(&uid);
        }
    }

    /// When something happens next by itself.
    pub(crate) fn next_instant(&self) -> Option<Instant> {
        let dues = self.pods.values().flat_map(|pod| {
            let containers = (0..pod.containers.len()).filter_map(|i| pod.due(i));
            containers.chain(pod.gone_at())
        });
        dues.min()
    }

    pub(crate) fn observation(&self, uid: &PodUid) -> Option<PodObservation> {
        let pod = self.pods.get(uid).filter(|pod| pod.marked)?;
        let mut seen = PodObservation::absent(uid.clone());
        seen.key = Some(pod.record.key().clone());
        seen.source = Some(pod.record.source().as_str().to_owned());
        seen.ips = vec![std::net::IpAddr::from([192, 0, 2, 1])];
        for container in &pod.containers {
            let state = if container.ended {
                ContainerState::Exited
            } else {
                ContainerState::Running
            };
            let started = self.wall(container.started);
            let mut one = ObservedContainer::new(container.id.clone(), container.name.clone(), state, started);
            one.attempt = container.attempt;
            one.restart_count = container.attempt;
            one.started_at = Some(started);
            one.image.clone_from(&container.image);
            one.image_ref.clone_from(&container.image);
            if let Some((at, code)) = container.end.filter(|_| container.ended) {
                one.finished_at = Some(self.wall(at));
                one.exit_code = code;
                one.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
            }
            seen.containers.push(one);
        }
        seen.containers.sort_by(|a, b| a.name.cmp(&b.name));
        Some(seen)
    }

    pub(crate) fn listed(&self) -> Vec<ProvidedPod> {
        let seen = self.pods.keys().filter_map(|uid| self.observation(uid));
        seen.map(ProvidedPod::new).collect()
    }

    /// Like the fake runtime's: from 2026-01-01T00:00:00Z.
    fn wall(&self, at: Instant) -> Timestamp {
        let start = Timestamp::from_second(1_767_225_600).unwrap_or(Timestamp::UNIX_EPOCH);
        let since = SignedDuration::try_from(at.saturating_duration_since(self.begun)).unwrap_or_default();
        start.checked_add(since).unwrap_or(start)
    }

    fn hint(&mut self, uid: &PodUid) {
        self.hints.send(uid);
    }
}

impl HeldPod {
    /// When a container ends, or is started again.
    fn due(&self, index: usize) -> Option<Instant> {
        let container = self.containers.get(index)?;
        let (end, code) = container.end?;
        if !container.ended {
            return Some(end);
        }
        let policy = self.record.facts().restart_policy;
        let restarts = !self.deleted && policy.restarts(code);
        restarts.then(|| end + RESTART_PAUSE)
    }

    fn step(&mut self, index: usize) {
        let Some(at) = self.due(index) else { return };
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        if container.ended {
            container.attempt += 1;
            container.id = ContainerId::new(format!("{}+", container.id.as_str()));
            container.started = at;
            container.ended = false;
            let end = container.program.natural_end(container.attempt);
            container.end = end.map(|(after, code)| (at + after, code));
        } else {
            container.ended = true;
        }
    }

    fn gone_at(&self) -> Option<Instant> {
        let ended = self.deleted && self.containers.iter().all(|c| c.ended);
        let last = self.containers.iter().filter_map(|c| c.end).map(|(at, _)| at).max();
        last.filter(|_| ended).map(|at| at + LINGER)
    }
}
