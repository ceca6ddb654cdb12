//! Does the node have what the pod asks for, and is it the right node?

mod affinity;
mod failure;
mod resources;
mod taints;
#[cfg(test)]
mod tests;

use super::ports::PortClaim;
use super::{Admission, AdmitHandler, AdmitRequest, Operation, Shortage};
pub use affinity::node_selector_matches;
use failure::FitFailure;
pub(super) use resources::is_extended;

/// The refusal of a pod that wants no groups but those that it names: reason and message.
pub(crate) const NO_STRICT_GROUPS: (&str, &str) = (
    "SupplementalGroupsPolicyNotSupported",
    "SupplementalGroupsPolicy=Strict is not supported in this node",
);

/// Admits pods that fit the node: its operating system, resources, labels, name, free ports and taints.
///
/// Requests for extended resources that the node does not list are left out: they may be the scheduler's alone. Only
/// taints with the effect `NoExecute` count, and not for static pods. The first failure is the answer, in the order of
/// the upstream kubelet.
///
/// A [restored](super::Operation::Restored) pod is not asked about resources and ports: it has what it holds, whatever
/// was let in before it was asked about, and whatever the node has by now.
///
/// What a critical pod lacks of resources counts only if all else is right, since others may be pushed out for it.
///
/// Source: kubelet 1.36, `lifecycle/predicate.go`; reasons and messages are its own. It asks about all after a restart.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct NodeFit {
    /// Whether pods have no network of their own. Each declared container port is then a port of the host, so two pods
    /// that declare the same one cannot both run. Off by default, as is right for a container runtime with pod
    /// networks; on for one that runs plain processes of the host.
    pub shared_network: bool,
}

impl NodeFit {
    /// All that does not fit, in the order of the upstream kubelet.
    fn failures(&self, req: &AdmitRequest<'_>) -> Vec<FitFailure> {
        let has_its_room = req.operation == Operation::Restored;
        let mut failures = Vec::new();
        if !has_its_room {
            failures.extend(resources::shortages(req).into_iter().map(FitFailure::Insufficient));
        }
        let spec = req.pod.spec();
        if !affinity::matches(spec, req.node) {
            failures.push(FitFailure::NodeAffinity);
        }
        let wanted = spec.node_name.as_deref().unwrap_or_default();
        if !wanted.is_empty() && wanted != req.node.name {
            failures.push(FitFailure::NodeName);
        }
        let ports = PortClaim::of_pod(req.pod);
        if !has_its_room && req.others.port_holder(&ports, self.shared_network).is_some() {
            failures.push(FitFailure::NodePorts);
        }
        if !req.pod.is_static() && taints::untolerated(spec, &req.node.taints).is_some() {
            failures.push(FitFailure::TaintToleration);
        }
        let is_shortage = |failure: &FitFailure| matches!(failure, FitFailure::Insufficient(_));
        if req.pod.facts().is_critical && !failures.iter().all(is_shortage) {
            failures.retain(|failure| !is_shortage(failure));
        }
        failures
    }
}

impl NodeFit {
    /// For a runtime whose pods all share the host's network: every declared container port counts as a host port.
    #[must_use]
    pub fn on_shared_network() -> Self {
        Self { shared_network: true }
    }
}

impl AdmitHandler for NodeFit {
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
        if let Some(refusal) = refuse_system(req) {
            return refusal;
        }
        match self.failures(req).first() {
            Some(failure) => Admission::reject(failure.reason(), failure.to_string()),
            None => Admission::Admit,
        }
    }

    fn shortages(&self, req: &AdmitRequest<'_>) -> Vec<Shortage> {
        if refuse_system(req).is_some() {
            return Vec::new();
        }
        let failures = self.failures(req).into_iter();
        let shortages = failures.map(|failure| match failure {
            FitFailure::Insufficient(short) => Some(Shortage::new(short.resource, short.missing)),
            _ => None,
        });
        // One failure of another kind, and it is not resources alone.
        shortages.collect::<Option<_>>().unwrap_or_default()
    }
}

/// Refuses a pod made for another kind of system, or with a promise that its runtime cannot keep.
fn refuse_system(req: &AdmitRequest<'_>) -> Option<Admission> {
    let system = &req.node.operating_system;
    let labels = req.pod.metadata().labels.as_ref();
    // Compared with the system itself: a label of the node may say otherwise.
    if labels
        .and_then(|labels| labels.get("kubernetes.io/os"))
        .is_some_and(|os| os != system)
    {
        return Some(Admission::reject(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    let spec = req.pod.spec();
    if spec.os.as_ref().is_some_and(|os| os.name != *system) {
        return Some(Admission::reject(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    let groups = spec
        .security_context
        .as_ref()
        .and_then(|context| context.supplemental_groups_policy.as_deref());
    if groups == Some("Strict") && req.node.supplemental_groups_policy == Some(false) {
        return Some(Admission::reject(NO_STRICT_GROUPS.0, NO_STRICT_GROUPS.1));
    }
    None
}
