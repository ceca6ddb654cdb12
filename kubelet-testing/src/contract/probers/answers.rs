//! Promises about what an answer means.

use kubelet_core::{ProbeAction, ProbeOutcome, Prober};
use tokio::io::AsyncReadExt;

use super::health::{self, Health};
use super::{ProberFixture, all_kinds, grpc, http, run, tcp};
use crate::contract::server::{Answer, Server, listen};

/// A refused connection, and one that breaks, is `Failure`.
///
/// # Panics
/// If the promise is broken.
pub async fn what_breaks_is_failure(prober: &dyn Prober, fixture: &ProberFixture) {
    let (listener, port) = listen().await;
    drop(listener);
    for action in all_kinds(port) {
        let outcome = run(prober, fixture, action.clone()).await;
        let fails = matches!(outcome, ProbeOutcome::Failure(_));
        assert!(fails, "a port where nobody listens gives {outcome:?} to {action:?}");
    }
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
    let cases = [
        ("closes at once", Answer::close("")),
        ("resets at once", Answer::reset("")),
        ("closes in its head", Answer::close("HTTP/1.1 200 OK\r\nContent-")),
        ("closes in its body", Answer::close(half)),
        ("resets in its body", Answer::reset(half)),
        (
            "speaks another protocol",
            Answer::close("SSH-2.0-nothing for you\r\n\r\n"),
        ),
        ("has no status", Answer::close("HTTP/1.1 OK\r\n\r\n")),
    ];
    for (what, answer) in cases {
        let server = Server::always(answer).await;
        let outcome = run(prober, fixture, http(server.port(), "/")).await;
        let fails = matches!(outcome, ProbeOutcome::Failure(_));
        assert!(fails, "a server that {what} gives {outcome:?}");
    }
    for (what, says) in [
        ("closes at once", ""),
        (
            "speaks HTTP/1.1",
            "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        ),
        ("speaks another protocol", "SSH-2.0-nothing for you\r\n"),
    ] {
        let server = Server::talk(move |mut stream, open| async move {
            // It has arrived before this side ends.
            stream.read_u8().await?;
            open.write(&mut stream, says.as_bytes()).await
        })
        .await;
        let outcome = run(prober, fixture, grpc(server.port(), "")).await;
        let fails = matches!(outcome, ProbeOutcome::Failure(_));
        assert!(fails, "a server that {what} gives {outcome:?} to gRPC");
    }
}

/// Certificates are not verified.
///
/// # Panics
/// If the promise is broken.
pub async fn certificates_are_not_verified(prober: &dyn Prober, fixture: &ProberFixture) {
    let lacks = "the fixture has no server of TLS";
    let Some(start) = fixture.tls.or_skip("certificates_are_not_verified", lacks) else {
        return;
    };
    let server = Server::always(Answer::whole(200, "safe")).await;
    let ProbeAction::HttpGet(mut probe) = http(start(server.port()).await, "/") else {
        return;
    };
    probe.tls = true;
    let outcome = run(prober, fixture, ProbeAction::HttpGet(probe)).await;
    let succeeds = matches!(outcome, ProbeOutcome::Success { .. });
    assert!(succeeds, "a certificate that nobody knows gives {outcome:?}");
    assert_eq!(server.heads().len(), 1, "requests over TLS");
}

/// HTTP: a status of 200 to 399 is `Success`, from 300 on with a warning; any other is `Failure`.
///
/// # Panics
/// If the promise is broken.
pub async fn http_statuses_are_what_counts(prober: &dyn Prober, fixture: &ProberFixture) {
    for status in [200, 201, 204, 299, 300, 304, 399, 400, 401, 404, 429, 500, 503, 599] {
        let answer = match status {
            204 | 304 => Answer::hang(format!("HTTP/1.1 {status} Status\r\n\r\n")),
            _ => Answer::whole(status, "why"),
        };
        let server = Server::always(answer).await;
        let outcome = run(prober, fixture, http(server.port(), "/")).await;
        let right = match status {
            200..=299 => outcome == ProbeOutcome::success(),
            300..=399 => matches!(outcome, ProbeOutcome::Success { warning: Some(_) }),
            _ => matches!(outcome, ProbeOutcome::Failure(_)),
        };
        assert!(right, "status {status} gives {outcome:?}");
    }
}

/// HTTP: up to 10 redirects to the same host name are followed, and one more is `Failure`; one to another host name is the answer.
///
/// # Panics
/// If the promise is broken.
pub async fn http_redirects_are_followed_at_the_same_host(prober: &dyn Prober, fixture: &ProberFixture) {
    let server = Server::start(|head| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let port = head
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next());
        let port = port.unwrap_or("1");
        match path.strip_prefix("/left/").and_then(|left| left.parse::<u32>().ok()) {
            Some(0) => Answer::whole(200, "arrived"),
            // Some by path, some by URL.
            Some(left) if left % 2 == 0 => Answer::redirect(&format!("{}", left - 1)),
            Some(left) => Answer::redirect(&format!("http://127.0.0.1:{port}/left/{}", left - 1)),
            None if path == "/away" => Answer::redirect(&format!("http://localhost:{port}/left/0")),
            None => Answer::whole(500, "lost"),
        }
    })
    .await;
    for (path, requests) in [("/left/1", 2), ("/left/10", 11), ("/left/11", 11), ("/away", 1)] {
        let before = server.heads().len();
        let outcome = run(prober, fixture, http(server.port(), path)).await;
        let right = match path {
            "/left/11" => matches!(outcome, ProbeOutcome::Failure(_)),
            "/away" => matches!(outcome, ProbeOutcome::Success { warning: Some(_) }),
            _ => outcome == ProbeOutcome::success(),
        };
        assert!(right, "redirects from {path} give {outcome:?}");
        assert_eq!(server.heads().len() - before, requests, "requests for {path}");
    }
}

/// TCP: a connection is `Success`, and nothing is sent.
///
/// # Panics
/// If the promise is broken.
pub async fn a_tcp_connection_is_success(prober: &dyn Prober, fixture: &ProberFixture) {
    let server = Server::talk(|mut stream, open| async move {
        let mut all = Vec::new();
        let end = stream.read_to_end(&mut all).await;
        open.asked(format!(
            "{all:?}, {}",
            if end.is_ok() { "then closed" } else { "then reset" }
        ));
        Ok(())
    })
    .await;
    let outcome = run(prober, fixture, tcp(server.port())).await;
    assert_eq!(outcome, ProbeOutcome::success(), "a connection");
    server.is_asked(fixture.patience).await;
    assert_eq!(server.heads(), ["[], then closed"], "what came over it");
}

/// gRPC: the target's service is asked after, and only `SERVING` is `Success`.
///
/// # Panics
/// If the promise is broken.
pub async fn only_serving_is_success(prober: &dyn Prober, fixture: &ProberFixture) {
    let server = health::serve(|service| match service {
        "" => Health::Status(1, Some(0)),
        "unknown" => Health::Status(0, Some(0)),
        "up" => Health::Status(1, Some(0)),
        "down" => Health::Status(2, Some(0)),
        "service unknown" => Health::Status(3, Some(0)),
        "new" => Health::Status(77, Some(0)),
        "up, but broken" => Health::Status(1, Some(13)),
        "up, without an end" => Health::Status(1, None),
        "late" => Health::Error(4),
        "not found" => Health::Error(5),
        _ => Health::Error(12),
    })
    .await;
    let services = [
        "",
        "unknown",
        "up",
        "down",
        "service unknown",
        "new",
        "up, but broken",
        "up, without an end",
        "late",
        "not found",
        "unimplemented",
    ];
    for service in services {
        let outcome = run(prober, fixture, grpc(server.port(), service)).await;
        let right = match service {
            "" | "up" => outcome == ProbeOutcome::success(),
            _ => matches!(outcome, ProbeOutcome::Failure(_)),
        };
        assert!(right, "service {service:?} gives {outcome:?}");
    }
    assert_eq!(server.heads(), services, "the services that were asked after");
}
