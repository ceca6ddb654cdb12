//! The limits of a pod as a whole: the runtime is told of them, then its cgroup is given them.

use super::{Lags, limit};
use crate::cgroups::{CgroupError, PodLimits};
use crate::containers::ContainerSyncer;
use crate::containers::config::NO_QUOTA;
use crate::ids::SandboxId;
use crate::pod::PodRecord;
use crate::runtime::{LinuxResources, RuntimeError, SandboxState, Target};
use crate::syncer::{StepContext, StepNotes};

/// How far the limits of a pod as a whole have come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// What it had.
    Had = 0,
    /// Room for both.
    Between = 1,
    /// What it was granted.
    Granted = 2,
}

/// The limits of a pod as a whole, at each point of the way.
#[derive(Debug)]
pub(super) struct Whole {
    sandbox: Option<(SandboxId, [LinuxResources; 3])>,
    overhead: Option<LinuxResources>,
    cgroup: Option<[PodLimits; 3]>,
    /// What it has is not known: it is told and given all again.
    is_unsettled: bool,
}

/// Why the limits of a pod as a whole could not be changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WholeError {
    #[error("the runtime does not take them")]
    Runtime(#[source] RuntimeError),
    #[error("its cgroup does not")]
    Cgroup(#[source] CgroupError),
}

/// Limits that are no less than either.
fn widest(a: &LinuxResources, b: &LinuxResources) -> LinuxResources {
    let most = |a: i64, b: i64| if limit(a) > limit(b) { a } else { b };
    let mut widest = b.clone();
    widest.cpu_shares = a.cpu_shares.max(b.cpu_shares);
    widest.cpu_quota = most(a.cpu_quota, b.cpu_quota);
    widest.memory_limit_bytes = most(a.memory_limit_bytes, b.memory_limit_bytes);
    widest
}

impl ContainerSyncer {
    /// The limits that a pod's sandbox is told of.
    pub(in crate::containers) fn limits_of_sandbox(&self, pod: &PodRecord) -> LinuxResources {
        let mut limits = self.node.resources.of_sandbox(pod);
        if self.has_exclusive_cpus(pod) {
            limits.cpu_quota = NO_QUOTA;
        }
        limits
    }

    pub(super) async fn whole_of(&self, lags: &Lags<'_>) -> Result<Whole, CgroupError> {
        let (pod, before) = (&*lags.work.pod, &lags.before);
        let (had, granted) = (self.limits_of_sandbox(before), self.limits_of_sandbox(pod));
        let newest = lags.work.observed.newest_sandbox();
        let ready = newest.filter(|sandbox| sandbox.state == SandboxState::Ready);
        let between = widest(&had, &granted);
        Ok(Whole {
            sandbox: ready.map(|sandbox| (sandbox.id.clone(), [had, between, granted])),
            overhead: self.node.resources.of_overhead(pod),
            cgroup: self.cgroup_on_way(pod, before.spec(), lags.is_unsettled).await?,
            is_unsettled: lags.is_unsettled,
        })
    }

    /// Goes on from one point of the way to another.
    pub(super) async fn go_on(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        whole: &Whole,
        (from, to): (Way, Way),
    ) -> Result<(), WholeError> {
        let is_news = whole.is_unsettled || whole.tell(from) != whole.tell(to);
        if is_news {
            self.tell_sandbox(&cx.notes, whole, to)
                .await
                .map_err(WholeError::Runtime)?;
        }
        let Some(cgroup) = &whole.cgroup else {
            return Ok(());
        };
        let Err(error) = self.change_cgroup(pod, &cgroup[to as usize]).await else {
            return Ok(());
        };
        if is_news && let Err(error) = self.tell_sandbox(&cx.notes, whole, from).await {
            // All of it is tried again.
            let error: &dyn std::error::Error = &error;
            tracing::debug!(pod = %pod.key(), error, "the runtime was told of limits that the pod has not got");
        }
        Err(WholeError::Cgroup(error))
    }

    async fn tell_sandbox(&self, notes: &StepNotes, whole: &Whole, of: Way) -> Result<(), RuntimeError> {
        let Some((id, limits)) = whole.tell(of) else {
            return Ok(());
        };
        let overhead = whole.overhead.as_ref();
        match self.call_update(notes, Target::Sandbox { id, overhead }, limits).await {
            // Most runtimes have nothing to do with it.
            Err(RuntimeError::Unsupported { .. }) => Ok(()),
            answer => answer,
        }
    }
}

impl Whole {
    fn tell(&self, of: Way) -> Option<(&SandboxId, &LinuxResources)> {
        let (id, limits) = self.sandbox.as_ref()?;
        Some((id, &limits[of as usize]))
    }
}
