//! Promises about what a run may cost.

use std::time::Duration;

use kubelet_core::{ProbeAction, ProbeOutcome, ProbeTarget, Prober};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::health::{self, Health, frame};
use super::{ProberFixture, grpc, http, run, run_within, tcp};
use crate::contract::server::{Answer, Server, until_left};

/// How long runs may take that are to end by their timeout.
const BRIEF: Duration = Duration::from_millis(200);
/// More than lies on its way between server and client, and less than what a client without bounds takes.
const ON_ITS_WAY: u64 = 32 << 20;
/// What may be told of a body, with some words around it.
const TOLD: usize = (10 << 10) + 200;

/// A run that takes longer than its target's timeout is `Failure` then, whatever the other side does.
///
/// # Panics
/// If the promise is broken.
pub async fn what_takes_longer_is_failure(prober: &dyn Prober, fixture: &ProberFixture) {
    let fails = async |what: &str, action: ProbeAction| {
        let outcome = run_within(prober, fixture, action, BRIEF).await;
        assert!(
            matches!(outcome, ProbeOutcome::Failure(_)),
            "a server that {what} gives {outcome:?}"
        );
    };
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
    let cases = [
        ("says nothing", Answer::hang("")),
        ("stops in its head", Answer::hang("HTTP/1.1 200 OK\r\nContent-Len")),
        ("stops in its body", Answer::hang(half)),
        (
            "is slow in its head",
            Answer::drip("HTTP/1.1 200 OK\r\nX-Slow: ", "slow"),
        ),
        ("is slow in its body", Answer::drip("HTTP/1.1 200 OK\r\n\r\n", "slow")),
    ];
    for (what, answer) in cases {
        let server = Server::always(answer).await;
        fails(what, http(server.port(), "/")).await;
        server.is_left(fixture.patience).await;
    }
    // Each answer comes in time, all together do not.
    let slow = Server::talk(|mut stream, open| async move {
        stream.read_u8().await?;
        tokio::time::sleep(BRIEF / 4).await;
        let redirect = b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n";
        open.write(&mut stream, redirect).await?;
        until_left(&mut stream).await
    })
    .await;
    fails("redirects slowly", http(slow.port(), "/")).await;
    assert!(
        slow.connections() < 11,
        "all redirects of a server that redirects slowly were followed"
    );
    for (what, start) in [
        ("says nothing to gRPC", Vec::new()),
        ("stops after its settings", frame(4, 0, 0, &[])),
    ] {
        let server = hanging(start).await;
        fails(what, grpc(server.port(), "")).await;
        server.is_left(fixture.patience).await;
    }
    if let Some(full) = full_queue().await {
        fails("takes no connection", tcp(full.port)).await;
    }
}

/// An answer costs bounded memory, however long it is, and no more than 10 KiB of its body are told.
///
/// # Panics
/// If the promise is broken.
pub async fn an_answer_costs_bounded_memory(prober: &dyn Prober, fixture: &ProberFixture) {
    let bounded = async |what: &str, server: &Server| {
        server.is_left(fixture.patience).await;
        let written = server.written();
        assert!(written < ON_ITS_WAY, "{written} bytes of {what} were taken");
    };
    for status in [200, 302, 500] {
        let start = format!("HTTP/1.1 {status} Status\r\n\r\n");
        let server = Server::always(Answer::flood(start, vec![b'x'; 4096])).await;
        let outcome = run(prober, fixture, http(server.port(), "/")).await;
        let (right, told) = match &outcome {
            ProbeOutcome::Success { warning: None } => (status == 200, 0),
            ProbeOutcome::Success { warning: Some(text) } => (status == 302, text.len()),
            ProbeOutcome::Failure(text) => (status == 500, text.len()),
            _ => (false, 0),
        };
        assert!(told <= TOLD, "{told} bytes are told of a body without end");
        assert!(right, "status {status} with a body without end gives {outcome:?}");
        bounded("a body", &server).await;
    }
    let floods = [
        (
            "headers",
            Answer::flood("HTTP/1.1 200 OK\r\n", "X-More: and more\r\n".repeat(100)),
        ),
        (
            "one header",
            Answer::flood("HTTP/1.1 200 OK\r\nX-Long: ", vec![b'x'; 4096]),
        ),
        ("a first line", Answer::flood("HTTP/1.1 200 ", vec![b'x'; 4096])),
    ];
    for (what, answer) in floods {
        let server = Server::always(answer).await;
        let outcome = run_within(prober, fixture, http(server.port(), "/"), Duration::from_secs(5)).await;
        assert!(
            matches!(outcome, ProbeOutcome::Failure(_)),
            "{what} without end give {outcome:?}"
        );
        bounded(what, &server).await;
    }
    let server = health::serve(|_| Health::Flood(u32::MAX, vec![0; 4096])).await;
    let outcome = run_within(prober, fixture, grpc(server.port(), ""), Duration::from_secs(5)).await;
    assert!(
        matches!(outcome, ProbeOutcome::Failure(_)),
        "a message without end gives {outcome:?}"
    );
    bounded("a message", &server).await;
}

/// Each run has connections of its own, closed at its end.
///
/// # Panics
/// If the promise is broken.
pub async fn connections_end_with_their_run(prober: &dyn Prober, fixture: &ProberFixture) {
    let kept_alive = Server::always(Answer::whole(200, "kept alive")).await;
    let up = health::serve(|_| Health::Status(1, Some(0))).await;
    let silent = hanging(Vec::new()).await;
    for (server, action) in [
        (&kept_alive, http(kept_alive.port(), "/")),
        (&up, grpc(up.port(), "")),
        (&silent, tcp(silent.port())),
    ] {
        for number in 1..=3 {
            let outcome = run(prober, fixture, action.clone()).await;
            assert_eq!(outcome, ProbeOutcome::success(), "a server that keeps connections open");
            // It may be accepted only after the run.
            server.is_connected(number, fixture.patience).await;
            server.is_left(fixture.patience).await;
            assert_eq!(server.connections(), number, "connections for {number} runs");
        }
    }
}

/// Dropping the future ends the run.
///
/// # Panics
/// If the promise is broken.
pub async fn dropping_the_future_ends_the_run(prober: &dyn Prober, fixture: &ProberFixture) {
    let hour = Duration::from_secs(3600);
    let hangs = Server::always(Answer::hang("")).await;
    let settings = hanging(frame(4, 0, 0, &[])).await;
    for (server, action) in [
        (&hangs, http(hangs.port(), "/")),
        (&settings, grpc(settings.port(), "")),
    ] {
        let target = ProbeTarget::new(action, hour);
        tokio::select! {
            biased;
            () = server.is_asked(fixture.patience) => {}
            outcome = prober.probe(&target) => panic!("a server that says nothing gives {outcome:?}"),
        }
        // The future is dropped by now.
        server.is_left(fixture.patience).await;
    }
}

/// A server that says this to who has asked something, and no more.
async fn hanging(start: Vec<u8>) -> Server {
    Server::talk(move |mut stream, open| {
        let start = start.clone();
        async move {
            stream.read_u8().await?;
            open.asked(String::new());
            open.write(&mut stream, &start).await?;
            until_left(&mut stream).await
        }
    })
    .await
}

/// A port at which connections are neither taken nor refused, for as long as this lives.
struct FullQueue {
    port: u16,
    _listener: tokio::net::TcpListener,
    _waiting: Vec<TcpStream>,
}

/// Nothing where the machine has no such thing.
async fn full_queue() -> Option<FullQueue> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind(([127, 0, 0, 1], 0).into()).ok()?;
    let listener = socket.listen(1).ok()?;
    let port = listener.local_addr().ok()?.port();
    let mut waiting = Vec::new();
    for _ in 0..16 {
        match timeout(BRIEF, TcpStream::connect(("127.0.0.1", port))).await {
            Ok(Ok(stream)) => waiting.push(stream),
            Ok(Err(_)) => return None,
            Err(_) => {
                return Some(FullQueue {
                    port,
                    _listener: listener,
                    _waiting: waiting,
                });
            }
        }
    }
    None
}
