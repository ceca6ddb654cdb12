//! What is cleared up on a real runtime.

use std::fs;
use std::path::Path;
use std::time::Duration;

use kubelet_core::{
    ContainerConfig, ContainerRuntime, CreateContainer, ImageGcPolicy, ImageRef, ImageService, PodKey, PodUid,
    SandboxConfig, Scope, Settings,
};
use kubelet_testing::{BUSYBOX_IMAGE, OciArchive};
use serde_json::json;

use crate::node::{Node, container, is_running, on_both, pod, sh};

on_both!(images_that_nobody_uses_go_from_a_full_disk a_crash_loop_leaves_one_dead_container_and_an_end_leaves_nothing);

async fn tags(node: &Node) -> Vec<String> {
    let images = node.runtime().await.list().await.unwrap();
    images.into_iter().flat_map(|image| image.tags).collect()
}

async fn images_that_nobody_uses_go_from_a_full_disk(mut node: Node) {
    for name in [
        "registry.example/unused:1",
        "registry.example/named:1",
        "registry.example/others:1",
    ] {
        let image = OciArchive::new(name).file("content", 0o644, name);
        node.containerd.import(&image).await.unwrap();
    }
    // Of somebody else: without our mark.
    let runtime = node.runtime().await;
    let others = SandboxConfig::new(PodUid::from("foreign"), PodKey::new("elsewhere", "foreign"), 0);
    let foreign = runtime.run_sandbox(&others, "").await.unwrap();
    let mut container = ContainerConfig::new("app", 0, ImageRef::new("registry.example/others:1"));
    container.command = vec!["/x".to_owned()];
    let request = CreateContainer::new(&foreign, &others, &container);
    runtime.create_container(request).await.unwrap();
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
    for name in ["registry.example/named:1", "registry.example/others:1"] {
        assert!(left.contains(&name.to_owned()), "{left:?}");
    }
    // The runtime's own image, of which all sandboxes are made, is pinned or used.
    assert!(before.len() - left.len() >= 1);
    assert!(left.iter().any(|tag| tag.contains("pause")), "{before:?} {left:?}");
    agent.stop_with_pods(&node).await;
    runtime.stop_sandbox(&foreign).await.unwrap();
    runtime.remove_sandbox(&foreign).await.unwrap();
    node.containerd.stop().await.unwrap();
}

/// The names in a folder.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

async fn a_crash_loop_leaves_one_dead_container_and_an_end_leaves_nothing(node: Node) {
    let mut settings = Settings::default();
    settings.crash_backoff = (Duration::from_millis(100), Duration::from_millis(100));
    let links = node.path("containers");
    let agent = node
        .start_with(|builder| builder.settings(settings).container_logs_dir(Some(links.clone())))
        .await;
    agent
        .pods
        .set(vec![pod(
            "crash",
            json!({"containers": [sh("app", "echo again; exit 1")]}),
        )])
        .await
        .unwrap();
    agent
        .until("it has crashed some times", |all| {
            container(all, "crash", "app").is_some_and(|app| app.restart_count >= 5)
        })
        .await;
    let runtime = node.runtime().await;
    let containers = runtime.list_containers(Scope::All).await.unwrap();
    // The last one, the next one, and one that is removed with the next step.
    assert!((1..=3).contains(&containers.len()), "{containers:?}");
    assert_eq!(runtime.list_sandboxes(Scope::All).await.unwrap().len(), 1);
    let logs = node.path("logs").join("default_crash_uid-of-crash/app");
    assert!(names(&logs).len() <= 3, "{:?}", names(&logs));
    assert!(names(&links).len() <= 3, "{:?}", names(&links));

    agent.stop_with_pods(&node).await;
    assert_eq!(runtime.list_containers(Scope::All).await.unwrap(), []);
    assert_eq!(runtime.list_sandboxes(Scope::All).await.unwrap(), []);
    for folder in ["logs", "containers", "root/pods"] {
        assert_eq!(names(&node.path(folder)), [] as [&str; 0], "{folder}");
    }
    node.containerd.stop().await.unwrap();
}
