//! What is written on sandboxes and containers.

use kubelet_proto::unix::{ConnectSettings, Endpoint, connect_lazy};
use kubelet_testing::BUSYBOX_IMAGE;

use crate::labels;
use crate::node::{Node, container, is_running, on_both};

on_both!(what_is_made_has_the_labels_and_annotations_of_upstream);

async fn what_is_made_has_the_labels_and_annotations_of_upstream(node: Node) {
    let agent = node.start_with(|builder| builder.allocator(labels::allocator())).await;
    agent.pods.set(vec![labels::marked_pod(BUSYBOX_IMAGE)]).await.unwrap();
    agent
        .until("a container is started again", |all| {
            let restarted = container(all, labels::POD, labels::CRASHES).is_some_and(|c| c.restart_count > 0);
            restarted && is_running(all, labels::POD, "app") && is_running(all, labels::POD, "bare")
        })
        .await;
    let socket = Endpoint::new(node.containerd.socket()).unwrap();
    labels::check(connect_lazy(&socket, ConnectSettings::default()), BUSYBOX_IMAGE).await;

    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}
