//! Resources.

use super::failure::Insufficient;
use crate::admission::AdmitRequest;
use crate::admission::preemption::PODS;
use crate::quantity::{Quantity, QuantityFormat};
use crate::resources::pod_requests;

/// The order in which shortages are told; other resources follow by name.
const FIRST: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// What does not suffice for the pod beside the others.
pub(super) fn shortages(req: &AdmitRequest<'_>) -> Vec<Insufficient> {
    let requests = pod_requests(req.pod.spec());
    let rest = requests.keys().map(String::as_str).filter(|name| !FIRST.contains(name));
    let named = FIRST.into_iter().chain(rest).filter_map(|name| {
        let requested = requests.get(name).filter(|amount| **amount > Quantity::ZERO)?;
        let allocatable = req.node.allocatable.get(name);
        if allocatable.is_none() && is_extended(name) {
            return None;
        }
        let capacity = allocatable.cloned().unwrap_or_default();
        let used = req.others.used().get(name).cloned().unwrap_or_default();
        let missing = requested.saturating_sub(&capacity.saturating_sub(&used));
        (missing > Quantity::ZERO).then(|| Insufficient {
            resource: name.to_owned(),
            requested: count(name, requested),
            used: count(name, &used),
            capacity: count(name, &capacity),
            missing,
        })
    });
    too_many_pods(req).into_iter().chain(named).collect()
}

fn too_many_pods(req: &AdmitRequest<'_>) -> Option<Insufficient> {
    let used = i64::try_from(req.others.len()).unwrap_or(i64::MAX);
    let capacity = req.node.allocatable.get(PODS).map_or(0, Quantity::value);
    (used >= capacity).then(|| Insufficient {
        resource: PODS.to_owned(),
        requested: 1,
        used,
        capacity,
        missing: Quantity::from_value(
            used.saturating_sub(capacity).saturating_add(1),
            QuantityFormat::DecimalSi,
        ),
    })
}

/// The number that messages show.
fn count(name: &str, amount: &Quantity) -> i64 {
    if name == "cpu" {
        amount.milli_value()
    } else {
        amount.value()
    }
}

/// Whether a resource is one that a device plugin or an administrator adds to nodes, as opposed to Kubernetes' own.
///
/// Source: Kubernetes 1.36, `pkg/apis/core/v1/helper`, `IsExtendedResourceName`.
pub(in crate::admission) fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
