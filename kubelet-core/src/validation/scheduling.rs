//! Where a pod wants to run.

mod affinity;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodSpec, Toleration};
use serde::Serialize;

pub(super) use affinity::check as check_affinity;

use super::check::{known_only, name, one_of};
use super::field::{FieldErrors, FieldPath, Json};
use super::metadata::check_labels;
use super::names::NameKind;

/// A toleration as upstream's error texts show it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct GoToleration<'a> {
    key: &'a str,
    operator: &'a str,
    value: &'a str,
    effect: &'a str,
    toleration_seconds: Option<i64>,
}

pub(super) fn check_node_selector(spec: &PodSpec, errors: &mut FieldErrors) {
    let path = FieldPath::new("spec").child("nodeSelector");
    check_labels(spec.node_selector.as_ref(), &path, errors);
}

pub(super) fn check_tolerations(spec: &PodSpec, errors: &mut FieldErrors) {
    let list = FieldPath::new("spec").child("tolerations");
    for (k, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(toleration, &list.index(k), errors);
    }
}

fn check_toleration(toleration: &Toleration, path: &FieldPath, errors: &mut FieldErrors) {
    let given = GoToleration {
        key: toleration.key.as_deref().unwrap_or_default(),
        operator: toleration.operator.as_deref().unwrap_or_default(),
        value: toleration.value.as_deref().unwrap_or_default(),
        effect: toleration.effect.as_deref().unwrap_or_default(),
        toleration_seconds: toleration.toleration_seconds,
    };
    let at_operator = path.child("operator");
    if !given.key.is_empty() {
        name(&path.child("key"), given.key, NameKind::Qualified, errors);
    } else if given.operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.invalid(at_operator.clone(), Json(&given.operator), detail);
    }
    if given.toleration_seconds.is_some() && given.effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.invalid(path.child("effect"), Json(&given.effect), detail);
    }
    match given.operator {
        "" | "Equal" => name(&at_operator, given.value, NameKind::LabelValue, errors),
        "Exists" if !given.value.is_empty() => {
            let detail = "value must be empty when `operator` is 'Exists'";
            errors.invalid(at_operator, Json(&given), detail);
        }
        "Exists" => {}
        // Known, but switched off: upstream lists them all the same.
        "Lt" | "Gt" => {
            errors.not_supported(at_operator, given.operator, &["Equal", "Exists", "Lt", "Gt"]);
        }
        _ => errors.not_supported(at_operator, given.operator, &["Equal", "Exists"]),
    }
    if !given.effect.is_empty() {
        let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        known_only(path.child("effect"), given.effect, &known, errors);
    }
}

pub(super) fn check_spread(spec: &PodSpec, errors: &mut FieldErrors) {
    let list = FieldPath::new("spec").child("topologySpreadConstraints");
    let mut seen = BTreeSet::new();
    for (k, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = list.index(k);
        if constraint.max_skew <= 0 {
            let path = path.child("maxSkew");
            errors.invalid(path, constraint.max_skew, "must be greater than zero");
        }
        let (key, action) = (constraint.topology_key.as_str(), constraint.when_unsatisfiable.as_str());
        if key.is_empty() {
            errors.required(path.child("topologyKey"), "can not be empty");
        } else {
            name(&path.child("topologyKey"), key, NameKind::Qualified, errors);
        }
        let known = ["DoNotSchedule", "ScheduleAnyway"];
        one_of(path.child("whenUnsatisfiable"), Some(action), &known, errors);
        if !seen.insert((key, action)) {
            let pair = format!("{{{key}, {action}}}");
            errors.duplicate(path.child("{topologyKey, whenUnsatisfiable}"), pair.as_str());
        }
    }
}
