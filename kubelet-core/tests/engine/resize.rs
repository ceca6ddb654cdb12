//! Other CPU and memory for pods that run.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ContainerResizePolicy, Pod, PodCondition};
use kubelet_core::{ContainerRuntime, KubeletBuilder, LinuxResources, StateDir};
use kubelet_testing::{Action, FakeRuntime, Op, PodBuilder, Script};
use tokio::time::sleep;

use super::harness::{Cluster, Node, node_view};
use super::life::fake;

/// A pod of that name whose container asks for this, and may have as much.
pub(super) fn pod(name: &str, cpu: &str, memory: &str) -> Pod {
    PodBuilder::new(name)
        .uid(format!("uid-{name}"))
        .container("app", |c| {
            c.request("cpu", cpu)
                .request("memory", memory)
                .limit("cpu", cpu)
                .limit("memory", memory)
        })
        .build()
}

pub(super) fn generation(mut pod: Pod, generation: i64) -> Pod {
    pod.metadata.generation = Some(generation);
    pod
}

/// A node with this much CPU and memory.
pub(super) fn small(cpu: &str, memory: &str) -> impl FnOnce(KubeletBuilder) -> KubeletBuilder {
    let mut view = node_view();
    for (name, amount) in [("cpu", cpu), ("memory", memory)] {
        view.allocatable.insert(name.to_owned(), amount.parse().unwrap());
    }
    |builder| builder.node_view(view)
}

pub(super) fn condition(node: &Node, pod: &str, kind: &str) -> Option<PodCondition> {
    let status = node.status(pod)?;
    status.conditions.iter().flatten().find(|c| c.type_ == kind).cloned()
}

/// CPU quota and memory limit that the runtime was last told for the only container of a pod.
pub(super) fn limits(runtime: &FakeRuntime, pod: &str) -> Option<(i64, i64)> {
    let uid = format!("uid-{pod}");
    let sandboxes = runtime.sandboxes();
    let sandbox = sandboxes.iter().find(|sandbox| sandbox.pod_uid.as_str() == uid)?;
    let containers = runtime.containers();
    let container = containers.iter().find(|c| c.sandbox_id.as_ref() == Some(&sandbox.id))?;
    let updated = runtime.updated_resources(kubelet_core::Target::Container(&container.id));
    let of = |resources: &LinuxResources| (resources.cpu_quota, resources.memory_limit_bytes);
    match updated {
        Some(updated) => Some(of(&updated)),
        None => runtime
            .container_config(&container.id)
            .map(|config| of(&config.resources)),
    }
}

/// Request of CPU as granted, and as the container has it.
pub(super) fn told(node: &Node, pod: &str) -> (String, String) {
    let container = node.container(pod, "app").unwrap();
    let granted = container.allocated_resources.unwrap();
    let has = container.resources.unwrap().requests.unwrap();
    (granted["cpu"].0.clone(), has["cpu"].0.clone())
}

pub(super) const MI: i64 = 1 << 20;

#[tokio::test(start_paused = true)]
async fn a_running_container_gets_other_resources_without_a_restart() {
    let runtime = fake();
    // So that what comes in between is told.
    runtime.set_latency(Op::UpdateResources, Duration::from_millis(100));
    let cluster = Cluster::default();
    let sink = cluster.clone();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| builder.status_sink(sink));
    node.pods
        .set(vec![generation(pod("web", "1", "100Mi"), 1)])
        .await
        .unwrap();
    node.running("web").await;
    assert_eq!(limits(&runtime, "web"), Some((100_000, 100 * MI)));
    node.pods
        .set(vec![generation(pod("web", "2", "50Mi"), 2)])
        .await
        .unwrap();
    node.until("resized", |_| limits(&runtime, "web") == Some((200_000, 50 * MI)))
        .await;
    node.until("told", |node| told(node, "web") == ("2".to_owned(), "2".to_owned()))
        .await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(condition(&node, "web", "PodResizeInProgress"), None);
    assert_eq!(node.restarts("web", "app"), Some(0));
    assert_eq!(runtime.count(Op::UpdateResources), 1);
    let events = node.events.reasons();
    let resize: Vec<&String> = events.iter().filter(|reason| reason.starts_with("Resize")).collect();
    assert_eq!(resize, ["ResizeStarted", "ResizeCompleted"]);
    assert_eq!(
        node.events.messages("ResizeCompleted")[0],
        "Pod resize completed: {\"containers\":[{\"name\":\"app\",\"resources\":{\"limits\":{\"cpu\":\"2\",\
         \"memory\":\"50Mi\"},\"requests\":{\"cpu\":\"2\",\"memory\":\"50Mi\"}}}]}"
    );
    // It was told to be on its way, with what it had until then.
    let told = cluster.0.lock().unwrap().clone();
    let on_its_way = told.iter().any(|update| {
        let conditions = update.status.conditions.iter().flatten();
        let has = update.status.container_statuses.as_ref().unwrap()[0].resources.clone();
        let cpu = has
            .and_then(|has| has.requests)
            .map(|requests| requests["cpu"].0.clone());
        conditions.clone().any(|c| c.type_ == "PodResizeInProgress") && cpu.as_deref() == Some("1")
    });
    assert!(on_its_way);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_resource_whose_change_needs_a_restart_gets_one() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let with_policy = |mut pod: Pod| {
        pod.spec.as_mut().unwrap().containers[0].resize_policy = Some(vec![ContainerResizePolicy {
            resource_name: "memory".to_owned(),
            restart_policy: "RestartContainer".to_owned(),
        }]);
        pod
    };
    node.pods
        .set(vec![with_policy(pod("web", "1", "100Mi"))])
        .await
        .unwrap();
    node.running("web").await;
    node.pods
        .set(vec![with_policy(pod("web", "2", "100Mi"))])
        .await
        .unwrap();
    node.until("resized", |_| limits(&runtime, "web") == Some((200_000, 100 * MI)))
        .await;
    assert_eq!(node.restarts("web", "app"), Some(0), "of CPU it does not");
    node.pods
        .set(vec![with_policy(pod("web", "2", "200Mi"))])
        .await
        .unwrap();
    node.until("restarted", |node| node.restarts("web", "app") == Some(1))
        .await;
    assert_eq!(
        node.events.messages("Killing"),
        ["Container app resize requires restart"]
    );
    node.until("completed", |node| node.events.count("ResizeCompleted") == 2)
        .await;
    let running = runtime.containers().into_iter().find(|c| c.attempt == 1).unwrap();
    let config = runtime.container_config(&running.id).unwrap();
    assert_eq!(config.resources.memory_limit_bytes, 200 * MI);
    sleep(Duration::from_secs(100)).await;
    assert_eq!(node.restarts("web", "app"), Some(1));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_is_infeasible_and_what_cannot_be_now_is_deferred_until_there_is_room() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), small("4", "8Gi"));
    let other = pod("other", "2", "1Gi");
    node.pods
        .set(vec![generation(pod("web", "1", "1Gi"), 1), other.clone()])
        .await
        .unwrap();
    node.running("web").await;
    node.running("other").await;

    node.pods
        .set(vec![generation(pod("web", "5", "1Gi"), 2), other.clone()])
        .await
        .unwrap();
    node.until("refused", |node| condition(node, "web", "PodResizePending").is_some())
        .await;
    let pending = condition(&node, "web", "PodResizePending").unwrap();
    assert_eq!(pending.reason.as_deref(), Some("Infeasible"));
    let message = "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000";
    assert_eq!(pending.message.as_deref(), Some(message));
    assert_eq!(pending.observed_generation, Some(2));
    assert_eq!(node.events.messages("ResizeInfeasible"), [message]);
    assert_eq!(told(&node, "web"), ("1".to_owned(), "1".to_owned()));

    node.pods
        .set(vec![generation(pod("web", "3", "1Gi"), 3), other.clone()])
        .await
        .unwrap();
    let deferred = |node: &Node| {
        condition(node, "web", "PodResizePending").is_some_and(|c| c.reason.as_deref() == Some("Deferred"))
    };
    node.until("deferred", deferred).await;
    assert_eq!(node.events.count("ResizeDeferred"), 1);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(runtime.count(Op::UpdateResources), 0);
    assert_eq!(node.events.count("ResizeDeferred"), 1, "told once");

    // What it has it keeps, also for those who come.
    let late = pod("late", "2", "1Gi");
    let pods = |web: Pod| vec![web, other.clone(), late.clone()];
    node.pods
        .set(pods(generation(pod("web", "3", "1Gi"), 3)))
        .await
        .unwrap();
    node.until("no room", |node| node.phase("late").as_deref() == Some("Failed"))
        .await;

    node.pods
        .set(vec![generation(pod("web", "3", "1Gi"), 3)])
        .await
        .unwrap();
    node.until("there is room", |_| {
        limits(&runtime, "web") == Some((300_000, 1024 * MI))
    })
    .await;
    node.until("told", |node| condition(node, "web", "PodResizePending").is_none())
        .await;
    assert_eq!(node.restarts("web", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn room_that_a_smaller_pod_leaves_goes_to_who_waits_for_it() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), small("4", "8Gi"));
    node.pods
        .set(vec![pod("a", "2", "1Gi"), pod("b", "2", "1Gi")])
        .await
        .unwrap();
    node.running("a").await;
    node.running("b").await;
    node.pods
        .set(vec![pod("a", "3", "1Gi"), pod("b", "2", "1Gi")])
        .await
        .unwrap();
    node.until("deferred", |node| condition(node, "a", "PodResizePending").is_some())
        .await;
    node.pods
        .set(vec![pod("a", "3", "1Gi"), pod("b", "1", "1Gi")])
        .await
        .unwrap();
    node.until("both", |_| {
        limits(&runtime, "a") == Some((300_000, 1024 * MI)) && limits(&runtime, "b") == Some((100_000, 1024 * MI))
    })
    .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_wish_that_is_taken_back_changes_nothing() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), small("4", "8Gi"));
    node.pods.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
    node.running("web").await;
    node.pods.set(vec![pod("web", "9", "1Gi")]).await.unwrap();
    node.until("refused", |node| condition(node, "web", "PodResizePending").is_some())
        .await;
    node.pods.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
    node.until("forgotten", |node| condition(node, "web", "PodResizePending").is_none())
        .await;
    assert_eq!(runtime.count(Op::UpdateResources), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_made_while_a_resize_waits_gets_what_was_granted() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), small("4", "8Gi"));
    node.pods.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
    node.running("web").await;
    node.pods.set(vec![pod("web", "9", "1Gi")]).await.unwrap();
    node.until("refused", |node| condition(node, "web", "PodResizePending").is_some())
        .await;
    runtime.kill_container(&runtime.containers()[0].id, 1);
    node.until("restarted", |node| node.restarts("web", "app") == Some(1))
        .await;
    node.running("web").await;
    let made = runtime.containers().into_iter().find(|c| c.attempt == 1).unwrap();
    assert_eq!(runtime.container_config(&made.id).unwrap().resources.cpu_quota, 100_000);
    assert_eq!(told(&node, "web"), ("1".to_owned(), "1".to_owned()));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_refuses_is_told_and_tried_again() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
    node.running("web").await;
    runtime.script(Script::next(Op::UpdateResources, Action::Taken).times(3));
    node.pods.set(vec![pod("web", "2", "1Gi")]).await.unwrap();
    let error = |node: &Node| {
        condition(node, "web", "PodResizeInProgress").is_some_and(|c| c.reason.as_deref() == Some("Error"))
    };
    node.until("told", error).await;
    assert_eq!(told(&node, "web"), ("2".to_owned(), "1".to_owned()));
    assert_eq!(node.events.count("ResizeError"), 1);
    node.until("completed", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    assert_eq!(node.events.count("ResizeError"), 1);
    assert_eq!(condition(&node, "web", "PodResizeInProgress"), None);
    assert_eq!(told(&node, "web"), ("2".to_owned(), "2".to_owned()));
    assert_eq!(node.restarts("web", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_goes_on_where_the_last_one_was() {
    // Refused for good, and not yet given by the runtime.
    for (wanted, fails) in [("9", false), ("2", true)] {
        let runtime = fake();
        let state = StateDir::in_memory();
        let node = Node::start_with(&runtime, state.clone(), small("4", "8Gi"));
        node.pods.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
        node.running("web").await;
        if fails {
            runtime.script(Script::next(Op::UpdateResources, Action::Taken).times(2));
        }
        node.pods.set(vec![pod("web", wanted, "1Gi")]).await.unwrap();
        let kind = if fails {
            "PodResizeInProgress"
        } else {
            "PodResizePending"
        };
        node.until("told", |node| condition(node, "web", kind).is_some()).await;
        node.kill().await;
        let before = limits(&runtime, "web");
        let node = Node::start_with(&runtime, state, small("4", "8Gi"));
        node.pods.set(vec![pod("web", wanted, "1Gi")]).await.unwrap();
        node.running("web").await;
        if fails {
            node.until("given", |_| limits(&runtime, "web") == Some((200_000, 1024 * MI)))
                .await;
            node.until("told", |node| told(node, "web") == ("2".to_owned(), "2".to_owned()))
                .await;
        } else {
            node.until("still refused", |node| condition(node, "web", kind).is_some())
                .await;
            sleep(Duration::from_secs(100)).await;
            assert_eq!(limits(&runtime, "web"), before);
            assert_eq!(told(&node, "web"), ("1".to_owned(), "1".to_owned()));
        }
        assert_eq!(node.restarts("web", "app"), Some(0));
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_given_is_not_given_again_after_a_restart_of_the_agent() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    node.pods.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
    node.running("web").await;
    node.pods.set(vec![pod("web", "2", "1Gi")]).await.unwrap();
    node.until("completed", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    node.kill().await;
    let node = Node::start(&runtime, state);
    node.pods.set(vec![pod("web", "2", "1Gi")]).await.unwrap();
    node.running("web").await;
    sleep(Duration::from_secs(100)).await;
    assert_eq!(runtime.count(Op::UpdateResources), 1);
    assert_eq!(node.events.count("ResizeStarted"), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_grants_nothing_before_it_knows_what_all_others_hold() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start_with(&runtime, state.clone(), small("4", "8Gi"));
    let pods = |cpu: &str| vec![pod("a", cpu, "1Gi"), pod("b", "2", "1Gi"), pod("c", "1", "1Gi")];
    node.pods.set(pods("1")).await.unwrap();
    for name in ["a", "b", "c"] {
        node.running(name).await;
    }
    node.pods.set(pods("3")).await.unwrap();
    node.until("deferred", |node| condition(node, "a", "PodResizePending").is_some())
        .await;
    node.kill().await;
    let node = Node::start_with(&runtime, state, small("4", "8Gi"));
    node.pods.set(pods("3")).await.unwrap();
    for name in ["a", "b", "c"] {
        node.running(name).await;
    }
    node.until("still deferred", |node| {
        condition(node, "a", "PodResizePending").is_some()
    })
    .await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(limits(&runtime, "a"), Some((100_000, 1024 * MI)));
    assert_eq!(node.events.count("ResizeStarted"), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_is_not_granted_the_room_that_it_leaves() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), small("4", "8Gi"));
    let job = |cpu: &str| {
        let mut job = pod("job", cpu, "1Gi");
        let spec = job.spec.as_mut().unwrap();
        spec.restart_policy = Some("Never".to_owned());
        spec.containers[0].args = Some(vec!["exit=0".to_owned(), "after=30s".to_owned()]);
        job
    };
    let other = pod("other", "2", "1Gi");
    node.pods.set(vec![job("2"), other.clone()]).await.unwrap();
    node.running("job").await;
    node.pods.set(vec![job("3"), other.clone()]).await.unwrap();
    node.until("deferred", |node| condition(node, "job", "PodResizePending").is_some())
        .await;
    node.until("done", |node| node.phase("job").as_deref() == Some("Succeeded"))
        .await;
    node.pods
        .set(vec![job("3"), other, pod("next", "2", "1Gi")])
        .await
        .unwrap();
    node.running("next").await;
    assert_eq!(node.events.count("ResizeStarted"), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_less_gets_it_also_where_there_is_not_enough() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start_with(&runtime, state.clone(), small("4", "8Gi"));
    node.pods
        .set(vec![pod("a", "2", "1Gi"), pod("b", "2", "1Gi")])
        .await
        .unwrap();
    node.running("a").await;
    node.running("b").await;
    node.kill().await;
    let node = Node::start_with(&runtime, state, small("1", "8Gi"));
    node.pods
        .set(vec![pod("a", "1500m", "1Gi"), pod("b", "2", "1Gi")])
        .await
        .unwrap();
    node.until("less", |_| limits(&runtime, "a") == Some((150_000, 1024 * MI)))
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_cuts_no_step_short() {
    let runtime = fake();
    runtime.set_latency(Op::Pull, Duration::from_secs(100));
    let node = Node::start(&runtime, StateDir::in_memory());
    let with_second = |cpu: &str| {
        let mut pod = pod("web", cpu, "1Gi");
        let containers = &mut pod.spec.as_mut().unwrap().containers;
        let mut second = containers[0].clone();
        second.name = "second".to_owned();
        second.image = Some("localhost/slow:1".to_owned());
        second.image_pull_policy = Some("Always".to_owned());
        containers.push(second);
        pod
    };
    node.pods.set(vec![with_second("1")]).await.unwrap();
    node.until("pulls", |_| runtime.in_flight(Op::Pull) == 1).await;
    node.pods.set(vec![with_second("2")]).await.unwrap();
    node.running("web").await;
    node.until("both run", |node| {
        node.container("web", "second").is_some_and(|c| c.started == Some(true))
    })
    .await;
    assert_eq!(runtime.count(Op::Pull), 1);
    node.until("resized", |node| told(node, "web") == ("2".to_owned(), "2".to_owned()))
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_cannot_change_resources_is_asked_for_none() {
    let runtime = fake();
    let mut info = runtime.info().await.unwrap();
    info.updates_resources = false;
    runtime.set_info(info);
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
    node.running("web").await;
    node.pods.set(vec![pod("web", "2", "1Gi")]).await.unwrap();
    node.until("refused", |node| {
        condition(node, "web", "PodResizePending").is_some_and(|c| c.reason.as_deref() == Some("Infeasible"))
    })
    .await;
    sleep(Duration::from_secs(100)).await;
    assert_eq!(runtime.count(Op::UpdateResources), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_was_made_before_a_resize_and_starts_after_it_gets_it_too() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![pod("web", "1", "1Gi")]).await.unwrap();
    // The start does not answer at first, so that the container is seen before it runs.
    runtime.script(Script::next(
        Op::StartContainer,
        Action::Outlive {
            deadline: Duration::from_secs(20),
            late: Duration::from_secs(5),
        },
    ));
    node.until("made", |_| runtime.containers().len() == 1).await;
    sleep(Duration::from_secs(5)).await;
    node.pods.set(vec![pod("web", "2", "1Gi")]).await.unwrap();
    node.running("web").await;
    node.until("resized", |_| limits(&runtime, "web") == Some((200_000, 1024 * MI)))
        .await;
    node.until("told", |node| told(node, "web") == ("2".to_owned(), "2".to_owned()))
        .await;
    assert_eq!(runtime.count(Op::CreateContainer), 1);
    node.stop().await;
}
