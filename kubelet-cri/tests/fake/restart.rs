//! The runtime goes away and comes back, with what it ran and without.

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{ContainerId, ContainerState};
use kubelet_testing::{Op, Rpc};

use crate::node::{Log, Node, builder, first, pod, runs};

/// The longest pause before a connection is made anew, and a relist.
const BACK: Duration = Duration::from_millis(3_000 + 1_000 + 100);

fn pods() -> Vec<Pod> {
    let never = builder("done")
        .restart_policy("Never")
        .container("app", |c| c.args(["exit=0"]));
    let two = builder("two").container("app", |c| c).container("more", |c| c);
    vec![pod("web"), two.build(), never.build()]
}

async fn run(node: &Node) -> crate::node::Agent {
    let agent = node.start().await;
    agent.pods.set(pods()).await.unwrap();
    agent.static_pods.set(Vec::new()).await.unwrap();
    agent
        .until("all run", |all| {
            runs(all, "web")
                && runs(all, "two")
                && all
                    .get("done")
                    .is_some_and(|pod| pod.phase.as_deref() == Some("Succeeded"))
        })
        .await;
    agent
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_killed_and_comes_back_costs_no_container_and_no_pod() {
    let node = Node::new();
    let agent = run(&node).await;
    let before = node.running();
    let (log, guard) = Log::keep();
    for away in [5, 45, 300] {
        node.cri.go_down().await;
        tokio::time::sleep(Duration::from_secs(away)).await;
        let all = agent.statuses();
        assert!(runs(&all, "web") && runs(&all, "two"), "{all:?}");
        node.cri.come_up().await.unwrap();
        tokio::time::sleep(BACK).await;
        let looks = node.cri.count(Rpc::ListContainers);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(node.cri.count(Rpc::ListContainers) > looks);
        assert_eq!(node.running(), before);
    }
    drop(guard);
    assert_eq!(log.with("the runtime cannot be listed").len(), 3);
    assert_eq!(node.world().count(Op::RunSandbox), 3);
    assert_eq!(node.world().count(Op::CreateContainer), 4);
    assert_eq!(node.world().count(Op::StopContainer), 0);
    let all = agent.statuses();
    assert!(
        all.values()
            .flat_map(|pod| pod.container_statuses.iter().flatten())
            .all(|c| c.restart_count == 0)
    );
}

#[tokio::test(start_paused = true)]
async fn what_ended_while_the_runtime_was_away_is_right_soon_after_it_is_back() {
    let node = Node::new();
    let agent = run(&node).await;
    let id: ContainerId = node.running()["web/app"].as_str().into();
    node.cri.go_down().await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    node.world().kill_container(&id, 9);
    node.cri.come_up().await.unwrap();
    tokio::time::sleep(BACK).await;
    let all = agent.statuses();
    let app = first(&all, "web").unwrap();
    // The first restart has no back-off.
    let end = app.last_state.and_then(|last| last.terminated).unwrap();
    assert_eq!((end.exit_code, app.restart_count), (9, 1));
    assert!(runs(&all, "web") && runs(&all, "two"));
    assert_eq!(node.running().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_while_the_runtime_is_away_goes_once_it_is_back() {
    let node = Node::new();
    let agent = run(&node).await;
    node.cri.go_down().await;
    let left: Vec<Pod> = pods()
        .into_iter()
        .filter(|pod| pod.metadata.name.as_deref() != Some("web"))
        .collect();
    agent.pods.set(left).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(node.running().len(), 3);
    node.cri.come_up().await.unwrap();
    agent.until("web is gone", |all| !all.contains_key("web")).await;
    assert_eq!(node.running().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_pods_start_again_and_what_had_ended_stays_ended() {
    let node = Node::new();
    let agent = run(&node).await;
    let id: ContainerId = node.running()["web/app"].as_str().into();
    node.world().kill_container(&id, 9);
    agent
        .until("web was restarted", |all| {
            runs(all, "web") && first(all, "web").is_some_and(|app| app.restart_count == 1)
        })
        .await;
    // The machine goes down with the agent on it.
    drop(agent);
    node.cri.go_down().await;
    node.world().lose_everything();
    node.cri.come_up().await.unwrap();

    let agent = node.start().await;
    agent.pods.set(pods()).await.unwrap();
    agent.static_pods.set(Vec::new()).await.unwrap();
    agent
        .until("all run again", |all| runs(all, "web") && runs(all, "two"))
        .await;
    let all = agent.statuses();
    assert_eq!(all["done"].phase.as_deref(), Some("Succeeded"));
    // A count that was told never goes back, and nothing runs twice.
    let count = first(&all, "web").unwrap().restart_count;
    assert!((1..=2).contains(&count), "{count}");
    assert_eq!(node.running().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_lost_everything_under_a_running_agent_runs_all_of_it_again() {
    let node = Node::new();
    let agent = run(&node).await;
    node.cri.go_down().await;
    node.world().lose_everything();
    node.cri.come_up().await.unwrap();
    agent
        .until("web was restarted", |all| {
            runs(all, "web") && first(all, "web").is_some_and(|app| app.restart_count == 1) && runs(all, "two")
        })
        .await;
    assert_eq!(agent.statuses()["done"].phase.as_deref(), Some("Succeeded"));
    let run = node
        .world()
        .containers()
        .into_iter()
        .filter(|c| c.state == ContainerState::Running);
    assert_eq!(run.count(), 3);
}
