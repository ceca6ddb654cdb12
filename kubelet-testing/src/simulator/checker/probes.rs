//! What is done and told for probes follows from their runs.

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{PodStatus, Probe};
use kubelet_core::{PodUid, ProbeKind};
use tokio::time::Instant;

use super::{Checker, Instance, number};
use crate::simulator::Invariant;
use crate::simulator::health::{ProbeKill, kind_of};

/// The runs of one container's probes, in their order.
pub(crate) type Runs = BTreeMap<ProbeKind, Vec<(Instant, bool)>>;

/// What was last told to have come up: container id by name.
pub(crate) type Started = BTreeMap<String, String>;

fn threshold(probe: &Probe, success: bool) -> usize {
    let given = if success {
        probe.success_threshold.unwrap_or(1)
    } else {
        probe.failure_threshold.unwrap_or(3)
    };
    usize::try_from(given).unwrap_or(1).max(1)
}

impl Instance {
    /// Whether a probe had as many equal outcomes in a row as it takes to say so, the last of them from `since` to `until`.
    fn had_streak(&self, kind: ProbeKind, success: bool, times: usize, since: Instant, until: Instant) -> bool {
        let mut in_a_row = 0;
        for (at, outcome) in self.runs.get(&kind).into_iter().flatten() {
            in_a_row = if *outcome == success { in_a_row + 1 } else { 0 };
            if in_a_row >= times && (since..=until).contains(at) {
                return true;
            }
        }
        false
    }
}

impl Checker {
    pub(super) fn note_run(&mut self, at: Instant, container: u64, command: &[String], success: bool) {
        if let (Some(kind), Some(instance)) = (kind_of(command), self.instances.get_mut(&container)) {
            instance.runs.entry(kind).or_default().push((at, success));
        }
    }

    /// A container is only stopped for a probe that has just failed as often in a row as its threshold.
    pub(crate) fn probe_kills(&mut self, at: Instant, kill: &ProbeKill) {
        let Some(book) = self.books.get(&kill.pod) else { return };
        let Some(probe) = book
            .pod
            .container(&kill.container)
            .and_then(|view| view.probe(kill.kind))
        else {
            return;
        };
        let times = threshold(probe, false);
        let because = self.of_pod(&kill.pod).any(|(_, instance)| {
            // It may have ended by itself, which nobody has seen yet.
            let lived = instance.started.is_some_and(|started| started <= at);
            let runs = instance.runs.get(&kill.kind).into_iter().flatten();
            let last: Vec<bool> = runs
                .filter(|(ran, _)| *ran <= at)
                .map(|(_, success)| *success)
                .collect();
            let failed = last.len() >= times && last.iter().rev().take(times).all(|success| !success);
            instance.name == kill.container && lived && failed
        });
        if !because {
            let what = format!(
                "{} of pod {} is stopped for its {} probe, which has not failed {times} times in a row",
                kill.container, kill.pod, kill.kind
            );
            self.breach(at, Invariant::Probes, what);
        }
    }

    /// What is told of a container follows from its probes: it has come up and is ready only once they said so, over restarts of
    /// the agent too, and one that has come up stays so.
    pub(super) fn check_probed(&self, at: Instant, uid: &PodUid, status: &PodStatus) -> Vec<(Invariant, String)> {
        let Some(book) = self.books.get(uid) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let lists = [&status.init_container_statuses, &status.container_statuses];
        for told in lists.into_iter().flatten().flatten() {
            let runs = told.state.as_ref().is_some_and(|state| state.running.is_some());
            let Some(view) = book.pod.container(&told.name).filter(|_| runs) else {
                continue;
            };
            let id = told.container_id.as_deref().and_then(|id| id.rsplit('/').next());
            let Some(instance) = number(id).and_then(|n| self.instances.get(&n)) else {
                continue;
            };
            for (kind, said) in [
                (ProbeKind::Startup, told.started == Some(true)),
                (ProbeKind::Readiness, told.ready),
            ] {
                let Some(probe) = view.probe(kind).filter(|_| said) else {
                    continue;
                };
                if !instance.had_streak(kind, true, threshold(probe, true), instance.made, at) {
                    let what = format!(
                        "{} of pod {uid} passed its {kind} probe, which never said so",
                        told.name
                    );
                    found.push((Invariant::Probes, what));
                }
            }
            let had_come_up = book.told.started.get(&told.name) == told.container_id.as_ref();
            if had_come_up && told.started != Some(true) {
                let what = format!("{} of pod {uid} had come up, and has not any more", told.name);
                found.push((Invariant::Probes, what));
            }
        }
        found
    }

    /// Whether a probe of the pod gave reason to say that it is not ready any more.
    pub(super) fn has_failed_readiness(&self, uid: &PodUid, since: Instant, at: Instant) -> bool {
        // What is told may be old by the time that the sink takes it.
        let since = since.checked_sub(Duration::from_secs(20)).unwrap_or(since);
        let Some(book) = self.books.get(uid) else { return false };
        self.of_pod(uid).any(|(_, instance)| {
            let view = book.pod.container(&instance.name);
            let probe = view.and_then(|view| view.probe(ProbeKind::Readiness));
            probe.is_some_and(|probe| {
                instance.had_streak(ProbeKind::Readiness, false, threshold(probe, false), since, at)
            })
        })
    }
}

/// The containers that are told to run and to have come up.
pub(super) fn started(status: &PodStatus) -> Started {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.filter(|c| c.started == Some(true))
        .filter_map(|c| Some((c.name.clone(), c.container_id.clone()?)))
        .collect()
}
