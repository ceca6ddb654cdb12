//! Holds what happened against what was wished for.
//!
//! Everything is judged by three records: what the world of the fake did, what the sink was told, and which wishes the
//! node was handed. The engine's own word counts for nothing but at the end.

mod counts;
mod grace;
mod order;
mod policy;
mod probes;
pub(crate) mod resizes;
mod told;
pub(crate) mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{PodKey, PodRecord, PodUid, SandboxId};
use tokio::time::Instant;

use super::Invariant;
use super::workload::PRE_STOP;
use crate::fake::journal::{By, Happened};
use crate::fake::{Op, Subject};

/// A wish that a pod end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub(crate) since: Instant,
    pub(crate) grace: Duration,
}

/// What the node was handed of one pod, and what is remembered of it.
#[derive(Debug)]
pub(crate) struct Book {
    /// Its newest version.
    pub(crate) pod: Arc<PodRecord>,
    /// The least grace of all its versions.
    pub(crate) own_grace: Duration,
    pub(crate) endings: Vec<Ending>,
    /// Since when it is wished for, and since when no more.
    pub(crate) since: Instant,
    pub(crate) ended: Option<Instant>,
    /// A container ended that asks for all to be restarted, last then.
    pub(crate) restart_all: Option<Instant>,
    /// Which one that was.
    pub(crate) restart_all_by: Option<u64>,
    /// The highest count that was told, by container, in this life.
    pub(crate) told: told::Told,
}

/// A container that was made.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) pod: PodUid,
    pub(crate) name: String,
    pub(crate) attempt: u32,
    pub(crate) sandbox: SandboxId,
    pub(crate) image: String,
    pub(crate) made: Instant,
    pub(crate) started: Option<Instant>,
    /// It was started by a call whose end nobody heard.
    pub(crate) late: bool,
    pub(crate) ended: Option<(Instant, i32, By)>,
    pub(crate) gone: Option<(Instant, By)>,
    /// When the node asked for its end. One life of an agent may ask in vain, and a later one ask anew.
    pub(crate) asks: Vec<Instant>,
    /// How its probes went.
    pub(crate) runs: probes::Runs,
}

impl Instance {
    /// Whether it was started, or could not be.
    pub(crate) fn had_its_turn(&self) -> bool {
        // One that was never started and is removed did not end: it never began.
        let removed = matches!(self.ended, Some((_, _, By::Stop | By::Caller)));
        self.started.is_some() || (self.ended.is_some() && !removed)
    }

    pub(crate) fn runs(&self) -> bool {
        self.started.is_some() && self.ended.is_none() && self.gone.is_none()
    }
}

/// A rule that was broken.
#[derive(Clone, Debug)]
pub(crate) struct Breach {
    pub(crate) at: Instant,
    pub(crate) invariant: Invariant,
    pub(crate) what: String,
}

#[derive(Debug, Default)]
pub(crate) struct Checker {
    pub(crate) books: BTreeMap<PodUid, Book>,
    pub(crate) instances: BTreeMap<u64, Instance>,
    by_pod: BTreeMap<PodUid, Vec<u64>>,
    keys: BTreeMap<PodUid, PodKey>,
    /// Init containers that have succeeded, by sandbox and name.
    initialised: BTreeMap<(SandboxId, String), u64>,
    /// What may have been made by calls whose outcome is unknown, until somebody looks: pod and container.
    unknown: BTreeSet<(PodUid, Option<String>)>,
    pub(crate) resizes: resizes::Resizes,
    /// Whether the pods have the volumes that they ask for.
    has_volumes: bool,
    volumes: volumes::VolumeBook,
    pub(crate) breaches: Vec<Breach>,
    pub(crate) stop_pods: Option<Ending>,
}

/// The containers of an id that the fake gave.
fn number(id: Option<&str>) -> Option<u64> {
    id?.strip_prefix('c')?.parse().ok()
}

impl Checker {
    pub(crate) fn new(has_volumes: bool) -> Self {
        Self {
            has_volumes,
            ..Self::default()
        }
    }

    pub(crate) fn breach(&mut self, at: Instant, invariant: Invariant, what: String) {
        self.breaches.push(Breach { at, invariant, what });
    }

    /// The node was handed a version of a pod that is to run.
    pub(crate) fn wished(&mut self, pod: &Arc<PodRecord>, now: Instant) {
        let own = pod.facts().termination_grace;
        let book = self.books.entry(pod.uid().clone()).or_insert_with(|| Book {
            pod: pod.clone(),
            own_grace: own,
            endings: Vec::new(),
            since: now,
            ended: None,
            restart_all: None,
            restart_all_by: None,
            told: told::Told::default(),
        });
        if book.ended.take().is_some() {
            // The same pod again: a new life.
            book.since = now;
            book.restart_all = None;
            book.restart_all_by = None;
            book.own_grace = own;
            book.told.begin_again();
        }
        book.own_grace = book.own_grace.min(own);
        book.pod = pod.clone();
        self.volumes.told(pod.uid());
    }

    /// The node was handed the wish that a pod end.
    pub(crate) fn unwished(&mut self, uid: &PodUid, grace: Option<Duration>, now: Instant) {
        if let Some(book) = self.books.get_mut(uid) {
            let grace = grace.unwrap_or(book.own_grace);
            book.endings.push(Ending { since: now, grace });
            book.ended.get_or_insert(now);
        }
    }

    pub(crate) fn of_pod<'a>(&'a self, uid: &PodUid) -> impl DoubleEndedIterator<Item = (u64, &'a Instance)> + use<'a> {
        let numbers = self.by_pod.get(uid).map(Vec::as_slice).unwrap_or_default();
        numbers.iter().filter_map(|n| Some((*n, self.instances.get(n)?)))
    }

    /// Takes in one thing that happened.
    pub(crate) fn happened(&mut self, at: Instant, what: &Happened) {
        match what {
            Happened::Call { op, subject } => {
                let container = number(subject.container_id.as_ref().map(kubelet_core::ContainerId::as_str));
                let ends = *op == Op::StopContainer
                    || (*op == Op::Exec && subject.command.first().is_some_and(|word| word == PRE_STOP));
                if let Some(instance) = container.filter(|_| ends).and_then(|n| self.instances.get_mut(&n)) {
                    instance.asks.push(at);
                }
                if matches!(op, Op::RunSandbox | Op::CreateContainer) {
                    self.check_wanted(at, *op, subject.pod.as_ref());
                    self.check_looked(at, *op, subject);
                }
                if matches!(op, Op::RunSandbox | Op::CreateContainer | Op::StartContainer) {
                    self.check_mounted(at, *op, subject.pod.as_ref());
                }
            }
            Happened::Unknown { subject, .. } => {
                if let Some(pod) = &subject.pod {
                    self.unknown.insert((pod.clone(), subject.container.clone()));
                }
            }
            Happened::Look { pod: None } => self.unknown.clear(),
            Happened::Look { pod: Some(pod) } => self.unknown.retain(|(of, _)| of != pod),
            Happened::SandboxMade {
                sandbox,
                pod,
                key,
                late,
                ..
            } => {
                self.keys.insert(pod.clone(), key.clone());
                self.volumes.sandbox_made(*sandbox, pod, *late);
            }
            Happened::Made {
                container,
                sandbox,
                pod,
                name,
                attempt,
                image,
            } => {
                let instance = Instance {
                    pod: pod.clone(),
                    name: name.clone(),
                    attempt: *attempt,
                    sandbox: sandbox.clone(),
                    image: image.clone(),
                    made: at,
                    started: None,
                    late: false,
                    ended: None,
                    gone: None,
                    asks: Vec::new(),
                    runs: probes::Runs::new(),
                };
                self.check_attempt(at, &instance);
                self.by_pod.entry(pod.clone()).or_default().push(*container);
                self.instances.insert(*container, instance);
            }
            Happened::Started { container, late } => {
                self.check_start(at, *container);
                if let Some(instance) = self.instances.get_mut(container) {
                    instance.started = Some(at);
                    instance.late = *late;
                }
            }
            Happened::Stopping { container, kill } => self.check_grace(at, *container, *kill),
            Happened::Ended { container, code, by } => {
                if *by == By::Caller {
                    self.check_grace(at, *container, Some(at));
                }
                if let Some(instance) = self.instances.get_mut(container) {
                    instance.ended = Some((at, *code, *by));
                }
                self.note_end(at, *container, *code);
            }
            Happened::Gone { container, by } => {
                if let Some(instance) = self.instances.get_mut(container) {
                    instance.gone = Some((at, *by));
                }
                self.note_gone(*container);
            }
            Happened::Execed {
                container,
                command,
                success,
            } => self.note_run(at, *container, command, *success),
            Happened::SandboxDown { sandbox, .. } | Happened::SandboxGone { sandbox, .. } => {
                self.volumes.sandbox_down(*sandbox);
            }
            Happened::Volumes { pod, change } => self.volumes_changed(at, pod, change),
            Happened::Reboot => {}
        }
    }

    /// Nothing new is made for a pod whose end was asked for.
    fn check_wanted(&mut self, at: Instant, op: Op, pod: Option<&PodUid>) {
        let Some(uid) = pod else { return };
        let unwanted = match self.books.get(uid) {
            None => true,
            // What is decided at the very moment of the wish may still come.
            Some(book) => book.ended.is_some_and(|ended| ended < at),
        };
        if unwanted {
            let what = format!("{} for pod {uid}, which nobody wants", op.name());
            self.breach(at, Invariant::Unwanted, what);
        }
    }

    /// After a call whose outcome is unknown somebody looks, before the same thing is made again.
    fn check_looked(&mut self, at: Instant, op: Op, subject: &Subject) {
        let Some(pod) = &subject.pod else { return };
        if self.unknown.contains(&(pod.clone(), subject.container.clone())) {
            let what = format!(
                "{} {} for pod {pod}, although an earlier one may still happen and nobody has looked",
                op.name(),
                subject.container.as_deref().unwrap_or_default()
            );
            self.breach(at, Invariant::Twice, what);
        }
    }

    /// All that must hold as a container starts.
    fn check_start(&mut self, at: Instant, container: u64) {
        let Some(instance) = self.instances.get(&container) else {
            return;
        };
        let mut found = Vec::new();
        let key = self.keys.get(&instance.pod);
        let is_static = |uid: &PodUid| self.books.get(uid).is_some_and(|book| book.pod.is_static());
        for (n, other) in self.instances.iter().filter(|(_, other)| other.runs()) {
            let twin = other.pod == instance.pod && other.name == instance.name;
            let namesake = other.pod != instance.pod
                && self.keys.get(&other.pod) == key
                && is_static(&other.pod)
                && is_static(&instance.pod);
            if twin || namesake {
                let what = format!(
                    "c{container} ({} of pod {}) starts while c{n} ({} of pod {}) runs",
                    instance.name, instance.pod, other.name, other.pod
                );
                found.push((Invariant::Twice, what));
            }
        }
        if let Some(book) = self.books.get(&instance.pod) {
            found.extend(
                self.check_order(book, container, instance)
                    .map(|what| (Invariant::InitOrder, what)),
            );
            found.extend(
                self.check_policy(book, container, instance)
                    .map(|what| (Invariant::RestartPolicy, what)),
            );
        }
        for (invariant, what) in found {
            self.breach(at, invariant, what);
        }
    }
}
