//! What is known of all probes of a node, and what follows from each run: without effects, and without waiting.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::agenda::{Agenda, ProbeToken, on_grid};
use super::pod::{Beginning, FollowedContainer, FollowedPod};
use super::prober::{ProbeKind, ProbeOutcome};
use super::results::PodProbes;
use super::target::{Target, resolve};
use crate::event::{Event, EventSubject, EventType};
use crate::ids::{ContainerId, PodUid};
use crate::observation::PodObservation;
use crate::pod::{ContainerKind, ContainerView, PodRecord};

/// How a pod goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// It is kept running.
    Running,
    /// It is being stopped: nothing is restarted any more, but it may still be ready.
    Ending,
}

/// A run that is to begin.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) token: ProbeToken,
    pub(super) kind: ProbeKind,
    pub(super) container: ContainerId,
    pub(super) target: Result<Target, String>,
    pub(super) timeout: std::time::Duration,
    /// By how much it is late.
    pub(super) late: std::time::Duration,
    /// Ends it early.
    pub(super) cut: CancellationToken,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunEnd {
    Done(ProbeOutcome),
    /// It was cut short, which says nothing.
    Cut,
}

/// What is to be told after a run.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) event: Option<Event>,
    /// The pod whose results have changed.
    pub(super) changed: Option<PodUid>,
}

#[derive(Clone, Debug)]
struct Place {
    uid: PodUid,
    container: ContainerId,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pods: BTreeMap<PodUid, FollowedPod>,
    places: BTreeMap<ProbeToken, Place>,
    agenda: Agenda,
    tokens: u64,
    in_flight: usize,
    /// Nothing is run any more.
    pub(super) is_closed: bool,
}

/// How many runs are under way at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) of_node: usize,
    pub(super) of_pod: usize,
}

impl State {
    /// Follows the containers of a pod as they were seen.
    pub(super) fn update(
        &mut self,
        pod: &Arc<PodRecord>,
        observed: &PodObservation,
        ip: Option<IpAddr>,
        course: Course,
        from: &Beginning<'_>,
    ) -> Arc<PodProbes> {
        let uid = pod.uid();
        let mut entry = self.pods.remove(uid).unwrap_or_else(|| FollowedPod::new(pod.clone()));
        entry.pod = pod.clone();
        entry.ip = ip;
        let mut before = std::mem::take(&mut entry.containers);
        let containers = ContainerView::init(pod.spec())
            .filter(|view| view.kind() == ContainerKind::Sidecar)
            .chain(ContainerView::regular(pod.spec()));
        for view in containers.filter(has_probes) {
            let Some(seen) = observed.of_name(view.name()).find(|seen| seen.is_running()) else {
                continue;
            };
            // Another version of the pod may have other probes.
            let is_known =
                |container: &FollowedContainer| container.results.id == seen.id && container.has_probes_of(&view);
            let known = before.iter().position(is_known);
            let mut container = match known {
                Some(index) => before.swap_remove(index),
                None => FollowedContainer::begin(&view, seen, from, || {
                    self.tokens += 1;
                    ProbeToken(self.tokens)
                }),
            };
            if course == Course::Ending && view.kind() == ContainerKind::Regular {
                let (stay, go) = container
                    .probes
                    .into_iter()
                    .partition(|probe| probe.kind == ProbeKind::Readiness);
                container.probes = go;
                self.drop_probes(&mut entry, &container);
                container.probes = stay;
            }
            self.arrange(uid, &mut container, from.now);
            entry.containers.push(container);
        }
        for gone in &before {
            self.drop_probes(&mut entry, gone);
        }
        entry.show_results();
        let results = entry.results.clone();
        self.pods.insert(uid.clone(), entry);
        results
    }

    /// Puts each probe of a container that can run, and is not yet on it, on the agenda.
    fn arrange(&mut self, uid: &PodUid, container: &mut FollowedContainer, now: Instant) {
        let is_started = container.is_started();
        for probe in &mut container.probes {
            let is_due = probe.due.is_some() || probe.running.is_some();
            let is_gated = probe.kind != ProbeKind::Startup && !is_started;
            if is_due || is_gated || probe.tally.is_final(probe.kind) || (container.is_stopping && probe.is_exec) {
                continue;
            }
            let period = probe.spec.period;
            let at = match probe.ran {
                Some((first, last)) => on_grid(first, period, now.max(last + period)),
                None => probe.earliest.max(now),
            };
            probe.due = Some(at);
            self.agenda.put(at, probe.token);
            self.places.insert(
                probe.token,
                Place {
                    uid: uid.clone(),
                    container: container.results.id.clone(),
                },
            );
        }
    }

    /// Ends what runs of these probes, and forgets them.
    fn drop_probes(&mut self, entry: &mut FollowedPod, container: &FollowedContainer) {
        for probe in &container.probes {
            if let Some(at) = probe.due {
                self.agenda.take_off(at, probe.token);
                entry.waiting.remove(&(at, probe.token));
            }
            self.places.remove(&probe.token);
            if let Some(cut) = &probe.running {
                cut.cancel();
                // Nobody finds its place at its end.
                self.free_slot(entry);
            }
        }
    }

    /// One run less of a pod is under way: those that wait may try again. All of them, since the first may be about to go.
    fn free_slot(&mut self, entry: &mut FollowedPod) {
        entry.in_flight = entry.in_flight.saturating_sub(1);
        for (at, waiting) in std::mem::take(&mut entry.waiting) {
            self.agenda.put(at, waiting);
        }
    }

    /// Forgets a pod that has left.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        let Some(mut entry) = self.pods.remove(uid) else { return };
        for container in std::mem::take(&mut entry.containers) {
            self.drop_probes(&mut entry, &container);
        }
    }

    /// When the next run may begin.
    pub(super) fn next(&self, bounds: Bounds) -> Option<Instant> {
        self.agenda.next().filter(|_| self.in_flight < bounds.of_node)
    }

    /// Takes what is due, as far as the bounds allow.
    pub(super) fn take_due(&mut self, now: Instant, bounds: Bounds) -> Vec<Run> {
        let mut runs = Vec::new();
        while self.in_flight < bounds.of_node {
            let Some((at, token)) = self.agenda.pop_due(now) else {
                break;
            };
            let Some(Place { uid, container }) = self.places.get(&token).cloned() else {
                continue;
            };
            let Some(entry) = self.pods.get_mut(&uid) else { continue };
            if entry.in_flight >= bounds.of_pod {
                entry.waiting.insert((at, token));
                continue;
            }
            let (pod, ip) = (entry.pod.clone(), entry.ip);
            let Some(followed) = entry.container(&container) else {
                continue;
            };
            let view = pod.container(&followed.name);
            let Some(probe) = followed.probes.iter_mut().find(|probe| probe.token == token) else {
                continue;
            };
            let timeout = probe.spec.timeout;
            let spec = view.and_then(|view| Some((view, view.probe(probe.kind)?)));
            let target = match spec {
                Some((view, spec)) => resolve(&view, spec, timeout, ip),
                None => Err("the probe is gone from the pod".to_owned()),
            };
            let cut = CancellationToken::new();
            probe.due = None;
            probe.ran = Some((probe.ran.map_or(at, |(first, _)| first), at));
            probe.running = Some(cut.clone());
            runs.push(Run {
                token,
                kind: probe.kind,
                container,
                target,
                timeout,
                late: now.saturating_duration_since(at),
                cut,
            });
            entry.in_flight += 1;
            self.in_flight += 1;
        }
        runs
    }

    /// Takes in how a run ended.
    pub(super) fn finish(&mut self, token: ProbeToken, end: RunEnd, now: Instant) -> News {
        self.in_flight = self.in_flight.saturating_sub(1);
        let Some(Place { uid, container: id }) = self.places.get(&token).cloned() else {
            return News::default();
        };
        let Some(mut entry) = self.pods.remove(&uid) else {
            return News::default();
        };
        self.free_slot(&mut entry);
        let mut news = News::default();
        let pod = entry.pod.clone();
        let FollowedPod { containers, counts, .. } = &mut entry;
        if let Some(container) = containers.iter_mut().find(|container| container.results.id == id) {
            if let Some(probe) = container.probes.iter_mut().find(|probe| probe.token == token) {
                probe.running = None;
                let kind = probe.kind;
                if let RunEnd::Done(outcome) = &end {
                    counts.entry((container.name.clone(), kind)).or_default().add(outcome);
                    news.event = pod
                        .container(&container.name)
                        .and_then(|view| event(&pod, &view, kind, outcome));
                    let success = match outcome {
                        ProbeOutcome::Success { .. } => Some(true),
                        ProbeOutcome::Failure(_) => Some(false),
                        ProbeOutcome::Unknown(_) => None,
                    };
                    if success.is_some_and(|success| probe.tally.count(success, &probe.spec)) {
                        container.results.set(kind, probe.tally.result());
                        news.changed = Some(uid.clone());
                    }
                }
            }
            self.arrange(&uid, container, now);
        }
        if news.changed.is_some() {
            entry.show_results();
        }
        self.pods.insert(uid, entry);
        news
    }

    /// Runs no command in a container any more, and cuts short what runs.
    pub(super) fn stop_commands(&mut self, uid: &PodUid, id: &ContainerId) {
        let Some(mut entry) = self.pods.remove(uid) else { return };
        if let Some(container) = entry.container(id) {
            container.is_stopping = true;
            let mut waiting = Vec::new();
            for probe in container.probes.iter_mut().filter(|probe| probe.is_exec) {
                if let Some(at) = probe.due.take() {
                    self.agenda.take_off(at, probe.token);
                    waiting.push((at, probe.token));
                }
                if let Some(cut) = &probe.running {
                    cut.cancel();
                }
            }
            entry.waiting.retain(|one| !waiting.contains(one));
        }
        self.pods.insert(uid.clone(), entry);
    }

    /// Runs commands in a container again.
    pub(super) fn resume_commands(&mut self, uid: &PodUid, id: &ContainerId, now: Instant) {
        let Some(mut entry) = self.pods.remove(uid) else { return };
        if let Some(container) = entry.container(id) {
            container.is_stopping = false;
            self.arrange(uid, container, now);
        }
        self.pods.insert(uid.clone(), entry);
    }

    /// Whether a command of a probe runs in a container.
    pub(super) fn runs_command(&self, uid: &PodUid, id: &ContainerId) -> bool {
        !self.is_closed
            && self.pods.get(uid).is_some_and(|entry| {
                let of_id = entry.containers.iter().filter(|container| container.results.id == *id);
                of_id
                    .flat_map(|container| &container.probes)
                    .any(|probe| probe.is_exec && probe.running.is_some())
            })
    }
}

fn has_probes(view: &ContainerView<'_>) -> bool {
    view.probes().into_iter().any(|probe| probe.is_some())
}

/// What a person should know of a run.
fn event(pod: &PodRecord, view: &ContainerView<'_>, kind: ProbeKind, outcome: &ProbeOutcome) -> Option<Event> {
    let (reason, message) = match outcome {
        ProbeOutcome::Success { warning: None } => return None,
        ProbeOutcome::Success { warning: Some(text) } => ("ProbeWarning", format!("{kind} probe warning: {text}")),
        ProbeOutcome::Failure(text) => ("Unhealthy", format!("{kind} probe failed: {text}")),
        ProbeOutcome::Unknown(text) => (
            "Unhealthy",
            format!("{kind} probe errored and resulted in unknown state: {text}"),
        ),
    };
    Some(Event::new(
        EventSubject::container(pod, view),
        EventType::Warning,
        reason,
        message,
    ))
}
