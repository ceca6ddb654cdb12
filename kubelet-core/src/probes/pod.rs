//! One pod whose probes are followed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::agenda::ProbeToken;
use super::metrics::Counts;
use super::prober::ProbeKind;
use super::results::{ContainerProbes, PodProbes};
use super::spec::ProbeSpec;
use super::tally::Tally;
use crate::clock::RandomSource;
use crate::ids::ContainerId;
use crate::observation::ObservedContainer;
use crate::pod::{ContainerView, PodRecord};
use crate::status::{told_containers, told_id, told_running};

#[derive(Debug)]
pub(super) struct FollowedPod {
    pub(super) pod: Arc<PodRecord>,
    pub(super) ip: Option<IpAddr>,
    /// Its running containers that have probes.
    pub(super) containers: Vec<FollowedContainer>,
    pub(super) results: Arc<PodProbes>,
    pub(super) counts: BTreeMap<(Box<str>, ProbeKind), Counts>,
    pub(super) in_flight: usize,
    /// Probes that are due and wait for others of this pod.
    pub(super) waiting: BTreeSet<(Instant, ProbeToken)>,
}

type Specs = [Option<(ProbeSpec, bool)>; ProbeKind::ALL.len()];

#[derive(Debug)]
pub(super) struct FollowedContainer {
    pub(super) name: Box<str>,
    pub(super) results: ContainerProbes,
    pub(super) probes: Vec<FollowedProbe>,
    spec: Specs,
    /// Its other probes wait for its startup probe.
    pub(super) is_gated: bool,
    /// It is about to be stopped: no command is run in it any more.
    pub(super) is_stopping: bool,
}

#[derive(Debug)]
pub(super) struct FollowedProbe {
    pub(super) token: ProbeToken,
    pub(super) kind: ProbeKind,
    pub(super) spec: ProbeSpec,
    pub(super) is_exec: bool,
    pub(super) tally: Tally,
    /// Not before this.
    pub(super) earliest: Instant,
    /// When its first and its last run were due: all are whole periods apart.
    pub(super) ran: Option<(Instant, Instant)>,
    /// When it is due next.
    pub(super) due: Option<Instant>,
    /// Ends the run that is under way.
    pub(super) running: Option<CancellationToken>,
}

/// What the first runs of a container's probes depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beginning<'a> {
    pub(super) now: Instant,
    pub(super) wall: Timestamp,
    /// When this life of the agent began.
    pub(super) agent_began: Timestamp,
    /// The pod's status before.
    pub(super) previous: &'a PodStatus,
    pub(super) random: &'a dyn RandomSource,
}

impl FollowedPod {
    pub(super) fn new(pod: Arc<PodRecord>) -> Self {
        Self {
            pod,
            ip: None,
            containers: Vec::new(),
            results: Arc::default(),
            counts: BTreeMap::new(),
            in_flight: 0,
            waiting: BTreeSet::new(),
        }
    }

    pub(super) fn container(&mut self, id: &ContainerId) -> Option<&mut FollowedContainer> {
        self.containers.iter_mut().find(|container| container.results.id == *id)
    }

    pub(super) fn show_results(&mut self) {
        let results = self.containers.iter().map(|container| container.results.clone());
        let results = PodProbes::new(results.collect());
        if *self.results != results {
            self.results = Arc::new(results);
        }
    }
}

impl FollowedContainer {
    /// A container that was not followed yet.
    ///
    /// Source: kubelet 1.36, `prober/worker.go`. Other than there, one that ran before this life of the agent has the results
    /// that its last status tells, so that nothing is unsaid; and only its probes begin at a random time.
    pub(super) fn begin(
        view: &ContainerView<'_>,
        seen: &ObservedContainer,
        from: &Beginning<'_>,
        mut token: impl FnMut() -> ProbeToken,
    ) -> Self {
        let before = status_before(from.previous, &seen.id);
        let was_started = before.and_then(|status| status.started).unwrap_or(false);
        let was_ready = was_started && before.is_some_and(|status| status.ready);
        let is_survivor = before.is_some() || seen.started_at.is_some_and(|started| started < from.agent_began);
        let mut container = Self {
            name: view.name().into(),
            results: ContainerProbes::new(seen.id.clone()),
            probes: Vec::new(),
            spec: specs_of(view),
            is_gated: view.probe(ProbeKind::Startup).is_some(),
            is_stopping: false,
        };
        for kind in ProbeKind::ALL {
            let Some(probe) = view.probe(kind) else { continue };
            let spec = ProbeSpec::of(probe);
            let known = match kind {
                ProbeKind::Startup => was_started,
                ProbeKind::Readiness => was_ready,
                ProbeKind::Liveness => false,
            };
            let result = known.then_some(true);
            container.results.set(kind, result);
            let mut earliest = from.now + delay_left(seen.started_at, from.wall, &spec);
            if is_survivor {
                // An agent that starts anew would run the probes of all pods at once, each period.
                let unit = (from.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                earliest = earliest.max(from.now + spec.period.mul_f64(unit));
            }
            container.probes.push(FollowedProbe {
                token: token(),
                kind,
                spec,
                is_exec: probe.exec.is_some(),
                tally: Tally::with_result(result),
                earliest,
                ran: None,
                due: None,
                running: None,
            });
        }
        container
    }

    /// Whether its probes are those of a spec, but for what is no longer asked.
    pub(super) fn has_probes_of(&self, view: &ContainerView<'_>) -> bool {
        self.spec == specs_of(view)
    }

    /// Whether its startup probe, if it has one, has succeeded.
    pub(super) fn is_started(&self) -> bool {
        !self.is_gated || self.results.startup == Some(true)
    }
}

/// The numbers of a container's probes, and whether they run commands.
fn specs_of(view: &ContainerView<'_>) -> Specs {
    ProbeKind::ALL.map(|kind| {
        let probe = view.probe(kind)?;
        Some((ProbeSpec::of(probe), probe.exec.is_some()))
    })
}

/// What is left of the initial delay. The clock may have been set meanwhile: it is never longer than the delay.
fn delay_left(started: Option<Timestamp>, wall: Timestamp, spec: &ProbeSpec) -> Duration {
    let since = started.map_or(Duration::ZERO, |started| {
        wall.duration_since(started).try_into().unwrap_or_default()
    });
    spec.initial_delay.saturating_sub(since)
}

/// What was said of this very container before.
fn status_before<'a>(previous: &'a PodStatus, id: &ContainerId) -> Option<&'a ContainerStatus> {
    told_containers(previous).find(|told| told_id(told) == Some(id.as_str()) && told_running(told))
}
