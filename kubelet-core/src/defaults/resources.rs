//! Requests that follow from limits, and rounding.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::lasting_containers;
use crate::quantity::Quantity;
use crate::resources::{
    ResourceList, aggregate_container_limits, aggregate_container_requests, is_huge_page, is_pod_level,
};

type ApiList = BTreeMap<String, ApiQuantity>;

/// Container requests from limits, then the pod's own huge page limits, then the pod's own requests.
pub(super) fn set(spec: &mut PodSpec) {
    for container in lasting_containers(spec) {
        if let Some(resources) = &mut container.resources {
            requests_from_limits(resources, |_| true);
        }
    }
    let Some(mut own) = spec.resources.take() else {
        return;
    };
    let is_empty = |list: &Option<ApiList>| list.as_ref().is_none_or(BTreeMap::is_empty);
    if !is_empty(&own.limits) || !is_empty(&own.requests) {
        set_huge_pages(&mut own, aggregate_container_limits(spec));
    }
    if !is_empty(&own.limits) {
        let sums = aggregate_container_requests(spec);
        let requests = own.requests.get_or_insert_default();
        for (name, sum) in sums {
            if name == "cpu" || name == "memory" {
                requests.entry(name).or_insert_with(|| sum.into());
            }
        }
        requests_from_limits(&mut own, is_pod_level);
    }
    spec.resources = Some(own);
}

fn set_huge_pages(own: &mut ResourceRequirements, sums: ResourceList) {
    for (name, sum) in sums {
        let requested = own.requests.as_ref().is_some_and(|list| list.contains_key(&name));
        if is_huge_page(&name) && !requested {
            let limits = own.limits.get_or_insert_default();
            limits.entry(name).or_insert_with(|| sum.into());
        }
    }
}

fn requests_from_limits(resources: &mut ResourceRequirements, wanted: impl Fn(&str) -> bool) {
    for (name, limit) in resources.limits.iter().flatten() {
        if wanted(name) {
            let requests = resources.requests.get_or_insert_default();
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
}

/// Rounds every resource list up to thousandths, as reading one from the API does.
pub(super) fn round(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        round_spec(spec);
    }
    if let Some(status) = &mut pod.status {
        round_status(status);
    }
}

fn round_spec(spec: &mut PodSpec) {
    round_requirements(spec.resources.as_mut());
    round_list(spec.overhead.as_mut());
    for container in lasting_containers(spec) {
        round_requirements(container.resources.as_mut());
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        round_requirements(container.resources.as_mut());
    }
    for volume in spec.volumes.iter_mut().flatten() {
        if let Some(source) = &mut volume.ephemeral
            && let Some(template) = &mut source.volume_claim_template
            && let Some(resources) = &mut template.spec.resources
        {
            round_list(resources.limits.as_mut());
            round_list(resources.requests.as_mut());
        }
    }
}

fn round_status(status: &mut PodStatus) {
    round_list(status.allocated_resources.as_mut());
    round_requirements(status.resources.as_mut());
    for statuses in [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ] {
        for ContainerStatus {
            allocated_resources,
            resources,
            ..
        } in statuses.iter_mut().flatten()
        {
            round_list(allocated_resources.as_mut());
            round_requirements(resources.as_mut());
        }
    }
}

fn round_requirements(resources: Option<&mut ResourceRequirements>) {
    if let Some(resources) = resources {
        round_list(resources.limits.as_mut());
        round_list(resources.requests.as_mut());
    }
}

fn round_list(list: Option<&mut ApiList>) {
    for amount in list.into_iter().flat_map(BTreeMap::values_mut) {
        if let Ok(read) = Quantity::try_from(&*amount) {
            *amount = read.round_up_to_milli().into();
        }
    }
}
