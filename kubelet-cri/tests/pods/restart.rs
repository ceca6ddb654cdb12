//! The agent, the runtime and both go away and come back.

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_core::{ContainerRuntime, ContainerState, Scope};
use serde_json::json;

use crate::node::{Node, container, is_running, on_both, pod, sh};

on_both!(a_killed_agent_and_a_killed_runtime_cost_no_container after_a_reboot_pods_start_again_with_counts_that_go_on);

async fn a_killed_agent_and_a_killed_runtime_cost_no_container(mut node: Node) {
    let forever = "trap 'exit 0' TERM; while :; do sleep 0.2; done";
    let pods = || {
        let twice = "test -e /dev/termination-log.done || { sleep 1; exit 1; }";
        vec![
            pod(
                "steady",
                json!({"containers": [sh("app", forever), sh("second", forever)]}),
            ),
            pod("crash", json!({"containers": [sh("app", twice)]})),
            pod(
                "done",
                json!({"restartPolicy": "Never", "containers": [sh("app", "exit 0")]}),
            ),
        ]
    };
    let agent = node.start().await;
    agent.pods.set(pods()).await.unwrap();
    agent
        .until("all are there", |all| {
            is_running(all, "steady", "app")
                && is_running(all, "steady", "second")
                && all
                    .get("done")
                    .is_some_and(|pod| pod.phase.as_deref() == Some("Succeeded"))
                && container(all, "crash", "app").is_some_and(|app| app.restart_count >= 1)
        })
        .await;
    let restarts = container(&agent.statuses(), "crash", "app").unwrap().restart_count;
    let before = running(&node).await;
    assert_eq!(
        before.keys().filter(|name| name.starts_with("uid-of-steady")).count(),
        2
    );

    agent.kill().await;
    let agent = node.start().await;
    agent.pods.set(pods()).await.unwrap();
    agent
        .until("taken over", |all| {
            is_running(all, "steady", "app")
                && container(all, "crash", "app").is_some_and(|app| app.restart_count >= restarts)
        })
        .await;
    assert_same(&before, &running(&node).await);
    assert_eq!(container(&agent.statuses(), "steady", "app").unwrap().restart_count, 0);

    node.containerd.kill().await.unwrap();
    node.containerd.restart().await.unwrap();
    // The crash loop goes on, so that it is seen that the agent has its runtime again.
    let restarts = container(&agent.statuses(), "crash", "app").unwrap().restart_count;
    agent
        .until("goes on", |all| {
            container(all, "crash", "app").is_some_and(|app| app.restart_count > restarts)
        })
        .await;
    assert_same(&before, &running(&node).await);
    let all = agent.statuses();
    assert!(is_running(&all, "steady", "app") && is_running(&all, "steady", "second"));
    assert_eq!(container(&all, "steady", "app").unwrap().restart_count, 0);
    assert_eq!(all["done"].phase.as_deref(), Some("Succeeded"));

    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}

async fn after_a_reboot_pods_start_again_with_counts_that_go_on(node: Node) {
    let pods = || {
        vec![
            pod(
                "steady",
                json!({"containers": [sh("app", "trap 'exit 0' TERM; while :; do sleep 0.2; done")]}),
            ),
            pod("crash", json!({"containers": [sh("app", "sleep 1; exit 1")]})),
            pod(
                "done",
                json!({"restartPolicy": "Never", "containers": [sh("app", "exit 0")]}),
            ),
        ]
    };
    let agent = node.start().await;
    agent.pods.set(pods()).await.unwrap();
    let restarts = |all: &BTreeMap<_, _>, name: &str| container(all, name, "app").map(|app| app.restart_count);
    agent
        .until("all are there", |all| {
            is_running(all, "steady", "app")
                && all
                    .get("done")
                    .is_some_and(|pod| pod.phase.as_deref() == Some("Succeeded"))
                && restarts(all, "crash") >= Some(1)
        })
        .await;
    let before = restarts(&agent.statuses(), "crash");
    agent.kill().await;
    // Nothing is left in the runtime; the disk is as it was.
    let runtime = node.runtime().await;
    for sandbox in runtime.list_sandboxes(Scope::All).await.unwrap() {
        let gone = async {
            runtime.stop_sandbox(&sandbox.id).await.unwrap();
            // A start that the agent had under way goes on for a moment, and nothing is removed meanwhile.
            while runtime.remove_sandbox(&sandbox.id).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    }
    assert!(runtime.list_containers(Scope::All).await.unwrap().is_empty());

    let agent = node.start().await;
    agent.pods.set(pods()).await.unwrap();
    agent
        .until("they run again", |all| {
            is_running(all, "steady", "app") && restarts(all, "crash") > before && all.contains_key("done")
        })
        .await;
    let all = agent.statuses();
    assert_eq!(restarts(&all, "steady"), Some(1));
    assert_eq!(all["done"].phase.as_deref(), Some("Succeeded"));
    let made = runtime.list_containers(Scope::All).await.unwrap();
    assert!(
        made.iter().all(|record| record.pod_uid.as_str() != "uid-of-done"),
        "what is done is not run again"
    );
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}

/// The containers that run, by pod and name.
async fn running(node: &Node) -> BTreeMap<String, String> {
    let listed = node.runtime().await.list_containers(Scope::All).await.unwrap();
    let running = listed
        .into_iter()
        .filter(|record| record.state == ContainerState::Running);
    running
        .map(|record| (format!("{}/{}", record.pod_uid, record.name), record.id.to_string()))
        .collect()
}

/// The pod that goes on has the same containers.
fn assert_same(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) {
    for (name, id) in before.iter().filter(|(name, _)| name.starts_with("uid-of-steady")) {
        assert_eq!(after.get(name), Some(id), "{name}");
    }
}
