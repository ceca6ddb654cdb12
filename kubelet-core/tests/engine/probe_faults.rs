//! Faults that kubelets had in public with probes, each a test of its kind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::{PodUid, StateDir};
use kubelet_testing::{Action, ExecAnswer, FakeRuntime, Op, PodBuilder, Script, exec_probe};
use tokio::time::{Instant, sleep};

use super::harness::{Cluster, Node};
use super::life::fake;
use super::probes::{Failing, is_ready, runs};

#[tokio::test(start_paused = true)]
async fn the_probes_of_all_pods_do_not_run_at_once_after_a_restart_of_the_agent() {
    const PODS: usize = 63;
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let pods: Vec<_> = (0..PODS)
        .map(|number| {
            PodBuilder::new(format!("p{number}"))
                .uid(format!("u{number}"))
                .container("app", |c| c.readiness(exec_probe(["ready"], 10)))
                .build()
        })
        .collect();
    node.pods.set(pods.clone()).await.unwrap();
    node.until("all ready", |node| (0..PODS).all(|n| is_ready(node, &format!("p{n}"))))
        .await;
    node.kill().await;
    runtime.clear_calls();
    let node = Node::start(&runtime, state);
    node.pods.set(pods).await.unwrap();
    sleep(Duration::from_secs(25)).await;
    let times = runs(&runtime, "ready");
    let begun = times[0];
    let first_period = times.iter().filter(|at| **at < begun + Duration::from_secs(10)).count();
    assert!((PODS - 3..=PODS + 3).contains(&first_period), "{first_period}");
    for second in 0..20 {
        let from = begun + Duration::from_secs(second);
        let within = times
            .iter()
            .filter(|at| (from..from + Duration::from_secs(1)).contains(at))
            .count();
        assert!(within < PODS / 3, "{within} within second {second}");
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_probe_of_a_new_container_comes_after_its_delay_and_not_at_a_random_time() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let mut probe = exec_probe(["ready"], 300);
    probe.initial_delay_seconds = Some(5);
    let pod = PodBuilder::new("web").container("app", |c| c.readiness(probe)).build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("ready", |node| is_ready(node, "web")).await;
    let calls = runtime.calls();
    let start = calls.iter().find(|call| call.op == Op::StartContainer).unwrap().at;
    let first = runs(&runtime, "ready")[0];
    let after = (first - start).as_millis();
    assert!((5_000..5_100).contains(&after), "{after} ms");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_write_changes_readiness_after_a_restart_of_the_agent_before_a_probe_says_so() {
    for passes in [true, false] {
        let runtime = fake();
        let failing = Failing::of(&runtime);
        let state = StateDir::in_memory();
        let node = Node::start(&runtime, state.clone());
        let pod = PodBuilder::new("web")
            .uid("u1")
            .container("app", |c| c.readiness(exec_probe(["ready"], 300)))
            .build();
        if !passes {
            failing.fail("ready");
        }
        node.pods.set(vec![pod.clone()]).await.unwrap();
        node.running("web").await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(is_ready(&node, "web"), passes);
        node.kill().await;
        // What comes first is told by a probe that would say the contrary.
        if passes {
            failing.fail("ready");
        } else {
            failing.pass("ready");
        }
        runtime.clear_calls();
        let cluster = Cluster::default();
        let sink = cluster.clone();
        let node = Node::start_with(&runtime, state, |builder| builder.status_sink(sink));
        node.pods.set(vec![pod]).await.unwrap();
        node.until("probed", |_| !runs(&runtime, "ready").is_empty()).await;
        let probed = cluster.0.lock().unwrap().len();
        let told: BTreeSet<bool> = cluster.0.lock().unwrap()[..probed]
            .iter()
            .flat_map(|update| update.status.container_statuses.iter().flatten())
            .map(|container| container.ready)
            .collect();
        if passes {
            assert_eq!(told, BTreeSet::from([true]), "one failure is not enough");
        }
        let first = cluster.0.lock().unwrap()[0].clone();
        assert_eq!(first.status.container_statuses.as_ref().unwrap()[0].ready, passes);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_has_come_up_has_come_up_for_the_next_agent_too() {
    let runtime = fake();
    // It can pass only once.
    let passed = Arc::new(AtomicBool::new(false));
    let once = passed.clone();
    runtime.on_exec(move |call| match call.command[0].as_str() {
        "up" if once.swap(true, Ordering::Relaxed) => ExecAnswer::exit(1),
        _ => ExecAnswer::exit(0),
    });
    let state = StateDir::in_memory();
    let pod = PodBuilder::new("web")
        .uid("u1")
        .sidecar("proxy", |c| c.startup(exec_probe(["up"], 5)))
        .container("app", |c| c.readiness(exec_probe(["ready"], 5)))
        .build();
    let mut node = Node::start(&runtime, state.clone());
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.until("ready", |node| is_ready(node, "web")).await;
    for _ in 0..3 {
        node.kill().await;
        node = Node::start(&runtime, state.clone());
        node.pods.set(vec![pod.clone()]).await.unwrap();
        node.running("web").await;
        sleep(Duration::from_secs(60)).await;
        let proxy = node.container("web", "proxy").unwrap();
        assert_eq!((proxy.started, proxy.ready, proxy.restart_count), (Some(true), true, 0));
        assert!(is_ready(&node, "web"));
    }
    assert_eq!(runs(&runtime, "up").len(), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_command_that_never_ends_fails_at_its_timeout_and_runs_again_at_its_period() {
    let runtime = fake();
    runtime.script(Script::next(Op::Exec, Action::Hang).times(u32::MAX));
    let node = Node::start(&runtime, StateDir::in_memory());
    let mut probe = exec_probe(["hang", "for ever"], 5);
    probe.timeout_seconds = Some(2);
    probe.failure_threshold = Some(1000);
    let pod = PodBuilder::new("web").container("app", |c| c.liveness(probe)).build();
    node.pods.set(vec![pod]).await.unwrap();
    let most = Arc::new(Mutex::new(0));
    node.until("ten runs", |_| {
        let mut most = most.lock().unwrap();
        *most = runtime.in_flight(Op::Exec).max(*most);
        runs(&runtime, "hang").len() == 10
    })
    .await;
    assert_eq!(*most.lock().unwrap(), 1);
    let times = runs(&runtime, "hang");
    assert!(
        times.windows(2).all(|w| w[1] - w[0] == Duration::from_secs(5)),
        "{times:?}"
    );
    let told = node.events.messages("Unhealthy");
    assert_eq!(
        told[0],
        "Liveness probe failed: command timed out: \"hang for ever\" timed out after 2s"
    );
    assert!(told.len() >= 9);
    node.stop().await;
}

/// What commands run when a container is asked to stop, and afterwards.
fn execs_at_stops(runtime: &FakeRuntime) -> Vec<(bool, usize)> {
    let calls = runtime.calls();
    let stops = calls.iter().filter(|call| call.op == Op::StopContainer);
    stops
        .map(|stop| {
            let execs = || calls.iter().filter(|call| call.op == Op::Exec);
            let runs = execs().any(|exec| exec.at < stop.at && exec.ended.is_none_or(|end| end > stop.at));
            (runs, execs().filter(|exec| exec.at > stop.at).count())
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn no_probe_runs_a_command_in_a_container_that_is_asked_to_stop() {
    let runtime = fake();
    runtime.on_exec(|_| ExecAnswer::exit(0).after(Duration::from_millis(900)));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("web")
        .grace_seconds(30)
        .sidecar("proxy", |c| {
            c.readiness(exec_probe(["proxy"], 1))
                .args(["on-term=0", "term-after=5s"])
        })
        .container("app", |c| {
            c.readiness(exec_probe(["ready"], 1))
                .liveness(exec_probe(["alive"], 1))
                .args(["on-term=0", "term-after=5s"])
        })
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("ready", |node| is_ready(node, "web")).await;
    sleep(Duration::from_millis(10_500)).await;
    assert!(runtime.in_flight(Op::Exec) > 0, "the case itself");
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("web").is_none()).await;
    let stops = execs_at_stops(&runtime);
    assert_eq!(stops.len(), 2);
    // The sidecar is still asked while it waits for its turn.
    assert_eq!(stops[1], (false, 0), "{stops:?}");
    let calls = runtime.calls();
    let stop = calls.iter().find(|call| call.op == Op::StopContainer).unwrap();
    let late = calls
        .iter()
        .filter(|call| call.op == Op::Exec && call.subject.container_id == stop.subject.container_id)
        .filter(|call| call.at > stop.at || call.ended.is_none_or(|end| end > stop.at));
    assert_eq!(late.count(), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_that_crashes_once_before_it_comes_up_is_probed_again_in_a_pod_that_never_restarts() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let mut startup = exec_probe(["up"], 5);
    startup.initial_delay_seconds = Some(10);
    let pod = PodBuilder::new("job")
        .restart_policy("Never")
        .sidecar("proxy", |c| {
            c.startup(startup).args(["exit=1", "after=2s", "steady-from=1"])
        })
        .container("app", |c| c.args(["exit=0", "after=30s"]))
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    let begun = Instant::now();
    node.until("the main container runs", |node| {
        node.container("job", "app").is_some_and(|c| c.started == Some(true))
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    assert_eq!(node.restarts("job", "proxy"), Some(1));
    node.until("done", |node| node.phase("job").as_deref() == Some("Succeeded"))
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_away_fails_no_probe() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("web")
        .uid("u1")
        .container("app", |c| {
            c.liveness(exec_probe(["alive"], 1)).readiness(exec_probe(["ready"], 1))
        })
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("ready", |node| is_ready(node, "web")).await;
    runtime.go_down();
    for _ in 0..120 {
        sleep(Duration::from_secs(1)).await;
        assert!(is_ready(&node, "web"));
    }
    runtime.come_up();
    sleep(Duration::from_secs(60)).await;
    assert!(is_ready(&node, "web"));
    assert_eq!(node.restarts("web", "app"), Some(0));
    assert!(node.handle.pod(&PodUid::from("u1")).is_some());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn commands_are_run_again_in_a_container_that_was_not_stopped_after_all() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let failing = Failing::of(&runtime);
    let pod = PodBuilder::new("web")
        .container("app", |c| {
            c.liveness(exec_probe(["alive"], 1)).readiness(exec_probe(["ready"], 1))
        })
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("ready", |node| is_ready(node, "web")).await;
    // Its stop fails for a while, in which nobody knows whether it goes on.
    runtime.script(Script::next(Op::StopContainer, Action::Taken).times(3));
    failing.fail("alive");
    node.until("it is to be stopped", |_| runtime.count(Op::StopContainer) > 0)
        .await;
    let before = runs(&runtime, "ready").len();
    sleep(Duration::from_secs(5)).await;
    assert!(runs(&runtime, "ready").len() > before);
    failing.pass("alive");
    node.until("restarted", |node| node.restarts("web", "app") == Some(1))
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn probes_that_another_version_of_a_pod_no_longer_has_are_not_run() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let failing = Failing::of(&runtime);
    let pod = |probed: bool| {
        PodBuilder::new("web")
            .uid("u1")
            .container("app", |c| {
                if probed {
                    c.liveness(exec_probe(["alive"], 1))
                } else {
                    c
                }
            })
            .build()
    };
    node.pods.set(vec![pod(true)]).await.unwrap();
    node.until("probed", |_| !runs(&runtime, "alive").is_empty()).await;
    node.pods.set(vec![pod(false)]).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    failing.fail("alive");
    let before = runs(&runtime, "alive").len();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(runs(&runtime, "alive").len(), before);
    assert_eq!(node.restarts("web", "app"), Some(0));
    node.stop().await;
}
