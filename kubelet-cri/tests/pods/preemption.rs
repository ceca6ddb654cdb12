//! Critical pods push others out.

use kubelet_core::{ChannelSource, NodeView, SourceKind};
use serde_json::json;

use crate::node::{Node, is_running, on_both, pod, sh, with};

on_both!(a_static_pod_pushes_a_running_one_out);

async fn a_static_pod_pushes_a_running_one_out(node: Node) {
    let mut view = NodeView::new("node-1");
    for (name, amount) in [("cpu", "1"), ("memory", "1Gi"), ("pods", "10")] {
        view.allocatable.insert(name.to_owned(), amount.parse().unwrap());
    }
    let (manifests, source) = ChannelSource::new("file");
    let agent = node
        .start_with(|builder| builder.node_view(view).source(source.kind(SourceKind::Static)))
        .await;
    let asking = |cpu: &str, script: &str| {
        let resources = json!({"resources": {"requests": {"cpu": cpu}}});
        json!({"containers": [with(sh("app", script), &resources)]})
    };
    manifests.set(Vec::new()).await.unwrap();
    let goes = "trap 'echo asked to end; exit 0' TERM; while :; do sleep 0.1; done";
    let ordinary = vec![
        pod("large", asking("600m", goes)),
        pod("small", asking("100m", "sleep 3600")),
    ];
    agent.pods.set(ordinary).await.unwrap();
    agent
        .until("they run", |all| {
            is_running(all, "large", "app") && is_running(all, "small", "app")
        })
        .await;

    let urgent = pod("urgent", asking("500m", "sleep 3600"));
    manifests.set(vec![urgent]).await.unwrap();
    agent
        .until("it runs", |all| is_running(all, "urgent-node-1", "app"))
        .await;
    let all = agent.statuses();
    let large = &all["large"];
    assert_eq!(large.phase.as_deref(), Some("Failed"));
    assert_eq!(large.reason.as_deref(), Some("Preempting"));
    let message = "Preempted in order to admit critical pod";
    assert_eq!(large.message.as_deref(), Some(message));
    let ended = large.container_statuses.as_ref().unwrap()[0].state.clone().unwrap();
    assert_eq!(ended.terminated.unwrap().exit_code, 0, "it was asked first");
    assert!(is_running(&all, "small", "app"));
    assert_eq!(node.count("Preempting"), 1);
    manifests.set(Vec::new()).await.unwrap();
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}
