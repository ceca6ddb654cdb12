//! Limits of containers and sandboxes on Linux.
//!
//! Source: kubelet 1.36, `kuberuntime_container_linux.go`, `cm/helpers_linux.go` and `qos/policy.go`.

mod machine;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;

use crate::admission::NodeView;
use crate::cgroups::{PodLimits, cpu_quota, cpu_shares, page_size_name};
use crate::pod::{ContainerKind, ContainerView, PodRecord, QosClass};
use crate::quantity::Quantity;
use crate::resources::{
    ResourceList, aggregate_container_requests, huge_page_size, pod_limits_without_overhead,
    pod_requests_without_overhead, read_list,
};
use crate::runtime::LinuxResources;
use crate::settings::{ResourceSettings, SwapBehavior};

pub(crate) use machine::CgroupFacts;

/// The file that says whether the kernel kills all of a cgroup.
const OOM_GROUP: &str = "memory.oom.group";
const SWAP_MAX: &str = "memory.swap.max";

/// What the limits depend on beside pods and node.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResourceRules {
    pub(crate) settings: ResourceSettings,
    pub(crate) cgroups: CgroupFacts,
}

/// The amounts of one container, with what it has none of taken from its pod.
struct Amounts<'a> {
    pod: &'a PodRecord,
    requests: ResourceList,
    limits: ResourceList,
    of_pod: ResourceList,
}

impl<'a> Amounts<'a> {
    fn of(pod: &'a PodRecord, view: &ContainerView<'_>) -> Self {
        let own = view.resources();
        let of_pod = pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref());
        Self {
            pod,
            requests: read_list(own.and_then(|r| r.requests.as_ref())),
            limits: read_list(own.and_then(|r| r.limits.as_ref())),
            of_pod: read_list(of_pod),
        }
    }

    fn limit(&self, name: &str) -> Option<&Quantity> {
        let own = self.limits.get(name).filter(|amount| !amount.is_zero());
        own.or_else(|| self.of_pod.get(name))
    }

    fn memory_request(&self) -> i64 {
        self.requests.get("memory").map_or(0, Quantity::value)
    }

    /// The score that the kernel adds when it looks for a process to kill.
    fn oom_score_adj(&self, kind: ContainerKind, memory_capacity: i64) -> i32 {
        let pod = self.pod;
        let class = pod.spec().priority_class_name.as_deref();
        if pod.facts().is_critical && class == Some("system-node-critical") {
            return -997;
        }
        match pod.facts().qos {
            QosClass::Guaranteed => return -997,
            QosClass::BestEffort => return 1000,
            QosClass::Burstable => {}
        }
        let share = unassigned_share(pod);
        let score = |request: i64| match memory_capacity {
            ..=0 => 1000,
            capacity => 1000 - 1000_i64.saturating_mul(request.saturating_add(share)) / capacity,
        };
        let mut adjusted = score(self.memory_request());
        if kind == ContainerKind::Sidecar {
            // A sidecar must not go before the containers that it serves.
            let requests = ContainerView::regular(pod.spec()).map(|view| Amounts::of(pod, &view).memory_request());
            adjusted = requests.min().map_or(adjusted, |least| adjusted.min(score(least)));
        }
        i32::try_from(adjusted.clamp(3, 999)).unwrap_or(999)
    }

    /// What of the node's swap a container may use, which is a share like its share of the memory.
    fn swap_limit(&self, node_memory: i64, node_swap: u64) -> u64 {
        let request = self.memory_request();
        let limit = self.limits.get("memory").map_or(0, Quantity::value);
        let is_eligible = self.pod.facts().qos == QosClass::Burstable
            && !self.pod.facts().is_critical
            && (request != 0 || limit != 0)
            && request != limit
            && (1..=node_memory).contains(&request);
        if !is_eligible {
            return 0;
        }
        let swap = i128::from(request) * i128::from(node_swap) / i128::from(node_memory);
        u64::try_from(swap).unwrap_or(0)
    }
}

/// The share that each container has of the memory that its pod requests beyond them.
fn unassigned_share(pod: &PodRecord) -> i64 {
    let spec = pod.spec();
    let own = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let Some(requested) = read_list(own).get("memory").map(Quantity::value).filter(|m| *m != 0) else {
        return 0;
    };
    let assigned = aggregate_container_requests(spec)
        .get("memory")
        .map_or(0, Quantity::value);
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    let count = i64::try_from(count).unwrap_or(i64::MAX).max(1);
    requested.saturating_sub(assigned).max(0) / count
}

/// For each size of large pages that the node has: how much of it the container may use.
fn hugepage_limits(amounts: &Amounts<'_>, node: &NodeView) -> BTreeMap<String, u64> {
    let mut limits: BTreeMap<String, u64> = node
        .capacity
        .keys()
        .filter_map(|name| Some((page_size_name(huge_page_size(name)?), 0)))
        .collect();
    // The container's own come last, and win.
    for (name, amount) in amounts.of_pod.iter().chain(&amounts.limits) {
        if let Some(limit) = huge_page_size(name).and_then(|size| limits.get_mut(&page_size_name(size))) {
            *limit = u64::try_from(amount.value()).unwrap_or(0);
        }
    }
    limits
}

impl ResourceRules {
    /// Weight and quota of amounts in thousandths. A limit without a request stands for one.
    fn with_cpu(&self, request: Option<i64>, limit: Option<i64>) -> LinuxResources {
        let mut resources = LinuxResources {
            cpu_shares: cpu_shares(request.or(limit).unwrap_or(0)),
            ..LinuxResources::default()
        };
        if self.settings.cpu_cfs_quota {
            let period = self.settings.cpu_cfs_quota_period.as_micros();
            let period = i64::try_from(period).unwrap_or(i64::MAX);
            resources.cpu_period = period.unsigned_abs();
            resources.cpu_quota = cpu_quota(limit.unwrap_or(0), period);
        }
        resources
    }

    fn kill_together(&self, resources: &mut LinuxResources) {
        if self.cgroups.is_v2 && !self.settings.single_process_oom_kill {
            resources.unified.insert(OOM_GROUP.to_owned(), "1".to_owned());
        }
    }

    /// The limits of a container.
    pub(super) fn of_container(&self, pod: &PodRecord, view: &ContainerView<'_>, node: &NodeView) -> LinuxResources {
        let amounts = Amounts::of(pod, view);
        let node_memory = node.capacity.get("memory").map_or(0, Quantity::value);
        let mut resources = self.with_cpu(
            amounts.requests.get("cpu").map(Quantity::milli_value),
            amounts.limit("cpu").map(Quantity::milli_value),
        );
        resources.memory_limit_bytes = amounts.limit("memory").map_or(0, Quantity::value);
        resources.oom_score_adj = amounts.oom_score_adj(view.kind(), node_memory);
        resources.hugepage_limits = hugepage_limits(&amounts, node);
        self.kill_together(&mut resources);
        if self.cgroups.has_swap_controller {
            if self.cgroups.is_v2 {
                let swap = match self.settings.swap {
                    SwapBehavior::NoSwap => 0,
                    SwapBehavior::LimitedSwap => amounts.swap_limit(node_memory, self.cgroups.swap_bytes),
                };
                resources.unified.insert(SWAP_MAX.to_owned(), swap.to_string());
            } else {
                // Memory and swap count together there.
                resources.memory_swap_limit_bytes = resources.memory_limit_bytes;
            }
        }
        resources
    }

    /// The limits of all containers of a pod together, without what the pod costs itself.
    pub(super) fn of_sandbox(&self, pod: &PodRecord) -> LinuxResources {
        let requests = pod_requests_without_overhead(pod.spec());
        let limits = pod_limits_without_overhead(pod.spec());
        let milli = |list: &ResourceList| list.get("cpu").map(Quantity::milli_value);
        let mut resources = self.with_cpu(milli(&requests), milli(&limits));
        resources.memory_limit_bytes = limits.get("memory").map_or(0, Quantity::value);
        self.kill_together(&mut resources);
        resources
    }

    /// The limits of the pod's own cgroup, by its own spec or by one with other amounts.
    pub(super) fn of_pod(&self, pod: &PodRecord, spec: &PodSpec, node: &NodeView) -> PodLimits {
        PodLimits::of(spec, pod.facts().qos, &self.settings, node)
    }

    /// What a pod costs beside its containers: the CPU is request and limit in one.
    pub(super) fn of_overhead(&self, pod: &PodRecord) -> Option<LinuxResources> {
        let overhead = read_list(Some(pod.spec().overhead.as_ref()?));
        let milli = overhead.get("cpu").map(Quantity::milli_value);
        let mut resources = self.with_cpu(milli, milli);
        resources.memory_limit_bytes = overhead.get("memory").map_or(0, Quantity::value);
        Some(resources)
    }
}
