//! Limits, requests and claims, of containers and of the pod as a whole.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::check::{quantity, required};
use super::field::{FieldErrors, FieldPath, Json};
use super::names::NameKind;
use crate::quantity::Quantity;
use crate::resources::{
    ResourceList, aggregate_container_limits, aggregate_container_requests, is_huge_page, is_pod_level, read_list,
};

/// Names without a prefix that mean something in the API, though not for containers.
const ELSEWHERE: [&str; 20] = [
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "services.nodeports",
    "services.loadbalancers",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "cpu",
    "memory",
    "ephemeral-storage",
];

#[derive(Clone, Copy, Eq, PartialEq)]
enum Level {
    Container,
    Pod,
}

pub(super) fn check_container(
    resources: Option<&ResourceRequirements>,
    claims: &BTreeSet<&str>,
    path: &FieldPath,
    errors: &mut FieldErrors,
) {
    let Some(resources) = resources else { return };
    check_lists(resources, Level::Container, path, errors);
    let mut seen = BTreeSet::new();
    for (k, claim) in resources.claims.iter().flatten().enumerate() {
        let path = path.child("claims").index(k);
        let name = claim.name.as_str();
        let request = claim.request.as_deref().unwrap_or_default();
        if !seen.insert((name, request)) {
            let shown = if request.is_empty() {
                name.to_owned()
            } else {
                format!("{name}/{request}")
            };
            errors.duplicate(path.clone(), shown.as_str());
        }
        required(path.child("name"), name, errors);
        if !name.is_empty() && !claims.contains(name) {
            let known: Vec<_> = claims.iter().copied().collect();
            let which = match known.as_slice() {
                [] => " which is empty".to_owned(),
                known => format!(": {}", known.join(", ")),
            };
            let detail = format!("must be one of the names in pod.spec.resourceClaims{which}");
            errors.not_found(path, name, detail);
        }
    }
}

/// The pod's own resources, and how they relate to those of its containers.
pub(super) fn check_pod(spec: &PodSpec, errors: &mut FieldErrors) {
    let Some(own) = &spec.resources else { return };
    let path = FieldPath::new("spec").child("resources");
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return errors.forbidden(path, "may not be set for a windows pod");
    }
    if own.claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        let detail = "claims may not be set for Resources at pod-level";
        errors.forbidden(path.child("claims"), detail);
    }
    check_lists(own, Level::Pod, &path, errors);
    let limits = read_list(own.limits.as_ref());
    let sums = aggregate_container_requests(spec);
    for (name, request) in read_list(own.requests.as_ref()) {
        if let Some(sum) = sums.get(&name).filter(|sum| request < **sum) {
            let detail = format!("must be greater than or equal to aggregate container requests of {sum}");
            let path = path.child("requests").key(name);
            errors.invalid(path, request.to_string().as_str(), detail);
        }
    }
    check_container_limits(spec, &limits, &path, errors);
    let sums = aggregate_container_limits(spec);
    for (name, limit) in limits.iter().filter(|(name, _)| is_huge_page(name)) {
        if let Some(sum) = sums.get(name).filter(|sum| limit < *sum) {
            let detail = format!("must be greater than or equal to aggregate container limits of {sum}");
            let path = path.child("limits").key(name);
            errors.invalid(path, limit.to_string().as_str(), detail);
        }
    }
}

pub(super) fn check_overhead(spec: &PodSpec, errors: &mut FieldErrors) {
    let resources = ResourceRequirements {
        limits: spec.overhead.clone(),
        ..ResourceRequirements::default()
    };
    let path = FieldPath::new("spec").child("overhead");
    check_lists(&resources, Level::Container, &path, errors);
}

fn check_container_limits(spec: &PodSpec, most: &ResourceList, path: &FieldPath, errors: &mut FieldErrors) {
    for (i, container) in spec.containers.iter().enumerate() {
        let limits = container
            .resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref());
        for (name, limit) in read_list(limits) {
            if let Some(most) = most.get(&name).filter(|most| limit > **most) {
                let path = path.child("containers").index(i).key(name).child("limits");
                let detail = format!("must be less than or equal to pod limits of {most}");
                errors.invalid(path, limit.to_string().as_str(), detail);
            }
        }
    }
}

fn check_lists(resources: &ResourceRequirements, level: Level, path: &FieldPath, errors: &mut FieldErrors) {
    let (at_limits, at_requests) = (path.child("limits"), path.child("requests"));
    let limits = check_list(resources.limits.as_ref(), level, &at_limits, errors);
    for (name, limit) in limits.iter().filter(|(name, _)| is_huge_page(name)) {
        check_huge_page(name, limit, &at_limits, errors);
    }
    let requests = check_list(resources.requests.as_ref(), level, &at_requests, errors);
    for (name, request) in &requests {
        let shown = request.to_string();
        match limits.get(name) {
            Some(limit) if !may_overcommit(name) && request != limit => {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.invalid(at_requests.clone(), shown.as_str(), detail);
            }
            Some(limit) if may_overcommit(name) && request > limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.invalid(at_requests.clone(), shown.as_str(), detail);
            }
            None if !may_overcommit(name) => {
                let detail = "Limit must be set for non overcommitable resources";
                errors.required(at_limits.clone(), detail);
            }
            _ => {}
        }
    }
    let all = || limits.keys().chain(requests.keys());
    if all().any(|name| is_huge_page(name)) && !all().any(|name| name == "cpu" || name == "memory") {
        errors.forbidden(path.clone(), "HugePages require cpu or memory");
    }
}

fn check_list(
    list: Option<&BTreeMap<String, ApiQuantity>>,
    level: Level,
    path: &FieldPath,
    errors: &mut FieldErrors,
) -> ResourceList {
    let mut read = ResourceList::new();
    for (name, amount) in list.into_iter().flatten() {
        let path = path.key(name);
        match level {
            Level::Container => check_name(name, &path, errors),
            Level::Pod if !is_pod_level(name) => {
                errors.not_supported(path.clone(), name, &["cpu", "hugepages-", "memory"]);
            }
            Level::Pod => {}
        }
        let Some(amount) = quantity(&path, amount, errors) else {
            continue;
        };
        let shown = amount.to_string();
        if amount.is_negative() {
            let detail = "must be greater than or equal to 0";
            errors.invalid(path.clone(), shown.as_str(), detail);
        }
        if is_extended(name) && !amount.is_whole() {
            errors.invalid(path, shown.as_str(), "must be an integer");
        }
        read.insert(name.clone(), amount);
    }
    read
}

fn check_name(name: &str, path: &FieldPath, errors: &mut FieldErrors) {
    let faults = NameKind::Qualified.faults(name);
    if !faults.is_empty() {
        for fault in faults {
            errors.invalid(path.clone(), Json(&name), fault);
        }
        return;
    }
    if !name.contains('/') {
        let of_containers = is_huge_page(name) || ["cpu", "memory", "ephemeral-storage"].contains(&name);
        if !of_containers && !ELSEWHERE.contains(&name) && !name.starts_with("requests.hugepages-") {
            let detail = "must be a standard resource type or fully qualified";
            errors.invalid(path.clone(), Json(&name), detail);
        }
        if !of_containers {
            let detail = "must be a standard resource for containers";
            errors.invalid(path.clone(), Json(&name), detail);
        }
    } else if !name.contains("kubernetes.io/") && !is_extended(name) {
        let detail = "doesn't follow extended resource name standard";
        errors.invalid(path.clone(), Json(&name), detail);
    }
}

/// Whether the resource is counted by a device plugin or the like: a foreign prefix that fits a quota's name too.
fn is_extended(name: &str) -> bool {
    name.contains('/')
        && !name.contains("kubernetes.io/")
        && !name.starts_with("requests.")
        && NameKind::Qualified.allows(&format!("requests.{name}"))
}

fn may_overcommit(name: &str) -> bool {
    !is_extended(name) && !is_huge_page(name)
}

fn check_huge_page(name: &str, amount: &Quantity, list: &FieldPath, errors: &mut FieldErrors) {
    let size = name.strip_prefix("hugepages-").unwrap_or_default();
    let size = size.parse::<Quantity>().ok();
    let size = size.filter(|size| size.is_whole() && !size.is_zero() && !size.is_negative());
    if !size.is_some_and(|size| amount.is_multiple_of(&size)) {
        let shown = amount.to_string();
        let detail = format!("{shown} is not positive integer multiple of {name}");
        errors.invalid(list.key(name), shown.as_str(), detail);
    }
}
