//! Whether memory limits can be lowered: not below what is used, which the kernel would take back by killing.
//!
//! Source: kubelet 1.36, `kuberuntime_manager.go`.

use super::{Lags, limit, tell};
use crate::containers::ContainerSyncer;
use crate::ids::ContainerId;
use crate::stats::{MemoryUsage, StatsScope, StatsSnapshot};
use crate::syncer::{StepContext, SyncError};

/// A memory limit that is to be lowered, or to be there at all.
#[derive(Debug)]
struct Decrease<'a> {
    /// Nothing: of the pod as a whole.
    container: Option<(&'a str, &'a ContainerId)>,
    to: u64,
}

impl Decrease<'_> {
    /// Why it cannot be done. Its text is the same as long as it cannot be: it is in the status of the pod.
    fn refusal(&self, usage: Option<&StatsSnapshot>, restarted: &[ContainerId]) -> Option<String> {
        let (of, used) = match self.container {
            Some((name, id)) => (
                format!("container {name}"),
                usage.and_then(|usage| container_usage(usage, id)),
            ),
            None => (
                "the pod".to_owned(),
                usage.and_then(|usage| pod_usage(usage, restarted)),
            ),
        };
        match used {
            None => Some(format!("how much memory {of} uses is not known")),
            Some(used) if used >= self.to => Some(format!("{of} uses as much as the new limit of {} bytes", self.to)),
            Some(_) => None,
        }
    }
}

fn used(memory: Option<&MemoryUsage>) -> Option<u64> {
    memory?.usage_bytes
}

fn container_usage(usage: &StatsSnapshot, id: &ContainerId) -> Option<u64> {
    let container = usage.containers.iter().find(|container| container.id == *id)?;
    used(container.memory.as_ref())
}

/// What the pod uses but for the containers that are about to be started anew.
fn pod_usage(usage: &StatsSnapshot, restarted: &[ContainerId]) -> Option<u64> {
    // It was asked about this pod alone.
    let all = used(usage.pods.first()?.memory.as_ref())?;
    let given_back = restarted.iter().filter_map(|id| container_usage(usage, id));
    Some(all.saturating_sub(given_back.sum()))
}

impl ContainerSyncer {
    /// Checks, before anything is changed, that no memory limit goes below what is used.
    ///
    /// Where nobody measures it is left to the runtime and the kernel: without a source of usage no limit could ever be lowered.
    pub(in crate::containers) async fn check_decreases(
        &self,
        cx: &StepContext,
        lags: &Lags<'_>,
    ) -> Result<(), SyncError> {
        if self.node.stats.is_empty() {
            return Ok(());
        }
        let changes = self.changes(lags);
        let falling = changes
            .iter()
            .filter(|change| limit(change.to.memory_limit_bytes) < limit(change.from.memory_limit_bytes));
        let mut decreases: Vec<Decrease<'_>> = falling
            .map(|change| Decrease {
                container: Some((change.view.name(), change.id)),
                to: change.to.memory_limit_bytes.unsigned_abs(),
            })
            .collect();
        let pod = &*lags.work.pod;
        let restarted = lags.to_restart();
        let running = lags.work.observed.containers.iter().filter(|seen| seen.is_running());
        let mut staying = running.filter(|seen| !restarted.contains(&seen.id));
        if staying.next().is_some() {
            let to = self.lower_memory_of_pod(pod, lags.before.spec()).await;
            decreases.extend(to.map(|to| Decrease { container: None, to }));
        }
        if decreases.is_empty() {
            return Ok(());
        }
        let scope = StatsScope::Pod(pod.uid().clone());
        let usage = tokio::select! {
            biased;
            () = cx.stop.cancelled() => return Err(SyncError::Stopped),
            usage = self.node.stats.collect(scope) => usage,
        };
        let known = usage.as_deref().ok();
        let Some(why) = decreases
            .iter()
            .find_map(|decrease| decrease.refusal(known, &restarted))
        else {
            return Ok(());
        };
        let what = "cannot decrease memory limits".to_owned();
        tell(cx, pod, format!("{what}: {why}"));
        Err(SyncError::failed(what, why))
    }
}
