//! The probe manager: one task for all probes of a node.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::agenda::ProbeToken;
use super::metrics::Times;
use super::pod::Beginning;
use super::prober::{ProbeKind, Prober};
use super::results::PodProbes;
use super::run::Hands;
use super::state::{Bounds, Course, Run, RunEnd, State};
use crate::clock::{Clock, RandomSource};
use crate::event::EventSink;
use crate::ids::{ContainerId, PodUid};
use crate::metrics::{MetricSet, MetricValue};
use crate::observation::PodObservation;
use crate::pod::PodRecord;
use crate::runtime::ContainerRuntime;
use crate::signals::{PodSignals, Wake};

/// One pod gets no more than this part of the runs that may be under way at once.
const SHARE_OF_POD: usize = 8;

/// What the manager works with.
#[derive(Debug)]
pub(crate) struct ProbeParts {
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    pub(crate) prober: Option<Arc<dyn Prober>>,
    pub(crate) signals: PodSignals,
    pub(crate) events: Arc<dyn EventSink>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn RandomSource>,
    /// How many runs may be under way at once.
    pub(crate) parallel: usize,
}

/// A run that has ended.
#[derive(Debug)]
struct Ended {
    token: ProbeToken,
    kind: ProbeKind,
    took: Duration,
    end: RunEnd,
}

/// Runs the probes of all pods, and knows what they have come to.
///
/// Pods' workers tell it what runs ([`follow`](Self::follow)); it wakes the worker of a pod whose results change. Results are of
/// one container: those of the one before say nothing of it.
#[derive(Debug)]
pub(crate) struct ProbeManager {
    state: Mutex<State>,
    hands: Hands,
    signals: PodSignals,
    events: Arc<dyn EventSink>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn RandomSource>,
    bounds: Bounds,
    began: Timestamp,
    /// Something is due earlier than it was.
    changed: Notify,
    /// Counts runs that ended.
    ended: watch::Sender<u64>,
    times: Times,
}

impl ProbeManager {
    pub(crate) fn new(parts: ProbeParts) -> Self {
        let parallel = parts.parallel.max(1);
        Self {
            state: Mutex::default(),
            hands: Hands {
                runtime: parts.runtime,
                prober: parts.prober,
            },
            signals: parts.signals,
            events: parts.events,
            began: parts.clock.now(),
            clock: parts.clock,
            random: parts.random,
            bounds: Bounds {
                of_node: parallel,
                of_pod: parallel.div_ceil(SHARE_OF_POD),
            },
            changed: Notify::new(),
            ended: watch::Sender::new(0),
            times: Times::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves plain data in a readable state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows what was seen of a pod: begins and ends the probes of its containers, and says what they have come to so far.
    /// Nothing for a pod without probes. `previous` is its status before, `host_ips` are the node's addresses.
    pub(crate) fn follow(
        &self,
        pod: &Arc<PodRecord>,
        observed: &PodObservation,
        previous: &PodStatus,
        host_ips: &[IpAddr],
        course: Course,
    ) -> Option<Arc<PodProbes>> {
        if !pod.facts().has_probes {
            // It may have had some: another version of a pod with a UID of its own.
            self.state().forget(pod.uid());
            return None;
        }
        let own = observed.ips.first().copied();
        let ip = match host_ips.first() {
            Some(host) if pod.facts().host_network => Some(*host),
            // What listens on the host listens here.
            None if pod.facts().host_network => own.or(Some(IpAddr::from([127, 0, 0, 1]))),
            _ => own,
        };
        let from = Beginning {
            now: Instant::now(),
            wall: self.clock.now(),
            agent_began: self.began,
            previous,
            random: &*self.random,
        };
        let (results, is_earlier) = {
            let mut state = self.state();
            let before = state.next(self.bounds);
            let results = state.update(pod, observed, ip, course, &from);
            let after = state.next(self.bounds);
            (
                results,
                after.is_some_and(|after| before.is_none_or(|before| after < before)),
            )
        };
        if is_earlier {
            self.changed.notify_one();
        }
        Some(results)
    }

    /// What the probes of a pod have come to.
    pub(crate) fn results(&self, uid: &PodUid) -> Option<Arc<PodProbes>> {
        self.state().pods.get(uid).map(|pod| pod.results.clone())
    }

    /// Forgets a pod that has left.
    pub(crate) fn forget(&self, uid: &PodUid) {
        self.state().forget(uid);
    }

    /// To be called before a container is stopped: no probe runs a command in it when this returns, and none will. Runtimes are
    /// known to wait for such a command, or to leave it behind.
    pub(crate) async fn before_stop(&self, uid: &PodUid, id: &ContainerId) {
        let mut ended = self.ended.subscribe();
        self.state().stop_commands(uid, id);
        while self.state().runs_command(uid, id) {
            if ended.changed().await.is_err() {
                return;
            }
        }
    }

    /// To be called where a container was not stopped after all: commands are run in it again.
    pub(crate) fn stop_failed(&self, uid: &PodUid, id: &ContainerId) {
        self.state().resume_commands(uid, id, Instant::now());
        self.changed.notify_one();
    }

    /// Runs probes until `stop`; then none is under way any more.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut runs: JoinSet<Ended> = JoinSet::new();
        loop {
            let (due, next) = {
                let mut state = self.state();
                let due = state.take_due(Instant::now(), self.bounds);
                (due, state.next(self.bounds))
            };
            for run in due {
                self.begin(&mut runs, run);
            }
            let timer = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = runs.join_next() => {
                    // Panics are caught in the run itself.
                    if let Ok(ended) = ended {
                        self.finish(ended);
                    }
                }
                () = self.changed.notified() => {}
                () = timer => {}
            }
        }
        runs.shutdown().await;
        self.state().is_closed = true;
        self.ended.send_modify(|ended| *ended += 1);
    }

    fn begin(&self, runs: &mut JoinSet<Ended>, run: Run) {
        self.times.lateness.observe(run.late);
        let hands = self.hands.clone();
        let work = async move {
            let begun = Instant::now();
            let end = hands.carry_out(&run).await;
            Ended {
                token: run.token,
                kind: run.kind,
                took: begun.elapsed(),
                end,
            }
        };
        runs.spawn(work.in_current_span());
    }

    fn finish(&self, ended: Ended) {
        if ended.end != RunEnd::Cut {
            self.times.ran(ended.kind, ended.took);
        }
        let news = self.state().finish(ended.token, ended.end, Instant::now());
        self.ended.send_modify(|ended| *ended += 1);
        if let Some(event) = news.event {
            self.events.record(event);
        }
        if let Some(uid) = news.changed {
            self.signals.wake(&uid, Wake::Probe);
        }
    }

    /// Source: kubelet 1.36, whose `prober_probe_duration_seconds` tells containers apart too.
    pub(crate) fn collect(&self, metrics: &mut MetricSet) {
        const TOTAL: &str = "prober_probe_total";
        const HELP: &str = "Runs of probes by container and outcome.";
        for (uid, pod) in &self.state().pods {
            let key = pod.pod.key();
            for ((container, kind), counts) in &pod.counts {
                let outcomes = [
                    ("successful", counts.successes),
                    ("failed", counts.failures),
                    ("unknown", counts.unknown),
                ];
                for (result, count) in outcomes.into_iter().filter(|(_, count)| *count > 0) {
                    let labels = [
                        ("probe_type", kind.as_str()),
                        ("result", result),
                        ("container", container),
                        ("pod", &*key.name),
                        ("namespace", &*key.namespace),
                        ("pod_uid", uid.as_str()),
                    ];
                    metrics.add(TOTAL, HELP, &labels, MetricValue::Counter(count));
                }
            }
        }
        for kind in ProbeKind::ALL {
            metrics.add(
                "prober_probe_duration_seconds",
                "How long runs of probes take.",
                &[("probe_type", kind.as_str())],
                self.times.of(kind).sample(),
            );
        }
        metrics.add(
            "kubelet_probe_lateness_seconds",
            "From the time that a probe is due until it begins.",
            &[],
            self.times.lateness.sample(),
        );
    }
}
