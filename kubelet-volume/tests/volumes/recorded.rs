//! State on disk as this version writes it: what is recorded here a later version has to take over, and clear up.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_core::PodRecord;
use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret};
use kubelet_volume::{MountOptions, Mounts, SystemMounts};
use serde_json::json;

use crate::harness::{Node, may_mount, record, table};

/// The name of a folder of files; each has another one.
const FOLDER: &str = "..2026_11_30_10_20_30.1234567890";

/// The folder of a pod: its folders (`d`), files (`f`) with what is in them, links (`l`) with where they lead, each with its
/// mode, and the mounts on its folders (`tmpfs`, `bind` with the folder of the node). `<made>` stands for [`FOLDER`].
const RECORDED: &str = "\
d 750 plugins
d 750 plugins/kubernetes.io~empty-dir
d 750 plugins/kubernetes.io~empty-dir/memory
f 644 plugins/kubernetes.io~empty-dir/memory/ready
d 750 plugins/kubernetes.io~empty-dir/scratch
f 644 plugins/kubernetes.io~empty-dir/scratch/ready
d 750 plugins/kubernetes.io~empty-dir/wrapped_all
f 644 plugins/kubernetes.io~empty-dir/wrapped_all/ready
d 750 plugins/kubernetes.io~empty-dir/wrapped_config
f 644 plugins/kubernetes.io~empty-dir/wrapped_config/ready
d 750 plugins/kubernetes.io~empty-dir/wrapped_names
f 644 plugins/kubernetes.io~empty-dir/wrapped_names/ready
d 750 plugins/kubernetes.io~empty-dir/wrapped_secret
f 644 plugins/kubernetes.io~empty-dir/wrapped_secret/ready
d 750 volume-subpaths
d 750 volume-subpaths/config
d 750 volume-subpaths/config/app
f 644 volume-subpaths/config/app/7 value bind pods/uid-of-a/volumes/kubernetes.io~configmap/config/<made>/key
d 750 volume-subpaths/scratch
d 750 volume-subpaths/scratch/app
d 777 volume-subpaths/scratch/app/6 bind pods/uid-of-a/volumes/kubernetes.io~empty-dir/scratch/part
d 750 volumes
d 750 volumes/kubernetes.io~configmap
d 777 volumes/kubernetes.io~configmap/config
d 755 volumes/kubernetes.io~configmap/config/<made>
f 644 volumes/kubernetes.io~configmap/config/<made>/key value
l volumes/kubernetes.io~configmap/config/..data -> <made>
l volumes/kubernetes.io~configmap/config/key -> ..data/key
d 750 volumes/kubernetes.io~downward-api
d 1777 volumes/kubernetes.io~downward-api/names tmpfs
d 755 volumes/kubernetes.io~downward-api/names/<made>
f 644 volumes/kubernetes.io~downward-api/names/<made>/name a
l volumes/kubernetes.io~downward-api/names/..data -> <made>
l volumes/kubernetes.io~downward-api/names/name -> ..data/name
d 750 volumes/kubernetes.io~empty-dir
d 1777 volumes/kubernetes.io~empty-dir/memory tmpfs
d 777 volumes/kubernetes.io~empty-dir/scratch
d 777 volumes/kubernetes.io~empty-dir/scratch/part
d 750 volumes/kubernetes.io~local-volume
d 755 volumes/kubernetes.io~local-volume/pv-1 bind disk
d 750 volumes/kubernetes.io~projected
d 1777 volumes/kubernetes.io~projected/all tmpfs
d 755 volumes/kubernetes.io~projected/all/<made>
d 755 volumes/kubernetes.io~projected/all/<made>/inner
f 600 volumes/kubernetes.io~projected/all/<made>/inner/key secret
f 440 volumes/kubernetes.io~projected/all/<made>/key value
l volumes/kubernetes.io~projected/all/..data -> <made>
l volumes/kubernetes.io~projected/all/inner -> ..data/inner
l volumes/kubernetes.io~projected/all/key -> ..data/key
d 750 volumes/kubernetes.io~secret
d 1777 volumes/kubernetes.io~secret/secret tmpfs
d 755 volumes/kubernetes.io~secret/secret/<made>
f 400 volumes/kubernetes.io~secret/secret/<made>/key secret
l volumes/kubernetes.io~secret/secret/..data -> <made>
l volumes/kubernetes.io~secret/secret/key -> ..data/key
";

fn node() -> Node {
    let node = Node::start();
    fs::create_dir(node.root.join("disk")).unwrap();
    let meta = |name: &str| json!({"name": name, "namespace": "default", "uid": format!("uid-of-{name}")});
    let map = json!({"metadata": meta("config"), "data": {"key": "value"}});
    node.objects.set(serde_json::from_value::<ConfigMap>(map).unwrap());
    let secret = json!({"metadata": meta("secret"), "data": {"key": "c2VjcmV0"}});
    node.objects.set(serde_json::from_value::<Secret>(secret).unwrap());
    let claim = json!({"metadata": meta("claim"), "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}});
    node.objects
        .set(serde_json::from_value::<PersistentVolumeClaim>(claim).unwrap());
    let volume = json!({"metadata": {"name": "pv-1"}, "spec": {
        "claimRef": {"uid": "uid-of-claim"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
        "local": {"path": node.root.join("disk")},
    }});
    node.objects
        .set(serde_json::from_value::<PersistentVolume>(volume).unwrap());
    node
}

fn pod() -> Arc<PodRecord> {
    let names = ["scratch", "memory", "config", "secret", "all", "disk"];
    let mut mounts: Vec<_> = names
        .iter()
        .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
        .collect();
    mounts.push(json!({"name": "scratch", "mountPath": "/part", "subPath": "part"}));
    mounts.push(json!({"name": "config", "mountPath": "/file", "subPath": "key"}));
    mounts.push(json!({"name": "names", "mountPath": "/names"}));
    let spec = json!({
        "containers": [{"name": "app", "image": "app:1", "volumeMounts": mounts}],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "config", "configMap": {"name": "config"}},
            {"name": "secret", "secret": {"secretName": "secret", "defaultMode": 0o400}},
            {"name": "names", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"name": "all", "projected": {"defaultMode": 0o440, "sources": [
                {"configMap": {"name": "config"}},
                {"secret": {"name": "secret", "items": [{"key": "key", "path": "inner/key", "mode": 0o600}]}},
            ]}},
            {"name": "disk", "persistentVolumeClaim": {"claimName": "claim"}},
        ],
    });
    record("a", json!({}), spec)
}

/// All that is below a folder, in the order of the record, each with its number on the disk.
fn listing(node: &Node) -> BTreeMap<PathBuf, u64> {
    let pod_dir = node.pod_dir("uid-of-a");
    let mut found = BTreeMap::new();
    let mut left = vec![pod_dir.clone()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let of = fs::symlink_metadata(&path).unwrap();
            // What is in a bound folder is somebody else's.
            let is_bound = table()
                .at(&path)
                .is_some_and(|mount| mount.fs_type != "tmpfs" || mount.root != Path::new("/"));
            if of.is_dir() && !is_bound {
                left.push(path.clone());
            }
            found.insert(path.strip_prefix(&pod_dir).unwrap().to_owned(), of.ino());
        }
    }
    found
}

fn is_made(name: &str) -> bool {
    name.starts_with("..2") && name.len() > 20
}

/// A path, or what a link leads to, as the record has it.
fn as_recorded(path: &Path) -> String {
    let part = |part: std::path::Component<'_>| {
        let name = part.as_os_str().to_str().unwrap();
        if is_made(name) {
            "<made>".to_owned()
        } else {
            name.to_owned()
        }
    };
    path.components().map(part).collect::<Vec<_>>().join("/")
}

fn is_same(a: &Path, b: &Path) -> bool {
    let of = |path: &Path| fs::metadata(path).map(|of| (of.dev(), of.ino())).ok();
    of(a).is_some() && of(a) == of(b)
}

/// The record of what is there.
fn recorded(node: &Node) -> String {
    let pod_dir = node.pod_dir("uid-of-a");
    let table = table();
    let mut lines: BTreeMap<String, String> = BTreeMap::new();
    for relative in listing(node).into_keys() {
        let path = pod_dir.join(&relative);
        let of = fs::symlink_metadata(&path).unwrap();
        let name = as_recorded(&relative);
        let mode = of.permissions().mode() & 0o7777;
        let mut line = if of.is_symlink() {
            format!("l {name} -> {}", as_recorded(&fs::read_link(&path).unwrap()))
        } else if of.is_dir() {
            format!("d {mode:o} {name}")
        } else {
            let text = fs::read_to_string(&path).unwrap();
            format!("f {mode:o} {name} {text}").trim_end().to_owned()
        };
        if table.at(&path).is_some() {
            let source = RECORDED
                .lines()
                .find_map(|line| line.split_once(&format!(" {name} "))?.1.split_once("bind "));
            let source = source.and_then(|(_, source)| find_source(node, source));
            line += &match source {
                Some(source) if is_same(&source, &path) => {
                    format!(" bind {}", as_recorded(source.strip_prefix(&node.root).unwrap()))
                }
                _ => format!(" {}", table.at(&path).unwrap().fs_type),
            };
        }
        // A folder before what is in it; made folders before all else, whatever their names.
        lines.insert(name.replace("<made>", "!"), line);
    }
    lines.into_values().map(|line| line + "\n").collect()
}

/// A path of the node of which the record names a made folder only as such.
fn find_source(node: &Node, recorded: &str) -> Option<PathBuf> {
    let mut path = node.root.clone();
    for part in recorded.split('/') {
        if part == "<made>" {
            path = path.join(fs::read_link(path.join("..data")).ok()?);
        } else {
            path.push(part);
        }
    }
    Some(path)
}

/// Makes what is recorded, as an agent of this version does.
fn build(node: &Node) {
    let pod_dir = node.pod_dir("uid-of-a");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(&pod_dir)
        .unwrap();
    let mounts = SystemMounts::default();
    let mut binds = Vec::new();
    for line in RECORDED.lines() {
        let line = line.replace("<made>", FOLDER);
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "l" {
            symlink(words[3], pod_dir.join(words[1])).unwrap();
            continue;
        }
        let (mode, path) = (u32::from_str_radix(words[1], 8).unwrap(), pod_dir.join(words[2]));
        if let Some(at) = words.iter().position(|word| *word == "bind") {
            // Of the kind of what it is bound to, which may not be there yet.
            match words[0] {
                "d" => fs::create_dir(&path).unwrap(),
                _ => fs::write(&path, "").unwrap(),
            }
            binds.push((node.root.join(words[at + 1]), path));
            continue;
        }
        match words[0] {
            "d" => fs::create_dir(&path).unwrap(),
            _ => fs::write(&path, words.get(3).unwrap_or(&"")).unwrap(),
        }
        if words.get(3) == Some(&"tmpfs") {
            mounts
                .mount("tmpfs", "tmpfs", &path, &MountOptions::default(), "")
                .unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    for (source, target) in binds {
        mounts.bind(&source, &target, &MountOptions::default()).unwrap();
    }
}

#[tokio::test]
async fn state_on_disk_is_as_it_is_recorded() {
    if !may_mount() {
        return;
    }
    let node = node();
    let pod = pod();
    node.ready(&pod).await;
    node.container(&pod, "app").await;
    assert_eq!(recorded(&node), RECORDED);
    node.gone(&pod).await;
}

#[tokio::test]
async fn recorded_state_is_taken_over_as_it_is_and_cleared_up() {
    if !may_mount() {
        return;
    }
    let node = node();
    build(&node);
    fs::write(node.root.join("disk/data"), "precious").unwrap();
    let scratch = node
        .pod_dir("uid-of-a")
        .join("volumes/kubernetes.io~empty-dir/scratch/data");
    fs::write(&scratch, "scratch").unwrap();
    let (before, mounted) = (listing(&node), table().below(&node.root).len());
    let pod = pod();
    node.ready(&pod).await;
    node.container(&pod, "app").await;
    assert_eq!(listing(&node), before, "nothing is written anew");
    assert_eq!(table().below(&node.root).len(), mounted);
    assert_eq!(fs::read_to_string(&scratch).unwrap(), "scratch");
    fs::remove_file(&scratch).unwrap();
    assert_eq!(recorded(&node), RECORDED);
    // By yet another agent, that never saw the pod.
    let node = node.restart().await;
    node.gone(&pod).await;
    assert_eq!(fs::read_to_string(node.root.join("disk/data")).unwrap(), "precious");
}
