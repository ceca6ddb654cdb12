//! What a runtime is told of a pod as a whole when its containers get other CPU and memory.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_core::StateDir;
use kubelet_core::k8s_openapi::api::core::v1::{ContainerResizePolicy, Pod};
use kubelet_core::k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kubelet_testing::{Action, CgroupOp, FakeCgroups, FakeRuntime, FaultKind, Op, Script};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;
use super::resize::{MI, condition, limits, pod};

fn with_overhead(mut pod: Pod) -> Pod {
    let overhead = [("cpu", "250m"), ("memory", "16Mi")];
    let overhead = overhead.map(|(name, amount)| (name.to_owned(), ApiQuantity(amount.to_owned())));
    pod.spec.as_mut().unwrap().overhead = Some(BTreeMap::from(overhead));
    pod
}

fn start(runtime: &FakeRuntime, cgroups: &FakeCgroups) -> Node {
    Node::start_with(runtime, StateDir::in_memory(), |builder| {
        builder.cgroups(cgroups.clone())
    })
}

/// Quota and memory that the runtime was last told for the pod's sandbox, and the quota of its overhead.
fn told(runtime: &FakeRuntime) -> Option<(i64, i64, Option<i64>)> {
    let (limits, overhead) = runtime.updated_sandbox(&runtime.sandboxes()[0].id)?;
    let of_overhead = overhead.map(|overhead| overhead.cpu_quota);
    Some((limits.cpu_quota, limits.memory_limit_bytes, of_overhead))
}

/// The calls that change resources, in their order.
fn updates(runtime: &FakeRuntime) -> Vec<Op> {
    let calls = runtime.calls().into_iter().map(|call| call.op);
    calls
        .filter(|op| matches!(op, Op::UpdateResources | Op::UpdateSandbox))
        .collect()
}

/// The memory of the pod's cgroup in MiB, as it was given one after the other.
fn given(cgroups: &FakeCgroups) -> Vec<u64> {
    let applied = cgroups.calls().into_iter().filter_map(|call| call.limits);
    applied
        .map(|limits| limits.cgroup.memory_bytes.unwrap() >> 20)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_sandbox_is_told_before_the_cgroup_of_the_pod_is_changed_each_time() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    for op in [Op::UpdateSandbox, Op::UpdateResources] {
        runtime.set_latency(op, Duration::from_secs(2));
    }
    let node = start(&runtime, &cgroups);
    node.pods
        .set(vec![with_overhead(pod("web", "1", "100Mi"))])
        .await
        .unwrap();
    node.running("web").await;
    assert_eq!((given(&cgroups), told(&runtime)), (vec![116], None));
    node.pods
        .set(vec![with_overhead(pod("web", "2", "50Mi"))])
        .await
        .unwrap();
    // First there is room for both.
    node.until("told of more", |_| {
        told(&runtime) == Some((200_000, 100 * MI, Some(25_000)))
    })
    .await;
    assert_eq!(limits(&runtime, "web"), Some((100_000, 100 * MI)));
    node.until("told of less", |_| {
        told(&runtime) == Some((200_000, 50 * MI, Some(25_000)))
    })
    .await;
    assert_eq!(limits(&runtime, "web"), Some((200_000, 50 * MI)));
    node.until("done", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    assert_eq!(
        updates(&runtime),
        [Op::UpdateSandbox, Op::UpdateResources, Op::UpdateSandbox]
    );
    assert_eq!(given(&cgroups), [116, 116, 66]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_has_nothing_to_do_with_it_is_not_minded() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    runtime.script(Script::next(Op::UpdateSandbox, Action::Unsupported).times(100));
    let node = start(&runtime, &cgroups);
    node.pods.set(vec![pod("web", "1", "100Mi")]).await.unwrap();
    node.running("web").await;
    node.pods.set(vec![pod("web", "1", "200Mi")]).await.unwrap();
    node.until("done", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    assert_eq!(limits(&runtime, "web"), Some((100_000, 200 * MI)));
    assert_eq!(node.events.count("ResizeError"), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_refuses_refuses_the_whole_step() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, &cgroups);
    node.pods.set(vec![pod("web", "1", "100Mi")]).await.unwrap();
    node.running("web").await;
    runtime.script(Script::next(Op::UpdateSandbox, Action::Fault(FaultKind::Refused)).times(2));
    node.pods.set(vec![pod("web", "1", "200Mi")]).await.unwrap();
    node.until("told", |node| {
        condition(node, "web", "PodResizeInProgress").is_some_and(|c| c.reason.as_deref() == Some("Error"))
    })
    .await;
    assert_eq!(given(&cgroups), [100]);
    assert_eq!(limits(&runtime, "web"), Some((100_000, 100 * MI)));
    assert!(node.events.messages("ResizeError")[0].starts_with("cannot change the limits of the pod: "));
    node.until("done", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    assert_eq!(given(&cgroups), [100, 200]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn where_the_cgroup_is_not_changed_the_runtime_is_told_what_it_has() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, &cgroups);
    node.pods.set(vec![pod("web", "1", "100Mi")]).await.unwrap();
    node.running("web").await;
    cgroups.fail(CgroupOp::Apply, 1);
    node.pods.set(vec![pod("web", "1", "200Mi")]).await.unwrap();
    node.until("told", |node| node.events.count("ResizeError") == 1).await;
    assert_eq!(updates(&runtime), [Op::UpdateSandbox, Op::UpdateSandbox]);
    assert_eq!(told(&runtime), Some((100_000, 100 * MI, None)));
    node.until("done", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    assert_eq!(told(&runtime), Some((100_000, 200 * MI, None)));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_told_too_where_containers_are_started_anew() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, &cgroups);
    let restarting = |memory: &str| {
        let mut pod = pod("web", "1", memory);
        pod.spec.as_mut().unwrap().containers[0].resize_policy = Some(vec![ContainerResizePolicy {
            resource_name: "memory".to_owned(),
            restart_policy: "RestartContainer".to_owned(),
        }]);
        pod
    };
    node.pods.set(vec![restarting("100Mi")]).await.unwrap();
    node.running("web").await;
    node.pods.set(vec![restarting("200Mi")]).await.unwrap();
    node.until("restarted", |node| node.restarts("web", "app") == Some(1))
        .await;
    assert_eq!(told(&runtime), Some((100_000, 200 * MI, None)));
    sleep(Duration::from_secs(100)).await;
    assert_eq!(updates(&runtime), [Op::UpdateSandbox]);
    node.stop().await;
}
