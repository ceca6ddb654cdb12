//! Other CPU and memory for pods as a whole.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_core::StateDir;
use kubelet_core::k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use kubelet_core::k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kubelet_testing::{CgroupOp, FakeCgroups, FakeRuntime, Op, PodBuilder};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;
use super::resize::{MI, condition, small};

/// A pod that may use so much as a whole, of two containers: one has limits of its own.
fn whole(cpu: &str, memory: &str) -> Pod {
    let amounts = [("cpu", cpu), ("memory", memory)];
    let amounts = amounts.map(|(name, amount)| (name.to_owned(), ApiQuantity(amount.to_owned())));
    let mut pod = PodBuilder::new("web")
        .uid("uid-web")
        .container("bound", |c| c.limit("cpu", "500m").limit("memory", "50Mi"))
        .container("free", |c| c)
        .build();
    pod.spec.as_mut().unwrap().resources = Some(ResourceRequirements {
        requests: Some(BTreeMap::from(amounts.clone())),
        limits: Some(BTreeMap::from(amounts)),
        ..ResourceRequirements::default()
    });
    pod
}

/// Quota and memory that the runtime was last told for a container, in MiB.
fn limits(runtime: &FakeRuntime, name: &str) -> (i64, i64) {
    let containers = runtime.containers();
    let container = containers.iter().rfind(|c| c.name == name).unwrap();
    let updated = runtime.updated_resources(kubelet_core::Target::Container(&container.id));
    let all = updated.unwrap_or_else(|| runtime.container_config(&container.id).unwrap().resources.clone());
    (all.cpu_quota, all.memory_limit_bytes / MI)
}

/// Quota and memory in MiB of the cgroup of the pod, as they were given one after the other.
fn given(cgroups: &FakeCgroups) -> Vec<(i64, u64)> {
    let applied = cgroups.calls().into_iter().filter_map(|call| call.limits);
    applied
        // Of the other pod neither is bound.
        .filter_map(|limits| Some((limits.cgroup.cpu_quota?, limits.cgroup.memory_bytes? >> 20)))
        .collect()
}

/// The CPU that was granted, and that the pod has.
fn told(node: &Node) -> (String, String) {
    let status = node.status("web").unwrap_or_default();
    let cpu = |list: Option<&BTreeMap<String, ApiQuantity>>| list.map(|list| list["cpu"].0.clone());
    let has = status.resources.as_ref().and_then(|has| has.requests.as_ref());
    (
        cpu(status.allocated_resources.as_ref()).unwrap_or_default(),
        cpu(has).unwrap_or_default(),
    )
}

fn start(runtime: &FakeRuntime, state: StateDir, cgroups: &FakeCgroups) -> Node {
    Node::start_with(runtime, state, |builder| {
        small("4", "8Gi")(builder).cgroups(cgroups.clone())
    })
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_gets_other_resources_as_a_whole() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods.set(vec![whole("1", "200Mi")]).await.unwrap();
    node.running("web").await;
    assert_eq!(limits(&runtime, "free"), (100_000, 200));
    assert_eq!(told(&node), ("1".to_owned(), "1".to_owned()));
    node.pods.set(vec![whole("2", "100Mi")]).await.unwrap();
    node.until("done", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    assert_eq!(told(&node), ("2".to_owned(), "2".to_owned()));
    assert_eq!(given(&cgroups), [(100_000, 200), (200_000, 200), (200_000, 100)]);
    // Who has no limit of its own has that of the pod.
    assert_eq!(limits(&runtime, "free"), (200_000, 100));
    assert_eq!(limits(&runtime, "bound"), (50_000, 50));
    assert_eq!(runtime.count(Op::UpdateResources), 1);
    let sandbox = runtime.sandboxes().remove(0).id;
    assert_eq!(runtime.updated_sandbox(&sandbox).unwrap().0.cpu_quota, 200_000);
    assert_eq!(condition(&node, "web", "PodResizeInProgress"), None);
    assert_eq!(runtime.count(Op::CreateContainer), 2);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(given(&cgroups).len(), 3);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_no_more_as_a_whole_than_there_is() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    let other = PodBuilder::new("other")
        .container("app", |c| c.request("cpu", "2"))
        .build();
    node.pods.set(vec![whole("1", "200Mi"), other.clone()]).await.unwrap();
    node.running("web").await;
    node.running("other").await;
    for (cpu, reason) in [("5", "Infeasible"), ("3", "Deferred")] {
        node.pods.set(vec![whole(cpu, "200Mi"), other.clone()]).await.unwrap();
        node.until(reason, |node| {
            condition(node, "web", "PodResizePending").is_some_and(|c| c.reason.as_deref() == Some(reason))
        })
        .await;
        assert_eq!(told(&node), ("1".to_owned(), "1".to_owned()));
    }
    node.pods.set(vec![whole("3", "200Mi")]).await.unwrap();
    node.until("there is room", |node| told(node) == ("3".to_owned(), "3".to_owned()))
        .await;
    assert_eq!(given(&cgroups).last(), Some(&(300_000, 200)));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_next_life_goes_on_with_what_a_pod_was_granted_as_a_whole() {
    let (runtime, cgroups, state) = (fake(), FakeCgroups::new(), StateDir::in_memory());
    let node = start(&runtime, state.clone(), &cgroups);
    node.pods.set(vec![whole("1", "200Mi")]).await.unwrap();
    node.running("web").await;
    cgroups.fail(CgroupOp::Apply, 100_000);
    node.pods.set(vec![whole("2", "200Mi")]).await.unwrap();
    node.until("told", |node| {
        condition(node, "web", "PodResizeInProgress").is_some_and(|c| c.reason.as_deref() == Some("Error"))
    })
    .await;
    assert_eq!(told(&node), ("2".to_owned(), "1".to_owned()));
    node.kill().await;
    let again = cgroups.next_life();
    again.fail(CgroupOp::Apply, 0);
    let node = start(&runtime, state.clone(), &again);
    node.pods.set(vec![whole("2", "200Mi")]).await.unwrap();
    node.until("given", |_| given(&again).last() == Some(&(200_000, 200)))
        .await;
    node.until("told", |node| told(node) == ("2".to_owned(), "2".to_owned()))
        .await;
    // And one that cannot be stays what it was.
    node.pods.set(vec![whole("9", "200Mi")]).await.unwrap();
    node.until("refused", |node| condition(node, "web", "PodResizePending").is_some())
        .await;
    node.kill().await;
    let last = again.next_life();
    let node = start(&runtime, state, &last);
    node.pods.set(vec![whole("9", "200Mi")]).await.unwrap();
    node.until("refused", |node| condition(node, "web", "PodResizePending").is_some())
        .await;
    assert_eq!(told(&node), ("2".to_owned(), "2".to_owned()));
    assert_eq!(runtime.count(Op::CreateContainer), 2);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_init_container_that_runs_gets_what_it_asks_for_and_is_not_begun_again() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let with_init = |cpu: &str| {
        PodBuilder::new("web")
            .uid("uid-web")
            .init("first", |c| {
                c.request("cpu", cpu).limit("cpu", cpu).args(["exit=0", "after=60s"])
            })
            .container("app", |c| c.request("cpu", "1"))
            .build()
    };
    node.pods.set(vec![with_init("1")]).await.unwrap();
    node.until("it runs", |_| runtime.count(Op::StartContainer) == 1).await;
    sleep(Duration::from_secs(5)).await;
    node.pods.set(vec![with_init("2")]).await.unwrap();
    node.until("resized", |_| limits(&runtime, "first") == (200_000, 0))
        .await;
    node.running("web").await;
    assert_eq!(node.restarts("web", "first"), Some(0));
    assert_eq!(runtime.count(Op::CreateContainer), 2);
    node.stop().await;
}
