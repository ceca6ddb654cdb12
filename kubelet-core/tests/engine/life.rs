//! The life of single pods.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{Stage, StateDir, TokioClock};
use kubelet_testing::{FakeRuntime, Op, PodBuilder};
use tokio::time::Instant;

use super::harness::Node;

pub(crate) fn fake() -> FakeRuntime {
    FakeRuntime::builder()
        .clock(Arc::new(TokioClock::starting_at(
            Timestamp::from_second(1_700_000_000).unwrap(),
        )))
        .all_images_present()
        .build()
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_runs_and_goes() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("web").uid("u1").container("app", |c| c).build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("running", |node| node.phase("web").as_deref() == Some("Running"))
        .await;
    let status = node.status("web").unwrap();
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!(ready.status, "True");
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("web").is_none()).await;
    assert!(runtime.containers().is_empty());
    assert!(runtime.sandboxes().is_empty());
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
    let report = node.stop().await;
    assert!(report.in_flight.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_pod_that_has_just_started_waits_for_no_relist() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("web").uid("u1").container("app", |c| c).build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("the pod runs", |node| node.phase("web").as_deref() == Some("Running"))
        .await;
    node.pods.set(Vec::new()).await.unwrap();
    let begun = Instant::now();
    node.until("the pod has gone", |node| node.named("web").is_none()).await;
    // Everything is looked at once a second.
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_completes_has_succeeded_and_stays_so() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let pod = PodBuilder::new("job")
        .uid("u1")
        .restart_policy("Never")
        .container("app", |c| c.args(["exit=0", "after=3s"]))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.until("done", |node| node.phase("job").as_deref() == Some("Succeeded"))
        .await;
    node.kill().await;
    let creates = runtime.count(Op::CreateContainer);
    let node = Node::start(&runtime, state);
    node.pods.set(vec![pod]).await.unwrap();
    node.until("done", |node| node.phase("job").as_deref() == Some("Succeeded"))
        .await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(node.phase("job").as_deref(), Some("Succeeded"));
    assert_eq!(runtime.count(Op::CreateContainer), creates);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_backs_off() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("crash")
        .uid("u1")
        .container("app", |c| c.args(["exit=1", "after=1s"]))
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(100)).await;
    let starts: Vec<u64> = runtime
        .calls()
        .iter()
        .filter(|call| call.op == Op::StartContainer)
        .map(|call| call.at.as_millis() as u64)
        .collect();
    let pauses: Vec<u64> = starts.windows(2).map(|w| (w[1] - w[0]) / 1000).collect();
    assert_eq!(pauses, [1, 11, 21, 41], "{starts:?}");
    let status = node.status("crash").unwrap();
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(container.restart_count, 4);
    let waiting = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    // Once for each end but the first: the second container comes at once.
    assert_eq!(node.events.count("BackOff"), 4);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_takes_its_pods_over() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let pods: Vec<_> = (0..20)
        .map(|i| {
            PodBuilder::new(format!("p{i}"))
                .uid(format!("u{i}"))
                .container("app", |c| c)
                .build()
        })
        .collect();
    node.pods.set(pods.clone()).await.unwrap();
    node.until("all run", |node| {
        (0..20).all(|i| node.phase(&format!("p{i}")).as_deref() == Some("Running"))
    })
    .await;
    node.kill().await;
    let creates = runtime.count(Op::CreateContainer);
    let node = Node::start(&runtime, state);
    node.pods.set(pods).await.unwrap();
    node.until("all run", |node| {
        (0..20).all(|i| node.phase(&format!("p{i}")).as_deref() == Some("Running"))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(runtime.count(Op::CreateContainer), creates);
    assert_eq!(runtime.count(Op::StopContainer), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_handle_gives_each_pod_with_its_stage_alone_and_among_others() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = |name: String, args: &'static str| {
        let pod = PodBuilder::new(name.clone()).uid(name).restart_policy("Never");
        pod.container("app", |c| c.args([args])).build()
    };
    let mut pods: Vec<_> = (0..30).map(|i| pod(format!("p{i}"), "ignore-term")).collect();
    pods.extend((0..3).map(|i| pod(format!("done{i}"), "exit=0")));
    node.pods.set(pods.clone()).await.unwrap();
    node.until("all have come so far", |node| {
        let stages = node.handle.pods().into_iter().map(|pod| pod.stage);
        let stages: Vec<Stage> = stages.collect();
        stages.len() == 33 && stages[..3] == [Stage::Finished; 3] && stages[3..] == [Stage::Syncing; 30]
    })
    .await;
    node.pods.set(pods[10..].to_vec()).await.unwrap();
    node.until("stops", |_| runtime.in_flight(Op::StopContainer) == 10)
        .await;
    let all = node.handle.pods();
    assert_eq!(all.len(), 33);
    assert!(all.is_sorted_by_key(|pod| pod.pod.uid().clone()));
    for one in all {
        let uid = one.pod.uid();
        let alone = node.handle.pod(uid).unwrap();
        let named = node.handle.pods_named("default", uid.as_str());
        assert_eq!(named.len(), 1);
        for same in [&alone, &named[0]] {
            assert_eq!(same.stage, one.stage, "{uid}");
            assert!(Arc::ptr_eq(&same.pod, &one.pod), "{uid}");
            assert!(Arc::ptr_eq(same.status.as_ref().unwrap(), one.status.as_ref().unwrap()));
        }
        let expected = match uid.as_str() {
            done if done.starts_with("done") => Stage::Finished,
            gone if gone.len() == 2 => Stage::Terminating,
            _ => Stage::Syncing,
        };
        assert_eq!(one.stage, expected, "{uid}");
    }
    assert!(node.handle.pod(&"p99".into()).is_none());
    node.stop().await;
}
