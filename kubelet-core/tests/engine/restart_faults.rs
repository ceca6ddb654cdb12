//! Faults that kubelets had in public when they or their machine were started anew, each a test of its kind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::{ContainerResizePolicy, ContainerStatus, Pod, PodStatus};
use kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_core::{
    ChannelHandle, ChannelSource, ContainerRuntime, ContainerState, CreateContainer, PodSource, PodUid, RawPod,
    SandboxState, SourceContext, SourceItem, SourceKind, SourceName, StateDir, StatusOverride, annotation,
};
use kubelet_testing::{FakeRuntime, Op, PodBuilder};
use tokio::time::{Instant, sleep};

use super::harness::{Cluster, Node, deleted};
use super::life::fake;

fn live(runtime: &FakeRuntime) -> (usize, usize) {
    let sandboxes = runtime.sandboxes();
    let containers = runtime.containers();
    (
        sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count(),
        containers.iter().filter(|c| c.state == ContainerState::Running).count(),
    )
}

fn starts_of(runtime: &FakeRuntime, uid: &str, container: &str) -> usize {
    let calls = runtime.calls();
    let starts = calls.iter().filter(|call| call.op == Op::StartContainer);
    starts
        .filter(|call| call.subject.pod == Some(PodUid::from(uid)))
        .filter(|call| call.subject.container.as_deref() == Some(container))
        .count()
}

/// What must not change of a container that nothing happened to.
#[derive(Debug, PartialEq)]
struct Told {
    runs: bool,
    ready: bool,
    started: Option<bool>,
    restarts: i32,
    id: Option<String>,
}

fn told_of(status: &PodStatus) -> BTreeMap<String, Told> {
    let of = |c: &ContainerStatus| Told {
        runs: c.state.as_ref().is_some_and(|state| state.running.is_some()),
        ready: c.ready,
        started: c.started,
        restarts: c.restart_count,
        id: c.container_id.clone(),
    };
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.map(|c| (c.name.clone(), of(c))).collect()
}

fn ready(status: &PodStatus) -> Option<String> {
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    ready.map(|ready| ready.status.clone())
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_says_nothing_of_its_pods_that_is_not_so() {
    // Whether the agent's own records are still there, and whether the source brings the last status along.
    for (has_records, brings_status) in [(true, true), (true, false), (false, true), (false, false)] {
        let runtime = fake();
        let state = StateDir::in_memory();
        let node = Node::start(&runtime, state.clone());
        let mut pods = vec![
            PodBuilder::new("ready")
                .uid("u1")
                .init("setup", |c| c.args(["exit=0", "after=1s"]))
                .sidecar("proxy", |c| c)
                .container("app", |c| c.args(["exit=1", "after=2s", "steady-from=1"]))
                .build(),
            PodBuilder::new("unready")
                .uid("u2")
                .restart_policy("Never")
                .container("app", |c| c)
                .container("done", |c| c.args(["exit=0", "after=1s"]))
                .build(),
        ];
        node.pods.set(pods.clone()).await.unwrap();
        node.until("settled", |node| {
            let of = |pod: &str| node.status(pod).and_then(|status| ready(&status));
            node.restarts("ready", "app") == Some(1)
                && of("ready").as_deref() == Some("True")
                && of("unready").as_deref() == Some("False")
                && node.phase("unready").as_deref() == Some("Running")
        })
        .await;
        let before = ["ready", "unready"].map(|pod| node.status(pod).unwrap());
        node.kill().await;
        for op in [Op::Info, Op::ListSandboxes, Op::ListContainers, Op::SandboxStatus] {
            runtime.set_latency(op, Duration::from_millis(700));
        }
        let (creates, cluster) = (runtime.count(Op::CreateContainer), Cluster::default());
        let state = if has_records { state } else { StateDir::in_memory() };
        let node = Node::start_with(&runtime, state, |b| b.status_sink(cluster.clone()));
        if brings_status {
            for (pod, status) in pods.iter_mut().zip(&before) {
                pod.status = Some((**status).clone());
            }
        }
        node.pods.set(pods).await.unwrap();
        sleep(Duration::from_secs(300)).await;
        let told = cluster.0.lock().unwrap().clone();
        for (uid, before) in ["u1", "u2"].into_iter().zip(&before) {
            let told: Vec<_> = told.iter().filter(|update| update.pod.uid().as_str() == uid).collect();
            assert!(!told.is_empty(), "{uid} is heard of");
            for update in told {
                let status = &update.status;
                assert_eq!(
                    status.phase.as_deref(),
                    Some("Running"),
                    "{has_records} {brings_status}"
                );
                assert_eq!(ready(status), ready(before), "{uid} {has_records} {brings_status}");
                assert_eq!(told_of(status), told_of(before), "{has_records} {brings_status}");
            }
        }
        assert_eq!(runtime.count(Op::CreateContainer), creates);
        assert_eq!(runtime.count(Op::StopContainer), 0);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_version_of_the_agent_made_is_taken_over_as_it_is() {
    const NOTES: [&str; 6] = [
        annotation::CONTAINER_HASH,
        annotation::RESTART_COUNT,
        annotation::TERMINATION_MESSAGE_PATH,
        annotation::TERMINATION_MESSAGE_POLICY,
        annotation::POD_TERMINATION_GRACE,
        annotation::TERMINATION_MESSAGE_HOST_PATH,
    ];
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    let made = fake();
    let node = Node::start(&made, StateDir::in_memory());
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.running("p").await;
    node.kill().await;
    let sandbox = made.sandbox_config(&made.sandboxes()[0].id).unwrap();
    let container = made.container_config(&made.containers()[0].id).unwrap();
    // Another version wrote less, or none of it, and something else beside.
    for written in [&NOTES[..], &NOTES[..1], &NOTES[1..], &NOTES[..0]] {
        let runtime = fake();
        let (mut sandbox, mut container) = ((*sandbox).clone(), (*container).clone());
        sandbox.labels.insert("of-another-version".to_owned(), "yes".to_owned());
        container
            .labels
            .insert("of-another-version".to_owned(), "yes".to_owned());
        container.annotations.retain(|key, _| written.contains(&key.as_str()));
        container
            .annotations
            .insert("of-another-version".to_owned(), "7".to_owned());
        let in_sandbox = runtime.run_sandbox(&sandbox, "").await.unwrap();
        let request = CreateContainer::new(&in_sandbox, &sandbox, &container);
        let id = runtime.create_container(request).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        // This one knows more defaults than its API server, or fewer.
        let mut pod = pod.clone();
        let spec = pod.spec.as_mut().unwrap();
        spec.preemption_policy = Some("PreemptLowerPriority".to_owned());
        spec.set_hostname_as_fqdn = Some(false);
        spec.containers[0].resize_policy = Some(vec![ContainerResizePolicy {
            resource_name: "cpu".to_owned(),
            restart_policy: "NotRequired".to_owned(),
        }]);
        let node = Node::start(&runtime, StateDir::in_memory());
        node.pods.set(vec![pod]).await.unwrap();
        node.running("p").await;
        sleep(Duration::from_secs(300)).await;
        assert_eq!(runtime.containers()[0].id, id, "{written:?}");
        let calls = [
            Op::RunSandbox,
            Op::CreateContainer,
            Op::StopContainer,
            Op::RemoveContainer,
        ];
        assert_eq!(calls.map(|op| runtime.count(op)), [1, 1, 0, 0], "{written:?}");
        assert_eq!(node.restarts("p", "app"), Some(0));
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_node_keeps_its_pods_over_a_restart_and_only_a_new_one_is_refused() {
    let pod = |name: &str, created: i64| {
        PodBuilder::new(name)
            .uid(name)
            .metadata(|m| m.creation_timestamp = Some(Time(Timestamp::from_second(created).unwrap())))
            .container("app", |c| c.request("cpu", "32"))
            .build()
    };
    let runtime = fake();
    let state = StateDir::in_memory();
    let node = Node::start(&runtime, state.clone());
    let there = [pod("b", 1_700_000_000), pod("c", 1_700_000_000)];
    node.pods.set(there.to_vec()).await.unwrap();
    node.until("full", |_| live(&runtime) == (2, 2)).await;
    node.kill().await;
    let node = Node::start(&runtime, state);
    // By its time and its name it comes before the others.
    let mut pods = vec![pod("a", 1_600_000_000)];
    pods.extend(there);
    node.pods.set(pods).await.unwrap();
    node.until("refused", |node| node.phase("a").as_deref() == Some("Failed"))
        .await;
    assert_eq!(node.status("a").unwrap().reason.as_deref(), Some("OutOfcpu"));
    sleep(Duration::from_secs(120)).await;
    for pod in ["b", "c"] {
        assert_eq!(node.phase(pod).as_deref(), Some("Running"));
    }
    assert_eq!((live(&runtime), runtime.count(Op::CreateContainer)), ((2, 2), 2));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_completed_pod_of_which_nothing_is_left_is_not_run_again() {
    for (policy, code, phase) in [
        ("OnFailure", 0, "Succeeded"),
        ("Never", 0, "Succeeded"),
        ("Never", 3, "Failed"),
    ] {
        let runtime = fake();
        let state = StateDir::in_memory();
        let job = PodBuilder::new("job")
            .uid("u")
            .restart_policy(policy)
            .container("app", |c| c.args([&format!("exit={code}"), "after=3s"]))
            .build();
        let node = Node::start(&runtime, state.clone());
        node.pods.set(vec![job.clone()]).await.unwrap();
        node.until("done", |node| node.phase("job").as_deref() == Some(phase))
            .await;
        node.kill().await;
        for sandbox in runtime.sandboxes() {
            runtime.vanish_sandbox(&sandbox.id);
        }
        // Nobody but the agent itself knows of its end, and it is restarted more than once.
        for _ in 0..2 {
            let node = Node::start(&runtime, state.clone());
            node.pods.set(vec![job.clone()]).await.unwrap();
            sleep(Duration::from_secs(120)).await;
            assert_eq!(node.phase("job").as_deref(), Some(phase), "{policy} {code}");
            node.kill().await;
        }
        let made = (runtime.count(Op::RunSandbox), runtime.count(Op::CreateContainer));
        assert_eq!(made, (1, 1), "{policy} {code}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_init_container_whose_record_is_gone_is_not_run_again_after_a_restart_of_the_agent() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let pod = PodBuilder::new("p")
        .uid("u")
        .init("setup", |c| c.args(["exit=0", "after=1s"]))
        .container("app", |c| c)
        .build();
    let node = Node::start(&runtime, state.clone());
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.running("p").await;
    node.kill().await;
    let containers = runtime.containers();
    let of_name = |name: &str| containers.iter().find(|c| c.name == name).unwrap().id.clone();
    runtime.vanish_container(&of_name("setup"));
    runtime.kill_container(&of_name("app"), 1);
    let node = Node::start(&runtime, state);
    node.pods.set(vec![pod]).await.unwrap();
    node.until("restarted", |node| node.restarts("p", "app") == Some(1))
        .await;
    node.running("p").await;
    assert_eq!(starts_of(&runtime, "u", "setup"), 1);
    assert_eq!(starts_of(&runtime, "u", "app"), 2);
    node.stop().await;
}

/// Where a restart count is still known from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    OneContainer,
    ApiStatus,
    Logs,
}

#[tokio::test(start_paused = true)]
async fn restart_counts_are_known_from_whatever_is_left() {
    for left in [Left::OneContainer, Left::ApiStatus, Left::Logs] {
        let runtime = fake();
        let mut pod = PodBuilder::new("p")
            .uid("u")
            .container("app", |c| c.args(["exit=1", "after=1s"]))
            .build();
        let node = Node::start(&runtime, StateDir::in_memory());
        node.pods.set(vec![pod.clone()]).await.unwrap();
        node.until("five", |node| node.restarts("p", "app") == Some(5)).await;
        let status = node.status("p").unwrap();
        node.kill().await;
        let newest = runtime.containers().pop().unwrap();
        for container in runtime.containers() {
            if left != Left::OneContainer || container.id != newest.id {
                runtime.vanish_container(&container.id);
            }
        }
        let root = tempfile::tempdir().unwrap();
        match left {
            Left::OneContainer => {}
            Left::ApiStatus => pod.status = Some((*status).clone()),
            Left::Logs => {
                let logs = root.path().join("logs/default_p_u/app");
                std::fs::create_dir_all(&logs).unwrap();
                std::fs::write(logs.join("4.log"), "").unwrap();
            }
        }
        // The agent's own records are lost.
        let node = Node::start_with(&runtime, StateDir::in_memory(), |b| match left {
            Left::Logs => b
                .root_dir(root.path().join("root"))
                .pod_logs_dir(root.path().join("logs")),
            _ => b,
        });
        node.pods.set(vec![pod]).await.unwrap();
        node.until("started again", |node| node.restarts("p", "app") >= Some(6))
            .await;
        let counts: Vec<u32> = runtime.containers().iter().map(|c| c.attempt).collect();
        assert!(counts.iter().all(|attempt| *attempt >= 5), "{left:?}: {counts:?}");
        node.stop().await;
    }
}

fn with_static(runtime: &FakeRuntime, state: StateDir) -> (Node, ChannelHandle) {
    let (files, source) = ChannelSource::new("file");
    let node = Node::start_with(runtime, state, |b| b.source(source.kind(SourceKind::Static)));
    (node, files)
}

#[tokio::test(start_paused = true)]
async fn an_evicted_static_pod_stays_so_over_a_restart_until_its_manifest_changes() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let web = |uid: &str| PodBuilder::new("web").uid(uid).container("app", |c| c).build();
    let (node, files) = with_static(&runtime, state.clone());
    files.set(vec![web("s1")]).await.unwrap();
    node.running("web-node-1").await;
    let evicted = StatusOverride::new("Evicted", "The node was low on resource: memory. ");
    let grace = Some(Duration::from_secs(1));
    node.handle.kill(&PodUid::from("s1"), grace, evicted).await.unwrap();
    let is_evicted = |node: &Node| {
        let status = node.status("web-node-1");
        status.is_some_and(|s| s.phase.as_deref() == Some("Failed") && s.reason.as_deref() == Some("Evicted"))
    };
    node.until("evicted", is_evicted).await;
    node.kill().await;
    let (node, files) = with_static(&runtime, state);
    files.set(vec![web("s1")]).await.unwrap();
    node.until("still so", is_evicted).await;
    sleep(Duration::from_secs(600)).await;
    assert!(is_evicted(&node), "{:?}", node.status("web-node-1"));
    assert_eq!((live(&runtime), runtime.count(Op::CreateContainer)), ((0, 0), 1));
    files.set(vec![web("s2")]).await.unwrap();
    node.until("another pod", |_| live(&runtime) == (1, 1)).await;
    node.running("web-node-1").await;
    // It is another pod, whose restarts are counted from the start.
    assert_eq!(node.restarts("web-node-1", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_being_deleted_when_the_machine_went_down_goes() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let pod = PodBuilder::new("p")
        .uid("u")
        .grace_seconds(600)
        .container("app", |c| c.args(["ignore-term"]))
        .build();
    let node = Node::start(&runtime, state.clone());
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.running("p").await;
    let pod = deleted(pod, 600);
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.until("stopping", |_| runtime.in_flight(Op::StopContainer) == 1)
        .await;
    node.kill().await;
    runtime.reboot();
    let cluster = Cluster::default();
    let node = Node::start_with(&runtime, state, |b| b.status_sink(cluster.clone()));
    let begun = Instant::now();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("its end is told", |_| cluster.last().is_some_and(|last| last.finished))
        .await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let last = cluster.last().unwrap();
    assert!(!last.containers_may_run);
    assert!(
        matches!(last.status.phase.as_deref(), Some("Failed" | "Succeeded")),
        "{last:?}"
    );
    assert_eq!(runtime.count(Op::StartContainer), 1);
    // The API server has removed it.
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("p").is_none()).await;
    assert!(runtime.sandboxes().is_empty() && runtime.containers().is_empty());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_call_made_during_which_the_agent_was_killed_is_found_and_used() {
    for op in [Op::RunSandbox, Op::CreateContainer, Op::StartContainer] {
        // The call ends before the next start of the agent, or only some time after it.
        for late in [Duration::from_millis(10), Duration::from_secs(20)] {
            let runtime = fake();
            let state = StateDir::in_memory();
            runtime.set_abandoned_calls_happen(Some(late));
            runtime.set_latency(op, Duration::from_secs(2));
            let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
            let node = Node::start(&runtime, state.clone());
            node.pods.set(vec![pod.clone()]).await.unwrap();
            node.until("asked", |_| runtime.in_flight(op) == 1).await;
            node.kill().await;
            runtime.set_latency(op, Duration::ZERO);
            sleep(Duration::from_secs(1)).await;
            let node = Node::start(&runtime, state);
            node.pods.set(vec![pod]).await.unwrap();
            node.running("p").await;
            sleep(Duration::from_secs(300)).await;
            let there = (runtime.sandboxes().len(), runtime.containers().len());
            assert_eq!((live(&runtime), there), ((1, 1), (1, 1)), "{op:?} {late:?}");
            assert_eq!(node.restarts("p", "app"), Some(0), "{op:?} {late:?}");
            assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
            node.stop().await;
        }
    }
}

/// A source that only remembers: whom it has its pods from is away.
#[derive(Debug)]
struct Remembering {
    name: SourceName,
    pods: Vec<Pod>,
}

impl PodSource for Remembering {
    fn name(&self) -> &SourceName {
        &self.name
    }
    fn kind(&self) -> SourceKind {
        SourceKind::Managed
    }
    fn open(&self, cx: SourceContext) -> BoxStream<'static, SourceItem> {
        let mut item = SourceItem::snapshot(self.pods.iter().cloned().map(RawPod::new).collect());
        if let SourceItem::Snapshot { remembered, .. } = &mut item {
            *remembered = true;
        }
        let until_stop = stream::once(cx.stop.cancelled_owned()).filter_map(async |()| None);
        stream::iter([item]).chain(until_stop).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_without_the_control_plane_the_same_pods_run() {
    let runtime = fake();
    let state = StateDir::in_memory();
    let web = PodBuilder::new("web")
        .uid("u1")
        .init("setup", |c| c.args(["exit=0", "after=1s"]))
        .container("app", |c| c)
        .build();
    let job = PodBuilder::new("job")
        .uid("u2")
        .restart_policy("Never")
        .container("app", |c| c.args(["exit=0", "after=1s"]))
        .build();
    let forgotten = PodBuilder::new("forgotten").uid("u3").container("app", |c| c).build();
    let (cloud, source) = ChannelSource::new("cloud");
    let node = Node::start_with(&runtime, state.clone(), |b| b.source(source));
    cloud.set(vec![web.clone(), job.clone(), forgotten]).await.unwrap();
    node.running("web").await;
    node.running("forgotten").await;
    node.until("done", |node| node.phase("job").as_deref() == Some("Succeeded"))
        .await;
    node.kill().await;
    runtime.reboot();
    let memory = Remembering {
        name: SourceName::from("cloud"),
        pods: vec![web, job],
    };
    let node = Node::start_with(&runtime, state, |b| b.source(memory));
    node.until("runs again", |_| live(&runtime) == (1, 1)).await;
    node.running("web").await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(live(&runtime), (1, 1));
    assert_eq!(node.named("web").unwrap().pod.uid().as_str(), "u1");
    assert_eq!(starts_of(&runtime, "u1", "setup"), 2, "its sandbox is a new one");
    assert_eq!(node.restarts("web", "app"), Some(1));
    assert_eq!(node.phase("job").as_deref(), Some("Succeeded"));
    assert_eq!(starts_of(&runtime, "u2", "app"), 1);
    // What a memory does not name may still be wished for.
    let left: Vec<_> = runtime.containers().into_iter().map(|c| c.sandbox_id).collect();
    let forgotten = runtime.sandboxes().into_iter().find(|s| s.pod_uid.as_str() == "u3");
    assert!(forgotten.is_some_and(|sandbox| left.contains(&Some(sandbox.id))));
    node.stop().await;
}
