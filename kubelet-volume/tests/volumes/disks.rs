//! Disks of the node, mounted or given as they are.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_core::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kubelet_core::{CancellationToken, PodRecord, PodUid, VolumeManager, error_chain};
use kubelet_volume::{MountOptions, Mounts, SystemMounts};
use serde_json::{Value, json};

use crate::harness::{Node, TestDisk, is_nothing, pod_with, record, table};

const FOLDER: &str = "kubernetes.io~local-volume";

/// A claim that is bound to a volume on a disk.
fn offer(node: &Node, path: &Path, more: &Value) {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "uid-of-claim"},
        "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"},
    }))
    .unwrap();
    let mut volume = json!({
        "metadata": {"name": "pv-1"},
        "spec": {"claimRef": {"uid": "uid-of-claim"}, "local": {"path": path}},
    });
    for (key, value) in more.as_object().unwrap() {
        volume["spec"][key] = value.clone();
    }
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    node.objects.set(claim);
    node.objects.set(volume);
}

fn claiming(name: &str, read_only: bool, fs_group: i64) -> Arc<PodRecord> {
    pod_with(
        name,
        &[json!({"persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}})],
        json!({"securityContext": {"fsGroup": fs_group}}),
    )
}

fn with_device(name: &str, read_only: bool) -> Arc<PodRecord> {
    record(
        name,
        json!({}),
        json!({
            "containers": [{"name": "app", "image": "app:1",
                "volumeDevices": [{"name": "disk", "devicePath": "/dev/xvda"}]}],
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}}],
        }),
    )
}

fn shared(node: &Node) -> PathBuf {
    node.root.join("plugins/kubernetes.io/local-volume/mounts/pv-1")
}

fn mounts_of(node: &Node) -> usize {
    table().below(&node.root).len()
}

/// Mounts a disk for a volume that no pod has.
fn leave(node: &Node, disk: &TestDisk, name: &str) -> PathBuf {
    let left = shared(node).with_file_name(name);
    fs::create_dir(&left).unwrap();
    let (device, options) = (disk.device.to_str().unwrap(), MountOptions::default());
    SystemMounts::default()
        .mount("ext4", device, &left, &options, "")
        .unwrap();
    left
}

#[tokio::test]
async fn a_disk_is_formatted_once_and_shared_by_pods_until_the_last_is_gone() {
    let Some(disk) = TestDisk::new() else { return };
    let node = Node::start();
    // By a name that leads to it, as disks are named for what they are.
    let by_id = node.root.join("by-id");
    symlink(&disk.device, &by_id).unwrap();
    offer(&node, &by_id, &json!({"mountOptions": ["noexec", "commit=30"]}));
    let (first, second) = (claiming("a", false, 4711), claiming("b", false, 4712));
    let reader = claiming("c", true, 4711);

    let text = node.waits(&reader).await;
    assert!(text.contains("unformatted disk"), "{text}");
    assert!(
        disk.bytes().iter().all(|byte| *byte == 0),
        "who only reads does not have it formatted"
    );
    node.gone(&reader).await;
    assert!(is_nothing(&shared(&node)));

    let (one, other) = tokio::join!(node.mount(&first), node.mount(&second));
    one.and(other).unwrap();
    let (a, b) = (node.place(&first).await, node.place(&second).await);
    let there = table().at(&shared(&node)).unwrap().clone();
    assert_eq!(
        (there.fs_type.as_str(), Path::new(&there.source)),
        ("ext4", &*disk.device)
    );
    assert!(there.options.contains("noexec") && there.super_options.contains("commit=30"));
    fs::write(a.join("data"), "precious").unwrap();
    assert_eq!(fs::read_to_string(b.join("data")).unwrap(), "precious");
    // The first of them gave the files to its group, and the other was told.
    let gid = fs::metadata(&a).unwrap().gid();
    let told = node.messages("AlreadyMountedVolume");
    assert_eq!(told.len(), 1, "{told:?}");
    let wanted = 4711 + 4712 - gid;
    assert_eq!(
        told[0],
        format!(
            "The requested fsGroup is {wanted}, but the volume pv-1 has GID {gid}. The volume may not be shareable."
        )
    );

    let node = node.restart().await;
    for pod in [&first, &second] {
        node.ready(pod).await;
    }
    assert_eq!(mounts_of(&node), 3, "nothing is mounted anew");
    node.gone(&first).await;
    assert_eq!(fs::read_to_string(b.join("data")).unwrap(), "precious");
    let node = node.restart().await;
    // Gone by a life that never saw it.
    node.gone(&second).await;
    assert_eq!(mounts_of(&node), 0);
    assert!(is_nothing(&shared(&node)));

    // A later pod reads it, and does no more.
    node.ready(&reader).await;
    let c = node.place(&reader).await;
    assert_eq!(fs::read_to_string(c.join("data")).unwrap(), "precious");
    assert!(fs::write(c.join("data"), "lost").is_err());
    // Beside one that only reads, another may write.
    node.ready(&first).await;
    fs::write(node.place(&first).await.join("more"), "x").unwrap();
    for pod in [&reader, &first] {
        node.gone(pod).await;
    }
    assert_eq!(mounts_of(&node), 0);
}

#[tokio::test]
async fn a_disk_that_no_pod_has_any_more_is_unmounted_by_whoever_comes_next() {
    let Some(disk) = TestDisk::new() else { return };
    let node = Node::start();
    offer(&node, &disk.device, &json!({}));
    let pod = claiming("a", false, 4711);
    node.ready(&pod).await;
    fs::write(node.place(&pod).await.join("data"), "precious").unwrap();
    // As it is left by somebody who removed the pod's folder, and was killed then.
    let mounts = SystemMounts::default();
    let dir = node.pod_dir("uid-of-a");
    mounts.unmount(&dir.join("volumes").join(FOLDER).join("pv-1")).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let left = leave(&node, &disk, "pv-0");
    assert_eq!(mounts_of(&node), 2);
    let node = node.restart().await;
    node.ready(&pod).await;
    let mounted: Vec<_> = table()
        .below(&node.root)
        .iter()
        .map(|mount| mount.target.clone())
        .collect();
    assert!(mounted.len() == 2 && mounted.contains(&shared(&node)), "{mounted:?}");
    assert!(is_nothing(&left));
    assert_eq!(
        fs::read_to_string(node.place(&pod).await.join("data")).unwrap(),
        "precious"
    );
    // And by the end of any pod that has a local volume.
    let left = leave(&node, &disk, "pv-2");
    node.gone(&pod).await;
    assert_eq!(mounts_of(&node), 0);
    assert!(is_nothing(&left));
}

#[tokio::test]
async fn a_mount_that_allows_more_than_it_should_is_made_anew() {
    let Some(disk) = TestDisk::new() else { return };
    let node = Node::start();
    offer(&node, &disk.device, &json!({"mountOptions": ["nosuid", "noexec"]}));
    let (writer, reader) = (claiming("a", false, 4711), claiming("b", true, 4711));
    node.ready(&writer).await;
    node.ready(&reader).await;
    let places = [node.place(&writer).await, node.place(&reader).await];
    // As an agent leaves it that is killed between the two calls of a bind.
    let (mounts, bare) = (SystemMounts::default(), node.root.join("bare"));
    fs::create_dir(&bare).unwrap();
    let device = disk.device.to_str().unwrap();
    mounts
        .mount("ext4", device, &bare, &MountOptions::default(), "")
        .unwrap();
    for place in &places {
        mounts.unmount(place).unwrap();
        mounts.bind(&bare, place, &MountOptions::default()).unwrap();
    }
    mounts.unmount(&bare).unwrap();
    let node = node.restart().await;
    for (pod, place, wanted) in [(&writer, &places[0], "rw,"), (&reader, &places[1], "ro,")] {
        node.ready(pod).await;
        let options = table().at(place).unwrap().options.clone();
        let has = |option: &str| format!("{options},").contains(option);
        assert!(has(wanted) && has("nosuid,") && has("noexec,"), "{options}");
    }
    assert_eq!(mounts_of(&node), 3);
    for pod in [&writer, &reader] {
        node.gone(pod).await;
    }
    assert_eq!(mounts_of(&node), 0);
}

#[tokio::test]
async fn another_disk_of_the_same_name_takes_the_place_of_one_that_nobody_has() {
    let (Some(old), Some(new)) = (TestDisk::new(), TestDisk::new()) else {
        return;
    };
    let node = Node::start();
    offer(&node, &old.device, &json!({}));
    let (first, second) = (claiming("a", false, 4711), claiming("b", false, 4711));
    node.ready(&first).await;
    fs::write(node.place(&first).await.join("data"), "precious").unwrap();
    let node = node.restart().await;
    offer(&node, &new.device, &json!({}));
    let text = node.waits(&second).await;
    assert!(text.contains("which other pods use"), "{text}");
    node.gone(&second).await;
    node.ready(&first).await;
    assert!(node.place(&first).await.join("data").exists(), "what is there stays");
    // The folder of the pod is gone, and the disk is still mounted.
    let dir = node.pod_dir("uid-of-a");
    SystemMounts::default()
        .unmount(&dir.join("volumes").join(FOLDER).join("pv-1"))
        .unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let node = node.restart().await;
    node.ready(&second).await;
    let there = table().at(&shared(&node)).unwrap().source.clone();
    assert_eq!(Path::new(&there), new.device);
    node.gone(&second).await;
    assert_eq!(mounts_of(&node), 0);
}

#[tokio::test]
async fn a_disk_that_may_have_something_is_not_formatted() {
    let Some(disk) = TestDisk::new() else { return };
    let node = Node::start();
    // A table with one partition.
    let mut table = [0; 512];
    table[450] = 0x83;
    table[454..458].copy_from_slice(&2048_u32.to_le_bytes());
    table[458..462].copy_from_slice(&4096_u32.to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    fs::OpenOptions::new()
        .write(true)
        .open(&disk.device)
        .and_then(|mut device| device.write_all(&table))
        .unwrap();
    let before = disk.bytes();
    offer(&node, &disk.device, &json!({}));
    let pod = claiming("a", false, 4711);
    let text = node.waits(&pod).await;
    assert!(text.contains("unknown data, probably partitions"), "{text}");
    node.gone(&pod).await;
    assert!(disk.bytes() == before);
    assert!(is_nothing(&shared(&node)));
}

#[tokio::test]
async fn a_disk_is_given_as_a_device_by_a_link_that_goes_and_the_disk_stays() {
    let Some(disk) = TestDisk::new() else { return };
    let node = Node::start();
    let by_id = node.root.join("by-id");
    symlink(&disk.device, &by_id).unwrap();
    offer(&node, &by_id, &json!({"volumeMode": "Block"}));
    let text = node.waits(&claiming("mounts", false, 4711)).await;
    assert!(
        text.contains("volumeMode Block, but is specified in volumeMounts"),
        "{text}"
    );
    let (writer, reader) = (with_device("a", false), with_device("b", true));
    for (pod, permissions) in [(&writer, "mrw"), (&reader, "r")] {
        node.ready(pod).await;
        let given = node.container(pod, "app").await;
        assert!(given.places.is_empty());
        let device = &given.devices[0];
        let link = node
            .pod_dir(pod.uid().as_str())
            .join("volumeDevices")
            .join(FOLDER)
            .join("pv-1");
        assert_eq!(
            (&*device.container_path, &device.host_path, &*device.permissions),
            ("/dev/xvda", &link, permissions)
        );
        assert_eq!(fs::read_link(link).unwrap(), disk.device);
    }
    fs::write(&disk.device, "precious").unwrap();
    let node = node.restart().await;
    node.ready(&writer).await;
    // The name leads elsewhere by now.
    let Some(other) = TestDisk::new() else { return };
    fs::remove_file(&by_id).unwrap();
    symlink(&other.device, &by_id).unwrap();
    let node = node.restart().await;
    node.ready(&writer).await;
    let link = node.container(&writer, "app").await.devices[0].host_path.clone();
    assert_eq!(fs::read_link(link).unwrap(), other.device);
    for pod in [&writer, &reader] {
        node.gone(pod).await;
    }
    assert_eq!(mounts_of(&node), 0);
    assert!(disk.bytes().starts_with(b"precious"));
    assert!(other.bytes().iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn only_what_is_a_device_is_given_as_one() {
    let node = Node::start();
    let path = node.root.join("path");
    fs::write(&path, "precious").unwrap();
    offer(&node, &path, &json!({"volumeMode": "Block"}));
    let text = node.waits(&with_device("file", false)).await;
    assert!(text.contains("is no block device"), "{text}");
    offer(&node, &path, &json!({}));
    let text = node.waits(&claiming("file-as-files", false, 4711)).await;
    assert!(
        text.contains("only directories and block devices are supported"),
        "{text}"
    );
    fs::remove_file(&path).unwrap();
    offer(&node, &path, &json!({"volumeMode": "Block"}));
    let text = node.waits(&with_device("nothing", false)).await;
    assert!(text.contains("cannot look at"), "{text}");
    fs::create_dir(&path).unwrap();
    let text = node.waits(&with_device("folder", false)).await;
    assert!(text.contains("is no block device"), "{text}");
    for uid in ["file", "file-as-files", "nothing", "folder"] {
        node.volumes
            .unmount(&PodUid::from(format!("uid-of-{uid}")), &CancellationToken::new())
            .await
            .unwrap();
        node.nothing_is_left(&format!("uid-of-{uid}"));
    }
}

#[tokio::test]
async fn devices_of_a_pod_that_nobody_knows_go_and_what_is_no_link_stays() {
    let node = Node::start();
    let precious = node.root.join("precious");
    fs::write(&precious, "precious").unwrap();
    let devices = node.pod_dir("orphan").join("volumeDevices");
    for folder in [FOLDER, "example.com~disk"] {
        fs::create_dir_all(devices.join(folder)).unwrap();
        symlink(&precious, devices.join(folder).join("pv-1")).unwrap();
    }
    let file = devices.join(FOLDER).join("pv-2");
    fs::write(&file, "precious").unwrap();
    let uid = PodUid::from("orphan");
    let error = node.volumes.unmount(&uid, &CancellationToken::new()).await.unwrap_err();
    assert!(error_chain(&error).contains("pv-2"), "{}", error_chain(&error));
    fs::remove_file(&file).unwrap();
    node.volumes.unmount(&uid, &CancellationToken::new()).await.unwrap();
    node.nothing_is_left("orphan");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}
