//! Scratch space, and paths of the host.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use kubelet_core::env::Env;
use kubelet_core::{VolumeManager, error_chain};
use serde_json::json;

use crate::harness::{Node, is_nothing, may_mount, pod, pod_with, record, table};

#[tokio::test]
async fn scratch_space_is_for_all_and_outlives_the_agent_but_not_the_pod() {
    let node = Node::start();
    let pod = pod("a", &[json!({"emptyDir": {}})]);
    node.ready(&pod).await;
    let place = node.place(&pod).await;
    assert_eq!(
        place,
        node.pod_dir("uid-of-a").join("volumes/kubernetes.io~empty-dir/a")
    );
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o7777, 0o777);
    assert!(
        node.pod_dir("uid-of-a")
            .join("plugins/kubernetes.io~empty-dir/a/ready")
            .exists(),
        "as upstream marks it"
    );
    fs::create_dir(place.join("sub")).unwrap();
    fs::write(place.join("sub/data"), "precious").unwrap();
    node.ready(&pod).await;
    let node = node.restart().await;
    node.ready(&pod).await;
    assert_eq!(
        fs::read_to_string(node.place(&pod).await.join("sub/data")).unwrap(),
        "precious"
    );
    let given = node.container(&pod, "app").await;
    assert!(!given.places[0].read_only && given.places[0].selinux_relabel);
    // Gone by another life, which never saw it.
    let node = node.restart().await;
    node.gone(&pod).await;
    node.gone(&pod).await;
}

#[tokio::test]
async fn space_in_memory_is_as_large_as_it_may_be() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let app = json!([{"name": "app", "image": "app:1",
        "volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}],
        "resources": {"limits": {"memory": "64Mi"}, "requests": {"memory": "64Mi"}},
    }]);
    let pod = pod_with(
        "a",
        &[
            json!({"emptyDir": {"medium": "Memory"}}),
            json!({"emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}),
        ],
        json!({"containers": app, "securityContext": {"fsGroup": 4711}}),
    );
    node.ready(&pod).await;
    let places = node.container(&pod, "app").await.places;
    for (place, size) in places.iter().zip(["size=65536k", "size=8192k"]) {
        let table = table();
        let mount = table.at(&place.host_path).unwrap();
        assert_eq!(mount.fs_type, "tmpfs");
        assert!(mount.super_options.contains(size), "{}", mount.super_options);
        let found = fs::metadata(&place.host_path).unwrap();
        assert_eq!(found.gid(), 4711);
        assert_eq!(
            found.mode() & 0o7777,
            0o3777,
            "of the group, and what is made in it too"
        );
    }
    fs::write(places[0].host_path.join("data"), "precious").unwrap();
    let node = node.restart().await;
    node.ready(&pod).await;
    assert_eq!(
        fs::read_to_string(places[0].host_path.join("data")).unwrap(),
        "precious"
    );
    assert_eq!(table().below(&node.root).len(), 2, "nothing is mounted twice");
    node.gone(&pod).await;
}

#[tokio::test]
async fn a_part_of_a_volume_is_mounted_by_itself_and_goes_with_it() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let host = node.root.join("host");
    fs::create_dir_all(host.join("logs/a")).unwrap();
    let app = json!({"name": "app", "image": "app:1", "volumeMounts": [
        {"name": "a", "mountPath": "/a", "subPath": "made/anew"},
        {"name": "b", "mountPath": "/b", "subPath": "logs/a", "readOnly": true},
        {"name": "a", "mountPath": "/c", "subPathExpr": "of/$(NAME)"},
    ]});
    let pod = record(
        "a",
        json!({}),
        json!({"containers": [app], "volumes": [
            {"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": host}},
        ]}),
    );
    node.ready(&pod).await;
    let mut env = Env::default();
    env.set("NAME", "app");
    let given = node.volumes.container(&pod, "app", &env).await.unwrap();
    let parts = node.pod_dir("uid-of-a").join("volume-subpaths");
    let places: Vec<_> = given.places.iter().map(|place| place.host_path.clone()).collect();
    assert_eq!(
        places,
        [parts.join("a/app/0"), parts.join("b/app/1"), parts.join("a/app/2")]
    );
    fs::write(places[0].join("x"), "1").unwrap();
    fs::write(places[1].join("x"), "2").unwrap();
    let volume = node.pod_dir("uid-of-a").join("volumes/kubernetes.io~empty-dir/a");
    assert_eq!(fs::read_to_string(volume.join("made/anew/x")).unwrap(), "1");
    assert_eq!(
        fs::metadata(volume.join("of/app")).unwrap().mode() & 0o777,
        0o777,
        "as the volume is"
    );
    let again = node.volumes.container(&pod, "app", &env).await.unwrap();
    assert_eq!(again, given);
    assert_eq!(table().below(&parts).len(), 3, "nothing is mounted twice");
    let node = node.restart().await;
    node.gone(&pod).await;
    assert_eq!(
        fs::read_to_string(host.join("logs/a/x")).unwrap(),
        "2",
        "what is the host's stays"
    );
}

#[tokio::test]
async fn a_link_under_a_part_that_leads_out_of_its_volume_is_refused() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let app =
        json!({"name": "app", "image": "app:1", "volumeMounts": [{"name": "a", "mountPath": "/a", "subPath": "x"}]});
    let pod = record(
        "a",
        json!({}),
        json!({"containers": [app], "volumes": [{"name": "a", "emptyDir": {}}]}),
    );
    node.ready(&pod).await;
    let volume = node.pod_dir("uid-of-a").join("volumes/kubernetes.io~empty-dir/a");
    fs::write(volume.join("inside"), "").unwrap();
    for (target, is_fine) in [
        ("/etc", false),
        ("../../../../..", false),
        ("none", false),
        ("inside", true),
    ] {
        let _ = fs::remove_file(volume.join("x"));
        symlink(target, volume.join("x")).unwrap();
        let given = node.volumes.container(&pod, "app", &Env::default()).await;
        assert_eq!(given.is_ok(), is_fine, "{target}: {given:?}");
        if let Err(error) = given {
            let text = error_chain(&error);
            assert!(
                text.starts_with(r#"failed to prepare subPath for volumeMount "a" of container "app""#),
                "{text}"
            );
        }
    }
    node.gone(&pod).await;
}

#[tokio::test]
async fn a_path_of_the_host_is_what_its_type_says_and_stays() {
    let node = Node::start();
    let path = node.root.join("host/made/anew");
    let pod_of = |kind: &str| pod("a", &[json!({"hostPath": {"path": path, "type": kind}})]);
    let text = node.waits(&pod_of("Directory")).await;
    assert!(
        text.contains(&format!(
            "hostPath type check failed: {} is not a directory",
            path.display()
        )),
        "{text}"
    );
    // Another spec is tried once it is time.
    let node = node.restart().await;
    let pod = pod_of("DirectoryOrCreate");
    node.ready(&pod).await;
    assert_eq!(node.place(&pod).await, path);
    fs::write(path.join("data"), "precious").unwrap();
    assert!(is_nothing(&node.pod_dir("uid-of-a")), "nothing is made for it");
    node.gone(&pod).await;
    assert_eq!(fs::read_to_string(path.join("data")).unwrap(), "precious");
}
