//! What is there and needs nothing.

use std::fs;

use kubelet_core::k8s_openapi::api::core::v1::ConfigMap;
use kubelet_volume::{Mounts, SystemMounts};
use serde_json::json;

use crate::harness::{Node, is_nothing, may_mount, pod, table};

#[tokio::test]
async fn volumes_of_which_nothing_changed_are_not_looked_at_on_disk() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let map = json!({"metadata": {"name": "c", "namespace": "default"}, "data": {"key": "value"}});
    node.objects.set(serde_json::from_value::<ConfigMap>(map).unwrap());
    let pod = pod(
        "a",
        &[
            json!({"emptyDir": {}}),
            json!({"emptyDir": {"medium": "Memory"}}),
            json!({"configMap": {"name": "c"}}),
            json!({"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
            json!({"projected": {"sources": [{"configMap": {"name": "c"}}]}}),
        ],
    );
    // What tells of the pod itself is put together at each sync, and found to be the same.
    // Until somebody watches what they are made from they are looked at each time.
    for _ in 0..3 {
        node.ready(&pod).await;
        tokio::task::yield_now().await;
    }
    let dir = node.pod_dir("uid-of-a");
    let mounts = SystemMounts::default();
    for mount in table().below(&dir) {
        mounts.unmount(&mount.target).unwrap();
    }
    fs::remove_dir_all(&dir).unwrap();
    for _ in 0..3 {
        node.ready(&pod).await;
    }
    assert!(is_nothing(&dir), "nobody looked, and nobody saw that all of it is gone");
    node.gone(&pod).await;
}
