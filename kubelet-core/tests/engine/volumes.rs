//! Volumes of pods: there before anything of a pod is made, brought up to date while it runs, and no reason to end what runs.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, ImageVolumeSource, PersistentVolumeClaimVolumeSource, Pod, Volume,
    VolumeDevice, VolumeMount,
};
use kubelet_core::{
    ContainerConfig, ContainerVolumes, Device, MapObjects, NETWORK_READY, PodUid, RUNTIME_READY, RuntimeCondition,
    RuntimeInfo, StateDir, VolumePlace,
};
use kubelet_testing::{
    Action, ContainerBuilder, FakeRuntime, FakeVolumes, Op, PodBuilder, Script, VolumeOp, exec_probe,
};
use tokio::time::{Instant, sleep};

use super::harness::{Node, deleted};
use super::life::fake;
use super::probes::Failing;

pub(crate) fn start(runtime: &FakeRuntime, state: StateDir, volumes: &FakeVolumes) -> Node {
    Node::start_with(runtime, state, |builder| builder.volumes(volumes.clone()))
}

pub(crate) fn uid(name: &str) -> PodUid {
    PodUid::from(format!("uid-{name}"))
}

pub(crate) fn mount(volume: &str) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: format!("/{volume}"),
        ..VolumeMount::default()
    }
}

pub(crate) fn volume(name: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    }
}

fn mounting(container: ContainerBuilder, volumes: &[&str]) -> ContainerBuilder {
    let mounts = volumes.iter().map(|name| mount(name)).collect();
    container.with(|container| container.volume_mounts = Some(mounts))
}

/// A pod of one container that mounts these.
pub(crate) fn builder(name: &str, volumes: &[&str]) -> PodBuilder {
    PodBuilder::new(name)
        .container("app", |c| mounting(c, volumes))
        .spec(|spec| spec.volumes = Some(volumes.iter().map(|name| volume(name)).collect()))
}

pub(crate) fn pod(name: &str) -> Pod {
    builder(name, &["data"]).build()
}

fn config(runtime: &FakeRuntime, container: &str) -> std::sync::Arc<ContainerConfig> {
    let found = runtime.containers().into_iter().rfind(|c| c.name == container).unwrap();
    runtime.container_config(&found.id).unwrap()
}

/// When the volumes of a pod were mounted.
fn mounts(volumes: &FakeVolumes, name: &str) -> Vec<Instant> {
    let calls = volumes.calls().into_iter();
    let of_pod = calls.filter(|call| call.op == VolumeOp::Mount && call.pod == Some(uid(name)));
    of_pod.map(|call| call.at).collect()
}

#[tokio::test(start_paused = true)]
async fn volumes_are_there_before_the_sandbox_and_mounted_in_the_order_of_the_spec() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let objects = MapObjects::new();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
        builder.volumes(volumes.clone()).objects(objects)
    });
    let context = volumes.context().unwrap();
    assert_eq!(
        (context.node.now().name.as_ref(), context.root_dir.as_path()),
        ("node-1", Path::new("/"))
    );
    assert!(context.objects.is_some() && context.tokens.is_none());

    let mut image = volume("model");
    image.empty_dir = None;
    image.image = Some(ImageVolumeSource {
        reference: Some("reg.example/model:1".to_owned()),
        pull_policy: None,
    });
    let mut objects = volume("config");
    objects.empty_dir = None;
    objects.config_map = Some(ConfigMapVolumeSource {
        name: "settings".to_owned(),
        optional: Some(true),
        ..ConfigMapVolumeSource::default()
    });
    let mut disk = volume("disk");
    disk.empty_dir = None;
    disk.persistent_volume_claim = Some(PersistentVolumeClaimVolumeSource {
        claim_name: "claim".to_owned(),
        read_only: None,
    });
    let mut part = mount("data");
    part.mount_path = "/part".to_owned();
    part.sub_path_expr = Some("of-$(WHO)".to_owned());
    part.read_only = Some(true);
    let wanted = [mount("data"), mount("model"), mount("config"), part];
    let device = VolumeDevice {
        name: "disk".to_owned(),
        device_path: "/dev/xvda".to_owned(),
    };
    let pod = PodBuilder::new("p")
        .container("app", |c| {
            c.env("WHO", "me").with(|c| {
                c.volume_mounts = Some(wanted.to_vec());
                c.volume_devices = Some(vec![device]);
            })
        })
        .container("labelled", |c| mounting(c, &["data"]))
        .container("other", |c| c)
        .spec(|spec| spec.volumes = Some(vec![volume("data"), image, objects, disk, volume("unused")]));
    let mut given = ContainerVolumes::default();
    let mut place = VolumePlace::new(0, "/somewhere");
    place.selinux_relabel = true;
    given.places.push(place);
    volumes.give(&uid("p"), "labelled", given);
    volumes.set_groups(&uid("p"), [4242, 17]);
    volumes.hang(VolumeOp::Mount);
    node.pods.set(vec![pod.build()]).await.unwrap();
    node.until("asked for", |_| volumes.count(VolumeOp::Mount) == 1).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(runtime.count(Op::RunSandbox), 0);
    volumes.let_go(VolumeOp::Mount);
    node.running("p").await;
    assert_eq!(volumes.of_pod(&uid("p")), ["config", "data", "disk"]);

    let folder = PathBuf::from("/pods/uid-p/volumes/fake");
    let app = config(&runtime, "app");
    let seen: Vec<_> = app
        .mounts
        .iter()
        .take(4)
        .map(|mount| (&*mount.container_path, mount.read_only))
        .collect();
    assert_eq!(
        seen,
        [("/data", false), ("/model", true), ("/config", true), ("/part", true)]
    );
    let places: Vec<_> = app.mounts.iter().take(4).map(|mount| mount.host_path.clone()).collect();
    let expected = [
        folder.join("data"),
        PathBuf::new(),
        folder.join("config"),
        folder.join("data/of-me"),
    ];
    assert_eq!(places, expected);
    let images: Vec<_> = app.mounts.iter().take(4).map(|mount| mount.image.is_some()).collect();
    assert_eq!(images, [false, true, false, false]);
    assert!(app.mounts.iter().take(4).all(|mount| !mount.selinux_relabel));
    assert_eq!(app.devices, [Device::new("/dev/xvda", folder.join("disk"), "mrw")]);
    let labelled = &config(&runtime, "labelled").mounts[0];
    assert_eq!(
        (labelled.host_path.as_path(), labelled.selinux_relabel),
        (Path::new("/somewhere"), true)
    );
    let other = config(&runtime, "other");
    assert!(other.devices.is_empty() && other.mounts.iter().all(|mount| !mount.host_path.starts_with(&folder)));
    let sandbox = runtime.sandbox_config(&runtime.sandboxes()[0].id).unwrap();
    for security in [
        &sandbox.security.supplemental_groups,
        &other.security.supplemental_groups,
    ] {
        assert_eq!(security[..], [4242, 17]);
    }
    node.stop().await;
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_volumes_nobody_mounts_has_none_made() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    let mut image = volume("model");
    image.empty_dir = None;
    image.image = Some(ImageVolumeSource {
        reference: Some("reg.example/model:1".to_owned()),
        pull_policy: None,
    });
    let pods = [
        builder("plain", &[]),
        builder("image", &["model"]).spec(|spec| spec.volumes = Some(vec![image])),
        builder("unused", &[]).spec(|spec| spec.volumes = Some(vec![volume("data")])),
    ];
    node.pods.set(pods.map(PodBuilder::build).to_vec()).await.unwrap();
    for name in ["plain", "image", "unused"] {
        node.running(name).await;
    }
    sleep(Duration::from_secs(300)).await;
    assert_eq!(
        (volumes.count(VolumeOp::Mount), volumes.count(VolumeOp::Container)),
        (0, 0)
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_volumes_and_is_tried_again_when_they_say_so() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    volumes.hold("data", Some(Duration::from_secs(7)));
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    let initialised = builder("second", &["data"]).init("first", |c| c.args(["exit=0"]));
    node.pods.set(vec![pod("p"), initialised.build()]).await.unwrap();
    node.until("tried five times", |_| mounts(&volumes, "p").len() == 5)
        .await;
    let tried = mounts(&volumes, "p");
    for pair in tried.windows(2) {
        assert_eq!(pair[1] - pair[0], Duration::from_secs(7));
    }
    assert_eq!(node.waits_for("p", "app").as_deref(), Some("ContainerCreating"));
    for name in ["first", "app"] {
        assert_eq!(node.waits_for("second", name).as_deref(), Some("PodInitializing"));
    }
    assert_eq!(node.phase("p").as_deref(), Some("Pending"));
    // At its back-off, where nobody knows when it is of use.
    volumes.hold("data", None);
    sleep(Duration::from_secs(60)).await;
    let tried = mounts(&volumes, "p").len() - 5;
    assert!((4..=6).contains(&tried), "{tried}");
    // A time that has come is no reason to try without a pause.
    volumes.hold("data", Some(Duration::ZERO));
    sleep(Duration::from_secs(20)).await;
    let before = mounts(&volumes, "p").len();
    sleep(Duration::from_secs(10)).await;
    let tried = mounts(&volumes, "p").len() - before;
    assert!((90..=101).contains(&tried), "{tried}");
    assert_eq!(runtime.count(Op::RunSandbox), 0);

    volumes.hold("data", Some(Duration::from_secs(3600)));
    sleep(Duration::from_secs(20)).await;
    volumes.release("data");
    let begun = Instant::now();
    for name in ["p", "second"] {
        volumes.wake(&uid(name));
        node.running(name).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    node.stop().await;
}

/// The pause between sandboxes that do not last is not made longer by what was waited for before one was made.
#[tokio::test(start_paused = true)]
async fn waiting_for_volumes_does_not_count_as_a_sandbox_that_does_not_last() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    node.pods.set(vec![pod("p")]).await.unwrap();
    node.running("p").await;
    volumes.hold("data", Some(Duration::from_secs(5)));
    runtime.stop_sandbox_behind(&runtime.sandboxes()[0].id);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(runtime.count(Op::RunSandbox), 1);
    assert!(mounts(&volumes, "p").len() > 100, "tried again");
    assert_eq!(node.events.count("SandboxChanged"), 1, "told once, and not at each try");
    volumes.release("data");
    volumes.wake(&uid("p"));
    let begun = Instant::now();
    node.until("anew", |_| runtime.count(Op::RunSandbox) == 2).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn volumes_that_cannot_be_brought_up_to_date_end_nothing_and_keep_nothing_from_being_ended() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let failing = Failing::of(&runtime);
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    let probed = PodBuilder::new("p")
        .container("app", |c| mounting(c, &["data"]).liveness(exec_probe(["alive"], 1)))
        .container("other", |c| c)
        .spec(|spec| spec.volumes = Some(vec![volume("data")]));
    node.pods.set(vec![probed.build(), pod("fails")]).await.unwrap();
    for name in ["p", "fails"] {
        node.running(name).await;
    }
    volumes.hold("data", None);
    let before = mounts(&volumes, "p").len();
    sleep(Duration::from_secs(300)).await;
    assert!(mounts(&volumes, "p").len() > before + 3, "tried again");
    assert_eq!(runtime.count(Op::StopContainer), 0);
    for (pod, container) in [("p", "app"), ("p", "other"), ("fails", "app")] {
        assert_eq!(node.restarts(pod, container), Some(0));
    }
    assert_eq!(node.phase("p").as_deref(), Some("Running"));

    failing.fail("alive");
    node.until("killed", |_| runtime.count(Op::StopContainer) == 1).await;
    failing.pass("alive");
    sleep(Duration::from_secs(120)).await;
    assert_eq!(runtime.count(Op::StopContainer), 1);
    assert_eq!(node.restarts("p", "other"), Some(0));
    volumes.release("data");
    node.until("restarted", |node| node.restarts("p", "app") == Some(1))
        .await;
    assert_eq!(runtime.count(Op::RunSandbox), 2);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_while_its_volumes_are_waited_for_goes_soon() {
    for is_deleted in [true, false] {
        let (runtime, volumes) = (fake(), FakeVolumes::new());
        volumes.hang(VolumeOp::Mount);
        let node = start(&runtime, StateDir::in_memory(), &volumes);
        node.pods.set(vec![pod("p")]).await.unwrap();
        node.until("asked for", |_| volumes.count(VolumeOp::Mount) == 1).await;
        let begun = Instant::now();
        let wished = if is_deleted {
            vec![deleted(pod("p"), 30)]
        } else {
            Vec::new()
        };
        node.pods.set(wished).await.unwrap();
        node.until("unmounted", |_| volumes.count(VolumeOp::Unmount) > 0).await;
        node.pods.set(Vec::new()).await.unwrap();
        node.until("gone", |node| node.named("p").is_none()).await;
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        assert_eq!((volumes.count(VolumeOp::Mount), runtime.count(Op::RunSandbox)), (1, 0));
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_can_never_have_its_volumes_fails() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    volumes.reject(&uid("p"), "VolumeAttachmentLimitExceeded", "Node has reached its limit");
    volumes.set_lack(
        &uid("lacks"),
        "pod needs volumes of CSI (\"data\"), and this node has no drivers",
    );
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    node.pods.set(vec![pod("p"), pod("lacks")]).await.unwrap();
    for (name, reason, message) in [
        ("p", "VolumeAttachmentLimitExceeded", "Node has reached its limit"),
        (
            "lacks",
            "PartMissing",
            "pod needs volumes of CSI (\"data\"), and this node has no drivers",
        ),
    ] {
        node.until("failed", |node| node.phase(name).as_deref() == Some("Failed"))
            .await;
        let status = node.status(name).unwrap();
        assert_eq!(status.reason.as_deref(), Some(reason));
        assert_eq!(
            status.message.as_deref(),
            Some(&*format!("Pod was rejected: {message}"))
        );
        assert_eq!(node.events.messages(reason), [message]);
        assert!(volumes.count_of(VolumeOp::Unmount, &uid(name)) > 0);
    }
    assert_eq!(volumes.count_of(VolumeOp::Mount, &uid("lacks")), 0);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(volumes.count(VolumeOp::Mount), 1);
    assert_eq!(runtime.count(Op::RunSandbox), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_volume_has_no_place_is_not_made() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    volumes.give(&uid("p"), "app", ContainerVolumes::default());
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    let two = builder("p", &["data"]).container("other", |c| c);
    node.pods.set(vec![two.build()]).await.unwrap();
    let says = async |what: &str, text: &str| {
        node.until(what, |node| {
            let waiting = node.container("p", "app").and_then(|c| c.state?.waiting);
            waiting.is_some_and(|waiting| {
                waiting.reason.as_deref() == Some("CreateContainerConfigError")
                    && waiting.message.as_deref() == Some(text)
            })
        })
        .await;
    };
    says("no place", r#"cannot find volume "data" to mount into container "app""#).await;
    // For another mount than its own.
    let mut given = ContainerVolumes::default();
    given.places.push(VolumePlace::new(1, "/data"));
    volumes.give(&uid("p"), "app", given.clone());
    sleep(Duration::from_secs(60)).await;
    assert_eq!(runtime.count(Op::CreateContainer), 1, "the other");
    given.places[0].index = 0;
    volumes.give(&uid("p"), "app", given);
    volumes.fail(VolumeOp::Container, 100);
    says("fails", r#"find the volumes of container "app": scripted by the test"#).await;
    volumes.fail(VolumeOp::Container, 0);
    node.until("runs", |_| runtime.count(Op::CreateContainer) == 2).await;
    assert_eq!(node.restarts("p", "other"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn volumes_are_looked_at_when_they_say_so_and_else_with_each_resync() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    let at = Instant::now() + Duration::from_millis(40_125);
    volumes.set_again_at(&uid("p"), at);
    node.pods.set(vec![pod("p")]).await.unwrap();
    node.running("p").await;
    sleep(Duration::from_secs(5)).await;
    let settled = mounts(&volumes, "p").len();
    tokio::time::sleep_until(at + Duration::from_millis(1)).await;
    assert_eq!(mounts(&volumes, "p")[settled..], [at]);
    // A time that lies far ahead puts nothing off.
    for far in [Duration::ZERO, Duration::from_secs(7200)] {
        volumes.set_again_at(&uid("p"), Instant::now() + far);
        volumes.wake(&uid("p"));
        sleep(Duration::from_secs(1)).await;
        let settled = mounts(&volumes, "p").len();
        sleep(Duration::from_secs(900)).await;
        let since = mounts(&volumes, "p").len() - settled;
        assert!((10..=15).contains(&since), "{since}");
    }
    assert_eq!(volumes.count(VolumeOp::Container), 1);
    assert_eq!(node.restarts("p", "app"), Some(0));

    sleep(Duration::from_secs(5)).await;
    let settled = mounts(&volumes, "p").len();
    volumes.wake(&uid("p"));
    sleep(Duration::from_millis(100)).await;
    assert_eq!(mounts(&volumes, "p").len(), settled + 1, "at once");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_agent_mounts_again_and_restarts_nothing() {
    let (runtime, state, volumes) = (fake(), StateDir::in_memory(), FakeVolumes::new());
    let node = start(&runtime, state.clone(), &volumes);
    node.pods.set(vec![pod("p"), pod("waits")]).await.unwrap();
    for name in ["p", "waits"] {
        node.running(name).await;
    }
    let place = Path::new("/pods/uid-p/volumes/fake/data/file");
    assert!(volumes.write(place, "text"));
    node.kill().await;

    let later = volumes.next_life();
    let before = later.count_of(VolumeOp::Mount, &uid("p"));
    later.hold("data", None);
    let node = start(&runtime, state, &later);
    node.pods.set(vec![pod("p"), pod("waits")]).await.unwrap();
    // Also one whose volumes cannot be had now.
    sleep(Duration::from_secs(120)).await;
    assert!(later.count_of(VolumeOp::Mount, &uid("p")) > before);
    later.release("data");
    sleep(Duration::from_secs(120)).await;
    for name in ["p", "waits"] {
        assert_eq!(node.phase(name).as_deref(), Some("Running"));
        assert_eq!(node.restarts(name, "app"), Some(0));
    }
    assert_eq!(
        (runtime.count(Op::RunSandbox), runtime.count(Op::CreateContainer)),
        (2, 2)
    );
    assert_eq!(later.count(VolumeOp::Unmount), 0);
    assert_eq!(later.read(place).as_deref(), Some("text"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn volumes_of_what_runs_are_looked_after_while_the_network_is_not_ready() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    node.pods.set(vec![pod("p")]).await.unwrap();
    node.running("p").await;
    let mut info = RuntimeInfo::new("fake", "1.0.0");
    info.conditions = vec![
        RuntimeCondition::met(RUNTIME_READY),
        RuntimeCondition::unmet(NETWORK_READY, "NetworkPluginNotReady", "cni plugin not initialized"),
    ];
    runtime.set_info(info);
    sleep(Duration::from_secs(10)).await;
    let before = mounts(&volumes, "p").len();
    node.pods.set(vec![pod("p"), pod("new")]).await.unwrap();
    sleep(Duration::from_secs(120)).await;
    assert!(mounts(&volumes, "p").len() > before);
    assert_eq!(mounts(&volumes, "new"), [], "before its sandbox can be made");
    assert_eq!(node.restarts("p", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn neither_a_resize_nor_volumes_that_fail_keep_the_other_from_being_tried() {
    let (runtime, volumes) = (fake(), FakeVolumes::new());
    let node = start(&runtime, StateDir::in_memory(), &volumes);
    let sized = |cpu: &str| {
        let shape = |c: ContainerBuilder| mounting(c, &["data"]).request("cpu", cpu).limit("cpu", cpu);
        let pod = PodBuilder::new("p").container("app", shape);
        pod.spec(|spec| spec.volumes = Some(vec![volume("data")])).build()
    };
    node.pods.set(vec![sized("1")]).await.unwrap();
    node.running("p").await;
    // What the volumes wait for takes long, which is none of the resize's business.
    volumes.hold("data", Some(Duration::from_secs(200)));
    runtime.script(Script::next(Op::UpdateResources, Action::Taken).times(4));
    let begun = Instant::now();
    node.pods.set(vec![sized("2")]).await.unwrap();
    let before = mounts(&volumes, "p").len();
    node.until("resized", |_| runtime.count(Op::UpdateResources) == 5).await;
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    assert!(mounts(&volumes, "p").len() >= before + 4);
    assert_eq!(node.restarts("p", "app"), Some(0));
    node.stop().await;
}
