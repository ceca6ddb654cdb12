//! What a pod asks for as a whole.
//!
//! Source: Kubernetes 1.36, `component-helpers/resource/helpers.go`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::quantity::Quantity;

/// Amounts by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

/// What the scheduler and the node reserve for a pod: the sum over its containers, replaced by the pod's own requests
/// where it has some, plus its overhead.
///
/// Quantities that cannot be read count as absent; validation reports them.
#[must_use]
pub fn pod_requests(spec: &PodSpec) -> ResourceList {
    let mut total = pod_requests_without_overhead(spec);
    for (name, amount) in read_list(spec.overhead.as_ref()) {
        add(&mut total, name, &amount);
    }
    total
}

/// Like [`pod_requests`], for what is inside of the pod alone.
pub(crate) fn pod_requests_without_overhead(spec: &PodSpec) -> ResourceList {
    let mut total = aggregate_container_requests(spec);
    let own = spec.resources.as_ref().map(requests).unwrap_or_default();
    total.extend(own.into_iter().filter(|(name, _)| is_pod_level(name)));
    total
}

/// Like [`pod_limits`], for what is inside of the pod alone.
pub(crate) fn pod_limits_without_overhead(spec: &PodSpec) -> ResourceList {
    let mut total = aggregate_container_limits(spec);
    let own = spec.resources.as_ref().map(limits).unwrap_or_default();
    total.extend(own.into_iter().filter(|(name, _)| is_pod_level(name)));
    total
}

/// What a pod may use at most, combined like [`pod_requests`]; overhead is added only to limits that are there and
/// not zero.
///
/// A container without a limit adds nothing, so a sum binds the pod only where every container has that limit.
#[must_use]
pub fn pod_limits(spec: &PodSpec) -> ResourceList {
    let mut total = pod_limits_without_overhead(spec);
    for (name, amount) in read_list(spec.overhead.as_ref()) {
        if let Some(limit) = total.get_mut(&name).filter(|limit| !limit.is_zero()) {
            *limit = limit.saturating_add(&amount);
        }
    }
    total
}

/// The requests of the containers together: the larger of what runs side by side and what any init container needs
/// while it runs. Pod-level requests and overhead are not part of it.
#[must_use]
pub fn aggregate_container_requests(spec: &PodSpec) -> ResourceList {
    aggregate(spec, requests)
}

/// The limits of the containers together, combined like [`aggregate_container_requests`].
#[must_use]
pub fn aggregate_container_limits(spec: &PodSpec) -> ResourceList {
    aggregate(spec, limits)
}

/// Whether the container is a sidecar: an init container that goes on running beside the regular ones.
///
/// Meaningful for init containers alone.
#[must_use]
pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// Whether a resource can be set for a pod as a whole.
pub(crate) fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || is_huge_page(name)
}

/// Whether a resource is memory in large pages.
pub(crate) fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// The size of the pages in bytes that a resource is memory in, if it is: `hugepages-2Mi`.
pub(crate) fn huge_page_size(name: &str) -> Option<u64> {
    let size: Quantity = name.strip_prefix("hugepages-")?.parse().ok()?;
    u64::try_from(size.value()).ok().filter(|bytes| *bytes > 0)
}

/// A list of the API, without what cannot be read.
pub(crate) fn read_list(list: Option<&BTreeMap<String, ApiQuantity>>) -> ResourceList {
    list.into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), Quantity::try_from(amount).ok()?)))
        .collect()
}

fn requests(resources: &ResourceRequirements) -> ResourceList {
    read_list(resources.requests.as_ref())
}

fn limits(resources: &ResourceRequirements) -> ResourceList {
    read_list(resources.limits.as_ref())
}

fn aggregate(spec: &PodSpec, side: impl Fn(&ResourceRequirements) -> ResourceList) -> ResourceList {
    let of = |container: &Container| container.resources.as_ref().map(&side).unwrap_or_default();
    let mut sidecars = ResourceList::new();
    let mut peak = ResourceList::new();
    for container in spec.init_containers.iter().flatten() {
        let mut running = sidecars.clone();
        add_all(&mut running, of(container));
        if is_sidecar(container) {
            sidecars.clone_from(&running);
        }
        for (name, amount) in running {
            raise(&mut peak, name, amount);
        }
    }
    let mut total = ResourceList::new();
    for container in &spec.containers {
        add_all(&mut total, of(container));
    }
    add_all(&mut total, sidecars);
    for (name, amount) in peak {
        raise(&mut total, name, amount);
    }
    total
}

fn add_all(total: &mut ResourceList, list: ResourceList) {
    for (name, amount) in list {
        add(total, name, &amount);
    }
}

fn add(total: &mut ResourceList, name: String, amount: &Quantity) {
    total
        .entry(name)
        .and_modify(|sum| *sum = sum.saturating_add(amount))
        .or_insert_with(|| amount.clone());
}

fn raise(total: &mut ResourceList, name: String, amount: Quantity) {
    total
        .entry(name)
        .and_modify(|most| {
            if amount > *most {
                most.clone_from(&amount);
            }
        })
        .or_insert(amount);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};

    use super::{ResourceList, aggregate_container_requests, pod_limits, pod_requests};

    fn spec(value: Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    fn text(list: &ResourceList) -> String {
        let texts: Vec<_> = list.iter().map(|(k, v)| format!("{k}={v}")).collect();
        texts.join(" ")
    }

    fn needs(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}})
    }

    fn sidecar(cpu: &str) -> Value {
        let mut container = needs(cpu);
        container["restartPolicy"] = json!("Always");
        container
    }

    #[test]
    fn an_init_container_runs_beside_the_sidecars_before_it() {
        for (init, total) in [
            (vec![], "cpu=3"),
            (vec![needs("2")], "cpu=3"),
            (vec![needs("4")], "cpu=4"),
            (vec![sidecar("1"), needs("4")], "cpu=5"),
            (vec![needs("4"), sidecar("2")], "cpu=5"),
            (vec![needs("4"), sidecar("500m")], "cpu=4"),
        ] {
            let spec = spec(json!({"containers": [needs("1"), needs("2"), {"name": "d"}], "initContainers": init}));
            assert_eq!(text(&aggregate_container_requests(&spec)), total);
        }
    }

    #[test]
    fn the_pods_own_amounts_replace_the_sum_and_overhead_comes_on_top() {
        let mut spec = spec(json!({
            "containers": [{"name": "c", "resources": {
                "requests": {"cpu": "1", "memory": "1Gi", "a/b": "2", "memory2": "x"},
                "limits": {"cpu": "2", "memory": "0"},
            }}],
            "resources": {"requests": {"cpu": "3", "a/b": "7"}, "limits": {"cpu": "4"}},
            "overhead": {"cpu": "100m", "memory": "1Mi", "hugepages-2Mi": "2Mi"},
        }));
        assert_eq!(
            text(&pod_requests(&spec)),
            "a/b=2 cpu=3100m hugepages-2Mi=2Mi memory=1025Mi"
        );
        assert_eq!(text(&pod_limits(&spec)), "cpu=4100m memory=0");
        spec.overhead = None;
        assert_eq!(text(&pod_limits(&spec)), "cpu=4 memory=0");
    }
}
