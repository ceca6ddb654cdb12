//! Lifecycle hooks of real containers.

use std::sync::{Arc, Mutex};

use kubelet_probe::HyperClient;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::node::{Node, container, is_running, on_both, pod, sh, with};

on_both!(hooks_run_and_cost_no_more_than_their_grace);

/// Answers every request with an error, and keeps its head.
async fn listen(tasks: &mut JoinSet<()>) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = heads.clone();
    tasks.spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let length = connection.read(&mut head).await.unwrap();
            kept.lock()
                .unwrap()
                .push(String::from_utf8_lossy(&head[..length]).into_owned());
            let answer = b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            connection.write_all(answer).await.unwrap();
        }
    });
    (port, heads)
}

async fn hooks_run_and_cost_no_more_than_their_grace(node: Node) {
    let mut tasks = JoinSet::new();
    let (port, heads) = listen(&mut tasks).await;
    let agent = node.start_with(|builder| builder.http_client(HyperClient::new())).await;
    let forever = "trap 'exit 0' TERM; while :; do sleep 0.2; done";
    let hooked = |hooks| json!({"terminationGracePeriodSeconds": 4, "containers": [with(sh("app", forever), &json!({"lifecycle": hooks}))]});
    let get = |path: &str| {
        json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": path,
            "httpHeaders": [{"name": "X-From", "value": "pod"}]}})
    };
    let pods = vec![
        pod(
            "http",
            hooked(json!({"postStart": get("/began?a=b"), "preStop": get("/ending")})),
        ),
        pod(
            "failing",
            hooked(json!({"postStart": {"exec": {"command": ["/bin/false"]}}})),
        ),
        pod(
            "hanging",
            hooked(json!({"preStop": {"exec": {"command": ["sleep", "4721"]}}})),
        ),
        pod("sleeping", hooked(json!({"preStop": {"sleep": {"seconds": 1}}}))),
    ];
    agent.pods.set(pods).await.unwrap();
    agent
        .until("the others run", |all| {
            ["http", "hanging", "sleeping"]
                .iter()
                .all(|name| is_running(all, name, "app"))
        })
        .await;
    agent
        .until("failing is tried again", |all| {
            container(all, "failing", "app").is_some_and(|c| c.restart_count > 0)
        })
        .await;
    assert!(node.count("FailedPostStartHook") > 0);
    // Any answer is good enough.
    assert_eq!(container(&agent.statuses(), "http", "app").unwrap().restart_count, 0);

    agent.stop_with_pods(&node).await;
    let heads = heads.lock().unwrap().clone();
    assert_eq!(heads.len(), 2, "{heads:?}");
    for (head, line) in heads.iter().zip(["GET /began?a=b HTTP/1.1", "GET /ending HTTP/1.1"]) {
        let head = head.to_lowercase();
        assert!(head.starts_with(&line.to_lowercase()), "{head}");
        assert!(
            head.contains("user-agent: kube-lifecycle/") && head.contains("x-from: pod"),
            "{head}"
        );
    }
    // Of the one that hangs, which had all its grace; the others said nothing of theirs.
    assert_eq!(node.count("FailedPreStopHook"), 1);
    tasks.shutdown().await;
    node.containerd.stop().await.unwrap();
}
