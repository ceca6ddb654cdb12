//! What is in the world, in CRI's messages.

use kubelet_core::jiff::Timestamp;
use kubelet_core::{ContainerState, ImageRecord, SandboxState};
use kubelet_proto::cri::v1;

use crate::fake::state::State;
use crate::fake::world::{Container, Sandbox};
use crate::fake_cri::convert::update;

/// Nanoseconds since the epoch.
pub(crate) fn nanos(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)
}

pub(crate) fn sandbox_metadata(sandbox: &Sandbox) -> v1::PodSandboxMetadata {
    let config = &sandbox.config;
    v1::PodSandboxMetadata {
        name: config.key.name.to_string(),
        uid: config.pod_uid.to_string(),
        namespace: config.key.namespace.to_string(),
        attempt: config.attempt,
    }
}

pub(crate) fn container_metadata(container: &Container) -> v1::ContainerMetadata {
    v1::ContainerMetadata {
        name: container.config.name.clone(),
        attempt: container.config.attempt,
    }
}

pub(crate) fn sandbox_state(state: SandboxState) -> v1::PodSandboxState {
    match state {
        SandboxState::Ready => v1::PodSandboxState::SandboxReady,
        _ => v1::PodSandboxState::SandboxNotready,
    }
}

pub(crate) fn container_state(state: ContainerState) -> v1::ContainerState {
    match state {
        ContainerState::Created => v1::ContainerState::ContainerCreated,
        ContainerState::Running => v1::ContainerState::ContainerRunning,
        ContainerState::Exited => v1::ContainerState::ContainerExited,
        _ => v1::ContainerState::ContainerUnknown,
    }
}

pub(crate) fn sandbox_status(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    let config = &sandbox.config;
    let mut ips = sandbox.ips.iter().map(ToString::to_string);
    let options = sandbox.original.get::<v1::PodSandboxConfig>().and_then(|config| {
        config
            .linux
            .as_ref()?
            .security_context
            .as_ref()?
            .namespace_options
            .clone()
    });
    v1::PodSandboxStatus {
        id: sandbox.id.to_string(),
        metadata: Some(sandbox_metadata(sandbox)),
        state: sandbox_state(sandbox.state).into(),
        created_at: nanos(sandbox.created),
        network: Some(v1::PodSandboxNetworkStatus {
            ip: ips.next().unwrap_or_default(),
            additional_ips: ips.map(|ip| v1::PodIp { ip }).collect(),
        }),
        linux: Some(v1::LinuxPodSandboxStatus {
            namespaces: Some(v1::Namespace {
                options: Some(options.unwrap_or_default()),
            }),
        }),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
    }
}

impl State {
    /// The statuses of what is in a sandbox.
    pub(crate) fn cri_statuses_in(&self, sandbox: u64) -> Vec<v1::ContainerStatus> {
        let inside = self.world.containers_in(sandbox).into_iter();
        let inside = inside.filter_map(|n| self.world.containers.get(&n));
        inside.map(|container| self.cri_status(container)).collect()
    }

    pub(crate) fn cri_status(&self, container: &Container) -> v1::ContainerStatus {
        let config = &container.config;
        let original = container.original.get::<v1::ContainerConfig>();
        let time = |at: Option<Timestamp>| at.map(nanos).unwrap_or_default();
        let mut resources = original
            .and_then(|config| config.linux.as_ref()?.resources.clone())
            .unwrap_or_default();
        if let Some(later) = &container.resources {
            update(&mut resources, later);
        }
        let log_path = container.log_path.as_ref();
        v1::ContainerStatus {
            id: container.id.to_string(),
            metadata: Some(container_metadata(container)),
            state: container_state(container.state).into(),
            created_at: nanos(container.created),
            started_at: time(container.started),
            finished_at: time(container.finished),
            exit_code: container.exit_code,
            image: Some(self.image_spec(container)),
            image_ref: self.images.reference(&config.image.name),
            image_id: self.images.id(&config.image.name),
            reason: container.reason.to_owned(),
            message: container.message.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            mounts: original.map(|config| config.mounts.clone()).unwrap_or_default(),
            log_path: log_path.map(|path| path.display().to_string()).unwrap_or_default(),
            resources: Some(v1::ContainerResources {
                linux: Some(resources),
                windows: None,
            }),
            user: None,
            stop_signal: original.map(|config| config.stop_signal).unwrap_or_default(),
        }
    }

    pub(crate) fn image_spec(&self, container: &Container) -> v1::ImageSpec {
        let image = &container.config.image;
        let spec = container
            .original
            .get::<v1::ContainerConfig>()
            .and_then(|config| config.image.clone());
        spec.unwrap_or_else(|| v1::ImageSpec {
            image: image.name.clone(),
            user_specified_image: image.asked.clone(),
            ..v1::ImageSpec::default()
        })
    }
}

pub(crate) fn image(record: ImageRecord) -> v1::Image {
    v1::Image {
        id: record.id.to_string(),
        repo_tags: record.tags,
        repo_digests: record.digests,
        size: record.size_bytes,
        uid: record.uid.map(|value| v1::Int64Value { value }),
        username: record.username,
        spec: None,
        pinned: record.pinned,
    }
}
