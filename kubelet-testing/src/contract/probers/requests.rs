//! Promises about what is asked, and of whom.

use std::sync::Arc;

use futures::future::join_all;
use kubelet_core::{GrpcProbe, HttpProbe, ProbeAction, ProbeOutcome, Prober, TcpProbe};
use tokio::io::AsyncReadExt;
use tokio::sync::Barrier;

use super::{ProberFixture, http, run};
use crate::contract::server::{Answer, Server, until_left};

/// No proxy is used, whatever the environment says.
///
/// # Panics
/// If the promise is broken.
pub async fn no_proxy_is_used(prober: &dyn Prober, fixture: &ProberFixture) {
    let server = Server::always(Answer::whole(200, "straight")).await;
    let outcome = run(prober, fixture, http(server.port(), "/")).await;
    assert_eq!(outcome, ProbeOutcome::success(), "a run in an environment with a proxy");
    let heads = server.heads();
    assert!(heads[0].starts_with("GET / "), "the request is {:?}", heads[0]);
}

/// HTTP: path and headers are those of the target, but for headers that describe a body; `User-Agent` and `Accept` are filled in
/// where it has none.
///
/// # Panics
/// If the promise is broken.
pub async fn http_requests_are_the_targets(prober: &dyn Prober, fixture: &ProberFixture) {
    let server = Server::always(Answer::whole(200, "")).await;
    let head = async |path: &str, headers: &[(&str, &str)]| {
        let mut probe = HttpProbe::new("127.0.0.1", server.port(), path);
        let owned = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        probe.headers = owned.collect();
        let outcome = run(prober, fixture, ProbeAction::HttpGet(probe)).await;
        assert_eq!(outcome, ProbeOutcome::success(), "a probe of {path:?} with {headers:?}");
        server.heads().pop().unwrap_or_default()
    };
    let of = |head: &str, wanted: &str| -> Vec<String> {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        let named = lines.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        named.map(|(_, value)| value.trim().to_owned()).collect()
    };
    for (path, sent) in [
        ("/a/b?c=d&e=%20f", "/a/b?c=d&e=%20f"),
        ("a", "/a"),
        ("", "/"),
        ("?a", "/?a"),
        ("/a#b", "/a"),
        ("/a b", "/a%20b"),
        ("/a%zz?b", "/a%25zz%3Fb"),
    ] {
        let head = head(path, &[]).await;
        assert!(
            head.starts_with(&format!("GET {sent} HTTP/1.1\r\n")),
            "the request for {path:?} is {head:?}"
        );
        assert_eq!(of(&head, "user-agent").len(), 1, "user agents of {head:?}");
        assert_eq!(of(&head, "accept"), ["*/*"], "what is accepted by {head:?}");
        assert_eq!(
            of(&head, "host"),
            [format!("127.0.0.1:{}", server.port())],
            "the host of {head:?}"
        );
    }
    let given = [
        ("X-One", "first"),
        ("x-one", "second"),
        ("Host", "pod.example"),
        ("User-Agent", "me"),
        ("Accept", "text/plain"),
        ("Content-Length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("Trailer", "X"),
    ];
    let all = head("/", &given).await;
    for (name, values) in [
        ("x-one", &["first", "second"][..]),
        ("host", &["pod.example"]),
        ("user-agent", &["me"]),
        ("accept", &["text/plain"]),
        ("content-length", &[]),
        ("transfer-encoding", &[]),
        ("trailer", &[]),
    ] {
        assert_eq!(of(&all, name), values, "the headers {name} of {all:?}");
    }
    let none = head("/", &[("User-Agent", ""), ("Accept", "")]).await;
    for name in ["user-agent", "accept"] {
        assert_eq!(of(&none, name), [""; 0], "the headers {name} of {none:?}");
    }
}

/// A target that makes no sense is `Unknown`, and nobody is asked.
///
/// # Panics
/// If the promise is broken.
pub async fn nonsense_is_unknown(prober: &dyn Prober, fixture: &ProberFixture) {
    let server = Server::always(Answer::whole(200, "")).await;
    let port = server.port();
    let mut actions = Vec::new();
    for (host, port) in [
        ("", port),
        ("127.0.0.1", 0),
        ("127.0.0.1/", port),
        ("127.0.0.1 127.0.0.1", port),
        ("u@127.0.0.1", port),
        ("127.0.0.1\r\nX: y", port),
    ] {
        actions.push(ProbeAction::HttpGet(HttpProbe::new(host, port, "/")));
        actions.push(ProbeAction::TcpSocket(TcpProbe::new(host, port)));
        actions.push(ProbeAction::Grpc(GrpcProbe::new(host, port, "")));
    }
    for (name, value) in [
        ("a b", "c"),
        ("", "c"),
        ("a\r\nb", "c"),
        ("a", "b\r\nc: d"),
        ("a", "b\n"),
    ] {
        let mut probe = HttpProbe::new("127.0.0.1", port, "/");
        probe.headers = vec![(name.to_owned(), value.to_owned())];
        actions.push(ProbeAction::HttpGet(probe));
    }
    for action in actions {
        let outcome = run(prober, fixture, action.clone()).await;
        let is_unknown = matches!(outcome, ProbeOutcome::Unknown(_));
        assert!(is_unknown, "{action:?} gives {outcome:?}");
    }
    assert_eq!(server.connections(), 0, "connections for nonsense");
}

/// Runs may overlap each other.
///
/// # Panics
/// If the promise is broken.
pub async fn runs_may_overlap_each_other(prober: &dyn Prober, fixture: &ProberFixture) {
    const RUNS: usize = 16;
    // Nobody is answered before all have asked.
    let all = Arc::new(Barrier::new(RUNS));
    let server = Server::talk(move |mut stream, open| {
        let all = all.clone();
        async move {
            stream.read_u8().await?;
            all.wait().await;
            open.write(&mut stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .await?;
            until_left(&mut stream).await
        }
    })
    .await;
    let runs = (0..RUNS).map(|number| run(prober, fixture, http(server.port(), &format!("/{number}"))));
    for outcome in join_all(runs).await {
        assert_eq!(outcome, ProbeOutcome::success(), "one of many runs");
    }
}
