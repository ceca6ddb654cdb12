//! Volumes in which containers mount something for each other.

use std::fs;

use kubelet_core::VolumeManager;
use kubelet_core::env::Env;
use kubelet_volume::{MountOptions, Mounts, SystemMounts};
use serde_json::json;

use crate::harness::{Node, may_mount, record, table};

#[tokio::test]
async fn a_volume_is_shared_once_a_container_asks_for_that_and_others_stay_as_they_are() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let container = |name: &str, propagation: &str| {
        json!({"name": name, "image": "app:1", "volumeMounts": [
            {"name": "disk", "mountPath": "/disk", "mountPropagation": propagation},
            {"name": "memory", "mountPath": "/memory", "mountPropagation": propagation},
            {"name": "host", "mountPath": "/host", "mountPropagation": propagation},
        ]})
    };
    let host = node.root.join("host");
    fs::create_dir(&host).unwrap();
    let pod = record(
        "a",
        json!({}),
        json!({
            "containers": [container("app", "None"), container("asks", "HostToContainer")],
            "volumes": [
                {"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "host", "hostPath": {"path": host}},
            ],
        }),
    );
    node.ready(&pod).await;
    let places = node.container(&pod, "app").await.places;
    let [disk, memory] = [&places[0].host_path, &places[1].host_path];
    let is_shared = |path: &std::path::Path| table().holder(path).unwrap().peer_group.is_some();
    let all_is_shared = is_shared(&node.root);
    let mounted = table().below(&node.root).len();
    if !all_is_shared {
        assert_eq!(mounted, 1);
        assert!(!is_shared(disk) && !is_shared(memory));
    }
    for _ in 0..2 {
        node.container(&pod, "asks").await;
        assert!(is_shared(disk) && is_shared(memory));
        assert_eq!(table().below(&node.root).len(), mounted + usize::from(!all_is_shared));
        assert_eq!(is_shared(&host), all_is_shared, "places of the host are the host's");
    }
    // Another life finds it so, and what was mounted there meanwhile goes with the pod.
    let node = node.restart().await;
    node.ready(&pod).await;
    node.volumes.container(&pod, "asks", &Env::default()).await.unwrap();
    for place in [disk, memory] {
        let inner = place.join("inner");
        fs::create_dir(&inner).unwrap();
        let options = MountOptions::default();
        SystemMounts::default()
            .mount("tmpfs", "tmpfs", &inner, &options, "size=64k")
            .unwrap();
    }
    node.gone(&pod).await;
}
