//! The calls of a look: two lists, or the statuses of one pod.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::TryFutureExt;
use kubelet_core::{
    ContainerId, ContainerRecord, ContainerRuntime, ContainerStatus, PodObservation, PodUid, RuntimeError, SandboxId,
    SandboxRecord, Scope,
};

/// What two lists showed.
#[derive(Debug)]
pub(crate) struct Lists {
    pub(crate) sandboxes: Vec<SandboxRecord>,
    pub(crate) containers: Vec<ContainerRecord>,
}

/// Lists sandboxes and containers, both at once: reads may overlap, and a look begun earlier than both is as of then.
pub(crate) async fn list(
    runtime: &dyn ContainerRuntime,
    of: Scope<'_>,
    timeout: Duration,
) -> Result<Lists, RuntimeError> {
    let both = futures::future::try_join(runtime.list_sandboxes(of), runtime.list_containers(of))
        .map_ok(|(sandboxes, containers)| Lists { sandboxes, containers });
    within(timeout, "list", both).await
}

/// Asks for the status of each of a pod's objects. One that has gone meanwhile is left out. A runtime may tell the sandbox of a
/// container in lists alone, as CRI does.
pub(crate) async fn inspect(
    runtime: &dyn ContainerRuntime,
    uid: &PodUid,
    sandboxes: &[SandboxId],
    containers: &[(ContainerId, SandboxId)],
    timeout: Duration,
) -> Result<PodObservation, RuntimeError> {
    within(timeout, "inspect", statuses(runtime, uid, sandboxes, containers)).await
}

async fn statuses(
    runtime: &dyn ContainerRuntime,
    uid: &PodUid,
    sandboxes: &[SandboxId],
    containers: &[(ContainerId, SandboxId)],
) -> Result<PodObservation, RuntimeError> {
    let mut of_sandboxes = Vec::with_capacity(sandboxes.len());
    // Some runtimes bring the containers along with their sandbox, which saves a call for each.
    let mut brought: BTreeMap<ContainerId, ContainerStatus> = BTreeMap::new();
    for id in sandboxes {
        if let Some(mut status) = unless_gone(runtime.sandbox_status(id).await)? {
            let along = status.containers.take().unwrap_or_default();
            brought.extend(
                along
                    .into_iter()
                    .map(|container| (container.id.clone(), in_sandbox(container, id))),
            );
            of_sandboxes.push(status);
        }
    }
    let mut of_containers = Vec::with_capacity(containers.len());
    for (id, sandbox) in containers {
        match brought.remove(id) {
            Some(status) => of_containers.push(status),
            None => {
                let status = unless_gone(runtime.container_status(id).await)?;
                of_containers.extend(status.map(|status| in_sandbox(status, sandbox)));
            }
        }
    }
    // Made after the list, so younger than what was asked for: the truth all the same.
    of_containers.extend(brought.into_values());
    Ok(PodObservation::from_statuses(uid.clone(), of_sandboxes, of_containers))
}

fn in_sandbox(mut status: ContainerStatus, sandbox: &SandboxId) -> ContainerStatus {
    status.sandbox_id.get_or_insert_with(|| sandbox.clone());
    status
}

fn unless_gone<T>(status: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match status {
        Ok(status) => Ok(Some(status)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn within<T>(
    timeout: Duration,
    op: &'static str,
    call: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(answer) => answer,
        Err(_) => Err(RuntimeError::unavailable(op, format!("no answer within {timeout:?}"))),
    }
}
