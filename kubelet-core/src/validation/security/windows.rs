//! Fields that only one operating system has.

use k8s_openapi::api::core::v1::{PodSpec, WindowsSecurityContextOptions};

use crate::validation::check::known_only;
use crate::validation::containers::all_containers;
use crate::validation::field::{FieldErrors, FieldPath};

pub(in crate::validation) fn check_os(spec: &PodSpec, errors: &mut FieldErrors) {
    let Some(os) = &spec.os else { return };
    let path = FieldPath::new("spec").child("os");
    match os.name.as_str() {
        "" => errors.required(path.child("name"), ""),
        "linux" => check_linux(spec, errors),
        "windows" => check_windows(spec, errors),
        name => known_only(path, name, &["linux", "windows"], errors),
    }
}

fn check_linux(spec: &PodSpec, errors: &mut FieldErrors) {
    let detail = "windows options cannot be set for a linux pod";
    let context = spec.security_context.as_ref();
    if context.is_some_and(|context| context.windows_options.is_some()) {
        let path = FieldPath::new("spec").child("securityContext");
        errors.forbidden(path.child("windowsOptions"), detail);
    }
    for (path, container) in all_containers(spec) {
        let context = container.security_context.as_ref();
        if context.is_some_and(|context| context.windows_options.is_some()) {
            let path = path.child("securityContext");
            errors.forbidden(path.child("windowsOptions"), detail);
        }
    }
}

fn check_windows(spec: &PodSpec, errors: &mut FieldErrors) {
    let root = FieldPath::new("spec");
    let mut forbid = |path: &FieldPath, fields: &[(&'static str, bool)]| {
        for (field, set) in fields {
            if *set {
                errors.forbidden(path.child(*field), "cannot be set for a windows pod");
            }
        }
    };
    forbid(
        &root,
        &[
            ("hostPID", spec.host_pid == Some(true)),
            ("hostIPC", spec.host_ipc == Some(true)),
            ("hostUsers", spec.host_users.is_some()),
            ("shareProcessNamespace", spec.share_process_namespace.is_some()),
        ],
    );
    if let Some(context) = &spec.security_context {
        forbid(
            &root.child("securityContext"),
            &[
                ("appArmorProfile", context.app_armor_profile.is_some()),
                ("seLinuxOptions", context.se_linux_options.is_some()),
                ("seccompProfile", context.seccomp_profile.is_some()),
                ("fsGroup", context.fs_group.is_some()),
                ("fsGroupChangePolicy", context.fs_group_change_policy.is_some()),
                ("sysctls", context.sysctls.as_ref().is_some_and(|list| !list.is_empty())),
                ("runAsUser", context.run_as_user.is_some()),
                ("runAsGroup", context.run_as_group.is_some()),
                ("supplementalGroups", context.supplemental_groups.is_some()),
                ("supplementalGroupsPolicy", context.supplemental_groups_policy.is_some()),
            ],
        );
    }
    for (path, container) in all_containers(spec) {
        let Some(context) = &container.security_context else {
            continue;
        };
        forbid(
            &path.child("securityContext"),
            &[
                ("appArmorProfile", context.app_armor_profile.is_some()),
                ("seLinuxOptions", context.se_linux_options.is_some()),
                ("seccompProfile", context.seccomp_profile.is_some()),
                ("capabilities", context.capabilities.is_some()),
                ("readOnlyRootFilesystem", context.read_only_root_filesystem.is_some()),
                ("privileged", context.privileged.is_some()),
                ("allowPrivilegeEscalation", context.allow_privilege_escalation.is_some()),
                ("procMount", context.proc_mount.is_some()),
                ("runAsUser", context.run_as_user.is_some()),
                ("runAsGroup", context.run_as_group.is_some()),
            ],
        );
    }
}

/// Host process containers share the host's network, and a pod has only such containers or none.
pub(in crate::validation) fn check_host_process(spec: &PodSpec, errors: &mut FieldErrors) {
    let set = |options: Option<&WindowsSecurityContextOptions>| options.and_then(|options| options.host_process);
    let context = spec.security_context.as_ref();
    let of_pod = set(context.and_then(|context| context.windows_options.as_ref()));
    let of_containers = all_containers(spec).map(|(_, container)| {
        let context = container.security_context.as_ref();
        set(context.and_then(|context| context.windows_options.as_ref())).or(of_pod)
    });
    let (with, without): (Vec<_>, Vec<_>) = of_containers.partition(|set| *set == Some(true));
    if with.is_empty() {
        return;
    }
    let root = FieldPath::new("spec");
    if !without.is_empty() {
        let detail = "a pod with one hostProcess container must have no other kind of container";
        errors.invalid(root.clone(), "", detail);
    }
    if spec.host_network != Some(true) {
        let detail = "hostNetwork must be true if a pod has hostProcess containers";
        errors.invalid(root.child("hostNetwork"), false, detail);
    }
}
