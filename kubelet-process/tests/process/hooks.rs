//! A whole kubelet on real processes, whose hooks are real HTTP requests.

use std::sync::Arc;

use kubelet_core::k8s_openapi::api::core::v1::{HTTPGetAction, Lifecycle, LifecycleHandler};
use kubelet_core::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kubelet_core::{CancellationToken, ChannelSource, Containers, Event, EventSink, Kubelet, NodeFit, OnStop};
use kubelet_pleg::GenericPleg;
use kubelet_probe::HyperClient;
use kubelet_process::ProcessRuntime;
use kubelet_testing::PodBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::harness::{Mode, Node};

/// The reasons of events.
#[derive(Clone, Debug, Default)]
struct Reasons(Arc<watch::Sender<Vec<String>>>);

impl Reasons {
    fn count(&self, reason: &str) -> usize {
        self.0.borrow().iter().filter(|one| *one == reason).count()
    }

    /// Returns once there is an event of this reason.
    async fn until(&self, reason: &str) {
        let mut told = self.0.subscribe();
        let there = told.wait_for(|all| all.iter().any(|one| one == reason));
        there.await.expect("the sender is here");
    }
}

impl EventSink for Reasons {
    fn record(&self, event: Event) {
        self.0.send_modify(|all| all.push(event.reason.into_owned()));
    }
}

/// What a client says first: the first line of a request, or nothing if it speaks TLS, which is answered as servers of HTTP do.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
        if head[0] == 0x16 {
            stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").await.ok()?;
            stream.shutdown().await.ok()?;
            while stream.read_u8().await.is_ok() {}
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    head.lines().next().map(str::to_owned)
}

/// Tells each request, and answers it with a status that is no success, once it is told to.
async fn serve(listener: TcpListener, told: mpsc::Sender<String>, mut go_on: mpsc::Receiver<()>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        if let Some(line) = request(&mut stream).await {
            let _ = told.send(line).await;
            go_on.recv().await;
            let _ = stream.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n").await;
        }
    }
}

fn hook(port: u16, path: &str, scheme: &str) -> LifecycleHandler {
    LifecycleHandler {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(port.into()),
            scheme: Some(scheme.to_owned()),
            ..HTTPGetAction::default()
        }),
        ..LifecycleHandler::default()
    }
}

#[tokio::test]
async fn hooks_are_requests_to_the_pod_before_and_after_its_work() {
    let node = Node::start(Mode::Supervised).await;
    let (stopping, marker) = (node.pipe("stopping"), node.dir.path().join("marker"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let (told, mut heard) = mpsc::channel(8);
    let (go, go_on) = mpsc::channel(8);
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, told, go_on));

    let mut settings = node.settings();
    settings.node_ip = Some([127, 0, 0, 1].into());
    settings.state_dir = node.dir.path().join("state-of-hooks");
    let runtime = ProcessRuntime::open(node.supervisor(), settings)
        .await
        .expect("it opens");
    let (pods, source) = ChannelSource::new("test");
    let events = Reasons::default();
    let kubelet = Kubelet::builder("node", Containers::new(runtime, GenericPleg::default()))
        .source(source)
        .fit(NodeFit::on_shared_network())
        .root_dir(node.dir.path().join("root"))
        .pod_logs_dir(node.dir.path().join("pods"))
        .events(events.clone())
        .http_client(HyperClient::new())
        .on_stop(OnStop::StopPods)
        .build()
        .expect("it is whole");
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(kubelet.run(stop.clone()));

    let script = "trap 'touch $T/marker; echo > $T/stopping; exit 0' TERM; while :; do sleep 1000 & wait; done";
    let pod = PodBuilder::new("web").uid("u").grace_seconds(60).container("app", |c| {
        c.image("localhost/host")
            .command(["sh", "-c", script])
            .env("T", node.dir.path().display().to_string())
            .with(|c| {
                c.lifecycle = Some(Lifecycle {
                    post_start: Some(hook(port, "/started", "HTTPS")),
                    pre_stop: Some(hook(port, "/stopping?soon", "HTTP")),
                    ..Lifecycle::default()
                });
            })
    });
    pods.set(vec![pod.build()]).await.expect("the kubelet listens");
    assert_eq!(heard.recv().await.as_deref(), Some("GET /started HTTP/1.1"));
    go.send(()).await.expect("it waits");
    // A hook of a pod that is removed before its answer is here is given up.
    events.until("LifecycleHTTPFallback").await;

    pods.set(Vec::new()).await.expect("the kubelet listens");
    assert_eq!(heard.recv().await.as_deref(), Some("GET /stopping?soon HTTP/1.1"));
    assert!(
        !marker.exists(),
        "the container was asked to stop before its hook had an end"
    );
    go.send(()).await.expect("it waits");
    stopping.read().await;
    assert!(marker.exists());

    stop.cancel();
    let ended = running.join_next().await.expect("it runs").expect("no panic");
    ended.expect("it ends well");
    assert_eq!(events.count("LifecycleHTTPFallback"), 1, "{events:?}");
    for failed in ["FailedPostStartHook", "FailedPreStopHook"] {
        assert_eq!(events.count(failed), 0, "{events:?}");
    }
}
