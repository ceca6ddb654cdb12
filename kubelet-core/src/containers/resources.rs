//! Limits of one container on Linux.
//!
//! Source: kubelet 1.36, `kuberuntime_container_linux.go` and `qos.go`.

use crate::pod::{ContainerKind, ContainerView, PodRecord, QosClass};
use crate::quantity::Quantity;
use crate::resources::{ResourceList, pod_limits_without_overhead, pod_requests_without_overhead, read_list};
use crate::runtime::LinuxResources;

const QUOTA_PERIOD_MICROS: i64 = 100_000;
const LEAST_QUOTA_MICROS: i64 = 1_000;

fn amount(view: &ContainerView<'_>, limits: Limits, name: &str) -> Option<Quantity> {
    let resources = view.resources()?;
    let list = match limits {
        Limits::Limits => resources.limits.as_ref(),
        Limits::Requests => resources.requests.as_ref(),
    };
    list?.get(name)?.0.parse().ok()
}

#[derive(Clone, Copy)]
enum Limits {
    Limits,
    Requests,
}

/// CPU shares of an amount in thousandths.
fn cpu_shares(milli: i64) -> u64 {
    if milli <= 0 {
        return 2;
    }
    u64::try_from(milli.saturating_mul(1024) / 1000)
        .unwrap_or(0)
        .clamp(2, 262_144)
}

/// CPU quota in microseconds per period; 0 for no limit.
fn cpu_quota(milli: i64) -> i64 {
    if milli <= 0 {
        return 0;
    }
    (milli.saturating_mul(QUOTA_PERIOD_MICROS) / 1000).max(LEAST_QUOTA_MICROS)
}

/// The score that the kernel adds when it looks for a process to kill.
fn oom_score_adj(pod: &PodRecord, view: &ContainerView<'_>, memory_capacity: i64) -> i32 {
    let is_node_critical =
        pod.facts().is_critical && pod.spec().priority_class_name.as_deref() == Some("system-node-critical");
    match pod.facts().qos {
        _ if is_node_critical => -997,
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let of = |view: &ContainerView<'_>| {
                let request = amount(view, Limits::Requests, "memory").map_or(0, |q| q.value());
                match memory_capacity {
                    ..=0 => 1000,
                    capacity => 1000 - 1000_i64.saturating_mul(request) / capacity,
                }
            };
            let mut score = of(view);
            if view.kind() == ContainerKind::Sidecar {
                // A sidecar must not go before the containers that it serves.
                let smallest = ContainerView::regular(pod.spec()).map(|view| of(&view)).max();
                score = smallest.map_or(score, |smallest| score.min(smallest));
            }
            i32::try_from(score.clamp(3, 999)).unwrap_or(999)
        }
    }
}

/// The limits of a container.
pub(super) fn linux_resources(pod: &PodRecord, view: &ContainerView<'_>, memory_capacity: i64) -> LinuxResources {
    let cpu_limit = amount(view, Limits::Limits, "cpu").map(|q| q.milli_value());
    let cpu_request = amount(view, Limits::Requests, "cpu").map(|q| q.milli_value());
    let memory_limit = amount(view, Limits::Limits, "memory").map(|q| q.value());
    let pod_limits = pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref());
    let of_pod = |name: &str| {
        pod_limits
            .and_then(|limits| limits.get(name))
            .and_then(|quantity| quantity.0.parse::<Quantity>().ok())
    };
    LinuxResources {
        // A limit without a request stands for one.
        cpu_shares: cpu_shares(cpu_request.or(cpu_limit).unwrap_or(0)),
        cpu_quota: cpu_quota(
            cpu_limit
                .or_else(|| of_pod("cpu").map(|q| q.milli_value()))
                .unwrap_or(0),
        ),
        cpu_period: QUOTA_PERIOD_MICROS.unsigned_abs(),
        memory_limit_bytes: memory_limit
            .or_else(|| of_pod("memory").map(|q| q.value()))
            .unwrap_or(0),
        oom_score_adj: oom_score_adj(pod, view, memory_capacity),
    }
}

/// The limits of all containers of a pod together, without what the pod costs itself.
pub(super) fn sandbox_resources(pod: &PodRecord) -> LinuxResources {
    let requests = pod_requests_without_overhead(pod.spec());
    let limits = pod_limits_without_overhead(pod.spec());
    let milli = |list: &ResourceList| list.get("cpu").map(Quantity::milli_value);
    LinuxResources {
        cpu_shares: cpu_shares(milli(&requests).or_else(|| milli(&limits)).unwrap_or(0)),
        cpu_quota: cpu_quota(milli(&limits).unwrap_or(0)),
        cpu_period: QUOTA_PERIOD_MICROS.unsigned_abs(),
        memory_limit_bytes: limits.get("memory").map_or(0, Quantity::value),
        ..LinuxResources::default()
    }
}

/// What a pod costs beside its containers: the CPU is request and limit in one.
pub(super) fn overhead(pod: &PodRecord) -> Option<LinuxResources> {
    let overhead = read_list(Some(pod.spec().overhead.as_ref()?));
    let milli = overhead.get("cpu").map_or(0, Quantity::milli_value);
    Some(LinuxResources {
        cpu_shares: cpu_shares(milli),
        cpu_quota: cpu_quota(milli),
        cpu_period: QUOTA_PERIOD_MICROS.unsigned_abs(),
        memory_limit_bytes: overhead.get("memory").map_or(0, Quantity::value),
        ..LinuxResources::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{cpu_quota, cpu_shares, linux_resources, overhead, sandbox_resources};
    use crate::pod::testing::record;

    #[test]
    fn shares_and_quota_follow_the_table() {
        for (milli, shares) in [(0, 2), (1, 2), (100, 102), (500, 512), (1000, 1024), (4000, 4096)] {
            assert_eq!(cpu_shares(milli), shares);
        }
        assert_eq!((cpu_quota(0), cpu_quota(5), cpu_quota(250)), (0, 1000, 25_000));
    }

    #[test]
    fn a_sandbox_has_the_sum_of_its_containers_and_its_overhead_apart() {
        let of = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu, "memory": memory}});
        let pod = record(json!({"spec": {
            "overhead": {"cpu": "250m", "memory": "32Mi"},
            "initContainers": [{"name": "i", "image": "i", "resources": of("2", "1Gi")}],
            "containers": [
                {"name": "a", "image": "i", "resources": of("500m", "64Mi")},
                {"name": "b", "image": "i", "resources": of("250m", "64Mi")},
            ],
        }}));
        let all = sandbox_resources(&pod);
        assert_eq!(
            (all.cpu_shares, all.cpu_quota, all.memory_limit_bytes),
            (2048, 200_000, 1 << 30)
        );
        let own = overhead(&pod).unwrap();
        assert_eq!(
            (own.cpu_shares, own.cpu_quota, own.memory_limit_bytes),
            (256, 25_000, 32 << 20)
        );
        let plain = record(json!({"spec": {"containers": [{"name": "a", "image": "i"}]}}));
        assert_eq!(overhead(&plain), None);
        assert_eq!(sandbox_resources(&plain).cpu_shares, 2);
    }

    #[test]
    fn oom_scores_follow_quality_of_service() {
        let gib = 1 << 30;
        let of = |resources| {
            let pod = record(json!({"spec": {"containers": [{"name": "a", "image": "i", "resources": resources}]}}));
            linux_resources(&pod, &pod.container("a").unwrap(), 16 * gib).oom_score_adj
        };
        assert_eq!(of(json!({})), 1000);
        assert_eq!(of(json!({"requests": {"memory": "4Gi"}})), 750);
        assert_eq!(of(json!({"requests": {"cpu": "1m"}})), 999);
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(of(full), -997);
    }
}
