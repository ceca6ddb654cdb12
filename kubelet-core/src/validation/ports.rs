//! Container ports.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};

use super::check::{name, one_of, range};
use super::field::{FieldErrors, FieldPath};
use super::names::NameKind;

pub(super) fn check(container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (j, port) in container.ports.iter().flatten().enumerate() {
        let path = path.child("ports").index(j);
        if let Some(given) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let path = path.child("name");
            if !NameKind::Port.allows(given) {
                name(&path, given, NameKind::Port, errors);
            } else if !seen.insert(given) {
                errors.duplicate(path, given);
            }
        }
        if port.container_port == 0 {
            errors.required(path.child("containerPort"), "");
        } else {
            let number = i64::from(port.container_port);
            range(path.child("containerPort"), number, 1, 65_535, errors);
        }
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            range(path.child("hostPort"), i64::from(number), 1, 65_535, errors);
        }
        let protocol = port.protocol.as_deref();
        one_of(path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"], errors);
    }
}

/// Clashes on the host, and the rule of the host network. The regular containers are looked at together, each init
/// container alone, and its clash is shown at the first one as upstream does.
pub(super) fn check_host_ports(spec: &PodSpec, errors: &mut FieldErrors) {
    let root = FieldPath::new("spec");
    let mut seen = BTreeSet::new();
    for (i, container) in spec.containers.iter().enumerate() {
        check_clashes(container, &root.child("containers").index(i), &mut seen, errors);
    }
    for container in spec.init_containers.iter().flatten() {
        let path = root.child("initContainers").index(0);
        check_clashes(container, &path, &mut BTreeSet::new(), errors);
    }
    if spec.host_network != Some(true) {
        return;
    }
    for (i, container) in spec.containers.iter().enumerate() {
        for (j, port) in container.ports.iter().flatten().enumerate() {
            let number = port.host_port.unwrap_or_default();
            if number != 0 && number != port.container_port {
                errors.invalid(
                    root.child("containers")
                        .index(i)
                        .child("ports")
                        .index(j)
                        .child("hostPort"),
                    number,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
    }
}

fn check_clashes(container: &Container, path: &FieldPath, seen: &mut BTreeSet<String>, errors: &mut FieldErrors) {
    for (j, port) in container.ports.iter().flatten().enumerate() {
        let Some(key) = host_key(port) else { continue };
        if !seen.insert(key.clone()) {
            let path = path.child("ports").index(j).child("hostPort");
            errors.duplicate(path, key.as_str());
        }
    }
}

fn host_key(port: &ContainerPort) -> Option<String> {
    let number = port.host_port.filter(|number| *number != 0)?;
    let protocol = port.protocol.as_deref().unwrap_or_default();
    let ip = port.host_ip.as_deref().unwrap_or_default();
    Some(format!("{protocol}/{ip}/{number}"))
}
