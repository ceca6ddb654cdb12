//! Critical pods push others out.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{KubeletBuilder, PodUid, StateDir, WholePods};
use kubelet_testing::{Action, FakeProvider, FakeRuntime, Op, PodBuilder, Script};
use tokio::time::{Instant, sleep};

use super::harness::{Cluster, Node, deleted, node_view, node_with_static_pods};
use super::life::fake;

const CRITICAL: i32 = 2_000_000_000;
const MESSAGE: &str = "Preempted in order to admit critical pod";

/// A Burstable pod of that name that asks for so much CPU, and takes all its grace to end.
fn pod(name: &str, cpu: &str) -> PodBuilder {
    PodBuilder::new(name)
        .grace_seconds(20)
        .container("app", |c| c.request("cpu", cpu).args(["ignore-term"]))
}

fn guaranteed(name: &str, cpu: &str) -> PodBuilder {
    PodBuilder::new(name).grace_seconds(20).container("app", |c| {
        let c = c.request("cpu", cpu).request("memory", "1Mi");
        c.limit("cpu", cpu).limit("memory", "1Mi")
    })
}

fn critical(name: &str, cpu: &str) -> PodBuilder {
    pod(name, cpu).priority("system-cluster-critical", CRITICAL)
}

/// A node with 4 CPUs and room for so many pods.
fn small(pods: &str) -> impl FnOnce(KubeletBuilder) -> KubeletBuilder {
    let mut view = node_view();
    for (name, amount) in [("cpu", "4"), ("pods", pods)] {
        view.allocatable.insert(name.to_owned(), amount.parse().unwrap());
    }
    |builder| builder.node_view(view)
}

fn start(runtime: &FakeRuntime) -> Node {
    Node::start_with(runtime, StateDir::in_memory(), small("10"))
}

async fn run(node: &Node, pods: Vec<PodBuilder>) -> Vec<Pod> {
    let pods: Vec<Pod> = pods.into_iter().map(PodBuilder::build).collect();
    node.pods.set(pods.clone()).await.unwrap();
    for pod in &pods {
        node.running(pod.metadata.name.as_deref().unwrap()).await;
    }
    pods
}

async fn refused(node: &Node, pod: &str) -> (String, String) {
    node.until("refused", |node| node.phase(pod).as_deref() == Some("Failed"))
        .await;
    let status = node.status(pod).unwrap();
    (status.reason.clone().unwrap(), status.message.clone().unwrap())
}

fn is_pushed_out(node: &Node, pod: &str) -> bool {
    let status = node.status(pod).unwrap();
    status.reason.as_deref() == Some("Preempting") && status.phase.as_deref() == Some("Failed") && !runs(node, pod)
}

/// Whether its container runs, whatever the pod's phase is going to be.
fn runs(node: &Node, pod: &str) -> bool {
    let state = node.container(pod, "app").and_then(|container| container.state);
    state.is_some_and(|state| state.running.is_some())
}

fn starts_of(runtime: &FakeRuntime, pod: &str) -> usize {
    let calls = runtime.calls();
    let uid = PodUid::from(format!("uid-{pod}"));
    let of_pod = |call: &&kubelet_testing::Call| call.op == Op::RunSandbox && call.subject.pod == Some(uid.clone());
    calls.iter().filter(of_pod).count()
}

#[tokio::test(start_paused = true)]
async fn the_cheapest_goes_with_its_grace_and_is_told_why() {
    let runtime = fake();
    let node = start(&runtime);
    let mut pods = run(&node, vec![guaranteed("dear", "2"), pod("cheap", "2")]).await;
    pods.push(critical("critical", "2").build());
    let begun = Instant::now();
    node.pods.set(pods).await.unwrap();
    node.until("it waits", |node| {
        node.waits_for("critical", "app").as_deref() == Some("OutOfcpu")
    })
    .await;
    assert_eq!(node.phase("critical").as_deref(), Some("Pending"));
    node.running("critical").await;
    assert!(begun.elapsed() >= Duration::from_secs(20), "the grace is the pod's own");
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());

    assert!(is_pushed_out(&node, "cheap"));
    let status = node.status("cheap").unwrap();
    assert_eq!(status.message.as_deref(), Some(MESSAGE));
    let target = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "DisruptionTarget");
    let target = target.unwrap();
    assert_eq!(target.status, "True");
    assert_eq!(target.reason.as_deref(), Some("TerminationByKubelet"));
    let message = "Pod was preempted by Kubelet to accommodate a critical pod.";
    assert_eq!(target.message.as_deref(), Some(message));
    assert_eq!(node.events.messages("Preempting"), [MESSAGE]);
    assert_eq!(node.events.count("ExceededGracePeriod"), 0);
    assert_eq!(node.phase("dear").as_deref(), Some("Running"));
    sleep(Duration::from_secs(100)).await;
    assert!(is_pushed_out(&node, "cheap"));
    assert_eq!(starts_of(&runtime, "cheap"), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_is_critical_and_the_number_of_pods_is_a_resource() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), small("2"));
    let mut pods = run(&node, vec![pod("a", "1"), PodBuilder::new("b").container("app", |c| c)]).await;
    pods.push(critical("critical", "1").build());
    node.pods.set(pods).await.unwrap();
    node.running("critical").await;
    assert!(is_pushed_out(&node, "b"));
    assert_eq!(node.phase("a").as_deref(), Some("Running"));
    node.stop().await;

    let runtime = fake();
    let (node, manifests) = node_with_static_pods(&runtime).await;
    run(&node, vec![pod("a", "40")]).await;
    manifests.set(vec![pod("static", "40").build()]).await.unwrap();
    node.running("static-node-1").await;
    assert!(is_pushed_out(&node, "a"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_goes_where_it_would_not_suffice_or_the_pod_is_refused_for_another_reason() {
    let runtime = fake();
    let node = start(&runtime);
    let port = |builder: PodBuilder| {
        builder.spec(|spec| {
            let port = serde_json::from_value(serde_json::json!([{"containerPort": 80, "hostPort": 80}])).unwrap();
            spec.containers[0].ports = Some(port);
        })
    };
    let mut pods = run(&node, vec![port(pod("a", "1")), critical("same", "2"), pod("b", "1")]).await;
    pods.push(critical("greedy", "3").build());
    node.pods.set(pods.clone()).await.unwrap();
    let (reason, message) = refused(&node, "greedy").await;
    assert_eq!(reason, "UnexpectedAdmissionError");
    assert_eq!(
        message,
        "Pod was rejected: Unexpected error while attempting to recover from admission failure: preemption: error finding \
         a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]"
    );

    // Its resources would be found, its port would not.
    pods.push(port(critical("port", "2")).build());
    node.pods.set(pods.clone()).await.unwrap();
    assert_eq!(refused(&node, "port").await.0, "NodePorts");
    pods.push(
        critical("elsewhere", "2")
            .spec(|spec| spec.node_selector = Some([("a".into(), "b".into())].into()))
            .build(),
    );
    node.pods.set(pods.clone()).await.unwrap();
    assert_eq!(refused(&node, "elsewhere").await.0, "NodeAffinity");
    // An ordinary one pushes nobody out.
    pods.push(pod("ordinary", "1").priority("high", CRITICAL - 1).build());
    node.pods.set(pods.clone()).await.unwrap();
    assert_eq!(refused(&node, "ordinary").await.0, "OutOfcpu");

    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.events.count("Preempting"), 0);
    for name in ["a", "same", "b"] {
        assert_eq!(node.phase(name).as_deref(), Some("Running"));
    }

    // A higher one pushes out what is critical too, where the others do not suffice.
    pods.push(
        critical("higher", "3")
            .priority("system-node-critical", CRITICAL + 1000)
            .build(),
    );
    node.pods.set(pods).await.unwrap();
    node.running("higher").await;
    assert!(is_pushed_out(&node, "same"));
    assert_eq!(node.events.count("Preempting"), 2);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_else_takes_the_room_that_is_made() {
    let runtime = fake();
    let node = start(&runtime);
    let grows = |cpu: &str| guaranteed("grows", cpu);
    let mut pods = run(&node, vec![pod("a", "2"), grows("1"), pod("b", "1")]).await;
    pods.push(critical("critical", "2").build());
    node.pods.set(pods.clone()).await.unwrap();
    node.until("one goes", |node| node.events.count("Preempting") == 1)
        .await;

    // One that comes, and one that would like more.
    pods[1] = grows("2").build();
    pods.push(pod("late", "1").build());
    node.pods.set(pods.clone()).await.unwrap();
    assert_eq!(refused(&node, "late").await.0, "OutOfcpu");
    node.until("deferred", |node| node.events.count("ResizeDeferred") == 1)
        .await;
    assert_eq!(node.phase("critical").as_deref(), Some("Pending"));
    node.running("critical").await;
    assert!(is_pushed_out(&node, "a"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.events.count("ResizeStarted"), 0);
    assert_eq!(node.events.count("Preempting"), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_critical_pods_have_victims_of_their_own() {
    let runtime = fake();
    let node = start(&runtime);
    let mut pods = run(&node, vec![pod("a", "1"), pod("b", "1"), pod("c", "2")]).await;
    pods.push(critical("one", "1").build());
    pods.push(critical("two", "1").build());
    node.pods.set(pods).await.unwrap();
    node.running("one").await;
    node.running("two").await;
    assert!(is_pushed_out(&node, "a") && is_pushed_out(&node, "b"));
    assert_eq!(node.phase("c").as_deref(), Some("Running"));
    assert_eq!(node.events.count("Preempting"), 2);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn room_that_somebody_leaves_anyway_is_waited_for() {
    let runtime = fake();
    let node = start(&runtime);
    let mut pods = run(&node, vec![pod("a", "2"), pod("b", "2")]).await;
    pods[0] = deleted(pods[0].clone(), 20);
    node.pods.set(pods.clone()).await.unwrap();
    node.until("being ended", |_| runtime.in_flight(Op::StopContainer) == 1)
        .await;
    pods.push(critical("critical", "2").build());
    node.pods.set(pods.clone()).await.unwrap();
    node.until("it waits", |node| node.waits_for("critical", "app").is_some())
        .await;
    pods.push(pod("late", "2").build());
    node.pods.set(pods).await.unwrap();
    assert_eq!(refused(&node, "late").await.0, "OutOfcpu");
    node.running("critical").await;
    assert_eq!(node.phase("b").as_deref(), Some("Running"));
    assert_eq!(node.events.count("Preempting"), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_victim_that_cannot_be_killed_is_not_waited_for_without_end() {
    let runtime = fake();
    let node = start(&runtime);
    let mut pods = run(&node, vec![pod("stuck", "4")]).await;
    runtime.script(
        Script::next(Op::StopContainer, Action::Hang)
            .times(1000)
            .of_pod("uid-stuck".into()),
    );
    pods.push(critical("critical", "2").build());
    let begun = Instant::now();
    node.pods.set(pods.clone()).await.unwrap();
    node.running("critical").await;
    assert!(begun.elapsed() >= Duration::from_secs(30) && begun.elapsed() < Duration::from_secs(32));
    assert!(runs(&node, "stuck"));
    assert_eq!(node.events.count("ExceededGracePeriod"), 1);
    // What it holds beyond that is nobody's before it has ended.
    pods.push(pod("late", "1").build());
    node.pods.set(pods.clone()).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.waits_for("late", "app").as_deref(), Some("OutOfcpu"));
    // A second critical pod does not wait for it for ever either.
    pods.push(critical("second", "1").build());
    node.pods.set(pods).await.unwrap();
    node.running("second").await;
    assert_eq!(node.events.count("Preempting"), 1);
    node.kill().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_has_begun_goes_on_where_the_critical_pod_goes() {
    for is_deleted in [false, true] {
        let runtime = fake();
        let node = start(&runtime);
        let mut pods = run(&node, vec![pod("a", "2"), pod("b", "2")]).await;
        let one = critical("critical", "2").build();
        pods.push(one.clone());
        node.pods.set(pods.clone()).await.unwrap();
        node.until("one goes", |node| node.events.count("Preempting") == 1)
            .await;
        pods.pop();
        if is_deleted {
            pods.push(deleted(one, 5));
        }
        node.pods.set(pods.clone()).await.unwrap();
        // The room is everybody's again.
        let late = pod("late", "2").build();
        sleep(Duration::from_secs(1)).await;
        node.pods.upsert(late).await.unwrap();
        node.running("late").await;
        assert!(is_pushed_out(&node, "a"));
        sleep(Duration::from_secs(60)).await;
        assert_eq!(node.events.count("Preempting"), 1);
        assert_eq!(node.phase("b").as_deref(), Some("Running"));
        assert_eq!(starts_of(&runtime, "critical"), 0);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_goes_on_and_starts_no_victim_again() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let cluster = Cluster::default();
    let node = Node::start_with(&runtime, state.clone(), small("10"));
    let quick = guaranteed("quick", "2");
    let mut pods = run(&node, vec![quick, pod("slow", "2")]).await;
    pods.push(critical("critical", "4").build());
    pods.insert(0, pod("another", "2").build());
    node.pods.set(pods.clone()).await.unwrap();
    node.until("one has gone", |node| is_pushed_out(node, "quick")).await;
    assert!(!is_pushed_out(&node, "slow"));
    assert_eq!(node.phase("critical").as_deref(), Some("Pending"));
    node.kill().await;

    let sink = cluster.clone();
    let node = Node::start_with(&runtime, state, |builder| small("10")(builder).status_sink(sink));
    node.pods.set(pods).await.unwrap();
    node.running("critical").await;
    assert!(is_pushed_out(&node, "quick"));
    assert!(is_pushed_out(&node, "slow"), "it is waited for in this life too");
    assert_eq!(refused(&node, "another").await.0, "OutOfcpu");
    assert_eq!(starts_of(&runtime, "another"), 0);
    assert_eq!(starts_of(&runtime, "quick"), 1);
    assert_eq!(starts_of(&runtime, "slow"), 1);
    let told = cluster.0.lock().unwrap().clone();
    let of_quick = told.iter().filter(|update| &*update.pod.key().name == "quick");
    let phases: Vec<_> = of_quick.filter_map(|update| update.status.phase.clone()).collect();
    assert!(phases.iter().all(|phase| phase == "Failed"), "{phases:?}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn whole_pods_are_pushed_out_too() {
    let provider = FakeProvider::new();
    let backend = WholePods::new(provider.clone());
    let node = Node::start_backend(backend, StateDir::in_memory(), small("10"));
    let mut pods = run(&node, vec![pod("a", "2"), pod("b", "2")]).await;
    pods.push(critical("critical", "1").build());
    node.pods.set(pods).await.unwrap();
    node.running("critical").await;
    assert!(is_pushed_out(&node, "a"));
    assert_eq!(node.phase("b").as_deref(), Some("Running"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_edited_version_of_a_static_pod_has_the_room_of_the_old_one() {
    let runtime = fake();
    let (node, manifests) = node_with_static_pods(&runtime).await;
    run(&node, vec![pod("a", "20")]).await;
    let version = |label: &str| {
        let named = pod("static", "40").uid(format!("uid-{label}"));
        named.label("version", label).build()
    };
    manifests.set(vec![version("1")]).await.unwrap();
    node.running("static-node-1").await;
    manifests.set(vec![version("2")]).await.unwrap();
    node.until("the new one runs", |node| {
        let new = node.named("static-node-1");
        new.is_some_and(|new| {
            let labels = new.pod.metadata().labels.clone().unwrap_or_default();
            labels["version"] == "2" && new.status.is_some_and(|s| s.phase.as_deref() == Some("Running"))
        })
    })
    .await;
    assert_eq!(node.events.count("Preempting"), 0);
    assert_eq!(node.phase("a").as_deref(), Some("Running"));
    node.stop().await;
}
