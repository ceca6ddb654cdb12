//! A disk that is full.

use std::fs;
use std::path::Path;

use kubelet_core::k8s_openapi::api::core::v1::ConfigMap;
use kubelet_core::{CancellationToken, VolumeManager};
use kubelet_volume::{MountOptions, Mounts, SystemMounts};
use serde_json::json;

use crate::harness::{Node, may_mount, pod};

fn config(text: &str) -> ConfigMap {
    let map = json!({"metadata": {"name": "c", "namespace": "default"}, "data": {"key": text, "other": "text"}});
    serde_json::from_value(map).unwrap()
}

/// How many folders of files there are.
fn made(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with("..2")).count()
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_is_said_and_what_was_there_stays() {
    if !may_mount() {
        return;
    }
    let mut settings = kubelet_volume::VolumeSettings::default();
    // So that it is tried each time.
    settings.backoff = (std::time::Duration::ZERO, std::time::Duration::ZERO);
    let mut node = Node::start_with(settings, |context| {
        let mounts = SystemMounts::default();
        let size = "size=256k";
        mounts
            .mount("tmpfs", "tmpfs", &context.root_dir, &MountOptions::default(), size)
            .unwrap();
    });
    let pod = pod("a", &[json!({"configMap": {"name": "c"}})]);
    node.objects.set(config("small"));
    node.ready(&pod).await;
    let place = node.place(&pod).await;
    let read = || fs::read_to_string(place.join("key")).unwrap();
    for _ in 0..2 {
        node.objects.set(config(&"x".repeat(400_000)));
        node.woken(&pod).await;
        // It goes on with what it has.
        node.ready(&pod).await;
        let told = node.messages("FailedMount");
        let text = told.last().unwrap();
        assert!(
            text.contains(place.to_str().unwrap()) && text.contains("/key") && text.contains("No space left"),
            "{text}"
        );
        assert_eq!((read().as_str(), made(&place)), ("small", 1));
        node.objects.set(config("other"));
        node.woken(&pod).await;
        node.ready(&pod).await;
        assert_eq!((read().as_str(), made(&place)), ("other", 1));
        node.objects.set(config("small"));
        node.woken(&pod).await;
        node.ready(&pod).await;
        assert_eq!((read().as_str(), made(&place)), ("small", 1));
    }
    // Also of a new pod, whose volume is not there at all then.
    node.objects.set(config(&"x".repeat(400_000)));
    let second = crate::harness::pod("b", &[json!({"configMap": {"name": "c"}})]);
    let text = node.waits(&second).await;
    assert!(text.contains("No space left") && text.contains("uid-of-b"), "{text}");
    node.volumes
        .unmount(second.uid(), &CancellationToken::new())
        .await
        .unwrap();
    node.nothing_is_left("uid-of-b");
    node.gone(&pod).await;
}
