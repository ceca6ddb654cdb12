//! Whether a pod that no API server has checked may run.

mod check;
mod containers;
mod env;
mod field;
mod metadata;
mod mounts;
mod names;
mod pod;
mod ports;
mod probes;
mod references;
mod resources;
#[cfg(test)]
pub(crate) mod sample;
mod scheduling;
mod security;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use containers::PodContext;
pub use field::{FieldError, FieldErrorKind, FieldErrors, FieldPath, FieldStep};
pub use names::NameKind;
pub use references::{ApiReference, StaticReferenceError, refuse_api_references};

/// Checks a pod as an API server does when it is created, and finds everything that is wrong with it.
///
/// The pod is expected to have its defaults ([`apply_defaults`](crate::apply_defaults)) and its node's edits: name
/// suffix, namespace, node name. Paths and texts are upstream's, its odd ones too. The order is fixed; entries
/// of maps come sorted.
///
/// Beyond upstream, a given `metadata.uid` must be one safe path element, and a quantity that cannot be read is
/// reported with its path instead of failing the whole manifest without one.
///
/// Source: Kubernetes 1.36, `pkg/apis/core/validation/validation.go`, with the options of the kubelet's own sources.
#[must_use]
pub fn validate_pod(pod: &Pod) -> FieldErrors {
    let mut found = FieldErrors::default();
    let errors = &mut found;
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    metadata::check(pod, spec, errors);
    pod::check_grace(spec, errors);
    let volumes = volumes::check(spec, errors);
    let claims = pod::check_claims(spec, pod.metadata.annotations.as_ref(), errors);
    let cx = PodContext { spec, volumes, claims };
    let mut names = BTreeSet::new();
    containers::check_regular(&cx, &mut names, errors);
    containers::check_init(&cx, &mut names, errors);
    containers::check_ephemeral(&cx, &mut names, errors);
    resources::check_pod(spec, errors);
    ports::check_host_ports(spec, errors);
    pod::check_restart_policy(spec, errors);
    pod::check_policy(spec, errors);
    scheduling::check_node_selector(spec, errors);
    security::check_pod(spec, errors);
    scheduling::check_affinity(spec, errors);
    pod::check_config(spec, errors);
    pod::check_readiness_gates(spec, errors);
    pod::check_scheduling_gates(spec, errors);
    scheduling::check_spread(spec, errors);
    security::check_host_process(spec, errors);
    security::check_host_users(spec, errors);
    pod::check_hostname_override(spec, errors);
    pod::check_rest(spec, errors);
    security::check_os(spec, errors);
    scheduling::check_tolerations(spec, errors);
    resources::check_overhead(spec, errors);
    containers::check_image_blanks(spec, errors);
    containers::check_no_ephemeral(spec, errors);
    found
}
