//! The config of a sandbox.

use kubelet_core::{PortMapping, PortProtocol, SandboxConfig};
use kubelet_proto::cri::v1;

use super::{groups, groups_policy, int, namespaces, profile, resources, selinux};

/// What `RunPodSandbox`, `CreateContainer` and `PullImage` are given of a sandbox.
pub(crate) fn sandbox_config(config: &SandboxConfig) -> v1::PodSandboxConfig {
    let security = &config.security;
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: config.key.name.to_string(),
            uid: config.pod_uid.to_string(),
            namespace: config.key.namespace.to_string(),
            attempt: config.attempt,
        }),
        hostname: config.hostname.clone(),
        log_directory: config.log_directory.display().to_string(),
        port_mappings: config.port_mappings.iter().map(port_mapping).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: config.cgroup_parent.clone(),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(security)),
                run_as_user: security.run_as_user.map(int),
                run_as_group: security.run_as_group.map(int),
                readonly_rootfs: security.read_only_root,
                supplemental_groups: groups(security),
                privileged: security.privileged,
                seccomp: security.seccomp.as_ref().map(profile),
                selinux_options: security.selinux.as_ref().map(selinux),
                supplemental_groups_policy: groups_policy(security),
                ..v1::LinuxSandboxSecurityContext::default()
            }),
            sysctls: config.sysctls.clone(),
            overhead: Some(config.overhead.as_ref().map(resources).unwrap_or_default()),
            resources: Some(resources(&config.resources)),
        }),
        dns_config: (!config.dns.is_empty()).then(|| v1::DnsConfig {
            servers: config.dns.servers.clone(),
            searches: config.dns.searches.clone(),
            options: config.dns.options.clone(),
        }),
        ..v1::PodSandboxConfig::default()
    }
}

fn port_mapping(mapping: &PortMapping) -> v1::PortMapping {
    let protocol = match mapping.protocol {
        PortProtocol::Udp => v1::Protocol::Udp,
        PortProtocol::Sctp => v1::Protocol::Sctp,
        _ => v1::Protocol::Tcp,
    };
    v1::PortMapping {
        protocol: protocol.into(),
        container_port: mapping.container_port.into(),
        host_port: mapping.host_port.into(),
        host_ip: mapping.host_ip.clone(),
    }
}
