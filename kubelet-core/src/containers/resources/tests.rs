use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::{CgroupFacts, ResourceRules};
use crate::admission::NodeView;
use crate::pod::PodRecord;
use crate::pod::testing::record;
use crate::runtime::LinuxResources;
use crate::settings::SwapBehavior;

/// A node with 16 GiB, and large pages of two sizes.
fn node() -> NodeView {
    let mut node = NodeView::new("edge-7");
    for (name, amount) in [("memory", "16Gi"), ("hugepages-2Mi", "64Mi"), ("hugepages-1Gi", "0")] {
        node.capacity.insert(name.to_owned(), amount.parse().unwrap());
    }
    node
}

fn v2(has_swap_controller: bool) -> ResourceRules {
    ResourceRules {
        cgroups: CgroupFacts {
            is_v2: true,
            has_swap_controller,
            swap_bytes: 8 << 30,
        },
        ..ResourceRules::default()
    }
}

fn of(rules: &ResourceRules, pod: &PodRecord, name: &str) -> LinuxResources {
    rules.of_container(pod, &pod.container(name).unwrap(), &node())
}

/// The limits of the only container of a pod.
fn alone(rules: &ResourceRules, resources: Value) -> LinuxResources {
    let pod = record(json!({"spec": {"containers": [{"name": "a", "image": "i", "resources": resources}]}}));
    of(rules, &pod, "a")
}

/// The limits of the only container of a pod with limits of its own.
fn in_pod(of_pod: Value, resources: Value) -> LinuxResources {
    let pod = record(json!({"spec": {
        "resources": of_pod,
        "containers": [{"name": "a", "image": "i", "resources": resources}],
    }}));
    of(&ResourceRules::default(), &pod, "a")
}

#[test]
fn a_limit_stands_for_a_request_that_is_not_there() {
    let shares = |resources| alone(&ResourceRules::default(), resources).cpu_shares;
    assert_eq!(shares(json!({"limits": {"cpu": "1"}})), 1024);
    assert_eq!(
        shares(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}})),
        512
    );
    assert_eq!(shares(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "0"}})), 2);
    assert_eq!(shares(json!({})), 2);
}

#[test]
fn quotas_can_be_off_and_of_another_period() {
    let mut rules = ResourceRules::default();
    let cpu = |rules: &ResourceRules| {
        let made = alone(rules, json!({"limits": {"cpu": "500m"}}));
        (made.cpu_shares, made.cpu_period, made.cpu_quota)
    };
    assert_eq!(cpu(&rules), (512, 100_000, 50_000));
    rules.settings.cpu_cfs_quota_period = Duration::from_millis(20);
    assert_eq!(cpu(&rules), (512, 20_000, 10_000));
    rules.settings.cpu_cfs_quota = false;
    assert_eq!(cpu(&rules), (512, 0, 0));
}

#[test]
fn limits_that_a_container_lacks_are_those_of_its_pod() {
    let pod = || json!({"limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "8Mi"}});
    let made = in_pod(pod(), json!({}));
    assert_eq!((made.cpu_quota, made.cpu_shares), (200_000, 2048));
    assert_eq!(made.memory_limit_bytes, 1 << 30);
    assert_eq!(made.hugepage_limits["2MB"], 8 << 20);
    let own = in_pod(
        pod(),
        json!({"limits": {"cpu": "500m", "memory": "64Mi", "hugepages-2Mi": "4Mi"}}),
    );
    assert_eq!((own.cpu_quota, own.memory_limit_bytes), (50_000, 64 << 20));
    assert_eq!(own.hugepage_limits["2MB"], 4 << 20);
    let none = in_pod(json!({}), json!({"limits": {"memory": "0"}}));
    assert_eq!((none.cpu_quota, none.memory_limit_bytes), (0, 0));
}

#[test]
fn large_pages_have_a_limit_for_each_size_of_the_node() {
    let limits = |resources| alone(&ResourceRules::default(), resources).hugepage_limits;
    let expected = |two_mb: u64| BTreeMap::from([("1GB".to_owned(), 0), ("2MB".to_owned(), two_mb)]);
    assert_eq!(limits(json!({})), expected(0));
    assert_eq!(
        limits(json!({"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}})),
        expected(4 << 20)
    );
    // A size that the node has not.
    assert_eq!(limits(json!({"limits": {"hugepages-64Ki": "4Mi"}})), expected(0));
}

#[test]
fn a_container_dies_as_a_whole_on_v2_unless_told_otherwise() {
    let group = |rules: &ResourceRules| alone(rules, json!({})).unified.get("memory.oom.group").cloned();
    let mut rules = v2(false);
    assert_eq!(group(&rules).as_deref(), Some("1"));
    rules.settings.single_process_oom_kill = true;
    assert_eq!(group(&rules), None);
    assert_eq!(group(&ResourceRules::default()), None, "v1 has no such thing");
}

#[test]
fn swap_follows_the_table() {
    let memory = |request: &str, limit: &str| json!({"requests": {"memory": request}, "limits": {"memory": limit}});
    let swap = |rules: &ResourceRules, resources| {
        let made = alone(rules, resources);
        (
            made.unified.get("memory.swap.max").cloned(),
            made.memory_swap_limit_bytes,
        )
    };
    let max = |value: &str| (Some(value.to_owned()), 0);
    let mut rules = v2(true);
    // No swap is the default.
    assert_eq!(swap(&rules, memory("4Gi", "8Gi")), max("0"));
    rules.settings.swap = SwapBehavior::LimitedSwap;
    // A quarter of the memory is requested, and a quarter of the swap given.
    assert_eq!(swap(&rules, memory("4Gi", "8Gi")), max(&(2_u64 << 30).to_string()));
    assert_eq!(
        swap(&rules, json!({"requests": {"memory": "4Gi"}})),
        max(&(2_u64 << 30).to_string())
    );
    for not_eligible in [
        memory("4Gi", "4Gi"),
        memory("32Gi", "64Gi"),
        json!({"requests": {"cpu": "1"}}),
        json!({}),
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}),
    ] {
        assert_eq!(swap(&rules, not_eligible.clone()), max("0"), "{not_eligible}");
    }
    let critical = record(json!({"spec": {
        "priority": 2_000_000_000,
        "containers": [{"name": "a", "image": "i", "resources": memory("4Gi", "8Gi")}],
    }}));
    assert_eq!(of(&rules, &critical, "a").unified["memory.swap.max"], "0");
    // Without the controller nothing is said.
    rules.cgroups.has_swap_controller = false;
    assert_eq!(swap(&rules, memory("4Gi", "8Gi")), (None, 0));
    // On v1 memory and swap have one limit.
    let mut v1 = ResourceRules::default();
    assert_eq!(swap(&v1, memory("4Gi", "8Gi")), (None, 0));
    v1.cgroups.has_swap_controller = true;
    assert_eq!(swap(&v1, memory("4Gi", "8Gi")), (None, 8 << 30));
    assert_eq!(swap(&v1, json!({})), (None, 0));
}

#[test]
fn oom_scores_follow_quality_of_service() {
    let score = |resources| alone(&ResourceRules::default(), resources).oom_score_adj;
    assert_eq!(score(json!({})), 1000);
    assert_eq!(score(json!({"requests": {"memory": "4Gi"}})), 750);
    assert_eq!(score(json!({"requests": {"cpu": "1m"}})), 999);
    assert_eq!(score(json!({"requests": {"memory": "64Gi"}})), 3);
    let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    assert_eq!(score(full), -997);
    let critical = record(json!({"spec": {
        "priority": 2_000_001_000, "priorityClassName": "system-node-critical",
        "containers": [{"name": "a", "image": "i"}],
    }}));
    assert_eq!(of(&ResourceRules::default(), &critical, "a").oom_score_adj, -997);
}

#[test]
fn oom_scores_share_what_the_pod_requests_beyond_its_containers() {
    // 8 GiB for the pod, 4 of them for its containers: 2 more for each.
    let pod = record(json!({"spec": {
        "resources": {"requests": {"memory": "8Gi"}},
        "containers": [
            {"name": "a", "image": "i", "resources": {"requests": {"memory": "4Gi"}}},
            {"name": "b", "image": "i"},
        ],
    }}));
    let score = |name| of(&ResourceRules::default(), &pod, name).oom_score_adj;
    assert_eq!((score("a"), score("b")), (1000 - 375, 1000 - 125));
}

#[test]
fn a_sidecar_goes_no_sooner_than_the_smallest_container() {
    let memory = |amount: &str| json!({"requests": {"memory": amount}});
    let pod = record(json!({"spec": {
        "initContainers": [
            {"name": "small", "image": "i", "restartPolicy": "Always"},
            {"name": "large", "image": "i", "restartPolicy": "Always", "resources": memory("8Gi")},
            {"name": "init", "image": "i"},
        ],
        "containers": [
            {"name": "a", "image": "i", "resources": memory("4Gi")},
            {"name": "b", "image": "i", "resources": memory("2Gi")},
        ],
    }}));
    let score = |name| of(&ResourceRules::default(), &pod, name).oom_score_adj;
    assert_eq!((score("a"), score("b")), (750, 875));
    assert_eq!((score("small"), score("large"), score("init")), (875, 500, 999));
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
    let rules = v2(true);
    let all = rules.of_sandbox(&pod);
    assert_eq!(
        (all.cpu_shares, all.cpu_quota, all.memory_limit_bytes),
        (2048, 200_000, 1 << 30)
    );
    assert_eq!(
        all.unified,
        BTreeMap::from([("memory.oom.group".to_owned(), "1".to_owned())])
    );
    let own = rules.of_overhead(&pod).unwrap();
    assert_eq!(
        (own.cpu_shares, own.cpu_quota, own.memory_limit_bytes),
        (256, 25_000, 32 << 20)
    );
    let plain = record(json!({"spec": {"containers": [{"name": "a", "image": "i"}]}}));
    assert_eq!(rules.of_overhead(&plain), None);
    assert_eq!(rules.of_sandbox(&plain).cpu_shares, 2);
}
