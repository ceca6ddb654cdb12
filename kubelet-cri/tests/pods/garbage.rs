//! What is cleared up on a real runtime.

use std::time::Duration;

use kubelet_core::{ImageGcPolicy, ImageService};
use kubelet_testing::{BUSYBOX_IMAGE, OciArchive};
use serde_json::json;

use crate::node::{Node, is_running, on_both, pod, sh};

on_both!(images_that_nobody_uses_go_from_a_full_disk);

async fn tags(node: &Node) -> Vec<String> {
    let images = node.runtime().await.list().await.unwrap();
    images.into_iter().flat_map(|image| image.tags).collect()
}

async fn images_that_nobody_uses_go_from_a_full_disk(mut node: Node) {
    for name in ["registry.example/unused:1", "registry.example/named:1"] {
        let image = OciArchive::new(name).file("content", 0o644, name);
        node.containerd.import(&image).await.unwrap();
    }
    let before = tags(&node).await;
    // Every disk is full by this measure.
    let mut policy = ImageGcPolicy::default();
    (policy.high_threshold_percent, policy.low_threshold_percent) = (1, 0);
    (policy.min_age, policy.period) = (Duration::ZERO, Duration::from_millis(200));
    let agent = node.start_with(|builder| builder.image_gc(policy)).await;
    let forever = sh("app", "trap 'exit 0' TERM; while :; do sleep 0.2; done");
    // It is named, present, and has no container: its name is a folder's, so none can be made of it before the first has ended.
    let later =
        json!({"name": "later", "image": "registry.example/named:1", "imagePullPolicy": "Never", "command": ["/x"]});
    agent
        .pods
        .set(vec![
            pod("used", json!({"containers": [forever.clone()]})),
            pod("waits", json!({"initContainers": [forever], "containers": [later]})),
        ])
        .await
        .unwrap();
    agent
        .until("they run", |all| {
            is_running(all, "used", "app") && is_running(all, "waits", "app")
        })
        .await;
    let mut changes = agent.handle.statuses();
    let gone = async {
        while tags(&node).await.iter().any(|tag| tag == "registry.example/unused:1") {
            let _ = tokio::time::timeout(Duration::from_millis(100), changes.next()).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone)
        .await
        .expect("the unused image goes");
    let left = tags(&node).await;
    assert!(
        left.iter()
            .any(|tag| tag.ends_with(BUSYBOX_IMAGE.rsplit('/').next().unwrap())),
        "{left:?}"
    );
    assert!(left.contains(&"registry.example/named:1".to_owned()), "{left:?}");
    // The runtime's own image, of which all sandboxes are made, is pinned or used.
    assert!(before.len() - left.len() >= 1);
    assert!(left.iter().any(|tag| tag.contains("pause")), "{before:?} {left:?}");
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}
