//! A whole kubelet on real processes, whose probes really ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kubelet_core::k8s_openapi::api::core::v1::{HTTPGetAction, Probe, TCPSocketAction};
use kubelet_core::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kubelet_core::{CancellationToken, ChannelSource, Containers, Kubelet, NodeFit, OnStop, StatusReader};
use kubelet_pleg::GenericPleg;
use kubelet_probe::NetworkProber;
use kubelet_process::ProcessRuntime;
use kubelet_testing::PodBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::harness::{Mode, Node};

/// Answers requests, well or badly; connections without one are left alone.
async fn serve(listener: TcpListener, is_well: Arc<AtomicBool>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => break,
            }
        }
        let status = if is_well.load(Ordering::SeqCst) { 200 } else { 503 };
        let answer = format!("HTTP/1.1 {status} Status\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

/// Waits until the pod is told to be ready, or not to be.
async fn is_told(statuses: &mut StatusReader, ready: &str) {
    loop {
        let change = statuses.next().await.expect("the kubelet runs");
        let conditions = change.update().status.conditions.clone().unwrap_or_default();
        let mut all = conditions.iter();
        if all.any(|condition| condition.type_ == "Ready" && condition.status == ready) {
            return;
        }
    }
}

#[tokio::test]
async fn a_pod_is_ready_for_as_long_as_it_answers_well() {
    let node = Node::start(Mode::Supervised).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = IntOrString::Int(listener.local_addr().expect("it is bound").port().into());
    let is_well = Arc::new(AtomicBool::new(true));
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, is_well.clone()));

    let mut settings = node.settings();
    settings.node_ip = Some([127, 0, 0, 1].into());
    settings.state_dir = node.dir.path().join("state-of-probes");
    let runtime = ProcessRuntime::open(node.supervisor(), settings)
        .await
        .expect("it opens");
    let (pods, source) = ChannelSource::new("test");
    let kubelet = Kubelet::builder("node", Containers::new(runtime, GenericPleg::default()))
        .source(source)
        .fit(NodeFit::on_shared_network())
        .root_dir(node.dir.path().join("root"))
        .pod_logs_dir(node.dir.path().join("pods"))
        .prober(NetworkProber::new())
        .on_stop(OnStop::StopPods)
        .build()
        .expect("it is whole");
    let mut statuses = kubelet.handle().statuses();
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(kubelet.run(stop.clone()));

    let probe = || Probe {
        period_seconds: Some(1),
        // A machine under load takes its time; that is no fault of the pod.
        timeout_seconds: Some(30),
        failure_threshold: Some(1),
        ..Probe::default()
    };
    let pod = PodBuilder::new("web").uid("u").container("app", |c| {
        c.image("localhost/host")
            .command(["sleep", "1000"])
            .startup(Probe {
                tcp_socket: Some(TCPSocketAction {
                    port: port.clone(),
                    ..TCPSocketAction::default()
                }),
                ..probe()
            })
            .readiness(Probe {
                http_get: Some(HTTPGetAction {
                    path: Some("/ready".to_owned()),
                    port: port.clone(),
                    ..HTTPGetAction::default()
                }),
                ..probe()
            })
    });
    pods.set(vec![pod.build()]).await.expect("the kubelet listens");
    is_told(&mut statuses, "True").await;
    is_well.store(false, Ordering::SeqCst);
    is_told(&mut statuses, "False").await;
    is_well.store(true, Ordering::SeqCst);
    is_told(&mut statuses, "True").await;

    pods.set(Vec::new()).await.expect("the kubelet listens");
    stop.cancel();
    let ended = running.join_next().await.expect("it runs").expect("no panic");
    ended.expect("it ends well");
}
