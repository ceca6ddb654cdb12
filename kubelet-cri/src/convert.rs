//! From neutral types to those of CRI. Nothing is decided here.

mod container;
mod sandbox;
mod status;

use kubelet_core::{
    IdMapping, LinuxResources, LinuxSecurity, NamespaceMode, RegistryAuth, SecurityProfile, SelinuxOptions,
};
use kubelet_proto::cri::v1;

pub(crate) use container::{container_config, image_spec};
pub(crate) use sandbox::sandbox_config;
pub(crate) use status::{container_state, container_status, image_record, sandbox_state, sandbox_status, timestamp};

fn int(value: u32) -> v1::Int64Value {
    v1::Int64Value { value: value.into() }
}

fn namespace_mode(mode: NamespaceMode) -> v1::NamespaceMode {
    match mode {
        NamespaceMode::Container => v1::NamespaceMode::Container,
        NamespaceMode::Node => v1::NamespaceMode::Node,
        NamespaceMode::Target => v1::NamespaceMode::Target,
        _ => v1::NamespaceMode::Pod,
    }
}

fn namespaces(security: &LinuxSecurity) -> v1::NamespaceOption {
    let of = &security.namespaces;
    let users = match &security.user_namespace {
        None => v1::UserNamespace {
            mode: v1::NamespaceMode::Node.into(),
            ..v1::UserNamespace::default()
        },
        Some(users) => v1::UserNamespace {
            mode: v1::NamespaceMode::Pod.into(),
            uids: id_mappings(&users.uids),
            gids: id_mappings(&users.gids),
        },
    };
    v1::NamespaceOption {
        network: namespace_mode(of.network).into(),
        pid: namespace_mode(of.pid).into(),
        ipc: namespace_mode(of.ipc).into(),
        target_id: security
            .pid_target
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        userns_options: Some(users),
    }
}

fn id_mappings(blocks: &[IdMapping]) -> Vec<v1::IdMapping> {
    let mapping = |block: &IdMapping| v1::IdMapping {
        host_id: block.host_id,
        container_id: block.container_id,
        length: block.length,
    };
    blocks.iter().map(mapping).collect()
}

fn profile(of: &SecurityProfile) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let (kind, localhost_ref) = match of {
        SecurityProfile::RuntimeDefault => (ProfileType::RuntimeDefault, ""),
        SecurityProfile::Localhost(name) => (ProfileType::Localhost, name.as_str()),
        _ => (ProfileType::Unconfined, ""),
    };
    v1::SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: localhost_ref.to_owned(),
    }
}

/// The profile as runtimes from before the structured field want it.
fn profile_text(of: &SecurityProfile) -> String {
    match of {
        SecurityProfile::RuntimeDefault => "runtime/default".to_owned(),
        SecurityProfile::Localhost(name) => format!("localhost/{name}"),
        _ => "unconfined".to_owned(),
    }
}

fn selinux(of: &SelinuxOptions) -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: of.user.clone(),
        role: of.role.clone(),
        r#type: of.kind.clone(),
        level: of.level.clone(),
    }
}

fn groups_policy(security: &LinuxSecurity) -> i32 {
    if security.only_given_groups {
        v1::SupplementalGroupsPolicy::Strict.into()
    } else {
        v1::SupplementalGroupsPolicy::Merge.into()
    }
}

fn groups(security: &LinuxSecurity) -> Vec<i64> {
    security
        .supplemental_groups
        .iter()
        .map(|group| (*group).into())
        .collect()
}

/// Credentials for a registry.
pub(crate) fn auth_config(of: &RegistryAuth) -> v1::AuthConfig {
    v1::AuthConfig {
        username: of.username.clone(),
        password: of.password.clone(),
        identity_token: of.identity_token.clone(),
        registry_token: of.registry_token.clone(),
        ..v1::AuthConfig::default()
    }
}

/// Limits of a container or a sandbox.
pub(crate) fn resources(of: &LinuxResources) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: of.cpu_period.try_into().unwrap_or(i64::MAX),
        cpu_quota: of.cpu_quota,
        cpu_shares: of.cpu_shares.try_into().unwrap_or(i64::MAX),
        memory_limit_in_bytes: of.memory_limit_bytes,
        oom_score_adj: of.oom_score_adj.into(),
        cpuset_cpus: of.cpuset_cpus.clone(),
        cpuset_mems: of.cpuset_mems.clone(),
        hugepage_limits: of
            .hugepage_limits
            .iter()
            .map(|(page_size, limit)| v1::HugepageLimit {
                page_size: page_size.clone(),
                limit: *limit,
            })
            .collect(),
        unified: of.unified.clone(),
        memory_swap_limit_in_bytes: of.memory_swap_limit_bytes,
    }
}

#[cfg(test)]
mod tests;
