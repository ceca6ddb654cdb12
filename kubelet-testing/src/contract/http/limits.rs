//! Promises about what an exchange may cost.

use std::time::Duration;

use kubelet_core::{BoundedRequest, BoundedResponse, HttpClient, HttpError};

use crate::contract::check::within;
use crate::contract::http::HttpFixture;
use crate::contract::server::{Answer, Server};

/// How long requests may take that are to end by their timeout.
const BRIEF: Duration = Duration::from_millis(200);
/// More than lies on its way between server and client, and less than what a client without bounds takes.
const ON_ITS_WAY: u64 = 32 << 20;

pub(super) async fn send(
    client: &dyn HttpClient,
    fixture: &HttpFixture,
    req: BoundedRequest,
) -> Result<BoundedResponse, HttpError> {
    within("the end of an exchange", fixture.patience, client.send(req)).await
}

/// The whole exchange ends within the request's timeout, whatever the server does.
///
/// # Panics
/// If the promise is broken.
pub async fn the_whole_exchange_ends_within_the_timeout(client: &dyn HttpClient, fixture: &HttpFixture) {
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
    let cases = [
        ("says nothing", Answer::hang("")),
        ("stops in its first line", Answer::hang("HTTP/1.1 20")),
        ("stops in its head", Answer::hang("HTTP/1.1 200 OK\r\nContent-Len")),
        ("stops in its body", Answer::hang(half)),
        ("never closes", Answer::hang("HTTP/1.1 200 OK\r\n\r\nwithout a length")),
        (
            "is slow in its head",
            Answer::drip("HTTP/1.1 200 OK\r\nX-Slow: ", "slow"),
        ),
        ("is slow in its body", Answer::drip("HTTP/1.1 200 OK\r\n\r\n", "slow")),
    ];
    for (what, answer) in cases {
        let server = Server::always(answer).await;
        let error = send(client, fixture, server.get("/", BRIEF)).await;
        let timed_out = matches!(error, Err(HttpError::TimedOut { .. }));
        assert!(timed_out, "a server that {what} gives {error:?}");
        server.is_left(fixture.patience).await;
    }
    // Each answer comes in time, all together do not.
    let server = Server::start(|head| {
        let number: u64 = head
            .split(['/', ' '])
            .nth(2)
            .and_then(|word| word.parse().ok())
            .unwrap_or(0);
        Answer::redirect(&format!("/{}", number + 1))
    })
    .await;
    let mut request = server.get("/0", BRIEF);
    request.max_redirects = usize::MAX;
    let error = send(client, fixture, request).await;
    assert!(error.is_err(), "a server that redirects for ever gives {error:?}");
}

/// No more than the body limit is kept in memory, and what is cut is said to be truncated.
///
/// # Panics
/// If the promise is broken.
pub async fn no_more_than_the_body_limit_is_kept(client: &dyn HttpClient, fixture: &HttpFixture) {
    let flood = Server::always(Answer::flood("HTTP/1.1 200 OK\r\n\r\n", vec![b'x'; 4096])).await;
    let long = Server::always(Answer::whole(200, &"y".repeat(10_001))).await;
    for limit in [0, 10, 10_000] {
        for server in [&flood, &long] {
            let mut request = server.get("/", fixture.patience);
            request.body_limit_bytes = limit;
            match send(client, fixture, request).await {
                Ok(answer) => {
                    assert!(
                        answer.body.len() <= limit,
                        "{} bytes of {limit} are kept",
                        answer.body.len()
                    );
                    assert!(answer.truncated, "a body that was cut is not said to be");
                    assert_eq!(answer.body.len(), limit, "bytes that are kept of a body that was cut");
                }
                Err(error) => panic!("a body above its limit gives {error:?}"),
            }
            server.is_left(fixture.patience).await;
        }
    }
    let exact = Server::always(Answer::whole(200, "12345")).await;
    let mut request = exact.get("/", fixture.patience);
    request.body_limit_bytes = 5;
    match send(client, fixture, request).await {
        Ok(answer) => assert_eq!(
            (&answer.body[..], answer.truncated),
            (&b"12345"[..], false),
            "a body of its limit"
        ),
        Err(error) => panic!("a body of its limit gives {error:?}"),
    }
}

/// The head of an answer is bounded too: one without end is an error.
///
/// # Panics
/// If the promise is broken.
pub async fn the_head_is_bounded_too(client: &dyn HttpClient, fixture: &HttpFixture) {
    let floods = [
        (
            "headers",
            Answer::flood("HTTP/1.1 200 OK\r\n", "X-More: and more\r\n".repeat(100)),
        ),
        (
            "one header",
            Answer::flood("HTTP/1.1 200 OK\r\nX-Long: ", vec![b'x'; 4096]),
        ),
        ("its first line", Answer::flood("HTTP/1.1 200 ", vec![b'x'; 4096])),
        (
            "interim answers",
            Answer::flood("", "HTTP/1.1 100 Continue\r\n\r\n".repeat(100)),
        ),
    ];
    for (what, answer) in floods {
        let interim = what == "interim answers";
        let server = Server::always(answer).await;
        let timeout = if interim { BRIEF } else { Duration::from_secs(5) };
        let error = send(client, fixture, server.get("/", timeout)).await;
        assert!(error.is_err(), "{what} without end give {error:?}");
        // Interim answers may be thrown away one by one, so that they cost nothing but time.
        let written = server.written();
        assert!(interim || written < ON_ITS_WAY, "{written} bytes of {what} were taken");
        server.is_left(fixture.patience).await;
    }
}

/// Connections are not kept for later requests.
///
/// # Panics
/// If the promise is broken.
pub async fn connections_are_not_kept(client: &dyn HttpClient, fixture: &HttpFixture) {
    let server = Server::always(Answer::whole(200, "kept alive")).await;
    for number in 1..=3 {
        match send(client, fixture, server.get("/", fixture.patience)).await {
            Ok(answer) => assert_eq!(answer.status, 200),
            Err(error) => panic!("a server that keeps connections open gives {error:?}"),
        }
        server.is_left(fixture.patience).await;
        assert_eq!(server.connections(), number, "connections for {number} requests");
    }
}

/// Dropping the future ends the exchange.
///
/// # Panics
/// If the promise is broken.
pub async fn dropping_the_future_ends_the_exchange(client: &dyn HttpClient, fixture: &HttpFixture) {
    for answer in [
        Answer::hang(""),
        Answer::flood("HTTP/1.1 200 OK\r\n\r\n", vec![b'x'; 4096]),
    ] {
        let server = Server::always(answer).await;
        let mut request = server.get("/", Duration::from_secs(3600));
        request.body_limit_bytes = usize::MAX >> 1;
        tokio::select! {
            biased; // a client that always has something to read would leave no turn for what comes after it
            () = server.is_asked(fixture.patience) => {}
            answer = client.send(request) => panic!("a server that says nothing, or too much, gives {answer:?}"),
        }
        // The future is dropped by now.
        server.is_left(fixture.patience).await;
    }
}
