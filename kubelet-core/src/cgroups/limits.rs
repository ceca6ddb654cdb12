//! The limits of pods as a whole, and of the node.
//!
//! Source: kubelet 1.36, `cm/helpers_linux.go` and `cm/node_container_manager_linux.go`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;

use super::{CgroupLimits, cpu_quota, cpu_shares, page_size_name};
use crate::admission::{NodeSettings, NodeView};
use crate::pod::{ContainerView, QosClass};
use crate::quantity::Quantity;
use crate::resources::{ResourceList, huge_page_size, pod_limits, pod_requests, read_list};
use crate::settings::ResourceSettings;

/// No quota.
const UNLIMITED: i64 = -1;

/// The limits of a pod as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodLimits {
    /// What its cgroup is given.
    pub cgroup: CgroupLimits,
    /// The CPU that it requests, in thousandths. What Burstable pods request together is the share of their class.
    pub cpu_request_milli: u64,
}

impl PodLimits {
    /// The limits of a pod with that spec and class on a node: a pure function, for a spec with other amounts too.
    ///
    /// Overhead counts. Quota and memory of a Burstable pod are limited only where all of its containers are, or where the pod
    /// itself has such a limit.
    #[must_use]
    pub fn of(spec: &PodSpec, qos: QosClass, settings: &ResourceSettings, node: &NodeView) -> Self {
        let requests = pod_requests(spec);
        let limits = pod_limits(spec);
        let milli = |list: &ResourceList| list.get("cpu").map_or(0, Quantity::milli_value);
        let mut cgroup = CgroupLimits {
            cpu_shares: Some(match qos {
                QosClass::Guaranteed | QosClass::Burstable => cpu_shares(milli(&requests)),
                QosClass::BestEffort => cpu_shares(0),
            }),
            pids: settings.pod_pids_limit,
            hugepages: huge_pages(&node.capacity, &requests),
            ..CgroupLimits::default()
        };
        let is_bound = |name| match qos {
            QosClass::Guaranteed => true,
            QosClass::Burstable => limits_all(spec, name),
            QosClass::BestEffort => false,
        };
        if is_bound("cpu") {
            let period = settings.cpu_cfs_quota_period.as_micros();
            let period = i64::try_from(period).unwrap_or(i64::MAX);
            cgroup.cpu_period = Some(period.unsigned_abs());
            cgroup.cpu_quota = Some(match cpu_quota(milli(&limits), period) {
                quota if settings.cpu_cfs_quota && quota > 0 => quota,
                _ => UNLIMITED,
            });
        }
        if is_bound("memory") {
            let bytes = limits.get("memory").map_or(0, Quantity::value);
            cgroup.memory_bytes = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        }
        Self {
            cgroup,
            cpu_request_milli: u64::try_from(milli(&requests)).unwrap_or(0),
        }
    }

    /// Limits that are no less than either: for the time in which containers go from one to the other. What one of them does
    /// not bind stays as it is.
    #[must_use]
    pub fn widest(&self, other: &Self) -> Self {
        fn most<T: Ord + Copy>(a: Option<T>, b: Option<T>) -> Option<T> {
            a.zip(b).map(|(a, b)| a.max(b))
        }
        let (a, b) = (&self.cgroup, &other.cgroup);
        let quota = match (a.cpu_quota, b.cpu_quota) {
            (Some(UNLIMITED), Some(_)) | (Some(_), Some(UNLIMITED)) => Some(UNLIMITED),
            (a, b) => most(a, b),
        };
        Self {
            cgroup: CgroupLimits {
                cpu_shares: most(a.cpu_shares, b.cpu_shares),
                cpu_quota: quota,
                cpu_period: quota.and(b.cpu_period),
                memory_bytes: most(a.memory_bytes, b.memory_bytes),
                pids: b.pids,
                hugepages: b.hugepages.clone(),
            },
            cpu_request_milli: self.cpu_request_milli.max(other.cpu_request_milli),
        }
    }

    /// The same without a quota: for pods with processors of their own.
    #[must_use]
    pub fn without_quota(mut self) -> Self {
        self.cgroup.cpu_quota = Some(UNLIMITED);
        self
    }
}

/// Whether the pod, or each of its containers, has a limit of that resource.
fn limits_all(spec: &PodSpec, name: &str) -> bool {
    let has = |list: Option<&_>| read_list(list).get(name).is_some_and(|amount| !amount.is_zero());
    let of_pod = spec.resources.as_ref().and_then(|r| r.limits.as_ref());
    has(of_pod)
        || ContainerView::init(spec)
            .chain(ContainerView::regular(spec))
            .all(|view| has(view.resources().and_then(|r| r.limits.as_ref())))
}

/// For each size of large pages that the node has: how much of it there is in a list.
fn huge_pages(capacity: &ResourceList, amounts: &ResourceList) -> BTreeMap<String, u64> {
    let of = |name: &String| {
        let size = huge_page_size(name)?;
        let bytes = amounts.get(name).map_or(0, Quantity::value);
        Some((page_size_name(size), u64::try_from(bytes).unwrap_or(0)))
    };
    capacity.keys().filter_map(of).collect()
}

/// What the node as a whole may use, and what it keeps: for those who enforce it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeLimits {
    /// All of the node.
    pub capacity: CgroupLimits,
    /// What is for pods: all of the node but what it keeps for itself. What is kept free by evicting pods is among it, so
    /// that they are evicted before the kernel has to kill.
    pub allocatable: CgroupLimits,
    /// What the system keeps.
    pub system_reserved: CgroupLimits,
    /// What the kubelet and the container runtime keep.
    pub kube_reserved: CgroupLimits,
}

impl NodeLimits {
    /// Those of a node with that capacity, which keeps what the settings say.
    #[must_use]
    pub fn of(settings: &NodeSettings, node: &NodeView) -> Self {
        let mut capacity = node.capacity.clone();
        capacity.retain(|name, _| name != "pid");
        if let Some(pids) = node.max_pids {
            let pids = i64::try_from(pids).unwrap_or(i64::MAX);
            capacity.insert(
                "pid".to_owned(),
                Quantity::from_value(pids, crate::quantity::QuantityFormat::DecimalSi),
            );
        }
        let mut allocatable = capacity.clone();
        for (name, left) in &mut allocatable {
            for kept in [&settings.kube_reserved, &settings.system_reserved] {
                if let Some(kept) = kept.get(name) {
                    *left = left.saturating_sub(kept);
                }
            }
        }
        Self {
            capacity: of_list(&capacity),
            allocatable: of_list(&allocatable),
            system_reserved: of_list(&settings.system_reserved),
            kube_reserved: of_list(&settings.kube_reserved),
        }
    }
}

fn of_list(list: &ResourceList) -> CgroupLimits {
    let amount = |name| {
        let amount = list.get(name).map(Quantity::value)?;
        Some(u64::try_from(amount).unwrap_or(0))
    };
    CgroupLimits {
        cpu_shares: list.get("cpu").map(|cpu| cpu_shares(cpu.milli_value())),
        memory_bytes: amount("memory").filter(|bytes| *bytes > 0),
        pids: amount("pid").filter(|pids| *pids > 0),
        hugepages: huge_pages(list, list),
        ..CgroupLimits::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};

    use super::{NodeLimits, PodLimits};
    use crate::admission::{NodeSettings, NodeView};
    use crate::pod::{QosClass, testing::record};
    use crate::settings::ResourceSettings;

    fn node() -> NodeView {
        let mut node = NodeView::new("edge-7");
        for (name, amount) in [
            ("cpu", "4"),
            ("memory", "16Gi"),
            ("hugepages-2Mi", "64Mi"),
            ("hugepages-1Gi", "0"),
        ] {
            node.capacity.insert(name.to_owned(), amount.parse().unwrap());
        }
        node.max_pids = Some(32_768);
        node
    }

    fn limits_with(spec: Value, settings: &ResourceSettings) -> (QosClass, String) {
        let pod = record(json!({"spec": spec}));
        let limits = PodLimits::of(pod.spec(), pod.facts().qos, settings, &node());
        let cgroup = limits.cgroup;
        let mut text = format!(
            "milli={} shares={}",
            limits.cpu_request_milli,
            cgroup.cpu_shares.unwrap()
        );
        if let Some(quota) = cgroup.cpu_quota {
            text += &format!(" quota={quota}/{}", cgroup.cpu_period.unwrap());
        }
        if let Some(memory) = cgroup.memory_bytes {
            text += &format!(" memory={}Mi", memory >> 20);
        }
        if let Some(pids) = cgroup.pids {
            text += &format!(" pids={pids}");
        }
        let pages: Vec<String> = cgroup
            .hugepages
            .iter()
            .map(|(size, bytes)| format!(" {size}={}", bytes >> 20))
            .collect();
        (pod.facts().qos, text + &pages.concat())
    }

    fn limits(spec: Value) -> (QosClass, String) {
        limits_with(spec, &ResourceSettings::default())
    }

    fn container(name: &str, resources: Value) -> Value {
        json!({"name": name, "image": "i", "resources": resources})
    }

    #[test]
    fn each_class_has_its_limits() {
        let small = json!({"limits": {"cpu": "250m", "memory": "64Mi"}, "requests": {"cpu": "250m", "memory": "64Mi"}});
        let large = json!({"limits": {"cpu": "1", "memory": "128Mi"}, "requests": {"cpu": "1", "memory": "128Mi"}});
        assert_eq!(
            limits(json!({"containers": [container("a", small.clone()), container("b", large.clone())]})),
            (
                QosClass::Guaranteed,
                "milli=1250 shares=1280 quota=125000/100000 memory=192Mi 1GB=0 2MB=0".to_owned()
            )
        );
        assert_eq!(
            limits(json!({
                "containers": [container("a", small.clone()), container("b", large.clone())],
                "overhead": {"cpu": "250m", "memory": "8Mi"},
            }))
            .1,
            "milli=1500 shares=1536 quota=150000/100000 memory=200Mi 1GB=0 2MB=0"
        );
        let none = json!({});
        assert_eq!(
            limits(json!({"containers": [container("a", none.clone())]})),
            (QosClass::BestEffort, "milli=0 shares=2 1GB=0 2MB=0".to_owned())
        );
        // Bound as a whole only where all of it is bound.
        assert_eq!(
            limits(json!({"containers": [container("a", large.clone()), container("b", none.clone())]})),
            (QosClass::Burstable, "milli=1000 shares=1024 1GB=0 2MB=0".to_owned())
        );
        let half =
            json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m", "memory": "16Mi", "hugepages-2Mi": "4Mi"}});
        assert_eq!(
            limits(json!({"containers": [container("a", large.clone()), container("b", half.clone())]})).1,
            "milli=1100 shares=1126 quota=150000/100000 1GB=0 2MB=4"
        );
        assert_eq!(
            limits(json!({
                "containers": [container("a", large.clone())],
                "initContainers": [container("i", none)],
            }))
            .1,
            "milli=1000 shares=1024 1GB=0 2MB=0",
            "an init container without limits leaves the pod without"
        );
    }

    #[test]
    fn limits_of_the_pod_itself_bind_it() {
        let pod = |resources: Value| {
            limits(
                json!({"resources": resources, "containers": [container("a", json!({})), container("b", json!({}))]}),
            )
            .1
        };
        assert_eq!(
            pod(json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}})),
            "milli=1000 shares=1024 quota=200000/100000 1GB=0 2MB=0"
        );
        assert_eq!(
            pod(json!({"limits": {"memory": "32Mi"}, "requests": {"memory": "16Mi"}})),
            "milli=0 shares=2 memory=32Mi 1GB=0 2MB=0"
        );
    }

    #[test]
    fn on_the_way_from_one_to_another_neither_is_undercut() {
        let of = |cpu: &str, memory: &str| {
            let amounts = json!({"cpu": cpu, "memory": memory});
            let container = container("a", json!({"limits": amounts, "requests": amounts}));
            let pod = record(json!({"spec": {"containers": [container]}}));
            PodLimits::of(pod.spec(), pod.facts().qos, &ResourceSettings::default(), &node())
        };
        let (small, large, other) = (of("1", "64Mi"), of("2", "128Mi"), of("2", "32Mi"));
        assert_eq!(small.widest(&large), large);
        assert_eq!(large.widest(&small), large);
        assert_eq!(small.widest(&other), of("2", "64Mi"));
        let unbound = large.clone().without_quota();
        assert_eq!(unbound.widest(&small).cgroup.cpu_quota, Some(-1));
        let mut less = small.clone();
        (less.cgroup.memory_bytes, less.cgroup.cpu_quota) = (None, None);
        let widest = small.widest(&less).cgroup;
        assert_eq!(
            (widest.memory_bytes, widest.cpu_quota, widest.cpu_period),
            (None, None, None)
        );
    }

    #[test]
    fn settings_bound_processes_and_lift_quotas() {
        let settings = ResourceSettings {
            pod_pids_limit: Some(100),
            cpu_cfs_quota: false,
            ..ResourceSettings::default()
        };
        let all = json!({"limits": {"cpu": "1", "memory": "128Mi"}});
        let (_, text) = limits_with(json!({"containers": [container("a", all)]}), &settings);
        assert_eq!(
            text,
            "milli=0 shares=2 quota=-1/100000 memory=128Mi pids=100 1GB=0 2MB=0"
        );
        let (_, text) = limits_with(json!({"containers": [container("a", json!({}))]}), &settings);
        assert_eq!(text, "milli=0 shares=2 pids=100 1GB=0 2MB=0");
        let own = PodLimits::of(
            &PodSpec::default(),
            QosClass::Guaranteed,
            &ResourceSettings::default(),
            &node(),
        );
        assert_eq!(own.without_quota().cgroup.cpu_quota, Some(-1));
    }

    #[test]
    fn pods_together_have_what_the_node_does_not_keep_and_eviction_is_not_subtracted() {
        let list = |entries: &[(&str, &str)]| {
            let entries = entries.iter();
            entries
                .map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap()))
                .collect()
        };
        let settings = NodeSettings {
            system_reserved: list(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "1000")]),
            kube_reserved: list(&[("cpu", "250m")]),
            hard_eviction: list(&[("memory", "1Gi")]),
            ..NodeSettings::default()
        };
        let limits = NodeLimits::of(&settings, &node());
        let (all, pods) = (&limits.capacity, &limits.allocatable);
        assert_eq!(
            (all.cpu_shares, all.memory_bytes, all.pids),
            (Some(4096), Some(16 << 30), Some(32_768))
        );
        assert_eq!(
            (pods.cpu_shares, pods.memory_bytes, pods.pids),
            (Some(3328), Some(15 << 30), Some(31_768))
        );
        assert_eq!(pods.hugepages["2MB"], 64 << 20);
        assert_eq!(limits.kube_reserved.cpu_shares, Some(256));
        assert_eq!(limits.kube_reserved.memory_bytes, None);
        assert_eq!((pods.cpu_quota, pods.cpu_period), (None, None));
    }
}
