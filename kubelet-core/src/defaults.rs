//! What the API fills in, for pods that came without an API server.

mod containers;
mod image;
mod pod;
mod resources;
#[cfg(test)]
mod tests;
mod volumes;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

/// Fills in every default of the v1 API and applies its conversion rules, in upstream's order.
///
/// Absent, null and, for fields that are no pointers upstream, the zero value count as unset, so an explicit zero of a
/// defaulted field never reaches validation. A quantity that cannot be read is left alone, for validation to report.
/// Applying it again changes nothing.
///
/// Not done, because only an API server does it: timestamps, generation, status, `status.qosClass`, and whatever
/// admission plugins add.
///
/// Source: Kubernetes 1.36, `pkg/apis/core/v1/defaults.go` and `conversion.go`.
pub fn apply_defaults(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        resources::set(spec);
        pod::set(spec);
        for volume in spec.volumes.iter_mut().flatten() {
            volumes::set(volume);
        }
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            containers::set(container);
        }
        for container in spec.ephemeral_containers.iter_mut().flatten() {
            containers::set_ephemeral(container);
        }
        pod::convert_spec(spec);
    }
    pod::convert_metadata(&mut pod.metadata);
    if let Some(status) = &mut pod.status {
        pod::convert_status(status);
    }
    resources::round(pod);
}

/// All containers of the kinds that take requests from their limits.
fn lasting_containers(spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    let init = spec.init_containers.iter_mut().flatten();
    spec.containers.iter_mut().chain(init)
}

/// Sets a text that is absent or empty.
fn set_text(field: &mut Option<String>, default: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(default.to_owned());
    }
}

/// Sets a number that is absent or zero.
fn set_number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or_default() == 0 {
        *field = Some(default);
    }
}
