//! The prober against servers that behave and servers that do not.

mod grpc;
mod hostile;
mod http;

use std::time::Duration;

use kubelet_core::{ProbeAction, ProbeOutcome, ProbeTarget, Prober, TcpProbe};
use tokio::net::TcpListener;

use super::{NetworkProber, place};

/// Far more than any run takes that is to end by itself.
const LONG: Duration = Duration::from_secs(60);

async fn run(action: ProbeAction, timeout: Duration) -> ProbeOutcome {
    NetworkProber::new().probe(&ProbeTarget::new(action, timeout)).await
}

/// What is said of a run that fails.
#[track_caller]
fn why(outcome: ProbeOutcome) -> String {
    match outcome {
        ProbeOutcome::Failure(why) => why,
        other => panic!("not a failure: {other:?}"),
    }
}

/// A port at which nobody listens.
async fn nowhere() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn tcp_asks_only_for_a_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let probe = |host: &str| ProbeAction::TcpSocket(TcpProbe::new(host, port));
    assert_eq!(run(probe("127.0.0.1"), LONG).await, ProbeOutcome::success());
    assert_eq!(run(probe("localhost"), LONG).await, ProbeOutcome::success());
    // It is closed, and not reset: whoever reads finds an end.
    let (stream, _) = listener.accept().await.unwrap();
    stream.readable().await.unwrap();
    assert_eq!(stream.try_read(&mut [0; 8]).unwrap(), 0);
    drop(listener);
    let why = why(run(probe("127.0.0.1"), LONG).await);
    assert!(
        why.starts_with(&format!("dial tcp 127.0.0.1:{port}: ")) && why.contains("refused"),
        "{why}"
    );
}

#[tokio::test]
async fn what_can_be_nowhere_is_unknown() {
    for (host, port) in [("", 80), ("a b", 80), ("127.0.0.1", 0), ("[::1]", 80)] {
        for action in [
            ProbeAction::TcpSocket(TcpProbe::new(host, port)),
            ProbeAction::HttpGet(kubelet_core::HttpProbe::new(host, port, "/")),
            ProbeAction::Grpc(kubelet_core::GrpcProbe::new(host, port, "")),
        ] {
            let outcome = run(action, LONG).await;
            assert!(matches!(outcome, ProbeOutcome::Unknown(_)), "{host:?}: {outcome:?}");
        }
    }
}

#[test]
fn places_are_written_as_they_are_read() {
    for (host, text) in [
        ("::1", "[::1]:80"),
        ("10.0.0.7", "10.0.0.7:80"),
        ("a.example", "a.example:80"),
    ] {
        assert_eq!(place(host, 80), text);
    }
}
