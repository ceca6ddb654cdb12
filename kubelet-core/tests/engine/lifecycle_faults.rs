//! Faults that kubelets had in public with the life of pods, each a test of its kind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::jiff::{SignedDuration, Timestamp};
use kubelet_core::k8s_openapi::api::core::v1::{
    ContainerStatus, ExecAction, Lifecycle, LifecycleHandler, Pod, SleepAction,
};
use kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_core::{ContainerState, OnStop, SandboxState, StateDir};
use kubelet_testing::{ContainerBuilder, ExecAnswer, FakeRuntime, Op, PodBuilder};

use super::harness::Node;
use super::life::fake;

fn deleted(mut pod: Pod, at: i64, grace: i64) -> Pod {
    pod.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(at).unwrap()));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

fn starts(runtime: &FakeRuntime, name: &str) -> usize {
    runtime
        .calls()
        .iter()
        .filter(|call| call.op == Op::StartContainer && call.subject.container.as_deref() == Some(name))
        .count()
}

fn of(node: &Node, pod: &str, container: &str) -> ContainerStatus {
    let status = node.status(pod).unwrap();
    [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .find(|c| c.name == container)
        .cloned()
        .unwrap()
}

async fn running(node: &Node, pod: &str) {
    node.until("running", |node| node.phase(pod).as_deref() == Some("Running"))
        .await;
}

fn pre_stop(handler: LifecycleHandler) -> impl FnOnce(ContainerBuilder) -> ContainerBuilder {
    move |c| {
        c.args(["ignore-term"]).with(|container| {
            container.lifecycle = Some(Lifecycle {
                pre_stop: Some(handler),
                ..Lifecycle::default()
            });
        })
    }
}

fn hanging_command() -> LifecycleHandler {
    LifecycleHandler {
        exec: Some(ExecAction {
            command: Some(vec!["hang".to_owned()]),
        }),
        ..LifecycleHandler::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_before_the_creation_ends_the_pod_at_once() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let mut pod = PodBuilder::new("web")
        .uid("u")
        .grace_seconds(3)
        .container("app", |c| c)
        .build();
    let created = Timestamp::from_second(1_700_000_000).unwrap();
    pod.metadata.creation_timestamp = Some(Time(created));
    node.pods.upsert(pod.clone()).await.unwrap();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    running(&node, "web").await;
    let two_days_before = created.checked_sub(SignedDuration::from_hours(48)).unwrap();
    let pod = deleted(pod, two_days_before.as_second(), 3);
    let asked = tokio::time::Instant::now();
    node.pods.upsert(pod).await.unwrap();
    node.until("stopped", |_| {
        runtime.containers().iter().all(|c| c.state != ContainerState::Running)
    })
    .await;
    node.until("final", |node| {
        matches!(node.phase("web").as_deref(), Some("Succeeded" | "Failed"))
    })
    .await;
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_cut_to_zero_ends_a_pre_stop_hook_and_the_container() {
    let runtime = fake();
    runtime.on_exec(|_| ExecAnswer::exit(0).after(Duration::from_secs(100_000)));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("web")
        .uid("u")
        .grace_seconds(600)
        .container("app", pre_stop(hanging_command()))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    running(&node, "web").await;
    node.pods
        .upsert(deleted(pod.clone(), 1_700_000_100, 600))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(runtime.count(Op::StopContainer), 0, "the hook still runs");
    let cut = tokio::time::Instant::now();
    node.pods.upsert(deleted(pod, 1_700_000_100, 0)).await.unwrap();
    node.until("stopped", |_| {
        runtime.containers().iter().all(|c| c.state != ContainerState::Running)
    })
    .await;
    assert!(cut.elapsed() <= Duration::from_secs(5), "{:?}", cut.elapsed());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_cut_while_the_runtime_stops_the_container_takes_effect() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("web")
        .uid("u")
        .grace_seconds(600)
        .container("app", |c| c.args(["ignore-term"]))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    running(&node, "web").await;
    node.pods
        .upsert(deleted(pod.clone(), 1_700_000_100, 600))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(runtime.in_flight(Op::StopContainer), 1);
    let cut = tokio::time::Instant::now();
    node.pods.upsert(deleted(pod, 1_700_000_100, 5)).await.unwrap();
    node.until("stopped", |_| {
        runtime.containers().iter().all(|c| c.state != ContainerState::Running)
    })
    .await;
    assert!(cut.elapsed() <= Duration::from_secs(7), "{:?}", cut.elapsed());
    assert!(cut.elapsed() >= Duration::from_secs(5), "{:?}", cut.elapsed());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_that_runs_out_of_time_is_told() {
    let runtime = fake();
    runtime.on_exec(|_| ExecAnswer::exit(0).after(Duration::from_secs(100_000)));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("web")
        .uid("u")
        .grace_seconds(10)
        .container("app", pre_stop(hanging_command()))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    running(&node, "web").await;
    node.pods.upsert(deleted(pod, 1_700_000_100, 10)).await.unwrap();
    node.until("stopped", |_| {
        runtime.containers().iter().all(|c| c.state != ContainerState::Running)
    })
    .await;
    assert_eq!(node.events.count("FailedPreStopHook"), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sleep_hook_takes_its_time_and_no_more() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let sleep = LifecycleHandler {
        sleep: Some(SleepAction { seconds: 5 }),
        ..LifecycleHandler::default()
    };
    let pod = PodBuilder::new("web")
        .uid("u")
        .grace_seconds(30)
        .container("app", pre_stop(sleep))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    running(&node, "web").await;
    let begun = tokio::time::Instant::now();
    node.pods.upsert(deleted(pod, 1_700_000_100, 30)).await.unwrap();
    node.until("asked to stop", |_| runtime.in_flight(Op::StopContainer) == 1)
        .await;
    assert!(begun.elapsed() >= Duration::from_secs(5) && begun.elapsed() < Duration::from_secs(7));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rejected_pod_holds_nothing() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let huge = PodBuilder::new("huge")
        .uid("u1")
        .container("app", |c| c.request("cpu", "1000000000000"))
        .build();
    node.pods.set(vec![huge.clone()]).await.unwrap();
    node.until("rejected", |node| node.phase("huge").as_deref() == Some("Failed"))
        .await;
    let status = node.status("huge").unwrap();
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    assert!(status.message.as_deref().unwrap().starts_with("Pod was rejected: "));
    let small = PodBuilder::new("small")
        .uid("u2")
        .container("app", |c| c.request("cpu", "20m"))
        .build();
    let asked = tokio::time::Instant::now();
    node.pods.upsert(small).await.unwrap();
    running(&node, "small").await;
    assert!(asked.elapsed() < Duration::from_secs(3));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn finished_pods_hold_nothing_after_a_restart() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let mut pods: Vec<Pod> = (0..10)
        .map(|i| {
            PodBuilder::new(format!("job{i}"))
                .uid(format!("j{i}"))
                .restart_policy("Never")
                .container("app", |c| c.args(["exit=0", "after=1s"]).request("cpu", "6"))
                .build()
        })
        .collect();
    node.pods.set(pods.clone()).await.unwrap();
    node.until("all done", |node| {
        (0..10).all(|i| node.phase(&format!("job{i}")).as_deref() == Some("Succeeded"))
    })
    .await;
    node.kill().await;
    let node = Node::start(&runtime, state);
    pods.push(
        PodBuilder::new("new")
            .uid("n")
            .container("app", |c| c.request("cpu", "60"))
            .build(),
    );
    node.pods.set(pods).await.unwrap();
    running(&node, "new").await;
    assert_eq!(node.phase("job3").as_deref(), Some("Succeeded"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_policy_exit_code_and_agent_restart_follow_the_table_of_the_api() {
    for policy in ["Always", "OnFailure", "Never"] {
        for code in [0, 1] {
            let runtime = fake();
            let state = StateDir::in_memory();
            let node = Node::start(&runtime, state.clone());
            let pod = PodBuilder::new("p")
                .uid("u")
                .restart_policy(policy)
                .container("app", |c| c.args([&format!("exit={code}"), "after=5s"]))
                .build();
            node.pods.set(vec![pod.clone()]).await.unwrap();
            running(&node, "p").await;
            // The container ends while nobody looks.
            node.kill().await;
            tokio::time::sleep(Duration::from_secs(30)).await;
            let node = Node::start(&runtime, state);
            node.pods.set(vec![pod]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(4)).await;
            let restarted = starts(&runtime, "app") > 1;
            let expected = policy == "Always" || (policy == "OnFailure" && code == 1);
            assert_eq!(restarted, expected, "{policy} {code}");
            let phase = node.phase("p").unwrap();
            let wanted = match (expected, code) {
                (true, _) => "Running",
                (false, 0) => "Succeeded",
                (false, _) => "Failed",
            };
            assert_eq!(phase, wanted, "{policy} {code}");
            node.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_died_while_the_control_plane_was_away_is_not_started_from_its_old_view() {
    // The API server still believes that the pod runs.
    for (policy, wanted_starts, wanted_phase) in [("Never", 1, "Failed"), ("Always", 2, "Running")] {
        let runtime = fake();
        let state = StateDir::in_memory();
        let node = Node::start(&runtime, state.clone());
        let pod = PodBuilder::new("p")
            .uid("u")
            .restart_policy(policy)
            .container("app", |c| c)
            .build();
        node.pods.set(vec![pod.clone()]).await.unwrap();
        running(&node, "p").await;
        let told = node.status("p").unwrap();
        node.kill().await;
        // Not only ended: nothing of it is left.
        for container in runtime.containers() {
            runtime.vanish_container(&container.id);
        }
        let node = Node::start(&runtime, state);
        let mut pod = pod;
        pod.status = Some((*told).clone());
        node.pods.set(vec![pod]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(starts(&runtime, "app"), wanted_starts, "{policy}");
        assert_eq!(node.phase("p").as_deref(), Some(wanted_phase), "{policy}");
        if policy == "Always" {
            assert_eq!(of(&node, "p", "app").restart_count, 1);
        }
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_init_container_whose_record_is_gone_is_not_run_again_beside_its_app() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .init("setup", |c| c.args(["exit=0", "after=1s"]))
        .container("app", |c| c)
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    running(&node, "p").await;
    let setup = runtime.containers().into_iter().find(|c| c.name == "setup").unwrap();
    runtime.vanish_container(&setup.id);
    let app = runtime.containers().into_iter().find(|c| c.name == "app").unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    runtime.kill_container(&app.id, 1);
    node.until("restarted", |node| of(node, "p", "app").restart_count == 1)
        .await;
    assert_eq!(starts(&runtime, "setup"), 1);
    assert_eq!(starts(&runtime, "app"), 2);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_again_in_a_new_sandbox() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .init("setup", |c| c.args(["exit=0", "after=1s"]))
        .container("app", |c| c)
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    running(&node, "p").await;
    runtime.reboot();
    node.until("again", |_| starts(&runtime, "app") == 2).await;
    assert_eq!(starts(&runtime, "setup"), 2);
    running(&node, "p").await;
    assert!(of(&node, "p", "app").restart_count >= 1);
    assert_eq!(node.events.count("SandboxChanged"), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_counts_survive_the_removal_of_old_containers_and_agent_restarts() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let pod = PodBuilder::new("p")
        .uid("u")
        .container("app", |c| c.args(["exit=1", "after=1s"]))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.until("five", |node| {
        node.status("p").is_some() && of(node, "p", "app").restart_count == 5
    })
    .await;
    // A crash loop piles nothing up.
    assert!(runtime.containers().len() <= 2, "{}", runtime.containers().len());
    node.kill().await;
    for container in runtime.containers() {
        runtime.vanish_container(&container.id);
    }
    let node = Node::start(&runtime, state);
    node.pods.set(vec![pod]).await.unwrap();
    node.until("seen again", |node| node.status("p").is_some()).await;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(of(&node, "p", "app").restart_count >= 5);
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn sidecars_that_never_became_ready_keep_no_pod_from_ending() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .grace_seconds(20)
        .sidecar("first", |c| c.args(["refuse-start=no such file"]))
        .sidecar("second", |c| c.args(["ignore-term"]))
        .container("app", |c| c)
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let begun = tokio::time::Instant::now();
    node.pods.upsert(deleted(pod, 1_700_000_100, 20)).await.unwrap();
    node.until("final", |node| {
        matches!(node.phase("p").as_deref(), Some("Succeeded" | "Failed"))
    })
    .await;
    assert!(begun.elapsed() <= Duration::from_secs(25), "{:?}", begun.elapsed());
    assert!(runtime.containers().iter().all(|c| c.state != ContainerState::Running));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_starts_before_its_app_and_ends_after_it() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .sidecar("proxy", |c| c)
        .container("app", |c| c.args(["term=0", "term-after=4s"]))
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    running(&node, "p").await;
    node.pods.upsert(deleted(pod, 1_700_000_100, 30)).await.unwrap();
    node.until("final", |node| node.phase("p").as_deref() == Some("Succeeded"))
        .await;
    let order = |op| -> Vec<String> {
        runtime
            .calls()
            .iter()
            .filter(|call| call.op == op)
            .filter_map(|call| call.subject.container.clone())
            .collect()
    };
    assert_eq!(order(Op::StartContainer), ["proxy", "app"]);
    let finished = |name: &str| {
        of(&node, "p", name)
            .state
            .unwrap()
            .terminated
            .unwrap()
            .finished_at
            .unwrap()
            .0
    };
    assert!(finished("proxy") >= finished("app"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_of_a_pod_that_never_restarts_is_restarted_and_holds_nothing_up() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .restart_policy("Never")
        .sidecar("proxy", |c| c.args(["exit=1", "after=1s", "steady-from=1"]))
        .container("app", |c| c)
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("sidecar again", |_| starts(&runtime, "proxy") == 2).await;
    running(&node, "p").await;
    assert_eq!(starts(&runtime, "app"), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_oom_kill_is_told_as_one_and_another_failure_is_not() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p")
        .uid("u")
        .container("hungry", |c| c)
        .container("plain", |c| c)
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    running(&node, "p").await;
    let id = |name: &str| runtime.containers().into_iter().find(|c| c.name == name).unwrap().id;
    runtime.oom_kill_container(&id("hungry"));
    runtime.kill_container(&id("plain"), 143);
    node.until("both again", |node| {
        of(node, "p", "hungry").restart_count == 1 && of(node, "p", "plain").restart_count == 1
    })
    .await;
    let last = |name| of(&node, "p", name).last_state.unwrap().terminated.unwrap();
    assert_eq!(
        (last("hungry").reason.as_deref(), last("hungry").exit_code),
        (Some("OOMKilled"), 137)
    );
    assert_eq!(
        (last("plain").reason.as_deref(), last("plain").exit_code),
        (Some("Error"), 143)
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_agent_leaves_pods_alone_unless_it_is_told_otherwise() {
    for (on_stop, left) in [(OnStop::LeavePods, 2), (OnStop::StopPods, 0)] {
        let runtime = fake();
        let state = StateDir::in_memory();
        let node = Node::start_with(&runtime, state.clone(), |builder| builder.on_stop(on_stop));
        let pods: Vec<Pod> = ["a", "b"]
            .map(|name| {
                PodBuilder::new(name)
                    .uid(name)
                    .restart_policy(if name == "a" { "Always" } else { "OnFailure" })
                    .container("app", |c| c)
                    .build()
            })
            .into();
        node.pods.set(pods.clone()).await.unwrap();
        running(&node, "a").await;
        running(&node, "b").await;
        let report = node.stop().await;
        assert!(report.in_flight.is_empty() && report.still_running.is_empty());
        let run = runtime
            .containers()
            .iter()
            .filter(|c| c.state == ContainerState::Running)
            .count();
        assert_eq!(run, left, "{on_stop:?}");
        // The next start has both running again.
        let node = Node::start(&runtime, state);
        node.pods.set(pods).await.unwrap();
        running(&node, "a").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(node.phase("a").as_deref(), Some("Running"), "{on_stop:?}");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn everything_ends_in_time_and_names_what_was_in_flight() {
    let runtime = fake();
    runtime.set_latency(Op::RunSandbox, Duration::from_secs(100));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("asked", |_| runtime.in_flight(Op::RunSandbox) == 1).await;
    let begun = tokio::time::Instant::now();
    let report = node.stop().await;
    assert!(begun.elapsed() <= Duration::from_secs(11), "{:?}", begun.elapsed());
    assert_eq!(report.in_flight.len(), 1);
    assert!(report.in_flight[0].1[0].contains("run_sandbox"), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn an_active_deadline_counts_from_the_start_over_agent_restarts() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let begun = tokio::time::Instant::now();
    let pod = PodBuilder::new("p")
        .uid("u")
        .active_deadline_seconds(100)
        .container("app", |c| c)
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    running(&node, "p").await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    node.kill().await;
    let node = Node::start_with(&runtime, state, |builder| {
        builder.clock(kubelet_core::TokioClock::starting_at(
            Timestamp::from_second(1_700_000_000 + 50).unwrap(),
        ))
    });
    node.pods.set(vec![pod]).await.unwrap();
    node.until("failed", |node| node.phase("p").as_deref() == Some("Failed"))
        .await;
    assert!(begun.elapsed() < Duration::from_secs(110), "{:?}", begun.elapsed());
    assert!(begun.elapsed() >= Duration::from_secs(99), "{:?}", begun.elapsed());
    assert_eq!(node.status("p").unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    node.until("down", |_| {
        runtime.containers().iter().all(|c| c.state != ContainerState::Running)
    })
    .await;
    assert!(runtime.sandboxes().iter().all(|s| s.state == SandboxState::NotReady));
    node.stop().await;
}
