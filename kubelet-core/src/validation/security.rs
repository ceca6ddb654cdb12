//! Security contexts.

mod go_form;
mod namespaces;
mod profiles;
mod windows;

use k8s_openapi::api::core::v1::{Container, PodSpec, SecurityContext};

pub(super) use namespaces::{check_host_users, check_sysctls};
pub(super) use windows::{check_host_process, check_os};

use super::check::{known_only, range};
use super::field::{FieldErrors, FieldPath, Json};
use go_form::GoSecurityContext;

const MOST_ID: i64 = i32::MAX as i64;

pub(super) fn check_pod(spec: &PodSpec, errors: &mut FieldErrors) {
    let Some(context) = &spec.security_context else {
        return;
    };
    let root = FieldPath::new("spec").child("securityContext");
    check_id(context.fs_group, root.child("fsGroup"), errors);
    check_id(context.run_as_user, root.child("runAsUser"), errors);
    check_id(context.run_as_group, root.child("runAsGroup"), errors);
    for (k, group) in context.supplemental_groups.iter().flatten().enumerate() {
        check_id(Some(*group), root.child("supplementalGroups").index(k), errors);
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(root.child("shareProcessNamespace"), true, detail);
    }
    check_sysctls(spec, context.sysctls.as_deref().unwrap_or_default(), &root, errors);
    for (field, value, known) in [
        (
            "fsGroupChangePolicy",
            &context.fs_group_change_policy,
            ["Always", "OnRootMismatch"].as_slice(),
        ),
        (
            "supplementalGroupsPolicy",
            &context.supplemental_groups_policy,
            &["Merge", "Strict"],
        ),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, &["Recursive"]),
    ] {
        if let Some(value) = value {
            known_only(root.child(field), value, known, errors);
        }
    }
    profiles::check_seccomp(context.seccomp_profile.as_ref(), &root, errors);
    profiles::check_app_armor(context.app_armor_profile.as_ref(), &root, errors);
}

pub(super) fn check_container(spec: &PodSpec, container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    let Some(context) = &container.security_context else {
        return;
    };
    check_id(context.run_as_user, path.child("runAsUser"), errors);
    check_id(context.run_as_group, path.child("runAsGroup"), errors);
    if let Some(mount) = &context.proc_mount {
        let place = path.child("procMount");
        known_only(place.clone(), mount, &["Default", "Unmasked"], errors);
        if mount == "Unmasked" && spec.host_users != Some(false) {
            let detail = "`hostUsers` must be false to use `Unmasked`";
            errors.invalid(place, Json(mount), detail);
        }
    }
    check_escalation(context, path, errors);
    profiles::check_seccomp(context.seccomp_profile.as_ref(), path, errors);
    profiles::check_app_armor(context.app_armor_profile.as_ref(), path, errors);
}

fn check_escalation(context: &SecurityContext, path: &FieldPath, errors: &mut FieldErrors) {
    if context.allow_privilege_escalation != Some(false) {
        return;
    }
    let mut contradiction = |detail: &'static str| {
        errors.invalid(path.clone(), Json(&GoSecurityContext::from(context)), detail);
    };
    if context.privileged == Some(true) {
        contradiction("cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
    }
    let added = context
        .capabilities
        .as_ref()
        .and_then(|capabilities| capabilities.add.as_deref());
    if added.is_some_and(|added| added.iter().any(|name| name == "CAP_SYS_ADMIN")) {
        contradiction("cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN");
    }
}

fn check_id(id: Option<i64>, path: FieldPath, errors: &mut FieldErrors) {
    if let Some(id) = id {
        range(path, id, 0, MOST_ID, errors);
    }
}
