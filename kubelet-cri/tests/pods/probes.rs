//! Probes of real containers.

use std::net::SocketAddr;

use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_probe::NetworkProber;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tonic_health::ServingStatus;

use crate::node::{Node, container, is_running, on_both, pod, sh, with};

on_both!(probes_decide_on_restarts_and_readiness);

/// A command that is found nowhere else on the machine.
const SLOW: &str = "4719";

/// A gRPC server of this process that serves one thing and not the other.
async fn health_server(tasks: &mut JoinSet<()>) -> SocketAddr {
    let (reporter, service) = tonic_health::server::health_reporter();
    for (name, status) in [("good", ServingStatus::Serving), ("bad", ServingStatus::NotServing)] {
        reporter.set_service_status(name, status).await;
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        // The reporter takes the statuses with it when it goes.
        let _reporter = reporter;
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = tonic::transport::Server::builder().add_service(service);
        server.serve_with_incoming(incoming).await.unwrap();
    });
    address
}

fn is_ready(status: Option<&PodStatus>) -> bool {
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten().filter(|c| c.type_ == "Ready");
    ready.any(|c| c.status == "True")
}

fn exec(words: &[&str], more: &Value) -> Value {
    // Far more than a command takes on a machine with much else to do.
    with(
        json!({"exec": {"command": words}, "periodSeconds": 1, "timeoutSeconds": 60}),
        more,
    )
}

/// How many processes of the slow probe there are.
fn slow_processes() -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let words = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    words
        .filter(|words| words == format!("sleep\0{SLOW}\0").as_bytes())
        .count()
}

async fn probes_decide_on_restarts_and_readiness(node: Node) {
    let mut tasks = JoinSet::new();
    let grpc = health_server(&mut tasks).await;
    let agent = node.start_with(|builder| builder.prober(NetworkProber::new())).await;
    let then_forever = |script: &str| format!("trap 'exit 0' TERM; {script}; while :; do sleep 0.2; done");
    let app = |script: &str, probes: Value| json!({"containers": [with(sh("app", &then_forever(script)), &probes)]});
    let of_host = |service: &str| {
        let probe =
            json!({"grpc": {"port": grpc.port(), "service": service}, "periodSeconds": 1, "timeoutSeconds": 60});
        let spec = app("true", json!({"readinessProbe": probe}));
        with(spec, &json!({"hostNetwork": true}))
    };
    let is_up = exec(&["test", "-f", "/tmp/up"], &json!({"failureThreshold": 100}));
    let sidecar = with(
        sh("side", &then_forever("sleep 3; touch /tmp/up")),
        &json!({"restartPolicy": "Always", "startupProbe": is_up}),
    );
    let pods = vec![
        pod(
            "live",
            app(
                "touch /tmp/alive; sleep 3; rm /tmp/alive",
                json!({"livenessProbe": exec(&["cat", "/tmp/alive"], &json!({"failureThreshold": 2}))}),
            ),
        ),
        pod(
            "gated",
            app(
                "sleep 4; touch /tmp/up",
                json!({
                    "startupProbe": is_up,
                    "livenessProbe": exec(&["test", "-f", "/tmp/up"], &json!({"failureThreshold": 1})),
                }),
            ),
        ),
        pod(
            "http",
            app(
                "mkdir /tmp/www; httpd -p 8080 -h /tmp/www; sleep 3; echo ok > /tmp/www/ready; sleep 4; rm /tmp/www/ready",
                json!({"readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1}}),
            ),
        ),
        pod(
            "tcp",
            app(
                "sleep 1; mkdir /tmp/www; httpd -p 8081 -h /tmp/www",
                json!({
                    "ports": [{"name": "web", "containerPort": 8081}],
                    "readinessProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 1, "timeoutSeconds": 60},
                }),
            ),
        ),
        pod("grpc-good", of_host("good")),
        pod("grpc-bad", of_host("bad")),
        pod(
            "slow",
            app(
                "true",
                json!({"livenessProbe": exec(&["sleep", SLOW], &json!({"failureThreshold": 1000, "timeoutSeconds": 1}))}),
            ),
        ),
        pod(
            "ordered",
            json!({"initContainers": [sidecar], "containers": [sh("app", &then_forever("true"))]}),
        ),
    ];
    agent.pods.set(pods).await.unwrap();

    agent
        .until("http is ready, since the file is there", |all| {
            is_ready(all.get("http"))
        })
        .await;
    agent
        .until("http is not ready, since the file is gone", |all| {
            !is_ready(all.get("http"))
        })
        .await;
    agent
        .until("live is restarted", |all| {
            container(all, "live", "app").is_some_and(|c| c.restart_count > 0)
        })
        .await;
    agent
        .until("those that are well are ready", |all| {
            ["gated", "tcp", "grpc-good", "ordered"]
                .iter()
                .all(|name| is_ready(all.get(*name)))
        })
        .await;
    let all = agent.statuses();
    for name in ["gated", "http", "tcp", "grpc-good", "grpc-bad", "slow", "ordered"] {
        assert_eq!(container(&all, name, "app").unwrap().restart_count, 0, "{name}");
    }
    assert!(is_running(&all, "grpc-bad", "app") && !is_ready(all.get("grpc-bad")));
    let began = |name: &str| {
        let state = container(&all, "ordered", name).unwrap().state.clone().unwrap();
        state.running.unwrap().started_at.unwrap().0
    };
    assert!(
        (began("app") - began("side")).get_seconds() >= 2,
        "the sidecar came up first"
    );

    let told = |reason: &str| -> Vec<String> {
        let events = node.events.0.lock().unwrap();
        let of_reason = events.iter().filter(|event| event.reason == reason);
        of_reason.map(|event| event.message.clone()).collect()
    };
    let kills = told("Killing");
    assert!(
        kills.contains(&"Container app failed liveness probe, will be restarted".to_owned()),
        "{kills:?}"
    );
    let unhealthy = told("Unhealthy");
    for text in [
        "Liveness probe failed: cat: ",
        "Startup probe failed: ",
        "Readiness probe failed: HTTP probe failed with statuscode: 404",
        "NOT_SERVING",
    ] {
        assert!(
            unhealthy.iter().any(|message| message.contains(text)),
            "{text}: {unhealthy:?}"
        );
    }
    let timed_out = format!("Liveness probe failed: command timed out: \"sleep {SLOW}\" timed out after 1s");
    assert!(unhealthy.contains(&timed_out), "{unhealthy:?}");
    // The one that runs, and the one before if the runtime is slow to end it.
    let slow = slow_processes();
    assert!(slow <= 2, "{slow} commands that nobody waits for");

    agent.stop_with_pods(&node).await;
    assert_eq!(slow_processes(), 0);
    tasks.shutdown().await;
    node.containerd.stop().await.unwrap();
}
