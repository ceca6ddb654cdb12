//! What a status tells of single containers.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::conditions::{self, kind};

/// The containers that a status tells of, but for ephemeral ones: init containers first.
pub(crate) fn told_containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten()
}

/// The runtime's id of the container that is told of: what the API shows is `<runtime>://<id>`.
pub(crate) fn told_id(container: &ContainerStatus) -> Option<&str> {
    let full = container.container_id.as_deref()?;
    Some(full.split_once("://").map_or(full, |(_, id)| id))
}

/// Whether the container is told to run.
pub(crate) fn told_running(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.running.is_some())
}

/// Whether containers are told to be without what their pod was granted.
pub(crate) fn is_resizing(status: &PodStatus) -> bool {
    conditions::is_true(status, kind::RESIZE_IN_PROGRESS)
}
