//! What whoever writes into volumes can do.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use kubelet_core::VolumeManager;
use kubelet_core::env::Env;
use kubelet_core::k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use crate::harness::{Node, is_nothing, may_mount, pod, record};

#[tokio::test]
async fn files_are_made_in_their_volume_alone() {
    let node = Node::start();
    let map = json!({"metadata": {"name": "c", "namespace": "default"}, "data": {"key": "value"}});
    node.objects.set(serde_json::from_value::<ConfigMap>(map).unwrap());
    for (index, path) in [
        "../escaped",
        "a/../../escaped",
        "/escaped",
        "..",
        "",
        "..data",
        "a/..",
        "a\0b",
    ]
    .into_iter()
    .enumerate()
    {
        let pod = pod(
            &format!("p{index}"),
            &[json!({"configMap": {"name": "c", "items": [{"key": "key", "path": path}]}})],
        );
        let text = node.waits(&pod).await;
        assert!(text.contains("volume \"a\""), "{path:?}: {text}");
        let dir = node.pod_dir(pod.uid().as_str()).join("volumes/kubernetes.io~configmap");
        for name in ["escaped", "a/../escaped", "../escaped", "a/escaped"] {
            assert!(is_nothing(&dir.join(name)), "{path:?}");
        }
        node.gone(&pod).await;
    }
    assert!(is_nothing(Path::new("/escaped")));
}

/// The names of all files and folders below, by what they are.
fn inside(dir: &Path, found: &mut BTreeSet<(u64, u64)>) {
    let of = fs::symlink_metadata(dir).unwrap();
    found.insert((of.dev(), of.ino()));
    if of.is_dir() {
        for entry in fs::read_dir(dir).unwrap() {
            inside(&entry.unwrap().path(), found);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_that_change_all_the_time_lead_no_part_out_of_its_volume() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let outside = node.root.join("outside");
    fs::create_dir_all(outside.join("part/inner")).unwrap();
    fs::write(outside.join("part/secret"), "secret").unwrap();
    let spec = json!({
        "containers": [{"name": "app", "image": "app:1", "volumeMounts": [
            {"name": "a", "mountPath": "/a"},
            {"name": "a", "mountPath": "/part", "subPath": "way/part"},
            {"name": "a", "mountPath": "/inner", "subPath": "way/part/inner"},
            {"name": "a", "mountPath": "/new", "subPath": "way/part/new/er"},
        ]}],
        "volumes": [{"name": "a", "emptyDir": {}}],
    });
    let pod = record("a", json!({}), spec);
    node.ready(&pod).await;
    let volume = node.pod_dir("uid-of-a").join("volumes/kubernetes.io~empty-dir/a");
    fs::create_dir_all(volume.join("own/part/inner")).unwrap();
    fs::create_dir_all(volume.join("real/part/inner")).unwrap();
    let stop = AtomicBool::new(false);
    let (mut bound, mut refused) = (0, 0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let ways = [
                outside.as_path(),
                Path::new("own"),
                Path::new("../../../../../outside"),
                Path::new("/"),
            ];
            for (turn, way) in ways.iter().cycle().enumerate() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (next, now) = (volume.join("next"), volume.join("way"));
                let _ = fs::remove_file(&next);
                symlink(way, &next).unwrap();
                // A link takes the place of a link, and of a folder that was made there or put there.
                if fs::rename(&next, &now).is_err() && fs::rename(&now, volume.join("real")).is_err() {
                    let _ = fs::rename(&now, volume.join(format!("made-{turn}")));
                }
                if turn % 7 == 0 {
                    let _ = fs::remove_file(&now);
                    let _ = fs::rename(volume.join("real"), &now);
                }
            }
        });
        let run = async {
            while bound < 50 || refused < 50 {
                let given = node.volumes.container(&pod, "app", &Env::default()).await;
                match given {
                    Ok(_) => bound += 1,
                    Err(_) => refused += 1,
                }
                // Whatever is bound by now, also of a call that failed later on.
                let mounts = node.pod_dir("uid-of-a").join("volume-subpaths/a/app");
                for index in 1..4 {
                    let target = mounts.join(index.to_string());
                    let Ok(of) = fs::metadata(&target) else { continue };
                    let is = (of.dev(), of.ino());
                    for path in ["", "part", "part/inner", "part/secret"] {
                        let of = fs::metadata(outside.join(path)).unwrap();
                        assert_ne!(is, (of.dev(), of.ino()), "{path} is bound at {index}");
                    }
                    let of = fs::metadata("/").unwrap();
                    assert_ne!(is, (of.dev(), of.ino()));
                }
            }
        };
        let handle = tokio::runtime::Handle::current();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            tokio::task::block_in_place(|| handle.block_on(run));
        }));
        stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    // With nobody who changes anything: what is bound is one of what is inside.
    let mut all = BTreeSet::new();
    inside(&volume, &mut all);
    let mounts = node.pod_dir("uid-of-a").join("volume-subpaths/a/app");
    for index in 1..4 {
        let target = mounts.join(index.to_string());
        if crate::harness::table().at(&target).is_some() {
            let of = fs::metadata(&target).unwrap();
            assert!(all.contains(&(of.dev(), of.ino())), "{index}");
        }
    }
    assert!(is_nothing(&outside.join("part/new")), "nothing is made outside");
    node.gone(&pod).await;
    assert!(outside.join("part/secret").exists());
}
