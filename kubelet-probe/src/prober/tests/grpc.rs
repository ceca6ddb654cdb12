use std::sync::{Arc, Mutex};

use kubelet_core::{GrpcProbe, ProbeAction, ProbeOutcome};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::{LONG, nowhere, run, why};

async fn check(port: u16, service: &str) -> ProbeOutcome {
    run(ProbeAction::Grpc(GrpcProbe::new("127.0.0.1", port, service)), LONG).await
}

/// Serves until it is dropped.
async fn serve(routes: Routes) -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let server = Server::builder().add_routes(routes);
        server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
    });
    (port, tasks)
}

#[tokio::test]
async fn only_serving_is_success() {
    let reporter = HealthReporter::new();
    reporter.set_service_status("up", ServingStatus::Serving).await;
    reporter.set_service_status("down", ServingStatus::NotServing).await;
    reporter.set_service_status("odd", ServingStatus::Unknown).await;
    let health = HealthServer::new(HealthService::from_health_reporter(reporter));
    let (port, _tasks) = serve(Routes::new(health)).await;
    assert_eq!(check(port, "").await, ProbeOutcome::success());
    assert_eq!(check(port, "up").await, ProbeOutcome::success());
    let unhealthy = |said| format!("service unhealthy (responded with \"{said}\")");
    assert_eq!(why(check(port, "down").await), unhealthy("NOT_SERVING"));
    assert_eq!(why(check(port, "odd").await), unhealthy("UNKNOWN"));
    let why = why(check(port, "none").await);
    assert!(
        why.starts_with("error: health rpc probe failed: rpc error: code = NotFound desc = "),
        "{why}"
    );
}

#[tokio::test]
async fn a_server_is_told_who_asks_and_how_much_time_there_is() {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let tell = told.clone();
    let note = move |request: tonic::Request<()>| {
        for name in ["user-agent", "grpc-timeout"] {
            let value = request.metadata().get(name).unwrap().to_str().unwrap().to_owned();
            tell.lock().unwrap().push(value);
        }
        Ok(request)
    };
    let health = HealthService::from_health_reporter(HealthReporter::new());
    let (port, _tasks) = serve(Routes::new(HealthServer::with_interceptor(health, note))).await;
    assert_eq!(check(port, "").await, ProbeOutcome::success());
    assert_eq!(*told.lock().unwrap(), ["kube-probe/1.36", "60000000u"]);
}

#[tokio::test]
async fn a_server_without_health_says_so() {
    let (port, _tasks) = serve(Routes::default()).await;
    let why = why(check(port, "").await);
    let start = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): ";
    assert!(why.starts_with(start), "{why}");
}

#[tokio::test]
async fn a_server_that_runs_out_of_time_first_is_late_too() {
    let late = |_: tonic::Request<()>| Err(tonic::Status::deadline_exceeded("mine"));
    let health = HealthService::from_health_reporter(HealthReporter::new());
    let (port, _tasks) = serve(Routes::new(HealthServer::with_interceptor(health, late))).await;
    assert_eq!(
        why(check(port, "").await),
        "timeout: health rpc did not complete within 1m0s"
    );
}

#[tokio::test]
async fn a_connection_that_is_refused_fails_at_once() {
    let port = nowhere().await;
    let why = why(check(port, "").await);
    let start = format!("error: failed to connect service at \"127.0.0.1:{port}\": ");
    assert!(why.starts_with(&start) && why.contains("refused"), "{why}");
}
