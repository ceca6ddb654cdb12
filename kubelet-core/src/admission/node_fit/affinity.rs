//! Node selectors and required node affinity.
//!
//! Source: Kubernetes 1.36, `component-helpers/scheduling/corev1/nodeaffinity`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

use crate::admission::NodeView;

/// Whether the node is one that the pod asks for. Preferred affinity is the scheduler's alone.
pub(super) fn matches(spec: &PodSpec, node: &NodeView) -> bool {
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| node.labels.get(key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|required| node_selector_matches(required, node))
}

/// Whether a node is one that is selected, such as by the affinity of a persistent volume: by one of the terms at least.
pub fn node_selector_matches(selector: &NodeSelector, node: &NodeView) -> bool {
    selector.node_selector_terms.iter().any(|term| matches_term(term, node))
}

/// An empty term matches no node. A requirement that cannot be understood makes its term match none.
fn matches_term(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|wanted| matches_label(wanted, &node.labels))
        && fields.iter().all(|wanted| matches_field(wanted, &node.name))
}

fn matches_label(wanted: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let label = labels.get(&wanted.key);
    let values = wanted.values.as_deref().unwrap_or_default();
    match (wanted.operator.as_str(), values) {
        ("In", [_, ..]) => label.is_some_and(|label| values.contains(label)),
        ("NotIn", [_, ..]) => label.is_none_or(|label| !values.contains(label)),
        ("Exists", []) => label.is_some(),
        ("DoesNotExist", []) => label.is_none(),
        ("Gt", [bound]) => is_in_order(Some(bound), label),
        ("Lt", [bound]) => is_in_order(label, Some(bound)),
        _ => false,
    }
}

/// Whether both are whole numbers, and the first is less than the second.
fn is_in_order(less: Option<&String>, more: Option<&String>) -> bool {
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    number(less).zip(number(more)).is_some_and(|(less, more)| less < more)
}

/// The only field of a node that can be asked for is its name, and the API allows one value.
fn matches_field(wanted: &NodeSelectorRequirement, node_name: &str) -> bool {
    match (
        wanted.key.as_str(),
        wanted.operator.as_str(),
        wanted.values.as_deref().unwrap_or_default(),
    ) {
        ("metadata.name", "In", [name]) => name == node_name,
        ("metadata.name", "NotIn", [name]) => name != node_name,
        _ => false,
    }
}
