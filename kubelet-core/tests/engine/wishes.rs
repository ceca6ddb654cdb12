//! Wishes that change: what a source says anew meets what is under way.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kubelet_core::k8s_openapi::api::core::v1::{ExecAction, Lifecycle, LifecycleHandler, Pod};
use kubelet_core::{Admission, AdmitHandler, AdmitRequest, ContainerState, StateDir};
use kubelet_testing::{Action, ExecAnswer, FakeImage, FakeRuntime, FaultKind, Op, PodBuilder, Script};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::harness::{Cluster, Node, node_with_static_pods};
use super::life::fake;

/// Names and images of the containers that run.
fn running(runtime: &FakeRuntime) -> Vec<(String, String)> {
    runtime
        .containers()
        .into_iter()
        .filter(|c| c.state == ContainerState::Running)
        .map(|c| (c.name, c.image))
        .collect()
}

fn pair(name: &str, image: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), image.to_owned())]
}

#[tokio::test(start_paused = true)]
async fn an_edited_static_pod_waits_for_what_its_predecessor_holds() {
    for (wants_port, reason) in [(true, "NodePorts"), (false, "OutOfcpu")] {
        let runtime = fake();
        let (node, files) = node_with_static_pods(&runtime).await;
        let web = |uid: &str, image: &str| {
            PodBuilder::new("web")
                .uid(uid)
                .grace_seconds(20)
                .container("app", |c| {
                    let c = c.image(image).args(["ignore-term"]);
                    if wants_port {
                        c.host_port(8080)
                    } else {
                        c.request("cpu", "40")
                    }
                })
                .build()
        };
        files.set(vec![web("s1", "app:1")]).await.unwrap();
        node.until("runs", |_| running(&runtime) == pair("app", "app:1")).await;
        files.set(vec![web("s2", "app:2")]).await.unwrap();
        let new_one = |node: &Node| {
            let pods = node.handle.pods_named("default", "web-node-1");
            let new = pods.into_iter().find(|pod| pod.pod.uid().to_string() == "s2");
            new.and_then(|pod| pod.status)
        };
        node.until("waits", |node| new_one(node).is_some()).await;
        for _ in 0..18 {
            sleep(Duration::from_secs(1)).await;
            let status = new_one(&node).unwrap();
            assert_eq!(status.phase.as_deref(), Some("Pending"), "{status:?}");
            let waiting = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap();
            assert_eq!(waiting.waiting.unwrap().reason.as_deref(), Some(reason));
            assert_eq!(running(&runtime), pair("app", "app:1"));
        }
        node.until("runs", |_| running(&runtime) == pair("app", "app:2")).await;
        node.running("web-node-1").await;
        assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_the_spec_no_longer_names_is_stopped() {
    let runtime = fake();
    let (node, files) = node_with_static_pods(&runtime).await;
    let web = |name: &str| {
        PodBuilder::new("web")
            .uid("s1")
            .container(name, |c| c.image("app:1"))
            .build()
    };
    files.set(vec![web("old")]).await.unwrap();
    node.until("runs", |_| running(&runtime) == pair("old", "app:1")).await;
    files.set(vec![web("new")]).await.unwrap();
    node.until("renamed", |_| running(&runtime) == pair("new", "app:1"))
        .await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(running(&runtime), pair("new", "app:1"));
    assert!(node.container("web-node-1", "old").is_none());
    assert_eq!(node.restarts("web-node-1", "new"), Some(0));
    node.stop().await;
}

/// Lets nobody in until it is opened.
#[derive(Debug, Default)]
pub(crate) struct Door {
    is_open: AtomicBool,
    opened: Arc<Notify>,
}

impl Door {
    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
        self.opened.notify_one();
    }
}

impl AdmitHandler for Door {
    fn admit(&self, _req: &AdmitRequest<'_>) -> Admission {
        if self.is_open.load(Ordering::SeqCst) {
            Admission::Admit
        } else {
            Admission::not_yet("DoorClosed", "the door is closed")
        }
    }
    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        let opened = self.opened.clone();
        let once = futures::stream::once(async move { opened.notified().await });
        Some(once.chain(futures::stream::pending()).boxed())
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_told_not_yet_after_a_restart_keeps_its_restart_counts() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let crash = PodBuilder::new("p")
        .uid("u")
        .container("app", |c| c.args(["exit=1", "after=1s"]))
        .build();
    node.pods.set(vec![crash.clone()]).await.unwrap();
    node.until("three", |node| node.restarts("p", "app") == Some(3)).await;
    sleep(Duration::from_secs(2)).await;
    node.kill().await;
    for sandbox in runtime.sandboxes() {
        runtime.vanish_sandbox(&sandbox.id);
    }
    let door = Arc::new(Door::default());
    let node = Node::start_with(&runtime, state, |b| b.admit(door.clone()));
    node.pods.set(vec![crash]).await.unwrap();
    node.until("waits", |node| {
        node.waits_for("p", "app").as_deref() == Some("DoorClosed")
    })
    .await;
    let waiting = node.container("p", "app").unwrap();
    assert_eq!(waiting.restart_count, 3);
    assert!(waiting.last_state.unwrap().terminated.is_some());
    door.open();
    node.until("four", |node| node.restarts("p", "app") == Some(4)).await;
    node.stop().await;
}

/// Lets one pod wait until it is opened, and everybody else in.
#[derive(Debug)]
struct DoorOf(&'static str, Arc<Door>);

impl AdmitHandler for DoorOf {
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
        if &*req.pod.key().name == self.0 {
            self.1.admit(req)
        } else {
            Admission::Admit
        }
    }
    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        self.1.changes()
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_after_a_reboot_loses_its_room_to_nobody() {
    let (runtime, state) = (fake(), StateDir::in_memory());
    // Of the node's 64 processors only one of them can have so many.
    let large = |name: &str| {
        PodBuilder::new(name)
            .uid(format!("uid-of-{name}"))
            .container("app", |c| c.request("cpu", "40"))
            .build()
    };
    let node = Node::start(&runtime, state.clone());
    node.pods.set(vec![large("old")]).await.unwrap();
    node.running("old").await;
    node.kill().await;
    for sandbox in runtime.sandboxes() {
        runtime.vanish_sandbox(&sandbox.id);
    }
    let door = Arc::new(Door::default());
    let node = Node::start_with(&runtime, state, |b| b.admit(DoorOf("old", door.clone())));
    node.pods.set(vec![large("old")]).await.unwrap();
    node.until("waits", |node| {
        node.waits_for("old", "app").as_deref() == Some("DoorClosed")
    })
    .await;
    node.pods.set(vec![large("old"), large("new")]).await.unwrap();
    node.until("the newcomer is refused", |node| {
        node.status("new")
            .is_some_and(|status| status.reason.as_deref() == Some("OutOfcpu"))
    })
    .await;
    door.open();
    node.running("old").await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_is_named_again_runs_anew_and_has_never_failed() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let pod = |label: &str| {
        PodBuilder::new("p")
            .uid("u")
            .label("version", label)
            .container("app", |c| c.args(["ignore-term"]))
            .build()
    };
    node.pods.set(vec![pod("1")]).await.unwrap();
    node.running("p").await;
    node.kill().await;
    runtime.set_latency(Op::RemoveContainer, Duration::from_millis(500));
    let cluster = Cluster::default();
    let node = Node::start_with(&runtime, state, |b| b.status_sink(cluster.clone()));
    node.pods.set(Vec::new()).await.unwrap();
    node.until("being ended", |_| runtime.in_flight(Op::StopContainer) == 1)
        .await;
    node.pods.set(vec![pod("1")]).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    node.pods.set(vec![pod("2")]).await.unwrap();
    node.until("anew", |_| runtime.count(Op::StartContainer) == 2).await;
    node.running("p").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(running(&runtime).len(), 1);
    let phases = cluster.phases();
    assert!(!phases.iter().any(|p| p == "Failed" || p == "Succeeded"), "{phases:?}");
    assert_eq!(phases.last().map(String::as_str), Some("Running"));
    node.stop().await;
}

/// A pod whose post-start hook is a command, and whose container does not end when it is asked to.
fn with_post_start() -> Pod {
    let hook = LifecycleHandler {
        exec: Some(ExecAction {
            command: Some(vec!["warm-up".to_owned()]),
        }),
        ..LifecycleHandler::default()
    };
    let lifecycle = Lifecycle {
        post_start: Some(hook),
        ..Lifecycle::default()
    };
    PodBuilder::new("p")
        .uid("u")
        .grace_seconds(5)
        .container("app", |c| {
            c.args(["ignore-term"]).with(|c| c.lifecycle = Some(lifecycle))
        })
        .build()
}

fn change_label(pod: &mut Pod) {
    pod.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
}

fn change_spec(pod: &mut Pod) {
    pod.spec.as_mut().unwrap().active_deadline_seconds = Some(3600);
}

type Change = (&'static str, fn(&mut Pod));

const CHANGES: [Change; 2] = [("label", change_label), ("spec", change_spec)];

#[tokio::test(start_paused = true)]
async fn a_change_during_a_post_start_hook_takes_nothing_from_its_outcome() {
    for (what, change) in CHANGES {
        let runtime = fake();
        // So that a stop whose call is given up does nothing.
        runtime.set_latency(Op::StopContainer, Duration::from_secs(1));
        runtime.on_exec(|_| ExecAnswer::exit(1).after(Duration::from_secs(10)));
        let node = Node::start(&runtime, StateDir::in_memory());
        let mut pod = with_post_start();
        node.pods.set(vec![pod.clone()]).await.unwrap();
        node.until("hook runs", |_| runtime.in_flight(Op::Exec) == 1).await;
        sleep(Duration::from_secs(3)).await;
        change(&mut pod);
        node.pods.set(vec![pod]).await.unwrap();
        sleep(Duration::from_secs(6)).await;
        assert_eq!(runtime.in_flight(Op::Exec), 1, "{what}");
        assert_eq!(runtime.count(Op::Exec), 1, "{what}");
        node.until("failed", |node| node.events.count("FailedPostStartHook") == 1)
            .await;
        let failed = Instant::now();
        node.until("stopped", |_| running(&runtime).is_empty()).await;
        assert!(
            failed.elapsed() <= Duration::from_secs(7),
            "{what}: {:?}",
            failed.elapsed()
        );
        node.until("restarted", |node| node.restarts("p", "app") == Some(1))
            .await;
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_post_start_hook_failed_is_asked_to_stop_until_it_does() {
    for fault in [FaultKind::Unavailable, FaultKind::UncertainNever] {
        let runtime = fake();
        let hooks = Arc::new(AtomicU32::new(0));
        let seen = hooks.clone();
        runtime.on_exec(move |_| ExecAnswer::exit(i32::from(seen.fetch_add(1, Ordering::SeqCst) == 0)));
        runtime.script(Script::next(Op::StopContainer, Action::Fault(fault)).times(3));
        let node = Node::start(&runtime, StateDir::in_memory());
        node.pods.set(vec![with_post_start()]).await.unwrap();
        node.until("refused", |node| node.events.count("FailedKillPod") == 3)
            .await;
        assert_eq!(running(&runtime).len(), 1);
        node.until("started anew", |node| node.restarts("p", "app") == Some(1))
            .await;
        let asked: Vec<_> = runtime
            .calls()
            .iter()
            .filter(|call| call.op == Op::StopContainer)
            .map(|call| call.at)
            .collect();
        assert_eq!(asked.len(), 4, "{fault:?}");
        // With a back-off, and each time with the container's own grace.
        let pauses: Vec<u64> = asked.windows(2).map(|two| (two[1] - two[0]).as_secs()).collect();
        assert!(pauses[1..].iter().all(|pause| *pause >= 10), "{pauses:?}");
        node.running("p").await;
        sleep(Duration::from_secs(300)).await;
        assert_eq!(running(&runtime).len(), 1);
        assert_eq!(hooks.load(Ordering::SeqCst), 2);
        assert_eq!(node.events.count("Killing"), 1);
        assert_eq!(runtime.count(Op::StopContainer), 4);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_while_a_container_starts_skips_no_post_start_hook() {
    for (what, change) in CHANGES {
        let runtime = fake();
        runtime.set_latency(Op::StartContainer, Duration::from_secs(2));
        runtime.on_exec(|_| ExecAnswer::exit(0).after(Duration::from_secs(1)));
        let node = Node::start(&runtime, StateDir::in_memory());
        let mut pod = with_post_start();
        node.pods.set(vec![pod.clone()]).await.unwrap();
        node.until("starting", |_| runtime.in_flight(Op::StartContainer) == 1)
            .await;
        sleep(Duration::from_secs(1)).await;
        change(&mut pod);
        node.pods.set(vec![pod]).await.unwrap();
        node.running("p").await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(runtime.count(Op::Exec), 1, "{what}");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_start_hook_holds_up_neither_the_end_of_its_pod_nor_that_of_the_agent() {
    for deletes in [true, false] {
        let runtime = fake();
        runtime.on_exec(|_| ExecAnswer::exit(0).after(Duration::from_secs(1000)));
        let node = Node::start(&runtime, StateDir::in_memory());
        let mut pod = with_post_start();
        node.pods.set(vec![pod.clone()]).await.unwrap();
        node.until("hook runs", |_| runtime.in_flight(Op::Exec) == 1).await;
        change_spec(&mut pod);
        node.pods.set(vec![pod]).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(runtime.in_flight(Op::Exec), 1);
        let begun = Instant::now();
        if deletes {
            node.pods.set(Vec::new()).await.unwrap();
            node.until("gone", |node| node.named("p").is_none()).await;
            assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
        } else {
            node.stop().await;
            assert!(begun.elapsed() <= Duration::from_secs(1), "{:?}", begun.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn new_labels_do_not_start_a_pull_over() {
    let runtime = FakeRuntime::new();
    runtime.set_image("big:1", FakeImage::new().pull_latency(Duration::from_secs(60)));
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = |beat: u32| {
        PodBuilder::new("p")
            .uid("u")
            .annotation("beat", beat.to_string())
            .container("app", |c| c.image("big:1"))
            .build()
    };
    for beat in 0..7 {
        node.pods.set(vec![pod(beat)]).await.unwrap();
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(running(&runtime), pair("app", "big:1"));
    assert_eq!(runtime.count(Op::Pull), 1);
    assert_eq!(runtime.count(Op::CreateContainer), 1);
    node.stop().await;
}
