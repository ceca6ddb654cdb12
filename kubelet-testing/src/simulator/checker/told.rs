//! What is told of a pod.

use std::collections::BTreeMap;

use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::{ContainerKind, PodUid, pod_is_terminal};
use tokio::time::Instant;

use super::Checker;
use super::probes::{Started, started};
use crate::simulator::Invariant;
use crate::simulator::cluster::REJECTION;

/// What was last told of one life of a pod.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) phase: Option<String>,
    pub(crate) reason: Option<String>,
    counts: BTreeMap<String, i32>,
    ready: Option<(Instant, bool)>,
    pub(super) started: Started,
    pub(crate) finished: bool,
    /// The pod was named again while its old life went on: what is told until it is forgotten is of that life.
    old_life: bool,
}

impl Told {
    /// The restart count that was last told of a container of this life.
    pub(super) fn count(&self, name: &str) -> Option<i64> {
        let count = self.counts.get(name).filter(|_| !self.old_life)?;
        Some(i64::from(*count))
    }

    pub(super) fn begin_again(&mut self) {
        self.old_life = true;
    }
}

fn is_ready(status: &PodStatus) -> bool {
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    ready.is_some_and(|c| c.status == "True")
}

impl Checker {
    pub(crate) fn forgotten(&mut self, uid: &PodUid) {
        if let Some(book) = self.books.get_mut(uid) {
            book.told = Told::default();
        }
    }

    /// What was told last may not be on the disk: a write that fails holds no status back. What probes have found is known from
    /// nowhere else then.
    pub(crate) fn disk_was_lost(&mut self) {
        for book in self.books.values_mut().filter(|book| book.pod.facts().has_probes) {
            book.told.started.clear();
            book.told.ready = None;
        }
    }

    /// Judges one status that the sink took.
    ///
    /// - A final phase stays, over restarts of the agent too. Only a rejection of a static pod ends with the agent's life.
    /// - Restart counts do not go back.
    /// - A pod that was ready is not told unready while all its containers go on, no probe says so, and nobody wishes for its end.
    /// - What is told of probes follows from their runs.
    pub(crate) fn told(&mut self, at: Instant, uid: &PodUid, status: &PodStatus, finished: bool) {
        let Some(book) = self.books.get(uid) else { return };
        self.resizes.told(uid, status);
        let told = &book.told;
        let mut found = Vec::new();
        if let Some(before) = told.phase.as_deref().filter(|_| !told.old_life) {
            let was_final = matches!(before, "Succeeded" | "Failed");
            let rejected = told.reason.as_deref() == Some(REJECTION) && book.pod.is_static();
            if was_final && status.phase.as_deref() != Some(before) && !rejected {
                let what = format!("pod {uid} went from {before} to {:?}", status.phase);
                found.push((Invariant::FinalPhase, what));
            }
        }
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let counts: BTreeMap<String, i32> = lists
            .into_iter()
            .flatten()
            .flatten()
            .map(|c| (c.name.clone(), c.restart_count))
            .collect();
        for (name, before) in &told.counts {
            let now = counts.get(name).copied().unwrap_or(0);
            if now < *before && !told.old_life {
                let what = format!("count of {name} of pod {uid} went from {before} to {now}");
                found.push((Invariant::RestartCount, what));
            }
        }
        let ready = is_ready(status);
        if let Some((since, true)) = told.ready.filter(|_| !ready && !told.old_life)
            && book.ended.is_none()
            && !pod_is_terminal(status)
            && self.is_undisturbed(uid, since)
            && !self.has_failed_readiness(uid, since, at)
        {
            let what = format!("pod {uid} was ready, nothing happened to it, and it is not ready");
            found.push((Invariant::Readiness, what));
        }
        found.extend(self.check_probed(at, uid, status));
        for (invariant, what) in found {
            self.breach(at, invariant, what);
        }
        if let Some(book) = self.books.get_mut(uid) {
            book.told.phase.clone_from(&status.phase);
            book.told.reason.clone_from(&status.reason);
            book.told.counts = counts;
            book.told.ready = Some((at, ready));
            book.told.started = started(status);
            book.told.finished = finished;
        }
    }

    /// Whether all containers of a pod run, and did so then, and some time before.
    fn is_undisturbed(&self, uid: &PodUid, since: Instant) -> bool {
        // A status may be old by the time that the sink takes it.
        let since = since.checked_sub(std::time::Duration::from_secs(20)).unwrap_or(since);
        let Some(book) = self.books.get(uid) else { return false };
        book.pod
            .containers()
            .filter(|view| matches!(view.kind(), ContainerKind::Regular | ContainerKind::Sidecar))
            .all(|view| {
                let mut mine = self.of_pod(uid).filter(|(_, instance)| instance.name == view.name());
                mine.any(|(_, instance)| instance.runs() && instance.started.is_some_and(|started| started < since))
            })
    }
}
