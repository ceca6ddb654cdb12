//! What another kubelet made is taken over, and what this one makes looks as if that one had made it.

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_proto::cri::{runtime_client, v1};
use kubelet_testing::Op;
use serde_json::json;

use crate::labels::{self, hash, map};
use crate::node::{Node, first, runs};

fn parse(pod: serde_json::Value) -> Pod {
    serde_json::from_value(pod).unwrap()
}

/// What an API server sends.
fn managed() -> Pod {
    parse(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "0f7ca5a2-0001", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "test_container".replace('_', "-"), "image": "foo/image:v1"}]},
    }))
}

/// A manifest; its UID is fixed by whoever wrote it.
fn fixed() -> Pod {
    parse(json!({
        "metadata": {"name": "etcd", "namespace": "kube-system", "uid": "b2a6a7d3e15f"},
        "spec": {"containers": [{"name": "etcd", "image": "foo/etcd:v1"}]},
    }))
}

/// Makes a pod as another kubelet does, over the wire.
async fn made_by_another(
    node: &Node,
    (name, namespace, uid): (&str, &str, &str),
    source: &str,
    (container, image): (&str, &str),
    restarts: u32,
) -> String {
    let mut client = runtime_client(node.cri.channel());
    let identity = [
        ("io.kubernetes.pod.name", name),
        ("io.kubernetes.pod.namespace", namespace),
        ("io.kubernetes.pod.uid", uid),
    ];
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            attempt: 0,
        }),
        labels: map(identity),
        annotations: map([
            ("kubernetes.io/config.seen", "2026-01-01T00:00:00.000000000Z"),
            ("kubernetes.io/config.source", source),
        ]),
        ..v1::PodSandboxConfig::default()
    };
    let request = v1::RunPodSandboxRequest {
        config: Some(config.clone()),
        ..v1::RunPodSandboxRequest::default()
    };
    let sandbox = client
        .run_pod_sandbox(request)
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id;
    let mut labels = map(identity);
    labels.insert("io.kubernetes.container.name".to_owned(), container.to_owned());
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: sandbox,
        config: Some(v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: container.to_owned(),
                attempt: restarts,
            }),
            image: Some(v1::ImageSpec {
                image: image.to_owned(),
                user_specified_image: image.to_owned(),
                ..v1::ImageSpec::default()
            }),
            labels,
            annotations: map([
                ("io.kubernetes.container.hash", &hash(container, image)),
                ("io.kubernetes.container.restartCount", &restarts.to_string()),
                ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
                ("io.kubernetes.container.terminationMessagePolicy", "File"),
                ("io.kubernetes.pod.terminationGracePeriod", "30"),
            ]),
            ..v1::ContainerConfig::default()
        }),
        sandbox_config: Some(config),
    };
    let container_id = client
        .create_container(request)
        .await
        .unwrap()
        .into_inner()
        .container_id;
    let request = v1::StartContainerRequest {
        container_id: container_id.clone(),
    };
    client.start_container(request).await.unwrap();
    container_id
}

#[tokio::test(start_paused = true)]
async fn containers_that_another_kubelet_made_are_adopted_and_not_made_again() {
    assert_eq!(hash("test_container", "foo/image:v1"), "8e45cbd0");
    let node = Node::new();
    let of_web = ("web", "shop", "0f7ca5a2-0001");
    // A static pod's full name has the node's name in it.
    let of_etcd = ("etcd-node-1", "kube-system", "b2a6a7d3e15f");
    let web = made_by_another(&node, of_web, "api", ("test-container", "foo/image:v1"), 4).await;
    let etcd = made_by_another(&node, of_etcd, "file", ("etcd", "foo/etcd:v1"), 0).await;
    // Another that nobody wants any more goes.
    let old = ("old", "shop", "0f7ca5a2-0002");
    made_by_another(&node, old, "api", ("app", "foo/app:v1"), 0).await;
    node.world().clear_calls();

    let agent = node.start().await;
    agent.pods.set(vec![managed()]).await.unwrap();
    agent.static_pods.set(vec![fixed()]).await.unwrap();
    agent.until_runs("web").await;
    agent.until_runs("etcd-node-1").await;
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    let all = agent.statuses();
    assert!(runs(&all, "web") && runs(&all, "etcd-node-1"));
    assert_eq!(node.world().count(Op::CreateContainer), 0);
    assert_eq!(node.world().count(Op::RunSandbox), 0);
    assert_eq!(first(&all, "web").unwrap().restart_count, 4);
    assert_eq!(
        first(&all, "web").unwrap().container_id.unwrap(),
        format!("fake://{web}")
    );
    assert_eq!(
        first(&all, "etcd-node-1").unwrap().container_id.unwrap(),
        format!("fake://{etcd}")
    );
    assert_eq!(node.running().into_values().collect::<Vec<_>>(), [etcd, web]);
}

#[tokio::test(start_paused = true)]
async fn what_is_made_has_the_labels_and_annotations_of_upstream() {
    let image = "foo/image:v1";
    let node = Node::new();
    let agent = node.start_with(|builder| builder.allocator(labels::allocator())).await;
    agent.static_pods.set(Vec::new()).await.unwrap();
    agent.pods.set(vec![labels::marked_pod(image)]).await.unwrap();
    agent
        .until("a container is started again", |all| {
            let containers = all.get(labels::POD).and_then(|pod| pod.container_statuses.as_ref());
            containers.is_some_and(|all| all.iter().any(|c| c.name == labels::CRASHES && c.restart_count > 0))
        })
        .await;
    labels::check(node.cri.channel(), image).await;
}
