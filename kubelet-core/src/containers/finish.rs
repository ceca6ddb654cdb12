//! Clearing up after a pod whose containers have stopped.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::ContainerSyncer;
use crate::ids::PodUid;
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
        self.remove_ended(cx, observed, remains).await?;
        if remains == Remains::Remove {
            let pod_dir = self.pod_dir(doomed.uid());
            let logs = match (&observed.key, doomed) {
                (_, Doomed::Pod(work)) => Some(work.pod.key().clone()),
                (key, Doomed::Orphan(_)) => key.clone(),
            }
            .map(|key| self.node.logs.pod_dir(&key.namespace, &key.name, doomed.uid().as_str()));
            let uid = doomed.uid().clone();
            remove_folders(uid, pod_dir, logs).await?;
        }
        Ok(())
    }

    /// Removes containers and sandboxes: all, or all but the newest that tell how the pod ended.
    async fn remove_ended(
        &self,
        cx: &StepContext,
        observed: &PodObservation,
        remains: Remains,
    ) -> Result<(), SyncError> {
        let mut kept_names: BTreeSet<&str> = BTreeSet::new();
        for container in &observed.containers {
            // Newest first: the first of each name is the one to keep.
            if remains == Remains::Keep && kept_names.insert(&container.name) {
                continue;
            }
            self.remove_container(cx, container, remains).await?;
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
                    .any(|c| c.sandbox_id.as_ref() == Some(&sandbox.id) && observed.newest(&c.name) == Some(c));
            if !in_use {
                self.call_remove_sandbox(&cx.notes, &sandbox.id)
                    .await
                    .map_err(|error| SyncError::failed(format!("cannot remove sandbox {}", sandbox.id), error))?;
            }
        }
        Ok(())
    }

    /// Removes a container, and its log with it unless the pod's logs go as a whole.
    pub(super) async fn remove_container(
        &self,
        cx: &StepContext,
        container: &ObservedContainer,
        remains: Remains,
    ) -> Result<(), SyncError> {
        if let (Remains::Keep, Some(log)) = (remains, container.log_path.clone()) {
            let removed = tokio::task::spawn_blocking(move || crate::logs::remove_logs(&log)).await;
            if let Ok(Err(error)) = removed {
                tracing::debug!(error = &error as &dyn std::error::Error, container = %container.id, "log not removed");
            }
        }
        self.call_remove(&cx.notes, &container.id)
            .await
            .map_err(|error| SyncError::failed(format!("cannot remove container {}", container.id), error))
    }
}

/// Removes a pod's folders off the runtime's threads.
async fn remove_folders(uid: PodUid, pod_dir: PathBuf, logs: Option<PathBuf>) -> Result<(), SyncError> {
    if !pod_dir.exists() && logs.as_ref().is_none_or(|logs| !logs.exists()) {
        return Ok(());
    }
    let removed = tokio::task::spawn_blocking(move || {
        remove_pod_dir(&pod_dir)?;
        match logs {
            Some(logs) => remove_tree(&logs),
            None => Ok(()),
        }
    })
    .await;
    match removed {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(SyncError::failed(format!("cannot remove the folders of pod {uid}"), error)),
        Err(_) => Err(SyncError::Stopped),
    }
}

/// Removes what the engine itself puts into a pod's folder, and nothing else: a folder that holds more (a volume, say)
/// stays, with an error.
fn remove_pod_dir(dir: &Path) -> io::Result<()> {
    let containers = dir.join("containers");
    for container in entries(&containers)? {
        for file in entries(&container)? {
            ignore_missing(std::fs::remove_file(file))?;
        }
        ignore_missing(std::fs::remove_dir(container))?;
    }
    ignore_missing(std::fs::remove_dir(containers))?;
    ignore_missing(std::fs::remove_file(dir.join("etc-hosts")))?;
    ignore_missing(std::fs::remove_dir(dir.join("volumes")))?;
    ignore_missing(std::fs::remove_dir(dir.join("plugins")))?;
    ignore_missing(std::fs::remove_dir(dir))
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(dir) {
        Ok(list) => list.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Removes a tree of logs; a link in its place is removed itself, not what it points to.
fn remove_tree(dir: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(dir) {
        Ok(meta) if meta.is_dir() => ignore_missing(std::fs::remove_dir_all(dir)),
        Ok(_) => ignore_missing(std::fs::remove_file(dir)),
        Err(error) => ignore_missing(Err(error)),
    }
}

fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
