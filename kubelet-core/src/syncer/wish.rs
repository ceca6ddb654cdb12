//! What is wished for a pod: only ever merged, never replaced.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::pod::PodRecord;
use crate::status::StatusOverride;

/// The time that the containers of a pod get which nobody wishes for, where nothing tells its own. Source: kubelet 1.36,
/// `kubelet_pods.go`.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(1);

/// The most time that a termination gives: as good as for ever, and far from what instants can hold.
const MOST_GRACE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The least time that a termination gives: the kubelet's floor. Source: kubelet 1.36, `pod_workers.go`.
const LEAST_GRACE: Duration = Duration::from_secs(1);

/// Why a pod is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum KillCause {
    /// Its source asked for its end.
    Deleted,
    /// Its source no longer names it.
    Removed,
    /// Nobody wishes for it.
    Orphaned,
    /// It was not admitted.
    Rejected,
    /// It was evicted, pushed out, or killed by an embedder.
    Evicted,
    /// It was active for longer than it may.
    DeadlineExceeded,
    /// All its containers have ended for good.
    Completed,
    /// The kubelet stops, and is to leave nothing running. No end that binds: the next start may start it anew.
    Stopping,
}

/// The wish that a pod end.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Termination {
    /// The time that its containers get, from the moment that they are first asked to stop.
    pub grace: Duration,
    /// When `grace` last became less: it counts from then, for containers that are being stopped.
    pub shortened_at: Instant,
    /// Why.
    pub cause: KillCause,
    /// Whether it was put out by the node: its phase becomes `Failed` whatever its containers say.
    pub evicted: bool,
    /// What its status is to say.
    pub status: Option<StatusOverride>,
}

impl Termination {
    /// The wish that a pod end within `grace`, at least 1 s.
    #[must_use]
    pub fn new(cause: KillCause, grace: Duration) -> Self {
        Self {
            grace: grace.clamp(LEAST_GRACE, MOST_GRACE),
            shortened_at: Instant::now(),
            cause,
            evicted: cause == KillCause::Evicted,
            status: None,
        }
    }

    /// With a status.
    #[must_use]
    pub fn with_status(mut self, status: StatusOverride) -> Self {
        self.status = Some(status);
        self
    }

    /// Takes a later wish in: the least grace counts, an eviction stays one, a status once given is not lost.
    fn merge(&mut self, later: Self) {
        if self.cause == KillCause::Stopping {
            // Every other end binds.
            self.cause = later.cause;
        }
        if later.grace < self.grace {
            self.grace = later.grace;
            self.shortened_at = later.shortened_at;
        }
        self.evicted |= later.evicted;
        // A rejection stays one, whatever is said of the pod afterwards.
        if later.status.is_some() && self.cause != KillCause::Rejected {
            self.status = later.status;
        }
    }
}

/// Where a pod stands with admission.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// It may run.
    Admitted,
    /// It waits for the reason and message shown.
    NotYet {
        /// One CamelCase word.
        reason: String,
        /// A sentence.
        message: String,
    },
}

/// Why a pod does not get other resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ResizeRefusal {
    /// There is no room now.
    Deferred,
    /// This node can never give them.
    Infeasible,
}

impl ResizeRefusal {
    /// The reason of the condition `PodResizePending`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deferred => "Deferred",
            Self::Infeasible => "Infeasible",
        }
    }
}

/// Other resources that a running pod asks for, and was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingResize {
    /// Why not.
    pub refusal: ResizeRefusal,
    /// A sentence.
    pub message: String,
    /// The generation of the pod that asks.
    pub generation: Option<i64>,
    /// Grows with each refusal: the least has waited longest.
    pub(crate) since: u64,
}

/// What is wished for a pod. Only ever merged: the newest pod, the least grace, and a termination never goes away.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PodWish {
    /// The pod; nothing for one that nobody wishes for.
    pub pod: Option<Arc<PodRecord>>,
    /// Where it stands with admission.
    pub standing: Standing,
    /// Whether and how it is to end.
    pub terminate: Option<Termination>,
    /// The other resources that it asks for and was not granted; the pod has those that it was.
    pub resize: Option<Arc<PendingResize>>,
    /// Whether it has left its source: nothing of it is kept once it has ended.
    pub left: bool,
    /// Counts the changes of the pod itself, but for those of the status that its source reports.
    pub revision: u64,
    /// Counts the changes of its spec, but for those of resources: what a step works for is no longer wished then.
    pub spec_revision: u64,
    /// Counts the wake-ups.
    pub nudges: u64,
}

impl PodWish {
    /// A wish for a pod to run.
    #[must_use]
    pub fn run(pod: Arc<PodRecord>, standing: Standing) -> Self {
        Self {
            pod: Some(pod),
            standing,
            terminate: None,
            resize: None,
            left: false,
            revision: 0,
            spec_revision: 0,
            nudges: 0,
        }
    }

    /// A wish for something to end that nobody wished for.
    #[must_use]
    pub fn end_orphan(grace: Duration) -> Self {
        Self {
            pod: None,
            standing: Standing::Admitted,
            terminate: Some(Termination::new(KillCause::Orphaned, grace)),
            resize: None,
            left: true,
            revision: 0,
            spec_revision: 0,
            nudges: 0,
        }
    }

    /// Takes a newer version of the pod in.
    pub fn update(&mut self, pod: Arc<PodRecord>) {
        if self.pod.as_ref().is_none_or(|before| !pod.only_resizes(before)) {
            self.spec_revision += 1;
        }
        self.pod = Some(pod);
        self.revision += 1;
    }

    /// Takes the same pod in with another status from its source.
    pub fn reconcile(&mut self, pod: Arc<PodRecord>) {
        self.pod = Some(pod);
        self.nudges += 1;
    }

    /// Whether nothing but wake-ups came since `earlier`.
    #[must_use]
    pub fn is_as_before(&self, earlier: &Self) -> bool {
        self.revision == earlier.revision && !self.outdates_step(earlier)
    }

    /// Whether a step that began with `earlier` works for what is no longer wished. New labels alone are no reason to
    /// give up a pull.
    #[must_use]
    pub fn outdates_step(&self, earlier: &Self) -> bool {
        let same_end = match (&self.terminate, &earlier.terminate) {
            (Some(a), Some(b)) => a.grace == b.grace && a.evicted == b.evicted && a.cause == b.cause,
            (None, None) => true,
            _ => false,
        };
        !same_end
            || self.spec_revision != earlier.spec_revision
            || self.standing != earlier.standing
            || self.left != earlier.left
    }

    /// Whether the pod is only stopped because the kubelet is: the next start goes on with it.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.terminate
            .as_ref()
            .is_some_and(|end| end.cause == KillCause::Stopping)
    }

    /// Takes the wish in that the pod end.
    pub fn end(&mut self, termination: Termination) {
        match &mut self.terminate {
            Some(already) => already.merge(termination),
            None => self.terminate = Some(termination),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::{KillCause, PodWish, Standing, Termination};
    use crate::pod::testing::record;

    #[tokio::test(start_paused = true)]
    async fn an_eviction_followed_by_an_update_is_still_an_eviction() {
        let pod = std::sync::Arc::new(record(json!({"spec": {"containers": []}})));
        let mut wish = PodWish::run(pod.clone(), Standing::Admitted);
        wish.end(Termination::new(KillCause::Evicted, Duration::from_secs(30)));
        wish.update(pod);
        wish.end(Termination::new(KillCause::Deleted, Duration::from_secs(60)));
        let termination = wish.terminate.unwrap();
        assert!(termination.evicted);
        assert_eq!(termination.grace, Duration::from_secs(30));
        assert_eq!(termination.cause, KillCause::Evicted);
    }

    #[tokio::test(start_paused = true)]
    async fn grace_only_shrinks_and_counts_from_when_it_shrank() {
        let pod = std::sync::Arc::new(record(json!({"spec": {"containers": []}})));
        let mut wish = PodWish::run(pod, Standing::Admitted);
        wish.end(Termination::new(KillCause::Deleted, Duration::from_secs(600)));
        let first = wish.terminate.clone().unwrap().shortened_at;
        tokio::time::advance(Duration::from_secs(5)).await;
        wish.end(Termination::new(KillCause::Deleted, Duration::ZERO));
        let termination = wish.terminate.unwrap();
        assert_eq!(termination.grace, Duration::from_secs(1));
        assert_eq!(termination.shortened_at - first, Duration::from_secs(5));
    }
}
