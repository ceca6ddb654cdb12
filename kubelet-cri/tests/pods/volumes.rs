//! Volumes, seen from inside of containers.

mod cluster;
mod disks;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kubelet_core::{
    ContainerId, ContainerRuntime, ExecRequest, KubeletBuilder, MapObjects, PodUid, VolumeManager, apply_defaults,
    validate_pod,
};
use kubelet_cri::CriRuntime;
use kubelet_testing::FakeTokens;
use kubelet_volume::{MountOptions, MountTable, Mounts, SystemMounts, VolumeSettings, Volumes};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use serde_json::{Value, json};

use crate::node::{Agent, Node, container, is_running, on_both, sh, waits_for, with};

on_both!(
    volumes_of_each_kind_are_read_and_written_from_inside
    parts_of_volumes_and_what_is_mounted_later_are_seen_from_inside
    a_pod_waits_for_what_its_volumes_are_made_from
);

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.2; done";

/// What pods refer to.
struct World {
    objects: MapObjects,
    tokens: FakeTokens,
    volumes: Volumes,
}

impl World {
    fn new() -> Self {
        let mut settings = VolumeSettings::default();
        settings.measure_every = Duration::from_millis(200);
        let tokens = FakeTokens::new();
        tokens.add_account("default", "default", "uid-of-default");
        Self {
            objects: MapObjects::new(),
            tokens,
            volumes: Volumes::new(settings),
        }
    }

    /// A later life of the agent has the same world, and knows nothing of what was.
    fn next_life(&mut self) {
        self.volumes = Self::new().volumes;
    }

    fn shape(&self) -> impl FnOnce(KubeletBuilder) -> KubeletBuilder + use<> {
        let (objects, tokens, volumes) = (self.objects.clone(), self.tokens.clone(), self.volumes.clone());
        move |builder| builder.objects(objects).tokens(tokens).volumes(volumes)
    }

    fn config(&self, data: Value) {
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "settings", "namespace": "default"}, "data": data}))
                .unwrap();
        self.objects.set(map);
    }

    fn secret(&self, password: &str) {
        let secret: Secret = serde_json::from_value(
            json!({"metadata": {"name": "db", "namespace": "default"}, "stringData": {"password": password}}),
        )
        .unwrap();
        self.objects.set(secret);
    }

    /// A claim that is bound to a folder of the node.
    fn claim(&self, path: &Path) {
        self.claim_as(path, "Filesystem");
    }

    /// A claim that is bound to something of the node, be it a folder or a disk.
    fn claim_as(&self, path: &Path, mode: &str) {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "uid-of-claim"},
            "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"},
        }))
        .unwrap();
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": "pv-1"},
            "spec": {"claimRef": {"uid": "uid-of-claim"}, "volumeMode": mode, "local": {"path": path}},
        }))
        .unwrap();
        self.objects.set(claim);
        self.objects.set(volume);
    }
}

/// A pod that nobody refuses for its spec.
fn pod(name: &str, spec: Value) -> Pod {
    let pod = crate::node::pod(name, spec);
    let mut checked = pod.clone();
    apply_defaults(&mut checked);
    assert_eq!(validate_pod(&checked).to_string(), "[]", "{name}");
    pod
}

/// A folder of the host whose later mounts show elsewhere too.
struct SharedMount(PathBuf);

impl SharedMount {
    fn new(dir: &Path) -> Self {
        SystemMounts::default()
            .bind(dir, dir, &MountOptions::default())
            .unwrap();
        mount_change(dir, MountPropagationFlags::SHARED).unwrap();
        Self(dir.to_owned())
    }

    fn mount_in(&self, name: &str) -> PathBuf {
        let dir = self.0.join(name);
        fs::create_dir(&dir).unwrap();
        let options = MountOptions::default();
        SystemMounts::default()
            .mount("tmpfs", "tmpfs", &dir, &options, "size=64k")
            .unwrap();
        dir
    }

    fn unmount(&self, dir: &Path) {
        unmount(dir, UnmountFlags::DETACH).unwrap();
    }
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// What a script in a container says.
async fn inside(runtime: &CriRuntime, agent: &Agent, name: &str, script: &str) -> String {
    let status = container(&agent.statuses(), name, "app").unwrap().clone();
    let id = status.container_id.unwrap();
    let id = ContainerId::from(id.strip_prefix("containerd://").unwrap());
    let output = runtime
        .exec(&id, ExecRequest::new(["/bin/sh", "-c", script]))
        .await
        .unwrap();
    assert_eq!(
        output.exit_code,
        0,
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until a script in a container succeeds.
async fn until_inside(runtime: &CriRuntime, agent: &Agent, name: &str, condition: &str) {
    let script = format!("for i in $(seq 600); do if {condition}; then exit 0; fi; sleep 0.1; done; exit 1");
    inside(runtime, agent, name, &script).await;
}

/// What is mounted for pods of a node.
fn mounted(node: &Node) -> Vec<PathBuf> {
    let pods = node.root_dir().canonicalize().unwrap().join("pods");
    let table = MountTable::read().unwrap();
    table
        .below(&pods)
        .into_iter()
        .map(|mount| mount.target.clone())
        .collect()
}

fn nothing_is_left(node: &Node) {
    assert_eq!(mounted(node), Vec::<PathBuf>::new());
    let root = node.root_dir().canonicalize().unwrap();
    assert!(MountTable::read().unwrap().at_or_below(&root).is_empty());
    let left: Vec<_> = fs::read_dir(node.root_dir().join("pods")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

async fn volumes_of_each_kind_are_read_and_written_from_inside(node: Node) {
    let mut world = World::new();
    world.config(json!({"color": "red"}));
    world.secret("hunter2");
    let (host, disk) = (node.path("host"), node.path("disk"));
    for dir in [&host, &disk] {
        fs::create_dir(dir).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    world.claim(&disk);
    let agent = node.start_with(world.shape()).await;
    let mounts = json!([
        {"name": "scratch", "mountPath": "/scratch"}, {"name": "memory", "mountPath": "/memory"},
        {"name": "config", "mountPath": "/config"}, {"name": "secret", "mountPath": "/secret"},
        {"name": "labels", "mountPath": "/labels"}, {"name": "all", "mountPath": "/all"},
        {"name": "host", "mountPath": "/host"}, {"name": "host", "mountPath": "/host-again", "readOnly": true},
        {"name": "disk", "mountPath": "/disk"},
    ]);
    let labelled = |color: &str| {
        let mut labelled = pod(
            "all",
            json!({
                "serviceAccountName": "default",
                "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 4711},
                "initContainers": [with(sh("init", "echo from init > /scratch/x; id -G"), &json!({"volumeMounts": mounts}))],
                "containers": [with(sh("app", FOREVER), &json!({"volumeMounts": mounts}))],
                "volumes": [
                    {"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}},
                    {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
                    {"name": "config", "configMap": {"name": "settings", "defaultMode": 0o644}},
                    {"name": "secret", "secret": {"secretName": "db", "defaultMode": 0o400}},
                    {"name": "labels", "downwardAPI": {"items": [
                        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    ]}},
                    {"name": "all", "projected": {"sources": [
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
                        {"configMap": {"name": "settings"}},
                        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                    ]}},
                    {"name": "host", "hostPath": {"path": host, "type": "Directory"}},
                    {"name": "disk", "persistentVolumeClaim": {"claimName": "data"}},
                ],
            }),
        );
        labelled.metadata.labels = Some([("color".to_owned(), color.to_owned())].into());
        labelled
    };
    agent.pods.set(vec![labelled("red")]).await.unwrap();
    agent.until("it runs", |all| is_running(all, "all", "app")).await;
    let runtime = node.runtime().await;
    let says = async |script: &str| inside(&runtime, &agent, "all", script).await;

    assert_eq!(
        says("cat /scratch/x").await,
        "from init\n",
        "what init containers write"
    );
    assert!(
        node.log("all", "init").contains("4711"),
        "in the group that files are given to"
    );
    assert_eq!(
        says("ls -lnd /scratch | cut -c1-10; stat -c %g /scratch").await,
        "drwxrwsrwx\n4711\n"
    );
    assert!(says("grep ' /memory ' /proc/mounts").await.contains("tmpfs"));
    assert_eq!(says("df -k /memory | tail -1 | awk '{print $2}'").await, "8192\n");
    assert_eq!(
        says("cat /config/color; stat -L -c '%a %g' /config/color").await,
        "red644 4711\n"
    );
    assert_eq!(
        says("cat /secret/password; stat -L -c '%a %g' /secret/password").await,
        "hunter2440 4711\n"
    );
    assert!(says("grep ' /secret ' /proc/mounts").await.starts_with("tmpfs"));
    assert_eq!(says("cat /labels/labels").await, "color=\"red\"");
    assert_eq!(
        says("cat /all/color /all/namespace; stat -L -c '%a %u %g' /all/token").await,
        "reddefault640 1000 4711\n"
    );
    let token = says("cat /all/token").await;
    assert!(world.tokens.review(&token).is_some(), "a token that is valid");
    for read_only in ["/config", "/secret", "/labels", "/all", "/host-again"] {
        says(&format!("! touch {read_only}/x 2>/dev/null")).await;
    }
    says("echo host > /host/x; echo disk > /disk/x; echo memory > /memory/x").await;
    assert_eq!(fs::read_to_string(host.join("x")).unwrap(), "host\n");
    assert_eq!(fs::read_to_string(disk.join("x")).unwrap(), "disk\n");

    // What changes is seen without a restart.
    world.config(json!({"color": "blue"}));
    world.secret("hunter3");
    agent.pods.set(vec![labelled("blue")]).await.unwrap();
    for condition in [
        "[ $(cat /config/color) = blue ]",
        "[ $(cat /secret/password) = hunter3 ]",
        "grep -q blue /labels/labels",
        "[ $(cat /all/color) = blue ]",
    ] {
        until_inside(&runtime, &agent, "all", condition).await;
    }
    // More than it may be is told of.
    says("dd if=/dev/zero of=/scratch/big bs=1M count=3 2>/dev/null; sync").await;
    let uid = PodUid::from("uid-of-all");
    let volumes = world.volumes.clone();
    let told = async {
        loop {
            let usage = volumes.usage(&uid);
            let scratch = usage.iter().find(|of| of.name == "scratch");
            if let Some(scratch) = scratch.filter(|of| of.used_bytes.is_some_and(|bytes| bytes > 3 << 20)) {
                assert!(scratch.is_ephemeral);
                let memory = usage.iter().find(|of| of.name == "memory").unwrap();
                assert!(
                    !memory.is_ephemeral && memory.capacity_bytes == Some(8 << 20),
                    "{memory:?}"
                );
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.unwrap();

    // Another life of the agent leaves all of it as it is, and goes on bringing it up to date.
    let before = mounted(&node);
    agent.kill().await;
    world.next_life();
    let agent = node.start_with(world.shape()).await;
    agent.pods.set(vec![labelled("blue")]).await.unwrap();
    agent
        .until("it is taken over", |all| is_running(all, "all", "app"))
        .await;
    world.config(json!({"color": "green"}));
    until_inside(&runtime, &agent, "all", "[ $(cat /config/color) = green ]").await;
    assert_eq!(container(&agent.statuses(), "all", "app").unwrap().restart_count, 0);
    assert_eq!(mounted(&node), before, "nothing is mounted anew");
    assert_eq!(
        inside(&runtime, &agent, "all", "cat /memory/x /disk/x").await,
        "memory\ndisk\n"
    );

    agent.stop_with_pods(&node).await;
    nothing_is_left(&node);
    assert_eq!(fs::read_to_string(disk.join("x")).unwrap(), "disk\n");
    assert_eq!(fs::read_to_string(host.join("x")).unwrap(), "host\n");
    node.containerd.stop().await.unwrap();
}

async fn parts_of_volumes_and_what_is_mounted_later_are_seen_from_inside(node: Node) {
    let world = World::new();
    world.config(json!({"color": "red"}));
    world.secret("hunter2");
    let (host, disk) = (node.path("host"), node.path("disk"));
    fs::create_dir_all(host.join("later")).unwrap();
    fs::create_dir(&disk).unwrap();
    world.claim(&disk);
    let shared = SharedMount::new(&host);
    let agent = node.start_with(world.shape()).await;
    let mounts = json!([
        {"name": "scratch", "mountPath": "/scratch", "subPath": "made/anew"},
        {"name": "config", "mountPath": "/color", "subPath": "color"},
        {"name": "secret", "mountPath": "/password", "subPath": "password"},
        {"name": "labels", "mountPath": "/name", "subPath": "name"},
        {"name": "all", "mountPath": "/namespace", "subPath": "of/namespace"},
        {"name": "disk", "mountPath": "/disk", "subPathExpr": "of/$(NAME)"},
        {"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"},
        {"name": "host", "mountPath": "/later", "subPath": "later"},
    ]);
    let app = json!({"volumeMounts": mounts, "env": [{"name": "NAME", "value": "app"}]});
    let parts = pod(
        "parts",
        json!({
            "containers": [with(sh("app", FOREVER), &app)],
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "config", "configMap": {"name": "settings"}},
                {"name": "secret", "secret": {"secretName": "db"}},
                {"name": "labels", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"name": "all", "projected": {"sources": [
                    {"downwardAPI": {"items": [{"path": "of/namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                ]}},
                {"name": "disk", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "host", "hostPath": {"path": host}},
            ],
        }),
    );
    agent.pods.set(vec![parts]).await.unwrap();
    agent.until("it runs", |all| is_running(all, "parts", "app")).await;
    let runtime = node.runtime().await;
    let says = async |script: &str| inside(&runtime, &agent, "parts", script).await;
    assert_eq!(
        says("cat /color /password /name /namespace").await,
        "redhunter2partsdefault"
    );
    says("echo x > /scratch/x; echo disk > /disk/x; echo later > /later/x").await;
    assert_eq!(fs::read_to_string(disk.join("of/app/x")).unwrap(), "disk\n");
    assert_eq!(fs::read_to_string(host.join("later/x")).unwrap(), "later\n");

    // What the host mounts there later shows inside.
    let inner = shared.mount_in("inner");
    fs::write(inner.join("x"), "later").unwrap();
    assert_eq!(says("cat /host/inner/x").await, "later");
    shared.unmount(&inner);
    assert_eq!(says("ls /host/inner").await, "");

    // A part of a map that was replaced keeps no container from starting again, with what is there now.
    world.config(json!({"color": "blue"}));
    let volume = node
        .root_dir()
        .join("pods/uid-of-parts/volumes/kubernetes.io~configmap/config");
    while fs::read_to_string(volume.join("color")).unwrap() != "blue" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(says("cat /color").await, "red", "what is mounted stays what it was");
    let status = container(&agent.statuses(), "parts", "app").unwrap().clone();
    let id = status.container_id.unwrap();
    let id = ContainerId::from(id.strip_prefix("containerd://").unwrap());
    runtime.stop_container(&id, Duration::from_secs(5)).await.unwrap();
    agent
        .until("it runs again", |all| {
            is_running(all, "parts", "app") && container(all, "parts", "app").is_some_and(|c| c.restart_count == 1)
        })
        .await;
    assert_eq!(inside(&runtime, &agent, "parts", "cat /color").await, "blue");
    assert_eq!(inside(&runtime, &agent, "parts", "cat /scratch/x").await, "x\n");

    agent.stop_with_pods(&node).await;
    nothing_is_left(&node);
    assert_eq!(fs::read_to_string(disk.join("of/app/x")).unwrap(), "disk\n");
    node.containerd.stop().await.unwrap();
}

async fn a_pod_waits_for_what_its_volumes_are_made_from(node: Node) {
    let world = World::new();
    let agent = node.start_with(world.shape()).await;
    let of = |name: &str, volume: Value| {
        let mut volume = volume;
        volume["name"] = "a".into();
        let app = with(
            sh("app", FOREVER),
            &json!({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}),
        );
        pod(name, json!({"containers": [app], "volumes": [volume]}))
    };
    let file = node.path("file");
    fs::write(&file, "").unwrap();
    agent
        .pods
        .set(vec![
            of("missing", json!({"configMap": {"name": "settings"}})),
            of(
                "key",
                json!({"configMap": {"name": "settings", "items": [{"key": "shape", "path": "x"}]}}),
            ),
            of("type", json!({"hostPath": {"path": file, "type": "Directory"}})),
            of("claim", json!({"persistentVolumeClaim": {"claimName": "data"}})),
            of(
                "unknown",
                json!({"iscsi": {"targetPortal": "192.0.2.1", "iqn": "iqn.2026-01.example:x", "lun": 0}}),
            ),
            of("fine", json!({"emptyDir": {}})),
        ])
        .await
        .unwrap();
    let refused = |all: &std::collections::BTreeMap<String, kubelet_core::k8s_openapi::api::core::v1::PodStatus>| {
        all.get("unknown")
            .is_some_and(|pod| pod.reason.as_deref() == Some("PartMissing"))
    };
    agent
        .until("the others wait, and one runs", |all| {
            is_running(all, "fine", "app") && refused(all)
        })
        .await;
    let told = |text: &str| {
        let events = node.events.0.lock().unwrap();
        events
            .iter()
            .any(|event| event.reason == "FailedMount" && event.message.contains(text))
    };
    for expected in [
        r#"MountVolume.SetUp failed for volume "a" : configmap "settings" not found"#,
        "is not a directory",
        r#"failed to fetch PVC from API server: persistentvolumeclaim "data" not found"#,
    ] {
        let waits = async {
            while !told(expected) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waits)
            .await
            .expect(expected);
    }
    for name in ["missing", "key", "type", "claim"] {
        let (reason, _) = waits_for(&agent.statuses(), name, "app").unwrap();
        assert_eq!(reason, "ContainerCreating", "{name}");
    }
    world.config(json!({"color": "red"}));
    agent
        .until("what it waited for is there", |all| is_running(all, "missing", "app"))
        .await;
    let waits = async {
        while !told("configmap references non-existent config key: shape") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.unwrap();
    world.config(json!({"color": "red", "shape": "round"}));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let disk = node.path("disk");
    fs::create_dir(&disk).unwrap();
    world.claim(&disk);
    agent
        .until("all run", |all| {
            ["key", "type", "claim"].iter().all(|name| is_running(all, name, "app"))
        })
        .await;
    agent.stop_with_pods(&node).await;
    nothing_is_left(&node);
    node.containerd.stop().await.unwrap();
}
