//! Sysctls and user namespaces: what depends on whose namespaces a pod uses.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodSpec, Sysctl};

use crate::validation::containers::all_containers;
use crate::validation::field::{FieldErrors, FieldPath};
use crate::validation::names::NameKind;

const IPC: [&str; 9] = [
    "kernel.sem",
    "kernel.shm",
    "kernel.msg",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
    "kernel.msgmax",
    "kernel.msgmnb",
];

pub(in crate::validation) fn check_sysctls(
    spec: &PodSpec,
    sysctls: &[Sysctl],
    context: &FieldPath,
    errors: &mut FieldErrors,
) {
    let mut seen = BTreeSet::new();
    for (k, sysctl) in sysctls.iter().enumerate() {
        let path = context.child("sysctls").index(k).child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            errors.required(path.clone(), "");
        } else if !NameKind::Sysctl.allows(name) {
            errors.invalid_each(&path, name, NameKind::Sysctl.faults(name));
        } else if !seen.insert(name) {
            errors.duplicate(path.clone(), name);
        }
        let dotted = dotted(name);
        if spec.host_network == Some(true) && dotted.starts_with("net.") {
            errors.invalid(path.clone(), name, "may not be specified when 'hostNetwork' is true");
        }
        let ipc = dotted.starts_with("fs.mqueue.") || dotted == "kernel.msgmni" || IPC.contains(&dotted.as_str());
        if spec.host_ipc == Some(true) && ipc {
            errors.invalid(path, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

/// The first separator tells the spelling: after a slash, dots and slashes have changed places.
fn dotted(name: &str) -> String {
    if !matches!(name.find(['.', '/']).map(|at| name.as_bytes()[at]), Some(b'/')) {
        return name.to_owned();
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    name.chars().map(swap).collect()
}

/// Two of the fields are printed as upstream's internal names.
pub(in crate::validation) fn check_host_users(spec: &PodSpec, errors: &mut FieldErrors) {
    if spec.host_users != Some(false) {
        return;
    }
    let root = FieldPath::new("spec");
    let detail = "when `hostUsers` is false";
    for (field, set) in [
        ("hostNetwork", spec.host_network),
        ("HostPID", spec.host_pid),
        ("HostIPC", spec.host_ipc),
    ] {
        if set == Some(true) {
            errors.forbidden(root.child(field), detail);
        }
    }
    for (path, container) in all_containers(spec) {
        if container
            .volume_devices
            .as_ref()
            .is_some_and(|devices| !devices.is_empty())
        {
            errors.forbidden(path.child("volumeDevices"), detail);
        }
    }
}
