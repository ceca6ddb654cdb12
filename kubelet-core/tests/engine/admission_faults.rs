//! Faults that kubelets had in public with the admission of pods, each a test of its kind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{Admission, AdmitHandler, AdmitRequest, StateDir};
use kubelet_testing::{Op, PodBuilder};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;
use super::wishes::Door;

#[tokio::test(start_paused = true)]
async fn what_runs_goes_on_while_admission_says_not_yet_and_what_is_new_waits() {
    // As after a restart, before those who hand devices out are back.
    let pod = |name: &str| PodBuilder::new(name).uid(name).container("app", |c| c).build();
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    node.pods.set(vec![pod("old")]).await.unwrap();
    node.running("old").await;
    node.kill().await;
    let door = Arc::new(Door::default());
    let node = Node::start_with(&runtime, state, |b| b.admit(door.clone()));
    node.pods.set(vec![pod("old"), pod("new")]).await.unwrap();
    for _ in 0..200 {
        sleep(Duration::from_millis(100)).await;
        if node.status("old").is_some() {
            assert_eq!(node.phase("old").as_deref(), Some("Running"));
            assert!(node.container("old", "app").unwrap().ready);
        }
    }
    assert_eq!(
        (runtime.count(Op::CreateContainer), runtime.count(Op::StopContainer)),
        (1, 0)
    );
    assert_eq!(node.phase("new").as_deref(), Some("Pending"));
    assert_eq!(node.waits_for("new", "app").as_deref(), Some("DoorClosed"));
    // It is looked after meanwhile.
    runtime.kill_container(&runtime.containers()[0].id, 1);
    node.until("restarted", |node| node.restarts("old", "app") == Some(1))
        .await;
    node.running("old").await;
    door.open();
    node.running("new").await;
    assert_eq!(node.events.count("DoorClosed"), 2, "one for each of the two");
    node.stop().await;
}

/// Keeps pods off the node's own network.
#[derive(Debug)]
struct NoHostNetwork;

impl AdmitHandler for NoHostNetwork {
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
        if req.pod.facts().host_network {
            Admission::reject("HostNetworkForbidden", "pods may not share this node's network")
        } else {
            Admission::Admit
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_embedders_own_handler_refuses_pods() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.admit(NoHostNetwork));
    let pod = |name: &str| PodBuilder::new(name).uid(name).container("app", |c| c);
    let pods = vec![pod("shares").host_network().build(), pod("apart").build()];
    node.pods.set(pods).await.unwrap();
    node.running("apart").await;
    node.until("refused", |node| node.phase("shares").as_deref() == Some("Failed"))
        .await;
    let status = node.status("shares").unwrap();
    assert_eq!(status.reason.as_deref(), Some("HostNetworkForbidden"));
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was rejected: pods may not share this node's network")
    );
    assert_eq!(node.events.count("HostNetworkForbidden"), 1);
    assert_eq!(runtime.count(Op::RunSandbox), 1);
    node.stop().await;
}
