//! A container's security context as upstream's error texts show it: all fields, under their internal names.

use k8s_openapi::api::core::v1::{AppArmorProfile, SeccompProfile, SecurityContext};
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct GoSecurityContext<'a> {
    capabilities: Option<Capabilities<'a>>,
    privileged: Option<bool>,
    #[serde(rename = "SELinuxOptions")]
    se_linux_options: Option<SeLinux<'a>>,
    windows_options: Option<Windows<'a>>,
    run_as_user: Option<i64>,
    run_as_group: Option<i64>,
    run_as_non_root: Option<bool>,
    read_only_root_filesystem: Option<bool>,
    allow_privilege_escalation: Option<bool>,
    proc_mount: Option<&'a str>,
    seccomp_profile: Option<Profile<'a>>,
    app_armor_profile: Option<Profile<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Capabilities<'a> {
    add: Option<&'a [String]>,
    drop: Option<&'a [String]>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SeLinux<'a> {
    user: &'a str,
    role: &'a str,
    r#type: &'a str,
    level: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Windows<'a> {
    #[serde(rename = "GMSACredentialSpecName")]
    gmsa_credential_spec_name: Option<&'a str>,
    #[serde(rename = "GMSACredentialSpec")]
    gmsa_credential_spec: Option<&'a str>,
    run_as_user_name: Option<&'a str>,
    host_process: Option<bool>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Profile<'a> {
    r#type: &'a str,
    localhost_profile: Option<&'a str>,
}

impl<'a> From<&'a SecurityContext> for GoSecurityContext<'a> {
    fn from(from: &'a SecurityContext) -> Self {
        Self {
            capabilities: from.capabilities.as_ref().map(|from| Capabilities {
                add: from.add.as_deref(),
                drop: from.drop.as_deref(),
            }),
            privileged: from.privileged,
            se_linux_options: from.se_linux_options.as_ref().map(|from| SeLinux {
                user: from.user.as_deref().unwrap_or_default(),
                role: from.role.as_deref().unwrap_or_default(),
                r#type: from.type_.as_deref().unwrap_or_default(),
                level: from.level.as_deref().unwrap_or_default(),
            }),
            windows_options: from.windows_options.as_ref().map(|from| Windows {
                gmsa_credential_spec_name: from.gmsa_credential_spec_name.as_deref(),
                gmsa_credential_spec: from.gmsa_credential_spec.as_deref(),
                run_as_user_name: from.run_as_user_name.as_deref(),
                host_process: from.host_process,
            }),
            run_as_user: from.run_as_user,
            run_as_group: from.run_as_group,
            run_as_non_root: from.run_as_non_root,
            read_only_root_filesystem: from.read_only_root_filesystem,
            allow_privilege_escalation: from.allow_privilege_escalation,
            proc_mount: from.proc_mount.as_deref(),
            seccomp_profile: from.seccomp_profile.as_ref().map(seccomp),
            app_armor_profile: from.app_armor_profile.as_ref().map(app_armor),
        }
    }
}

fn seccomp(from: &SeccompProfile) -> Profile<'_> {
    Profile {
        r#type: &from.type_,
        localhost_profile: from.localhost_profile.as_deref(),
    }
}

fn app_armor(from: &AppArmorProfile) -> Profile<'_> {
    Profile {
        r#type: &from.type_,
        localhost_profile: from.localhost_profile.as_deref(),
    }
}
