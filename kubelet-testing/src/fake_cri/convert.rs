//! From CRI's configs to neutral ones.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kubelet_core::{
    ContainerConfig, ImageMount, ImageRef, LinuxResources, LinuxSecurity, Mount, NamespaceMode, Namespaces, PodKey,
    PodUid, PortMapping, PortProtocol, SandboxConfig, SecurityProfile,
};
use kubelet_proto::cri::v1;

/// The pod that a sandbox is of. Callers other than kubelets may leave the UID out.
pub(crate) fn pod_uid(metadata: &v1::PodSandboxMetadata) -> PodUid {
    if metadata.uid.is_empty() {
        PodUid::from(format!("{}_{}", metadata.namespace, metadata.name))
    } else {
        PodUid::from(metadata.uid.as_str())
    }
}

pub(crate) fn sandbox_config(from: &v1::PodSandboxConfig, metadata: &v1::PodSandboxMetadata) -> SandboxConfig {
    let key = PodKey::new(metadata.namespace.as_str(), metadata.name.as_str());
    let mut config = SandboxConfig::new(pod_uid(metadata), key, metadata.attempt);
    config.hostname.clone_from(&from.hostname);
    config.log_directory = PathBuf::from(&from.log_directory);
    config.port_mappings = from.port_mappings.iter().map(port_mapping).collect();
    config.labels.clone_from(&from.labels);
    config.annotations.clone_from(&from.annotations);
    if let Some(dns) = &from.dns_config {
        config.dns.servers.clone_from(&dns.servers);
        config.dns.searches.clone_from(&dns.searches);
        config.dns.options.clone_from(&dns.options);
    }
    if let Some(linux) = &from.linux {
        config.cgroup_parent.clone_from(&linux.cgroup_parent);
        config.sysctls.clone_from(&linux.sysctls);
        config.resources = linux.resources.as_ref().map(resources).unwrap_or_default();
        config.overhead = linux.overhead.as_ref().map(resources);
        if let Some(security) = &linux.security_context {
            config.security.namespaces = namespaces(security.namespace_options.as_ref());
            config.security.privileged = security.privileged;
            config.security.read_only_root = security.readonly_rootfs;
            config.security.run_as_user = id(security.run_as_user.as_ref());
            config.security.run_as_group = id(security.run_as_group.as_ref());
            config.security.supplemental_groups = groups(&security.supplemental_groups);
            config.security.seccomp = security.seccomp.as_ref().map(profile);
        }
    }
    config
}

pub(crate) fn container_config(from: &v1::ContainerConfig, metadata: &v1::ContainerMetadata) -> ContainerConfig {
    let image = from.image.as_ref().map_or_else(|| ImageRef::new(""), image_ref);
    let mut config = ContainerConfig::new(metadata.name.as_str(), metadata.attempt, image);
    config.command.clone_from(&from.command);
    config.args.clone_from(&from.args);
    config.working_dir.clone_from(&from.working_dir);
    let env = from.envs.iter().map(|env| (env.key.clone(), env.value.clone()));
    config.env = env.collect();
    config.mounts = from.mounts.iter().map(mount).collect();
    config.labels.clone_from(&from.labels);
    config.annotations.clone_from(&from.annotations);
    config.log_path = PathBuf::from(&from.log_path);
    (config.stdin, config.stdin_once, config.tty) = (from.stdin, from.stdin_once, from.tty);
    if let Some(linux) = &from.linux {
        config.resources = linux.resources.as_ref().map(resources).unwrap_or_default();
        if let Some(security) = &linux.security_context {
            config.security = container_security(security);
        }
    }
    config
}

fn image_ref(spec: &v1::ImageSpec) -> ImageRef {
    if spec.user_specified_image.is_empty() {
        ImageRef::new(spec.image.as_str())
    } else {
        ImageRef::with_asked(spec.image.as_str(), spec.user_specified_image.as_str())
    }
}

fn container_security(from: &v1::LinuxContainerSecurityContext) -> LinuxSecurity {
    let mut security = LinuxSecurity::default();
    security.namespaces = namespaces(from.namespace_options.as_ref());
    security.privileged = from.privileged;
    security.read_only_root = from.readonly_rootfs;
    security.no_new_privileges = from.no_new_privs;
    security.run_as_user = id(from.run_as_user.as_ref());
    security.run_as_group = id(from.run_as_group.as_ref());
    security.run_as_username.clone_from(&from.run_as_username);
    security.supplemental_groups = groups(&from.supplemental_groups);
    security.masked_paths.clone_from(&from.masked_paths);
    security.readonly_paths.clone_from(&from.readonly_paths);
    if let Some(capabilities) = &from.capabilities {
        security.add_capabilities.clone_from(&capabilities.add_capabilities);
        security.drop_capabilities.clone_from(&capabilities.drop_capabilities);
    }
    security.seccomp = from.seccomp.as_ref().map(profile);
    security.apparmor = from.apparmor.as_ref().map(profile);
    security
}

fn mount(from: &v1::Mount) -> Mount {
    let mut mount = Mount::new(from.container_path.as_str(), from.host_path.as_str());
    mount.read_only = from.readonly;
    mount.selinux_relabel = from.selinux_relabel;
    mount.image = from.image.as_ref().map(|spec| {
        let mut image = ImageMount::new(image_ref(spec));
        image.handler.clone_from(&spec.runtime_handler);
        image.annotations.clone_from(&spec.annotations);
        image.sub_path.clone_from(&from.image_sub_path);
        image
    });
    mount
}

fn port_mapping(from: &v1::PortMapping) -> PortMapping {
    let protocol = match v1::Protocol::try_from(from.protocol) {
        Ok(v1::Protocol::Udp) => PortProtocol::Udp,
        Ok(v1::Protocol::Sctp) => PortProtocol::Sctp,
        _ => PortProtocol::Tcp,
    };
    let port = |number: i32| u16::try_from(number).unwrap_or_default();
    let mut mapping = PortMapping::new(protocol, port(from.container_port), port(from.host_port));
    mapping.host_ip.clone_from(&from.host_ip);
    mapping
}

pub(crate) fn namespaces(from: Option<&v1::NamespaceOption>) -> Namespaces {
    let mode = |mode: i32| match v1::NamespaceMode::try_from(mode) {
        Ok(v1::NamespaceMode::Node) => NamespaceMode::Node,
        Ok(v1::NamespaceMode::Container) => NamespaceMode::Container,
        _ => NamespaceMode::Pod,
    };
    let mut namespaces = Namespaces::default();
    if let Some(from) = from {
        namespaces.network = mode(from.network);
        namespaces.pid = mode(from.pid);
        namespaces.ipc = mode(from.ipc);
    }
    namespaces
}

fn profile(from: &v1::SecurityProfile) -> SecurityProfile {
    use v1::security_profile::ProfileType;
    match ProfileType::try_from(from.profile_type) {
        Ok(ProfileType::RuntimeDefault) => SecurityProfile::RuntimeDefault,
        Ok(ProfileType::Localhost) => SecurityProfile::Localhost(from.localhost_ref.clone()),
        _ => SecurityProfile::Unconfined,
    }
}

fn id(from: Option<&v1::Int64Value>) -> Option<u32> {
    from.and_then(|value| u32::try_from(value.value).ok())
}

fn groups(from: &[i64]) -> Vec<u32> {
    from.iter().filter_map(|group| u32::try_from(*group).ok()).collect()
}

pub(crate) fn resources(from: &v1::LinuxContainerResources) -> LinuxResources {
    let mut resources = LinuxResources::default();
    resources.cpu_shares = from.cpu_shares.try_into().unwrap_or_default();
    resources.cpu_quota = from.cpu_quota;
    resources.cpu_period = from.cpu_period.try_into().unwrap_or_default();
    resources.memory_limit_bytes = from.memory_limit_in_bytes;
    resources.oom_score_adj = from.oom_score_adj.try_into().unwrap_or_default();
    resources
}

/// Puts what was set later over what a container was made with. Zero says nothing.
pub(crate) fn update(resources: &mut v1::LinuxContainerResources, to: &LinuxResources) {
    let set = |field: &mut i64, value: i64| {
        if value != 0 {
            *field = value;
        }
    };
    set(&mut resources.cpu_shares, to.cpu_shares.try_into().unwrap_or(i64::MAX));
    set(&mut resources.cpu_quota, to.cpu_quota);
    set(&mut resources.cpu_period, to.cpu_period.try_into().unwrap_or(i64::MAX));
    set(&mut resources.memory_limit_in_bytes, to.memory_limit_bytes);
    set(&mut resources.oom_score_adj, to.oom_score_adj.into());
}

/// Whether the labels have everything that is selected.
pub(crate) fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
