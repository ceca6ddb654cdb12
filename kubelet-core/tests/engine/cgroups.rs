//! Cgroups of pods: made before anything of a pod runs, gone after it, and no reason to end what runs.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ContainerResizePolicy, Pod};
use kubelet_core::{
    CgroupDriver, ChannelSource, ContainerResources, NodeSettings, PodUid, ResourceSettings, RuntimeInfo, SourceKind,
    StateDir,
};
use kubelet_testing::{
    Action, CgroupOp, ContainerBuilder, FakeAllocator, FakeCgroups, FakeRuntime, FaultKind, Op, PodBuilder, Script,
};
use tokio::time::{Instant, sleep};

use super::harness::Node;
use super::life::fake;

fn start(runtime: &FakeRuntime, state: StateDir, cgroups: &FakeCgroups) -> Node {
    Node::start_with(runtime, state, |builder| builder.cgroups(cgroups.clone()))
}

fn uid(name: &str) -> PodUid {
    PodUid::from(format!("uid-of-{name}"))
}

fn pod(name: &str) -> Pod {
    PodBuilder::new(name)
        .uid(uid(name).as_str())
        .container("app", |c| c.request("cpu", "500m"))
        .build()
}

/// The parent that the runtime was told for the pod's newest sandbox.
fn parent(runtime: &FakeRuntime, name: &str) -> String {
    let sandboxes = runtime.sandboxes();
    let newest = sandboxes.iter().rfind(|sandbox| sandbox.pod_uid == uid(name)).unwrap();
    runtime.sandbox_config(&newest.id).unwrap().cgroup_parent.clone()
}

#[tokio::test(start_paused = true)]
async fn a_pod_has_its_cgroup_before_its_sandbox_and_until_its_containers_are_gone() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let allocator = FakeAllocator::default();
    let mut own = ContainerResources::default();
    own.exclusive_cpus = true;
    allocator.give(&uid("pinned"), "app", own);
    let mut settings = ResourceSettings::default();
    settings.pod_pids_limit = Some(100);
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
        let mut node = NodeSettings::default();
        node.system_reserved.insert("memory".to_owned(), "1Gi".parse().unwrap());
        builder
            .cgroups(cgroups.clone())
            .allocator(allocator)
            .resources(settings)
            .node(node)
    });
    node.pods.set(vec![pod("a"), pod("pinned")]).await.unwrap();
    for name in ["a", "pinned"] {
        node.running(name).await;
    }
    let context = cgroups.context().unwrap();
    assert_eq!(
        (context.driver, context.owner.as_str()),
        (CgroupDriver::Cgroupfs, "node-1:/")
    );
    assert_eq!(cgroups.node_limits().unwrap().allocatable.memory_bytes, Some(255 << 30));
    assert_eq!(node.events.count("NodeAllocatableEnforced"), 1);
    assert_eq!(parent(&runtime, "a"), "/fake/Burstable/poduid-of-a");
    let limits = cgroups.limits(&uid("a")).unwrap();
    assert_eq!(
        (limits.cgroup.cpu_shares, limits.cgroup.cpu_quota, limits.cgroup.pids),
        (Some(512), None, Some(100))
    );
    assert_eq!(cgroups.limits(&uid("pinned")).unwrap().cgroup.cpu_quota, Some(-1));

    let calls = cgroups.calls().len();
    sleep(Duration::from_secs(600)).await;
    let since: Vec<_> = cgroups.calls().drain(calls..).collect();
    assert!(
        since.iter().all(|call| call.op == CgroupOp::Enforce),
        "at rest only the node is seen to: {since:?}"
    );
    assert!(since.len() >= 9, "each minute");

    node.pods.set(vec![pod("pinned")]).await.unwrap();
    node.until("a is gone", |_| !cgroups.has(&uid("a"))).await;
    assert!(runtime.sandboxes().iter().all(|sandbox| sandbox.pod_uid != uid("a")));
    assert!(cgroups.has(&uid("pinned")));
    node.stop().await;
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_has_no_cgroup_although_its_pod_is_wished_for() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    let job = PodBuilder::new("job")
        .uid("uid-of-job")
        .restart_policy("Never")
        .container("app", |c| c.args(["exit=0", "after=30s"]))
        .build();
    node.pods.set(vec![job]).await.unwrap();
    node.running("job").await;
    assert!(cgroups.has(&uid("job")));
    node.until("succeeded", |node| node.phase("job").as_deref() == Some("Succeeded"))
        .await;
    node.until("its cgroup goes", |_| !cgroups.has(&uid("job"))).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cgroup_that_cannot_be_made_is_told_of_and_tried_again() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    cgroups.fail(CgroupOp::Apply, 2);
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods.set(vec![pod("a")]).await.unwrap();
    node.until("told of", |node| node.events.count("FailedCreatePodContainer") == 1)
        .await;
    assert_eq!(runtime.count(Op::RunSandbox), 0, "nothing runs without its limits");
    assert_eq!(node.waits_for("a", "app").as_deref(), Some("CreatePodSandboxError"));
    node.running("a").await;
    assert_eq!(node.events.count("FailedCreatePodContainer"), 2);
    assert!(node.container("a", "app").unwrap().state.unwrap().waiting.is_none());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cgroups_that_cannot_be_opened_hold_up_new_pods_alone() {
    let (runtime, state) = (fake(), StateDir::in_memory());
    let node = Node::start(&runtime, state.clone());
    node.pods.set(vec![pod("old"), pod("ends")]).await.unwrap();
    for name in ["old", "ends"] {
        node.running(name).await;
    }
    node.stop().await;

    let cgroups = FakeCgroups::new();
    cgroups.fail(CgroupOp::Open, 3);
    let node = start(&runtime, state, &cgroups);
    node.pods.set(vec![pod("old"), pod("new")]).await.unwrap();
    node.until("told of", |node| node.events.count("KubeletSetupFailed") == 1)
        .await;
    node.until("the new pod waits", |node| {
        node.events.count("FailedCreatePodContainer") > 0
    })
    .await;
    node.until("a pod ends meanwhile", |_| {
        runtime.sandboxes().iter().all(|s| s.pod_uid != uid("ends"))
    })
    .await;
    node.running("old").await;
    node.running("new").await;
    assert_eq!(node.events.count("KubeletSetupFailed"), 3, "once a minute");
    assert_eq!(node.restarts("old", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn limits_of_the_node_that_cannot_be_set_are_tried_again_each_minute() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    cgroups.fail(CgroupOp::Enforce, 3);
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods.set(vec![pod("a")]).await.unwrap();
    node.running("a").await;
    let begun = Instant::now();
    node.until("enforced", |node| node.events.count("NodeAllocatableEnforced") == 1)
        .await;
    assert!(begun.elapsed() >= Duration::from_secs(170), "{:?}", begun.elapsed());
    assert_eq!(node.events.count("FailedNodeAllocatableEnforcement"), 3);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_agent_ends_no_pod_for_lack_of_a_cgroup() {
    let (runtime, state) = (fake(), StateDir::in_memory());
    // Before the upgrade nobody made cgroups.
    let node = Node::start(&runtime, state.clone());
    node.pods.set(vec![pod("a")]).await.unwrap();
    node.running("a").await;
    node.stop().await;

    let cgroups = FakeCgroups::new();
    let node = start(&runtime, state.clone(), &cgroups);
    node.pods.set(vec![pod("a"), pod("b")]).await.unwrap();
    node.running("b").await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(node.restarts("a", "app"), Some(0));
    assert!(
        !cgroups.has(&uid("a")),
        "what runs elsewhere has no empty cgroup, whose numbers would be wrong"
    );
    // What is started from now on is bound.
    let sandboxes = runtime.sandboxes();
    let sandbox = sandboxes.iter().find(|sandbox| sandbox.pod_uid == uid("a")).unwrap();
    let containers = runtime.containers().into_iter();
    let app = containers
        .rev()
        .find(|c| c.sandbox_id.as_ref() == Some(&sandbox.id))
        .unwrap();
    runtime.kill_container(&app.id, 1);
    node.until("restarted", |node| node.restarts("a", "app") == Some(1))
        .await;
    assert!(cgroups.has(&uid("a")));
    node.kill().await;

    // With cgroups in both lives nothing is done.
    let again = cgroups.next_life();
    let (applied, destroyed) = (again.count(CgroupOp::Apply), again.count(CgroupOp::Destroy));
    let node = start(&runtime, state, &again);
    node.pods.set(vec![pod("a"), pod("b")]).await.unwrap();
    for name in ["a", "b"] {
        node.running(name).await;
    }
    sleep(Duration::from_secs(600)).await;
    assert_eq!(
        (again.count(CgroupOp::Apply), again.count(CgroupOp::Destroy)),
        (applied, destroyed)
    );
    assert_eq!(node.restarts("b", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cgroup_that_is_lost_is_made_anew_and_its_pod_goes_on() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    let two = PodBuilder::new("a")
        .uid("uid-of-a")
        .container("app", |c| c)
        .container("other", |c| c.args(["exit=1", "after=60s"]))
        .build();
    node.pods.set(vec![two]).await.unwrap();
    node.running("a").await;
    cgroups.remove(&uid("a"));
    node.until("restarted", |node| node.restarts("a", "other") == Some(1))
        .await;
    assert!(cgroups.limits(&uid("a")).is_some());
    assert_eq!(node.restarts("a", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_end_holds_up_the_end_of_its_pod_alone() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods.set(vec![pod("a"), pod("b")]).await.unwrap();
    for name in ["a", "b"] {
        node.running(name).await;
    }
    cgroups.hold(&uid("a"));
    node.pods.set(Vec::new()).await.unwrap();
    node.until("b is gone", |_| !cgroups.has(&uid("b"))).await;
    sleep(Duration::from_secs(60)).await;
    assert!(cgroups.has(&uid("a")));
    cgroups.let_end(&uid("a"));
    node.until("a is gone", |_| !cgroups.has(&uid("a"))).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn orphans_go_once_all_sources_have_spoken_and_are_tried_again_with_back_off() {
    let (runtime, state, cgroups) = (fake(), StateDir::in_memory(), FakeCgroups::new());
    for (name, owner) in [
        ("gone", "node-1:/"),
        ("held", "node-1:/"),
        ("wanted", "node-1:/"),
        ("foreign", "node-2:/"),
    ] {
        cgroups.add_orphan(&uid(name), owner);
    }
    cgroups.hold(&uid("held"));
    let (more, source) = ChannelSource::new("file");
    let node = Node::start_with(&runtime, state, |builder| {
        builder
            .cgroups(cgroups.clone())
            .source(source.kind(SourceKind::Managed))
    });
    node.pods.set(Vec::new()).await.unwrap();
    sleep(Duration::from_secs(120)).await;
    assert!(cgroups.has(&uid("gone")), "a source has not spoken");
    more.set(vec![pod("wanted")]).await.unwrap();
    node.running("wanted").await;
    node.until("swept", |_| !cgroups.has(&uid("gone"))).await;
    let tried = |name: &str| {
        let calls = cgroups.calls().into_iter();
        calls
            .filter(|call| call.op == CgroupOp::Destroy && call.pod == Some(uid(name)))
            .count()
    };
    sleep(Duration::from_secs(3600)).await;
    assert!(
        cgroups.has(&uid("held")) && (10..25).contains(&tried("held")),
        "{}",
        tried("held")
    );
    assert!(cgroups.has(&uid("wanted")) && cgroups.has(&uid("foreign")));
    assert_eq!((tried("wanted"), tried("foreign")), (0, 0));
    cgroups.let_end(&uid("held"));
    node.until("it goes at last", |_| !cgroups.has(&uid("held"))).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn orphans_that_could_not_be_told_of_at_first_go_later() {
    // Cgroups that were not open at first, and such as could not be listed.
    for op in [CgroupOp::Open, CgroupOp::List] {
        let (runtime, cgroups) = (fake(), FakeCgroups::new());
        cgroups.add_orphan(&uid("gone"), "node-1:/");
        cgroups.add_orphan(&uid("a"), "node-1:/");
        cgroups.fail(op, 2);
        let node = start(&runtime, StateDir::in_memory(), &cgroups);
        node.pods.set(vec![pod("a")]).await.unwrap();
        node.until("swept", |_| !cgroups.has(&uid("gone"))).await;
        node.running("a").await;
        assert!(cgroups.has(&uid("a")), "{op:?}");
        let listed = cgroups.count(CgroupOp::List);
        sleep(Duration::from_secs(600)).await;
        assert_eq!(cgroups.count(CgroupOp::List), listed, "{op:?}: not again and again");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_orphan_whose_pod_is_wished_for_again_is_left_alone() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    cgroups.add_orphan(&uid("a"), "node-1:/");
    cgroups.hold(&uid("a"));
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods.set(Vec::new()).await.unwrap();
    node.until("tried", |_| cgroups.count(CgroupOp::Destroy) > 0).await;
    node.pods.set(vec![pod("a")]).await.unwrap();
    node.running("a").await;
    cgroups.let_end(&uid("a"));
    let tried = cgroups.count(CgroupOp::Destroy);
    sleep(Duration::from_secs(1800)).await;
    assert_eq!(cgroups.count(CgroupOp::Destroy), tried);
    assert_eq!(node.restarts("a", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_runtime_says_which_driver() {
    let mut info = RuntimeInfo::clone(&fake_info());
    info.cgroup_driver = Some(CgroupDriver::Systemd);
    let runtime = fake();
    runtime.set_info(info);
    let cgroups = FakeCgroups::new();
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.until("opened", |_| cgroups.context().is_some()).await;
    assert_eq!(cgroups.context().unwrap().driver, CgroupDriver::Systemd);
    node.stop().await;

    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let mut settings = ResourceSettings::default();
    settings.cgroup_driver = CgroupDriver::Systemd;
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
        builder.cgroups(cgroups.clone()).resources(settings)
    });
    node.until("opened", |_| cgroups.context().is_some()).await;
    assert_eq!(
        cgroups.context().unwrap().driver,
        CgroupDriver::Systemd,
        "where the runtime does not say"
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn containers_of_a_runtime_that_makes_no_cgroups_have_theirs_made() {
    let mut info = fake_info();
    info.makes_container_cgroups = false;
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    runtime.set_info(info);
    cgroups.fail(CgroupOp::Container, 1);
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods.set(vec![pod("a")]).await.unwrap();
    node.until("told of", |node| {
        node.waits_for("a", "app").as_deref() == Some("CreateContainerError")
    })
    .await;
    node.running("a").await;
    let limits = cgroups.container_limits(&uid("a"), "app").unwrap();
    assert_eq!(limits.cpu_shares, 512);
    let containers = runtime.containers();
    let config = runtime.container_config(&containers.last().unwrap().id).unwrap();
    let folders = &config.cgroup.as_ref().unwrap().folders;
    assert_eq!(folders, &[std::path::PathBuf::from("/fake/Burstable/poduid-of-a/app")]);
    node.stop().await;

    // One that makes its own is told of none.
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods.set(vec![pod("a")]).await.unwrap();
    node.running("a").await;
    assert_eq!(cgroups.count(CgroupOp::Container), 0);
    node.stop().await;
}

/// A pod that may use so much of both.
fn sized(cpu: &str, memory: &str, restarts_for_memory: Option<&str>) -> Pod {
    let shape = |c: ContainerBuilder| {
        let c = c.request("cpu", cpu).request("memory", memory);
        c.limit("cpu", cpu).limit("memory", memory)
    };
    let mut pod = PodBuilder::new("a").uid("uid-of-a").container("app", shape).build();
    if let Some(policy) = restarts_for_memory {
        pod.spec.as_mut().unwrap().containers[0].resize_policy = Some(vec![ContainerResizePolicy {
            resource_name: "memory".to_owned(),
            restart_policy: policy.to_owned(),
        }]);
    }
    pod
}

/// Quota and memory in MiB of the cgroup of the pod, as they were given one after the other.
fn given(cgroups: &FakeCgroups) -> Vec<(i64, u64)> {
    let applied = cgroups.calls().into_iter().filter_map(|call| call.limits);
    applied
        .map(|limits| {
            (
                limits.cgroup.cpu_quota.unwrap(),
                limits.cgroup.memory_bytes.unwrap() >> 20,
            )
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn other_resources_of_a_pod_that_runs_are_those_of_its_cgroup_too() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods.set(vec![sized("1", "100Mi", None)]).await.unwrap();
    node.running("a").await;
    assert_eq!(given(&cgroups), [(100_000, 100)]);
    cgroups.fail(CgroupOp::Apply, 1);
    node.pods.set(vec![sized("2", "50Mi", None)]).await.unwrap();
    node.until("told of", |node| node.events.count("ResizeError") == 1)
        .await;
    assert_eq!(runtime.count(Op::UpdateResources), 0, "its cgroup grows first");
    node.until("resized", |_| given(&cgroups).last() == Some(&(200_000, 50)))
        .await;
    // With room for both in between. What had failed first is the same as what was done next.
    assert_eq!(
        given(&cgroups),
        [(100_000, 100), (200_000, 100), (200_000, 100), (200_000, 50)]
    );
    assert_eq!(runtime.count(Op::UpdateResources), 1);
    assert_eq!(node.restarts("a", "app"), Some(0));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(given(&cgroups).len(), 4);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_started_anew_with_other_resources_has_room_for_them() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods
        .set(vec![sized("1", "100Mi", Some("RestartContainer"))])
        .await
        .unwrap();
    node.running("a").await;
    node.pods
        .set(vec![sized("1", "200Mi", Some("RestartContainer"))])
        .await
        .unwrap();
    node.until("restarted", |node| node.restarts("a", "app") == Some(1))
        .await;
    assert_eq!(given(&cgroups), [(100_000, 100), (100_000, 200)]);
    node.stop().await;
}

/// Two containers of that much CPU and memory; the second ends when it is made to.
fn pair(first: (&str, &str), second: (&str, &str)) -> Pod {
    let shape = |(cpu, memory): (&str, &str)| {
        let (cpu, memory) = (cpu.to_owned(), memory.to_owned());
        move |c: ContainerBuilder| {
            let c = c.request("cpu", cpu.as_str()).request("memory", memory.as_str());
            c.limit("cpu", cpu.as_str()).limit("memory", memory.as_str())
        }
    };
    PodBuilder::new("a")
        .uid("uid-of-a")
        .container("app", shape(first))
        .container("other", shape(second))
        .build()
}

/// Lets the container that runs under a name in pod `a` end.
fn end(runtime: &FakeRuntime, name: &str) {
    let all = runtime.containers();
    let newest = all.iter().rfind(|container| container.name == name).unwrap();
    runtime.kill_container(&newest.id, 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_started_meanwhile_takes_nothing_from_what_could_not_be_resized_yet() {
    let (runtime, state, cgroups) = (fake(), StateDir::in_memory(), FakeCgroups::new());
    let node = start(&runtime, state.clone(), &cgroups);
    node.pods.set(vec![pair(("1", "100Mi"), ("1", "100Mi"))]).await.unwrap();
    node.running("a").await;
    runtime.script(Script::next(Op::UpdateResources, Action::Fault(FaultKind::Refused)).times(100_000));
    let smaller = pair(("500m", "50Mi"), ("1", "100Mi"));
    node.pods.set(vec![smaller.clone()]).await.unwrap();
    node.until("told of", |node| node.events.count("ResizeError") == 1)
        .await;
    end(&runtime, "other");
    node.until("started anew", |node| node.restarts("a", "other") == Some(1))
        .await;
    node.running("a").await;
    node.kill().await;
    let has_room = |cgroups: &FakeCgroups| given(cgroups).iter().all(|given| *given == (200_000, 200));
    assert!(has_room(&cgroups), "{:?}", given(&cgroups));

    // A next life knows too what still runs with more.
    let again = cgroups.next_life();
    let node = start(&runtime, state, &again);
    node.pods.set(vec![smaller]).await.unwrap();
    node.running("a").await;
    end(&runtime, "other");
    node.until("started anew", |node| node.restarts("a", "other") == Some(2))
        .await;
    node.running("a").await;
    assert!(has_room(&again), "{:?}", given(&again));
    assert_eq!(node.restarts("a", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_kernel_does_not_take_back_keeps_nothing_from_being_started() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    runtime.set_latency(Op::UpdateResources, Duration::from_secs(2));
    let node = start(&runtime, StateDir::in_memory(), &cgroups);
    node.pods.set(vec![pair(("1", "100Mi"), ("1", "100Mi"))]).await.unwrap();
    node.running("a").await;
    node.pods.set(vec![pair(("2", "50Mi"), ("1", "100Mi"))]).await.unwrap();
    node.until("widened", |_| given(&cgroups).last() == Some(&(300_000, 200)))
        .await;
    cgroups.fail(CgroupOp::Apply, 100_000);
    node.until("told of", |node| node.events.count("ResizeError") == 1)
        .await;
    end(&runtime, "other");
    node.until("started anew", |node| node.restarts("a", "other") == Some(1))
        .await;
    node.running("a").await;
    assert!(node.events.count("FailedCreatePodContainer") > 0);
    node.stop().await;
}

fn fake_info() -> RuntimeInfo {
    let mut info = RuntimeInfo::new("fake", "1");
    info.conditions = vec![
        kubelet_core::RuntimeCondition::met(kubelet_core::RUNTIME_READY),
        kubelet_core::RuntimeCondition::met(kubelet_core::NETWORK_READY),
    ];
    info
}
