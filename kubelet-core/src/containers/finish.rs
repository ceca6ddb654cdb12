//! Clearing up after a pod whose containers have stopped.

use std::collections::{BTreeMap, BTreeSet};

use super::ContainerSyncer;
use crate::ids::{ContainerId, PodKey, PodUid};
use crate::observation::{ObservedContainer, PodObservation};
use crate::runtime::SandboxState;
use crate::syncer::{Doomed, Remains, StepContext, SyncError};

impl ContainerSyncer {
    pub(super) async fn finish_pod(
        &self,
        cx: &StepContext,
        doomed: Doomed<'_>,
        remains: Remains,
    ) -> Result<(), SyncError> {
        let observed = doomed.observed();
        let key = match (&observed.key, doomed) {
            (_, Doomed::Pod(work)) => Some(work.pod.key().clone()),
            (key, Doomed::Orphan(_)) => key.clone(),
        };
        self.remove_ended(cx, observed, key.as_ref(), remains).await?;
        // Before the cgroup, which memory of volumes is counted in.
        self.volumes_gone(cx, doomed.uid()).await?;
        if let Some(keeper) = &self.node.cgroups {
            let destroyed = keeper.destroy(doomed.uid()).await;
            destroyed.map_err(|error| SyncError::failed("cannot remove the cgroup of the pod", error))?;
        }
        let has_users = match doomed {
            Doomed::Pod(work) => work.pod.spec().host_users == Some(false),
            // Nobody knows any more.
            Doomed::Orphan(_) => true,
        };
        if has_users {
            let released = self.node.users.release(doomed.uid()).await;
            released.map_err(|error| SyncError::failed("cannot take back the users of the pod", error))?;
        }
        if remains == Remains::Remove {
            let pod_dir = self.pod_dir(doomed.uid());
            let logs = key.map(|key| self.node.logs.pod_dir(&key.namespace, &key.name, doomed.uid().as_str()));
            self.node
                .files
                .remove_pod(pod_dir, logs)
                .await
                .map_err(|error| SyncError::failed("cannot remove the folders of the pod", error))?;
            match doomed {
                Doomed::Pod(_) => self.clear_links_of(doomed.uid()).await,
                // What an earlier life linked for it nobody knows any more.
                Doomed::Orphan(_) => self.clear_links().await,
            }
        }
        Ok(())
    }

    /// Removes containers and sandboxes: all, or all but those that tell how the pod ended.
    async fn remove_ended(
        &self,
        cx: &StepContext,
        observed: &PodObservation,
        key: Option<&PodKey>,
        remains: Remains,
    ) -> Result<(), SyncError> {
        let (mut newer, mut kept): (BTreeMap<&str, u32>, BTreeSet<&ContainerId>) = Default::default();
        for container in &observed.containers {
            // Newest first: the first of each name is the one to keep in any case.
            let newer = newer.entry(&container.name).or_default();
            if remains == Remains::Keep && self.stays_after_end(container, *newer) {
                *newer += 1;
                kept.insert(&container.id);
                continue;
            }
            self.remove_container(cx, container, (key, &observed.uid), remains)
                .await?;
        }
        for (index, sandbox) in observed.sandboxes.iter().enumerate() {
            if remains == Remains::Keep && index == 0 {
                continue;
            }
            if sandbox.state == SandboxState::Ready {
                self.call_stop_sandbox(&cx.notes, &sandbox.id)
                    .await
                    .map_err(|error| SyncError::failed(format!("cannot stop sandbox {}", sandbox.id), error))?;
            }
            let in_use = remains == Remains::Keep
                && observed
                    .containers
                    .iter()
                    .any(|c| c.sandbox_id.as_ref() == Some(&sandbox.id) && kept.contains(&c.id));
            if !in_use {
                self.call_remove_sandbox(&cx.notes, &sandbox.id)
                    .await
                    .map_err(|error| SyncError::failed(format!("cannot remove sandbox {}", sandbox.id), error))?;
            }
        }
        self.note_dead(observed, |container| kept.contains(&container.id));
        Ok(())
    }

    /// Removes a container, the link to its log, and its log with it unless the pod's logs go as a whole.
    pub(super) async fn remove_container(
        &self,
        cx: &StepContext,
        container: &ObservedContainer,
        (pod, uid): (Option<&PodKey>, &PodUid),
        remains: Remains,
    ) -> Result<(), SyncError> {
        if let (Remains::Keep, Some(log)) = (remains, container.log_path.clone())
            && let Err(error) = self.node.files.remove_logs(log).await
        {
            tracing::debug!(error = &error as &dyn std::error::Error, container = %container.id, "log not removed");
        }
        if let Some(pod) = pod {
            self.unlink_log(pod, uid, container).await;
        }
        self.call_remove(&cx.notes, &container.id)
            .await
            .map_err(|error| SyncError::failed(format!("cannot remove container {}", container.id), error))
    }
}
