//! The config of a container.

use kubelet_core::{ContainerConfig, Device, ImageRef, LinuxSecurity, Mount, MountPropagation};
use kubelet_proto::cri::v1;

use super::{groups, groups_policy, id_mappings, int, namespaces, profile, profile_text, resources, selinux};

/// An image, by what the runtime knows it by and by what the pod calls it.
pub(crate) fn image_spec(image: &ImageRef, handler: &str) -> v1::ImageSpec {
    v1::ImageSpec {
        image: image.name.clone(),
        user_specified_image: image.asked.clone(),
        runtime_handler: handler.to_owned(),
        ..v1::ImageSpec::default()
    }
}

/// What `CreateContainer` is given of a container.
pub(crate) fn container_config(config: &ContainerConfig) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: config.name.clone(),
            attempt: config.attempt,
        }),
        image: Some(image_spec(&config.image, "")),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config.working_dir.clone(),
        envs: config
            .env
            .iter()
            .map(|(key, value)| v1::KeyValue {
                key: key.clone(),
                value: value.clone(),
            })
            .collect(),
        mounts: config.mounts.iter().map(mount).collect(),
        devices: config.devices.iter().map(device).collect(),
        cdi_devices: config
            .cdi_devices
            .iter()
            .map(|name| v1::CdiDevice { name: name.clone() })
            .collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        log_path: config.log_path.display().to_string(),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources(&config.resources)),
            security_context: Some(security_context(&config.security)),
        }),
        ..v1::ContainerConfig::default()
    }
}

fn mount(mount: &Mount) -> v1::Mount {
    let propagation = match mount.propagation {
        MountPropagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
        MountPropagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
        _ => v1::MountPropagation::PropagationPrivate,
    };
    let users = mount.id_mappings.as_ref();
    let image = mount.image.as_ref();
    v1::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.display().to_string(),
        readonly: mount.read_only,
        selinux_relabel: mount.selinux_relabel,
        propagation: propagation.into(),
        recursive_read_only: mount.recursive_read_only,
        uid_mappings: users.map(|users| id_mappings(&users.uids)).unwrap_or_default(),
        gid_mappings: users.map(|users| id_mappings(&users.gids)).unwrap_or_default(),
        image: image.map(|mount| v1::ImageSpec {
            annotations: mount.annotations.clone(),
            ..image_spec(&mount.image, &mount.handler)
        }),
        image_sub_path: image.map(|mount| mount.sub_path.clone()).unwrap_or_default(),
    }
}

fn device(device: &Device) -> v1::Device {
    v1::Device {
        container_path: device.container_path.clone(),
        host_path: device.host_path.display().to_string(),
        permissions: device.permissions.clone(),
    }
}

#[expect(
    deprecated,
    reason = "runtimes from before the structured AppArmor field read the old one"
)]
fn security_context(of: &LinuxSecurity) -> v1::LinuxContainerSecurityContext {
    v1::LinuxContainerSecurityContext {
        privileged: of.privileged,
        namespace_options: Some(namespaces(of)),
        run_as_user: of.run_as_user.map(int),
        run_as_group: of.run_as_group.map(int),
        readonly_rootfs: of.read_only_root,
        supplemental_groups: groups(of),
        run_as_username: of.run_as_username.clone(),
        supplemental_groups_policy: groups_policy(of),
        capabilities: Some(v1::Capability {
            add_capabilities: of.add_capabilities.clone(),
            drop_capabilities: of.drop_capabilities.clone(),
            ..v1::Capability::default()
        }),
        seccomp: of.seccomp.as_ref().map(profile),
        apparmor: of.apparmor.as_ref().map(profile),
        apparmor_profile: of.apparmor.as_ref().map(profile_text).unwrap_or_default(),
        selinux_options: of.selinux.as_ref().map(selinux),
        masked_paths: of.masked_paths.clone(),
        readonly_paths: of.readonly_paths.clone(),
        no_new_privs: of.no_new_privileges,
        ..v1::LinuxContainerSecurityContext::default()
    }
}
