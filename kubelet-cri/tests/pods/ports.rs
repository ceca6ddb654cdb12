//! Ports of the host that lead to containers.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use crate::node::{Node, is_running, on_both, pod, sh, with};

on_both!(a_port_of_the_host_leads_to_its_container_for_as_long_as_that_runs);

async fn a_port_of_the_host_leads_to_its_container_for_as_long_as_that_runs(node: Node) {
    // Free now, and nobody else's soon: the kernel gives them out in turn.
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let serve = "while :; do echo hello | nc -l -p 8080; done";
    let ports = json!({"ports": [{"containerPort": 8080, "hostPort": port}]});
    let agent = node.start().await;
    let served = pod("served", json!({"containers": [with(sh("app", serve), &ports)]}));
    agent.pods.set(vec![served]).await.unwrap();
    agent.until("it runs", |all| is_running(all, "served", "app")).await;
    // An address of the host: the one that it has among the pods.
    let cidr = node.containerd.pod_cidr();
    let network: Ipv4Addr = cidr.split('/').next().unwrap().parse().unwrap();
    let host = Ipv4Addr::from(u32::from(network) + 1);
    let said = async {
        loop {
            // It listens a moment after it has started.
            if let Ok(mut stream) = TcpStream::connect((host, port)).await {
                let mut said = String::new();
                if stream.read_to_string(&mut said).await.is_ok() && !said.is_empty() {
                    return said;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let said = tokio::time::timeout(Duration::from_secs(60), said).await;
    assert_eq!(said.expect("somebody answers"), "hello\n");
    agent.stop_with_pods(&node).await;
    assert!(
        TcpStream::connect((host, port)).await.is_err(),
        "nobody listens any more"
    );
    node.containerd.stop().await.unwrap();
}
