//! From CRI's answers to neutral types. An answer that lacks what it must have says nothing.

use std::path::PathBuf;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{
    ContainerId, ContainerState, ContainerStatus, ImageId, ImageRecord, PodKey, PodUid, SandboxId, SandboxState,
    SandboxStatus, label,
};
use kubelet_proto::cri::v1;

/// What an answer lacks.
pub(crate) type Lack = &'static str;

/// Nanoseconds since the epoch; zero is no time.
pub(crate) fn timestamp(nanos: i64) -> Option<Timestamp> {
    if nanos == 0 {
        return None;
    }
    Timestamp::from_nanosecond(nanos.into()).ok()
}

/// An unknown value is a sandbox that is not ready: nothing is made in it.
pub(crate) fn sandbox_state(state: i32) -> SandboxState {
    match v1::PodSandboxState::try_from(state) {
        Ok(v1::PodSandboxState::SandboxReady) => SandboxState::Ready,
        _ => SandboxState::NotReady,
    }
}

/// An unknown value is an unknown state.
pub(crate) fn container_state(state: i32) -> ContainerState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        _ => ContainerState::Unknown,
    }
}

/// A sandbox with the containers that came along.
pub(crate) fn sandbox_status(response: v1::PodSandboxStatusResponse) -> Result<SandboxStatus, Lack> {
    let status = response.status.ok_or("no status")?;
    let metadata = status.metadata.ok_or("no metadata")?;
    if status.id.is_empty() || metadata.name.is_empty() || metadata.namespace.is_empty() {
        return Err("an id, name or namespace is empty");
    }
    let created_at = timestamp(status.created_at).ok_or("no time of creation")?;
    let uid = status.labels.get(label::POD_UID).unwrap_or(&metadata.uid);
    let mut seen = SandboxStatus::new(
        SandboxId::from(status.id),
        PodUid::from(uid.as_str()),
        PodKey::new(metadata.namespace.as_str(), metadata.name.as_str()),
        metadata.attempt,
        sandbox_state(status.state),
        created_at,
    );
    seen.ips = addresses(status.network);
    let network = status
        .linux
        .and_then(|linux| linux.namespaces)
        .and_then(|namespaces| namespaces.options)
        .map(|options| options.network);
    seen.host_network = network == Some(v1::NamespaceMode::Node.into());
    seen.handler = status.runtime_handler;
    seen.labels = status.labels;
    seen.annotations = status.annotations;
    if !response.containers_statuses.is_empty() {
        let containers: Result<Vec<_>, _> = response.containers_statuses.into_iter().map(container_status).collect();
        // What came along by kindness is no reason to fail.
        seen.containers = containers.ok();
    }
    Ok(seen)
}

/// The addresses of a pod, none if one of them cannot be read.
///
/// Source: kubelet 1.36, `kuberuntime_sandbox.go`.
fn addresses(network: Option<v1::PodSandboxNetworkStatus>) -> Vec<std::net::IpAddr> {
    let Some(network) = network.filter(|network| !network.ip.is_empty()) else {
        return Vec::new();
    };
    let all = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|more| more.ip));
    let parsed: Result<Vec<std::net::IpAddr>, _> = all.map(|text| text.parse()).collect();
    parsed.unwrap_or_default()
}

/// One container.
pub(crate) fn container_status(status: v1::ContainerStatus) -> Result<ContainerStatus, Lack> {
    let metadata = status.metadata.ok_or("no metadata")?;
    if status.id.is_empty() || metadata.name.is_empty() {
        return Err("an id or name is empty");
    }
    let image = status.image.filter(|image| !image.image.is_empty()).ok_or("no image")?;
    if status.image_ref.is_empty() {
        return Err("no image reference");
    }
    let created_at = timestamp(status.created_at).ok_or("no time of creation")?;
    let mut seen = ContainerStatus::new(
        ContainerId::from(status.id),
        metadata.name,
        metadata.attempt,
        container_state(status.state),
        created_at,
    );
    seen.started_at = timestamp(status.started_at);
    seen.finished_at = timestamp(status.finished_at);
    // Some runtimes look at the clock for the start only when a quick process has already ended.
    seen.started_at = match (seen.started_at, seen.finished_at) {
        (Some(started), Some(finished)) => Some(started.min(finished)),
        (started, _) => started,
    };
    seen.exit_code = status.exit_code;
    seen.reason = status.reason;
    seen.message = status.message;
    seen.image = if image.user_specified_image.is_empty() {
        image.image
    } else {
        image.user_specified_image
    };
    seen.image_ref = status.image_ref;
    let mounted = status.mounts.into_iter().filter_map(|mount| mount.image);
    // A newer runtime may name it by more than it was told.
    let names = mounted.flat_map(|image| [image.image, image.image_ref]);
    seen.mounted_images = names.filter(|name| !name.is_empty()).collect();
    seen.labels = status.labels;
    seen.annotations = status.annotations;
    seen.log_path = Some(status.log_path).filter(|path| !path.is_empty()).map(PathBuf::from);
    Ok(seen)
}

/// One image.
pub(crate) fn image_record(image: v1::Image) -> Result<ImageRecord, Lack> {
    if image.id.is_empty() {
        return Err("an image without an id");
    }
    let mut record = ImageRecord::new(ImageId::from(image.id));
    record.tags = image.repo_tags;
    record.digests = image.repo_digests;
    record.size_bytes = image.size;
    record.uid = image.uid.map(|uid| uid.value);
    record.username = image.username;
    record.pinned = image.pinned;
    Ok(record)
}
