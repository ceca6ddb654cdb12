//! Faults that kubelets had in public with volumes over the lives of pods, agents and machines.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret};
use kubelet_core::{CancellationToken, PodRecord, PodUid, VolumeManager, error_chain};
use kubelet_volume::{MountOptions, Mounts, SystemMounts, VolumeSettings};
use rustix::mount::{UnmountFlags, unmount};
use serde_json::{Value, json};

use crate::harness::{Node, is_nothing, may_mount, pod, pod_with, record, table};

/// What pods refer to: a map, a secret, and a claim that is bound to a folder of the node.
fn offer(node: &Node, path: &Path, modes: &[&str]) {
    let meta = |name: &str| json!({"name": name, "namespace": "default", "uid": format!("uid-of-{name}")});
    let map: ConfigMap = serde_json::from_value(json!({"metadata": meta("settings"), "data": {"key": "map"}})).unwrap();
    let secret: Secret =
        serde_json::from_value(json!({"metadata": meta("db"), "stringData": {"key": "secret"}})).unwrap();
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": meta("claim"), "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"},
    }))
    .unwrap();
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "pv-1"},
        "spec": {"claimRef": {"uid": "uid-of-claim"}, "accessModes": modes, "local": {"path": path}},
    }))
    .unwrap();
    node.objects.set(map);
    node.objects.set(secret);
    node.objects.set(claim);
    node.objects.set(volume);
}

fn claim() -> Value {
    json!({"persistentVolumeClaim": {"claimName": "claim"}})
}

fn in_group(name: &str, volume: Value, policy: &str) -> Arc<PodRecord> {
    let context = json!({"fsGroup": 4711, "fsGroupChangePolicy": policy});
    pod_with(name, &[volume], json!({"securityContext": context}))
}

fn folder(node: &Node, name: &str) -> PathBuf {
    let dir = node.root.join(name);
    fs::create_dir(&dir).unwrap();
    dir
}

/// kubernetes/kubernetes#69699, #82918: all files of a volume were gone through at each mount of it.
#[tokio::test]
async fn a_volume_that_has_its_group_is_not_gone_through_again() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let disk = folder(&node, "disk");
    offer(&node, &disk, &["ReadWriteOnce"]);
    let file = disk.join("file");
    fs::write(&file, "").unwrap();
    let group = |file: &Path| fs::metadata(file).unwrap().gid();
    let first = in_group("first", claim(), "OnRootMismatch");
    node.ready(&first).await;
    assert_eq!(group(&file), 4711);
    // By a file that somebody else gave to another group it is seen who goes through all of them.
    chown(&file, None, Some(1)).unwrap();
    node.gone(&first).await;
    let second = in_group("second", claim(), "OnRootMismatch");
    node.ready(&second).await;
    assert_eq!(group(&file), 1, "its root has the group");
    // It is mounted already, whatever the pod says.
    let node = node.restart().await;
    node.ready(&second).await;
    assert_eq!(group(&file), 1);
    node.gone(&second).await;
    let third = in_group("third", claim(), "Always");
    node.ready(&third).await;
    assert_eq!(group(&file), 4711);
    chown(&file, None, Some(1)).unwrap();
    let node = node.restart().await;
    node.ready(&third).await;
    assert_eq!(group(&file), 1, "once for each pod");
    node.gone(&third).await;

    let scratch = in_group("scratch", json!({"emptyDir": {}}), "Always");
    node.ready(&scratch).await;
    let file = node.place(&scratch).await.join("file");
    fs::write(&file, "").unwrap();
    chown(&file, None, Some(1)).unwrap();
    node.ready(&scratch).await;
    let node = node.restart().await;
    node.ready(&scratch).await;
    assert_eq!(group(&file), 1);
    node.gone(&scratch).await;
}

/// kubernetes/kubernetes#130192: nobody was told what a pod waited for.
#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_the_group_of_many_files_is_told() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let disk = folder(&node, "disk");
    offer(&node, &disk, &["ReadWriteOnce"]);
    for index in 0..10_000 {
        fs::write(disk.join(index.to_string()), "").unwrap();
    }
    let pod = in_group("a", claim(), "Always");
    let time_goes_by = async {
        loop {
            tokio::time::advance(Duration::from_secs(40)).await;
        }
    };
    tokio::select! {
        biased;
        _ = node.ready(&pod) => {}
        () = time_goes_by => {}
    }
    let told = node.messages("VolumePermissionChangeInProgress");
    assert!(!told.is_empty() && told[0].contains("OnRootMismatch"), "{told:?}");
    // A second pod waits for nothing.
    node.gone(&pod).await;
    let second = in_group("b", claim(), "OnRootMismatch");
    node.ready(&second).await;
    assert_eq!(node.messages("VolumePermissionChangeInProgress").len(), told.len());
    node.gone(&second).await;
}

/// virtual-kubelet/virtual-kubelet#907, #874: of two pods of one name the new one was deleted with the old one.
#[tokio::test]
async fn a_pod_made_anew_under_its_name_has_volumes_of_its_own() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let disk = folder(&node, "disk");
    offer(&node, &disk, &["ReadWriteOncePod"]);
    let of = |uid: &str, volumes: Value| {
        let mounts: Vec<Value> = volumes
            .as_array()
            .unwrap()
            .iter()
            .map(
                |volume| json!({"name": volume["name"], "mountPath": format!("/{}", volume["name"].as_str().unwrap())}),
            )
            .collect();
        let containers = json!([{"name": "app", "image": "app:1", "volumeMounts": mounts}]);
        record(
            "web",
            json!({"uid": uid}),
            json!({"containers": containers, "volumes": volumes}),
        )
    };
    let volumes = json!([
        {"name": "scratch", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "secret", "secret": {"secretName": "db"}},
    ]);
    let with_disk = json!([{"name": "disk", "persistentVolumeClaim": {"claimName": "claim"}}]);
    let (old, new) = (of("uid-of-old", volumes.clone()), of("uid-of-new", volumes));
    let write = async |pod: &Arc<PodRecord>| {
        node.ready(pod).await;
        for place in &node.container(pod, "app").await.places[..2] {
            assert_eq!(
                fs::read_dir(&place.host_path).unwrap().count(),
                0,
                "it begins with nothing"
            );
            fs::write(place.host_path.join("data"), pod.uid().as_str()).unwrap();
        }
    };
    write(&old).await;
    write(&new).await;
    node.gone(&old).await;
    // What is said of the old one later on changes nothing either.
    node.gone(&old).await;
    let places = node.container(&new, "app").await.places;
    for place in &places[..2] {
        assert_eq!(fs::read_to_string(place.host_path.join("data")).unwrap(), "uid-of-new");
    }
    assert_eq!(fs::read_to_string(places[2].host_path.join("key")).unwrap(), "secret");
    node.gone(&new).await;
    // What is for one pod alone is the old one's until that is gone.
    let (old, new) = (of("uid-of-old", with_disk.clone()), of("uid-of-new", with_disk));
    node.ready(&old).await;
    assert!(node.waits(&new).await.contains("already in use by another pod"));
    node.gone(&old).await;
    let node = node.restart().await;
    node.ready(&new).await;
    node.gone(&old).await;
    assert!(table().is_mount_point(&node.place(&new).await));
    node.gone(&new).await;
}

/// A pod with a volume of each kind, and with a part of one.
fn of_each_kind(name: &str) -> Arc<PodRecord> {
    let volumes = [
        json!({"emptyDir": {}}),
        json!({"emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}),
        json!({"configMap": {"name": "settings"}}),
        json!({"secret": {"secretName": "db"}}),
        claim(),
    ];
    let mut mounts: Vec<Value> = ["a", "b", "c", "d", "e"]
        .iter()
        .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
        .collect();
    mounts.push(json!({"name": "a", "mountPath": "/part", "subPath": "part"}));
    mounts.push(json!({"name": "d", "mountPath": "/key", "subPath": "key"}));
    let containers = json!([{"name": "app", "image": "app:1", "volumeMounts": mounts}]);
    pod_with(name, &volumes, json!({"containers": containers}))
}

/// kubeedge/kubeedge#3618, stackabletech/agent#221: pods did not come back after a reboot, or were never gone.
#[tokio::test]
async fn after_a_reboot_volumes_are_made_anew_with_what_is_on_disk_or_are_gone() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let disk = folder(&node, "disk");
    offer(&node, &disk, &["ReadWriteOnce"]);
    let (stays, goes) = (of_each_kind("stays"), of_each_kind("goes"));
    for pod in [&stays, &goes] {
        node.ready(pod).await;
        let places = node.container(pod, "app").await.places;
        for index in [0, 1, 4, 5] {
            fs::write(places[index].host_path.join(pod.uid().as_str()), "written").unwrap();
        }
    }
    let mounted = table().below(&node.root).len();
    let places = node.container(&stays, "app").await.places;
    // Whatever was mounted is not any more.
    for mount in table().below(&node.root) {
        unmount(&mount.target, UnmountFlags::DETACH).unwrap();
    }
    for index in [1, 3] {
        let left = fs::read_dir(&places[index].host_path).unwrap().count();
        assert_eq!(left, 0, "what is in memory alone is on no disk");
    }
    let node = node.restart().await;
    node.ready(&stays).await;
    assert_eq!(node.container(&stays, "app").await.places, places);
    let has = |index: usize| places[index].host_path.join("uid-of-stays").exists();
    assert_eq!([has(0), has(1), has(4), has(5)], [true, false, true, true]);
    let memory = table().at(&places[1].host_path).unwrap().super_options.clone();
    assert!(memory.contains("size=8192k"), "{memory}");
    assert_eq!(table().at(&places[3].host_path).unwrap().fs_type, "tmpfs");
    for index in [2, 3] {
        let text = fs::read_to_string(places[index].host_path.join("key")).unwrap();
        assert_eq!(text, ["map", "secret"][index - 2]);
    }
    assert_eq!(fs::read_to_string(&places[6].host_path).unwrap(), "secret");
    // The other one goes, although it was never asked for again.
    node.gone(&goes).await;
    assert_eq!(table().below(&node.root).len(), mounted / 2);
    node.gone(&stays).await;
    let left: Vec<_> = fs::read_dir(&disk)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// rancher/k3k#1021: what was another one's was cleared up.
#[tokio::test]
async fn an_agent_clears_up_nothing_of_another_one_on_its_machine() {
    if !may_mount() {
        return;
    }
    let (one, other) = (Node::start(), Node::start());
    let disk = folder(&one, "disk");
    offer(&one, &disk, &["ReadWriteOnce"]);
    offer(&other, &disk, &["ReadWriteOnce"]);
    // Of the very same pod, with the same volumes.
    let pod = of_each_kind("a");
    one.ready(&pod).await;
    other.ready(&pod).await;
    let places = other.container(&pod, "app").await.places;
    one.container(&pod, "app").await;
    for index in [0, 1, 4, 5] {
        fs::write(places[index].host_path.join("data"), "precious").unwrap();
    }
    let mounted = table().below(&other.root).len();
    one.gone(&pod).await;
    let one = one.restart().await;
    one.gone(&pod).await;
    assert_eq!(table().below(&other.root).len(), mounted);
    for index in [0, 1, 4, 5] {
        assert_eq!(
            fs::read_to_string(places[index].host_path.join("data")).unwrap(),
            "precious"
        );
    }
    other.ready(&pod).await;
    assert_eq!(other.container(&pod, "app").await.places, places);
    other.gone(&pod).await;
    assert_eq!(fs::read_to_string(disk.join("data")).unwrap(), "precious");
}

/// krustlet/krustlet#576: a stray file among what is looked through was the end.
#[tokio::test]
async fn what_is_no_folder_of_a_pod_is_in_nobodys_way() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let disk = folder(&node, "disk");
    offer(&node, &disk, &["ReadWriteOncePod"]);
    let pods = node.root.join("pods");
    fs::create_dir(&pods).unwrap();
    fs::write(pods.join("file"), "").unwrap();
    symlink(&disk, pods.join("link")).unwrap();
    symlink("nowhere", pods.join("dangling")).unwrap();
    fs::create_dir(pods.join(OsStr::from_bytes(b"\xff"))).unwrap();
    fs::create_dir(pods.join("no uid")).unwrap();
    for name in ["first", "second"] {
        let pod = pod(name, &[claim(), json!({"emptyDir": {}})]);
        node.ready(&pod).await;
        node.gone(&pod).await;
    }
    assert!(pods.join("file").exists() && !is_nothing(&pods.join("dangling")));
}

/// kubernetes/kubernetes#90752: what had been unmounted already was tried again for ever.
#[tokio::test]
async fn what_somebody_else_has_unmounted_or_removed_by_half_goes_all_the_same() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let disk = folder(&node, "disk");
    offer(&node, &disk, &["ReadWriteOnce"]);
    let kinds = ["uid-of-p", "volumes", "volume-subpaths", "plugins"];
    for (index, lost) in kinds.into_iter().enumerate() {
        let pod = of_each_kind("p");
        node.ready(&pod).await;
        node.container(&pod, "app").await;
        let dir = node.pod_dir("uid-of-p");
        for mount in table().below(&dir) {
            unmount(&mount.target, UnmountFlags::DETACH).unwrap();
        }
        let lost = if index == 0 { dir } else { dir.join(lost) };
        fs::remove_dir_all(lost).unwrap();
        // By two at once, of which one may be asked to stop, and once more.
        let stop = CancellationToken::new();
        let (a, b) = tokio::join!(
            node.volumes.unmount(pod.uid(), &stop),
            node.volumes.unmount(pod.uid(), &stop)
        );
        for gone in [a, b] {
            gone.unwrap_or_else(|error| panic!("{}", error_chain(&error)));
        }
        node.gone(&pod).await;
        node.ready(&pod).await;
        node.gone(&pod).await;
    }
    assert!(disk.exists());
}

/// kubernetes/kubernetes#60987, #45464: leftovers that were of no known form stayed for ever, or were deleted with what was mounted.
#[tokio::test]
async fn leftovers_at_any_depth_are_unmounted_or_named_and_never_lost() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let precious = folder(&node, "precious");
    fs::create_dir(precious.join("empty")).unwrap();
    fs::write(precious.join("data"), "precious").unwrap();
    let uid = PodUid::from("orphan");
    let dir = node.pod_dir("orphan");
    for (place, kind) in [
        ("volumes/x/y", "empty"),
        ("volumes/x/y", "file"),
        ("volumes/x/y", "mount"),
        ("volumes/x", "mount"),
        ("volumes/x", "empty"),
        ("volumes/x", "file"),
        ("volumes", "empty"),
        ("volumes", "file"),
        ("volumes", "mount"),
        ("volumeDevices/x", "mount"),
        ("plugins/x", "mount"),
        ("plugins", "mount"),
        ("volumeDevices/x/y", "empty"),
        ("volumeDevices/x/y", "file"),
        ("volumeDevices/x/y", "mount"),
        ("volumeDevices/x", "file"),
        ("plugins/x/y", "mount"),
        ("plugins/x", "file"),
        ("volume-subpaths/v/c/0", "mount"),
        ("volume-subpaths/v/c", "mount"),
        ("volume-subpaths/v", "mount"),
    ] {
        let path = dir.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match kind {
            "empty" => fs::create_dir(&path).unwrap(),
            "file" => fs::write(&path, "precious").unwrap(),
            _ => {
                fs::create_dir(&path).unwrap();
                // Twice, one upon the other.
                for _ in 0..2 {
                    SystemMounts::default()
                        .bind(&precious, &path, &MountOptions::default())
                        .unwrap();
                }
            }
        }
        for _ in 0..2 {
            let gone = node.volumes.unmount(&uid, &CancellationToken::new()).await;
            assert!(table().below(&dir).is_empty(), "{kind} at {place}: {gone:?}");
            assert!(precious.join("empty").exists(), "{kind} at {place}");
            assert_eq!(fs::read_to_string(precious.join("data")).unwrap(), "precious");
            if kind == "file" {
                let text = error_chain(&gone.unwrap_err());
                assert!(text.contains(path.to_str().unwrap()), "{kind} at {place}: {text}");
                assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
            } else {
                gone.unwrap_or_else(|error| panic!("{kind} at {place}: {}", error_chain(&error)));
                node.nothing_is_left("orphan");
            }
        }
        let _ = fs::remove_file(&path);
        node.volumes.unmount(&uid, &CancellationToken::new()).await.unwrap();
    }
}

/// kubernetes/kubernetes#99280, #78865, #63126: of scratch space in memory, or on a file system of its own, nobody knew what it uses.
#[tokio::test]
async fn what_a_volume_uses_is_told_by_what_it_is_on() {
    if !may_mount() {
        return;
    }
    let mut settings = VolumeSettings::default();
    settings.measure_every = Duration::from_millis(1);
    let node = Node::start_with(settings, |_| {});
    let disk = folder(&node, "disk");
    offer(&node, &disk, &["ReadWriteOnce"]);
    let pod = of_each_kind("a");
    node.ready(&pod).await;
    let places = node.container(&pod, "app").await.places;
    // What is mounted in it is on another file system.
    let inner = places[0].host_path.join("inner");
    fs::create_dir(&inner).unwrap();
    let options = MountOptions::default();
    SystemMounts::default()
        .mount("tmpfs", "tmpfs", &inner, &options, "size=4m")
        .unwrap();
    fs::write(inner.join("elsewhere"), vec![1; 3 << 20]).unwrap();
    for place in &places[..2] {
        fs::write(place.host_path.join("data"), vec![1; 1 << 20]).unwrap();
    }
    let usage = loop {
        let usage = node.volumes.usage(pod.uid());
        let has_all = |name: &str| {
            usage
                .iter()
                .any(|of| of.name == name && of.used_bytes.is_some_and(|used| used >= 1 << 20))
        };
        if has_all("a") && has_all("b") {
            break usage;
        }
        tokio::task::yield_now().await;
    };
    let of = |name: &str| usage.iter().find(|of| of.name == name).unwrap();
    let is_ephemeral: Vec<bool> = ["a", "b", "c", "d", "e"].map(|name| of(name).is_ephemeral).to_vec();
    assert_eq!(
        is_ephemeral,
        [true, false, true, false, false],
        "what is on the node's disk and goes with the pod"
    );
    assert!(of("a").used_bytes.unwrap() < 2 << 20, "{:?}", of("a"));
    assert_eq!(of("b").capacity_bytes, Some(8 << 20), "the limit itself bounds it");
    assert!(fs::write(places[1].host_path.join("more"), vec![1; 16 << 20]).is_err());
    assert_eq!(
        (of("e").claim.as_deref(), of("a").claim.as_deref()),
        (Some("claim"), None)
    );
    assert!(
        usage
            .iter()
            .all(|of| of.used_bytes.is_some() && of.inodes_used.is_some() && of.available_bytes.is_some())
    );
    node.gone(&pod).await;
    assert!(node.volumes.usage(pod.uid()).is_empty());
}
