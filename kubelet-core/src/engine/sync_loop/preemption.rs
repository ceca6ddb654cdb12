//! Pods that are pushed out to make room for a critical one.
//!
//! All victims are ended at once. Their end stays wished for, whatever becomes of the pod that they make room for: an end that has
//! begun is not taken back. A restarted agent chooses anew, among what still runs.
//!
//! Source: kubelet 1.36, `preemption/preemption.go`, which ends one after the other and holds up all other admissions meanwhile.

use std::time::Duration;

use tokio::time::Instant;

use super::SyncLoop;
use crate::admission::Decision;
use crate::ids::PodUid;
use crate::pod::PodRecord;
use crate::status::StatusOverride;
use crate::syncer::{KillCause, Termination};

/// The reason of a pod that was pushed out.
pub(super) const PREEMPTING: &str = "Preempting";
const MESSAGE: &str = "Preempted in order to admit critical pod";
const DISRUPTION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// The least time that a pod is waited for. Source: kubelet 1.36, `pod_workers.go`.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);

impl SyncLoop {
    /// Ends those who are to make room for a pod, and sees to it that nobody is waited for without end.
    pub(super) fn make_room(&mut self, critical: &PodUid, decision: &Decision) {
        for victim in &decision.victims {
            self.push_out(critical, victim);
        }
        for awaited in &decision.awaited {
            self.await_end(critical, awaited);
        }
    }

    fn push_out(&self, critical: &PodUid, victim: &PodUid) {
        let Some(pod) = self.shared.ledger.active().get(victim).cloned() else {
            return;
        };
        tracing::info!(pod = %pod.key(), pod_uid = %victim, critical = %critical, "pushing a pod out for a critical one");
        self.shared.warn_pod(&pod, PREEMPTING, MESSAGE.to_owned());
        let status = StatusOverride::new(PREEMPTING, MESSAGE).with_disruption(DISRUPTION);
        let end = Termination::new(KillCause::Evicted, pod.facts().termination_grace).with_status(status);
        self.wish(victim, |wish| wish.end(end));
    }

    /// Waits for half as much again as a pod has to end, as upstream does, then gives up on it: it is still being ended, but
    /// the critical pod does not wait.
    fn await_end(&mut self, critical: &PodUid, awaited: &PodUid) {
        // It may have ended while the agent was down, and nobody ends it.
        if self.unseen.contains(awaited) {
            return;
        }
        let pair = (critical.clone(), awaited.clone());
        if !self.awaited.insert(pair.clone()) {
            return;
        }
        let grace = self.shared.workers().get(awaited).and_then(|link| {
            let wish = link.wish.borrow();
            wish.terminate.as_ref().map(|end| end.grace)
        });
        let until = Instant::now() + LEAST_PATIENCE.max(grace.unwrap_or_default().mul_f64(1.5));
        self.overdue.push(Box::pin(async move {
            tokio::time::sleep_until(until).await;
            pair
        }));
    }

    /// A pod has had the time that it had to end, for the sake of a critical one.
    pub(super) fn should_have_ended(&mut self, pair: (PodUid, PodUid)) {
        self.awaited.remove(&pair);
        let (critical, awaited) = pair;
        if !self.shared.ledger.give_up_on(&awaited, &critical) {
            return;
        }
        if let Some(pod) = self.entries.get(&awaited).map(|entry| &entry.pod) {
            self.tell_overdue(pod);
        }
        self.ask_again();
    }

    fn tell_overdue(&self, pod: &PodRecord) {
        self.shared.warn_pod(
            pod,
            "ExceededGracePeriod",
            "Container runtime did not kill the pod within specified grace period.".to_owned(),
        );
    }
}
