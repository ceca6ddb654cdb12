//! Node and pod affinity.

use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::validation::check::name;
use crate::validation::field::{FieldErrors, FieldPath, Json};
use crate::validation::metadata::check_labels;
use crate::validation::names::NameKind;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(in crate::validation) fn check(spec: &PodSpec, errors: &mut FieldErrors) {
    let Some(affinity) = &spec.affinity else {
        return;
    };
    let path = FieldPath::new("spec").child("affinity");
    if let Some(node) = &affinity.node_affinity {
        check_node(node, &path.child("nodeAffinity"), errors);
    }
    if let Some(pods) = &affinity.pod_affinity {
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        check_pods(required, preferred, &path.child("podAffinity"), errors);
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        check_pods(required, preferred, &path.child("podAntiAffinity"), errors);
    }
}

fn check_node(affinity: &NodeAffinity, path: &FieldPath, errors: &mut FieldErrors) {
    if let Some(selector) = &affinity.required_during_scheduling_ignored_during_execution {
        let path = path.child(REQUIRED).child("nodeSelectorTerms");
        if selector.node_selector_terms.is_empty() {
            let detail = "must have at least one node selector term";
            errors.required(path.clone(), detail);
        }
        for (k, term) in selector.node_selector_terms.iter().enumerate() {
            check_term(term, &path.index(k), errors);
        }
    }
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter();
    for (k, term) in preferred.flatten().enumerate() {
        let path = path.child(PREFERRED).index(k);
        check_weight(term.weight, &path, errors);
        check_term(&term.preference, &path.child("preference"), errors);
    }
}

fn check_term(term: &NodeSelectorTerm, path: &FieldPath, errors: &mut FieldErrors) {
    for (k, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(k);
        check_requirement(requirement, &path, errors);
        name(&path.child("key"), &requirement.key, NameKind::Qualified, errors);
    }
    for (k, requirement) in term.match_fields.iter().flatten().enumerate() {
        check_field(requirement, &path.child("matchFields").index(k), errors);
    }
}

fn check_requirement(requirement: &NodeSelectorRequirement, path: &FieldPath, errors: &mut FieldErrors) {
    let count = requirement.values.as_ref().map_or(0, Vec::len);
    let operator = requirement.operator.as_str();
    match operator {
        "In" | "NotIn" if count == 0 => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.required(path.child("values"), detail);
        }
        "Exists" | "DoesNotExist" if count > 0 => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(path.child("values"), detail);
        }
        "Gt" | "Lt" if count != 1 => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.required(path.child("values"), detail);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => errors.invalid(path.child("operator"), Json(&operator), "not a valid selector operator"),
    }
}

/// Fields of a node can be matched by name alone, against one value.
fn check_field(requirement: &NodeSelectorRequirement, path: &FieldPath, errors: &mut FieldErrors) {
    let operator = requirement.operator.as_str();
    let values = requirement.values.as_deref().unwrap_or_default();
    if operator != "In" && operator != "NotIn" {
        errors.invalid(path.child("operator"), Json(&operator), "not a valid selector operator");
    } else if values.len() != 1 {
        let detail = "must have exactly one value";
        errors.required(path.child("values"), detail);
    }
    if requirement.key != "metadata.name" {
        let detail = "not a valid field selector key";
        errors.invalid(path.child("key"), requirement.key.as_str(), detail);
        return;
    }
    for (k, value) in values.iter().enumerate() {
        name(&path.child("values").index(k), value, NameKind::Subdomain, errors);
    }
}

fn check_pods(
    required: Option<&[PodAffinityTerm]>,
    preferred: Option<&[WeightedPodAffinityTerm]>,
    path: &FieldPath,
    errors: &mut FieldErrors,
) {
    for (k, term) in required.into_iter().flatten().enumerate() {
        check_pod_term(term, &path.child(REQUIRED).index(k), errors);
    }
    for (k, term) in preferred.into_iter().flatten().enumerate() {
        let path = path.child(PREFERRED).index(k);
        check_weight(term.weight, &path, errors);
        check_pod_term(&term.pod_affinity_term, &path.child("podAffinityTerm"), errors);
    }
}

fn check_pod_term(term: &PodAffinityTerm, path: &FieldPath, errors: &mut FieldErrors) {
    for (field, selector) in [
        ("labelSelector", &term.label_selector),
        ("namespaceSelector", &term.namespace_selector),
    ] {
        if let Some(selector) = selector {
            check_selector(selector, &path.child(field), errors);
        }
    }
    for namespace in term.namespaces.iter().flatten() {
        name(&path.child("namespaces"), namespace, NameKind::Label, errors);
    }
    if term.topology_key.is_empty() {
        errors.required(path.child("topologyKey"), "can not be empty");
    } else {
        name(
            &path.child("topologyKey"),
            &term.topology_key,
            NameKind::Qualified,
            errors,
        );
    }
}

fn check_selector(selector: &LabelSelector, path: &FieldPath, errors: &mut FieldErrors) {
    check_labels(selector.match_labels.as_ref(), &path.child("matchLabels"), errors);
    for (k, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(k);
        let given = NodeSelectorRequirement {
            key: requirement.key.clone(),
            operator: requirement.operator.clone(),
            values: requirement.values.clone(),
        };
        if given.operator == "Gt" || given.operator == "Lt" {
            let detail = "not a valid selector operator";
            errors.invalid(path.child("operator"), Json(&given.operator), detail);
        } else {
            check_requirement(&given, &path, errors);
        }
        name(&path.child("key"), &given.key, NameKind::Qualified, errors);
    }
}

fn check_weight(weight: i32, path: &FieldPath, errors: &mut FieldErrors) {
    if !(1..=100).contains(&weight) {
        let detail = "must be in the range 1-100";
        errors.invalid(path.child("weight"), weight, detail);
    }
}
