//! Disks, and what containers mount for each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_volume::MountTable;
use serde_json::json;

use super::{FOREVER, World, inside, mounted, nothing_is_left, pod, until_inside};
use crate::node::{Node, is_running, on_both, sh, with};

on_both!(
    a_disk_is_read_and_written_as_a_device
    a_disk_that_one_pod_writes_is_read_by_the_next
    what_a_container_mounts_is_seen_by_another_that_asks_for_it
);

/// An empty disk: a loop device, which is detached at the end whatever becomes of the test.
struct TestDisk(PathBuf);

impl TestDisk {
    /// Nothing, with the reason printed, where there can be none.
    fn new(node: &Node) -> Option<Self> {
        let file = node.path("disk.img");
        fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let why = match made {
            Ok(made) if made.status.success() => {
                return Some(Self(PathBuf::from(String::from_utf8(made.stdout).unwrap().trim())));
            }
            Ok(made) => String::from_utf8_lossy(&made.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        kubelet_testing::contract::skip("volumes on disks", &format!("no loop device: {why}"));
        None
    }
}

impl Drop for TestDisk {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.0).status();
        let is_free = detached.is_ok_and(|status| status.success());
        assert!(
            is_free || std::thread::panicking(),
            "a loop device is left: {:?}",
            self.0
        );
    }
}

async fn a_disk_is_read_and_written_as_a_device(node: Node) {
    let Some(disk) = TestDisk::new(&node) else { return };
    fs::write(&disk.0, "from the host\n").unwrap();
    let world = World::new();
    world.claim_as(&disk.0, "Block");
    let agent = node.start_with(world.shape()).await;
    let of = |name: &str, read_only: bool| -> Pod {
        let devices = json!({"volumeDevices": [{"name": "disk", "devicePath": "/dev/xvda"}]});
        let claim = json!({"claimName": "data", "readOnly": read_only});
        let volumes = json!([{"name": "disk", "persistentVolumeClaim": claim}]);
        pod(
            name,
            json!({"containers": [with(sh("app", FOREVER), &devices)], "volumes": volumes}),
        )
    };
    let pods = vec![of("writer", false), of("reader", true)];
    agent.pods.set(pods).await.unwrap();
    agent
        .until("both run", |all| {
            is_running(all, "writer", "app") && is_running(all, "reader", "app")
        })
        .await;
    let runtime = node.runtime().await;
    let says = async |name: &str, script: &str| inside(&runtime, &agent, name, script).await;
    for name in ["writer", "reader"] {
        let read = says(name, "test -b /dev/xvda; dd if=/dev/xvda bs=14 count=1 2>/dev/null").await;
        assert_eq!(read, "from the host\n");
    }
    says(
        "writer",
        "echo from inside | dd of=/dev/xvda bs=512 seek=1 conv=notrunc; sync",
    )
    .await;
    assert_eq!(
        says("reader", "dd if=/dev/xvda bs=512 skip=1 count=1 2>/dev/null | head -1").await,
        "from inside\n"
    );
    says(
        "reader",
        "! echo lost | dd of=/dev/xvda bs=512 seek=1 conv=notrunc 2>/dev/null",
    )
    .await;
    assert_eq!(mounted(&node), Vec::<PathBuf>::new());
    agent.stop_with_pods(&node).await;
    nothing_is_left(&node);
    let bytes = fs::read(&disk.0).unwrap();
    assert!(bytes.starts_with(b"from the host\n") && bytes[512..].starts_with(b"from inside\n"));
    node.containerd.stop().await.unwrap();
}

async fn a_disk_that_one_pod_writes_is_read_by_the_next(node: Node) {
    let Some(disk) = TestDisk::new(&node) else { return };
    let mut world = World::new();
    world.claim_as(&disk.0, "Filesystem");
    let agent = node.start_with(world.shape()).await;
    let of = |name: &str| -> Pod {
        let mounts = json!({"volumeMounts": [{"name": "disk", "mountPath": "/disk"}]});
        let volumes = json!([{"name": "disk", "persistentVolumeClaim": {"claimName": "data"}}]);
        pod(
            name,
            json!({"containers": [with(sh("app", FOREVER), &mounts)], "volumes": volumes}),
        )
    };
    agent.pods.set(vec![of("first")]).await.unwrap();
    agent.until("it runs", |all| is_running(all, "first", "app")).await;
    let runtime = node.runtime().await;
    assert!(
        inside(&runtime, &agent, "first", "grep ' /disk ' /proc/mounts")
            .await
            .contains("ext4")
    );
    inside(&runtime, &agent, "first", "echo precious > /disk/x").await;

    // Another life of the agent gives it to another pod as well, and takes it from the one that it never started.
    agent.kill().await;
    world.next_life();
    let agent = node.start_with(world.shape()).await;
    agent.pods.set(vec![of("first"), of("second")]).await.unwrap();
    agent
        .until("both run", |all| {
            is_running(all, "first", "app") && is_running(all, "second", "app")
        })
        .await;
    assert_eq!(inside(&runtime, &agent, "second", "cat /disk/x").await, "precious\n");
    agent.pods.set(vec![of("second")]).await.unwrap();
    agent.until("one is gone", |all| !all.contains_key("first")).await;
    inside(&runtime, &agent, "second", "cat /disk/x; echo more >> /disk/x").await;
    let is_mounted = |root: &Path| {
        let shared = root.join("plugins/kubernetes.io/local-volume/mounts/pv-1");
        MountTable::read().unwrap().is_mount_point(&shared)
    };
    let root = node.root_dir().canonicalize().unwrap();
    assert!(is_mounted(&root));
    agent.pods.set(Vec::new()).await.unwrap();
    agent.until("both are gone", |all| all.is_empty()).await;
    agent.pods.set(vec![of("third")]).await.unwrap();
    agent.until("it runs", |all| is_running(all, "third", "app")).await;
    assert_eq!(
        inside(&runtime, &agent, "third", "cat /disk/x").await,
        "precious\nmore\n"
    );
    agent.stop_with_pods(&node).await;
    nothing_is_left(&node);
    node.containerd.stop().await.unwrap();
}

async fn what_a_container_mounts_is_seen_by_another_that_asks_for_it(node: Node) {
    let world = World::new();
    let agent = node.start_with(world.shape()).await;
    let mounts = |propagation: &str| {
        json!({"volumeMounts": [
            {"name": "disk", "mountPath": "/disk", "mountPropagation": propagation},
            {"name": "memory", "mountPath": "/memory", "mountPropagation": propagation},
        ]})
    };
    let mount =
        "for v in disk memory; do mkdir -p /$v/inner; mount -t tmpfs tmpfs /$v/inner; echo $v > /$v/inner/x; done";
    let mounter = with(
        with(sh("mounter", &format!("{mount}; {FOREVER}")), &mounts("Bidirectional")),
        &json!({"securityContext": {"privileged": true}}),
    );
    let volumes = json!([{"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}]);
    let containers = json!([mounter, with(sh("app", FOREVER), &mounts("HostToContainer"))]);
    // Beside a pod that was there before, with something mounted.
    let other = with(
        sh("app", FOREVER),
        &json!({"volumeMounts": [{"name": "memory", "mountPath": "/memory"}]}),
    );
    let other = pod("other", json!({"containers": [other], "volumes": [volumes[1]]}));
    agent.pods.set(vec![other.clone()]).await.unwrap();
    agent.until("it runs", |all| is_running(all, "other", "app")).await;
    let sharing = pod("sharing", json!({"containers": containers, "volumes": volumes}));
    agent.pods.set(vec![other, sharing.clone()]).await.unwrap();
    agent
        .until("both run", |all| {
            is_running(all, "sharing", "app") && is_running(all, "sharing", "mounter")
        })
        .await;
    let runtime = node.runtime().await;
    for volume in ["disk", "memory"] {
        let condition = format!("[ \"$(cat /{volume}/inner/x 2>/dev/null)\" = {volume} ]");
        until_inside(&runtime, &agent, "sharing", &condition).await;
    }
    let inner: Vec<_> = mounted(&node)
        .into_iter()
        .filter(|path| path.ends_with("inner"))
        .collect();
    assert_eq!(inner.len(), 2, "the host sees them too: {inner:?}");
    // The other pod goes as if nothing had been.
    agent.pods.set(vec![sharing]).await.unwrap();
    agent.until("one is gone", |all| !all.contains_key("other")).await;
    agent.stop_with_pods(&node).await;
    nothing_is_left(&node);
    node.containerd.stop().await.unwrap();
}
