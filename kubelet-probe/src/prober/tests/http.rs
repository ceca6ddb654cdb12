use kubelet_core::{HttpProbe, ProbeAction, ProbeOutcome};

use super::{LONG, nowhere, run, why};
use crate::server::{CERTIFICATE_V1, Server, Then, ok, tls};

fn probe(port: u16, path: &str) -> HttpProbe {
    HttpProbe::new("127.0.0.1", port, path)
}

async fn get(probe: HttpProbe) -> ProbeOutcome {
    run(ProbeAction::HttpGet(probe), LONG).await
}

/// The head of the request that a probe sends: its server answers with a redirect elsewhere, of which the body is told.
async fn head_of(change: impl FnOnce(&mut HttpProbe)) -> String {
    let server = Server::start(|head| {
        let answer = format!("HTTP/1.1 300 Look\r\nContent-Length: {}\r\n\r\n{head}", head.len());
        (answer.into_bytes(), Then::Close)
    })
    .await;
    let mut probe = probe(server.port, "/healthz?full=1");
    change(&mut probe);
    match get(probe).await {
        ProbeOutcome::Success { warning: Some(text) } => {
            let head = text.strip_prefix("Probe terminated redirects, Response body: ");
            let head = head.unwrap_or_else(|| panic!("{text}"));
            head.replace(&server.port.to_string(), "PORT")
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_probe_says_who_asks_and_no_more() {
    let head = head_of(|_| {}).await;
    let lines: Vec<&str> = head.trim_end().split("\r\n").collect();
    let wanted = [
        "GET /healthz?full=1 HTTP/1.1",
        "User-Agent: kube-probe/1.36",
        "Accept: */*",
        "Host: 127.0.0.1:PORT",
        "Connection: close",
    ];
    assert_eq!(lines, wanted);
}

#[tokio::test]
async fn headers_and_path_are_the_pods() {
    let head = head_of(|probe| {
        probe.path = "a b".to_owned();
        probe.headers = [("Host", "pod.example"), ("X-Token", "a"), ("Accept", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
    })
    .await;
    assert!(
        head.starts_with("GET /a%20b HTTP/1.1\r\nHost: pod.example\r\n"),
        "{head}"
    );
    assert!(
        head.contains("\r\nX-Token: a\r\n") && !head.contains("Accept"),
        "{head}"
    );
}

#[tokio::test]
async fn statuses_are_what_counts() {
    for (status, fails) in [
        (200, false),
        (204, false),
        (299, false),
        (400, true),
        (404, true),
        (500, true),
        (599, true),
    ] {
        let server = Server::start(move |_| {
            (
                format!("HTTP/1.1 {status} Status\r\nContent-Length: 0\r\n\r\n").into_bytes(),
                Then::Close,
            )
        })
        .await;
        let outcome = get(probe(server.port, "/")).await;
        if fails {
            assert_eq!(why(outcome), format!("HTTP probe failed with statuscode: {status}"));
        } else {
            assert_eq!(outcome, ProbeOutcome::success());
        }
    }
}

#[tokio::test]
async fn redirects_stay_at_the_host() {
    let server = Server::start(|head| {
        let path = head.split(' ').nth(1).unwrap();
        let to = match path.strip_prefix("/left/").map(|left| left.parse::<u32>().unwrap()) {
            Some(0) => return (ok("arrived"), Then::Close),
            Some(left) => format!("/left/{}", left - 1),
            None => "http://elsewhere.example/".to_owned(),
        };
        let body = "gone";
        let length = body.len();
        let answer = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: {length}\r\n\r\n{body}");
        (answer.into_bytes(), Then::Close)
    })
    .await;
    assert_eq!(get(probe(server.port, "/left/10")).await, ProbeOutcome::success());
    assert_eq!(
        why(get(probe(server.port, "/left/11")).await),
        "stopped after 10 redirects"
    );
    let warning = Some("Probe terminated redirects, Response body: gone".to_owned());
    assert_eq!(
        get(probe(server.port, "/away")).await,
        ProbeOutcome::Success { warning }
    );
}

#[tokio::test]
async fn a_long_body_is_cut_and_no_fault() {
    for status in [200, 302] {
        let start = format!("HTTP/1.1 {status} Status\r\n\r\n");
        let server = Server::start(move |_| (start.clone().into_bytes(), Then::Flood(vec![b'x'; 4096]))).await;
        match get(probe(server.port, "/")).await {
            ProbeOutcome::Success { warning: None } => assert_eq!(status, 200),
            ProbeOutcome::Success { warning: Some(text) } => {
                assert_eq!(text.matches('x').count(), 10 << 10);
                assert_eq!(status, 302);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn any_certificate_will_do() {
    let server = Server::with_tls(Some(tls(CERTIFICATE_V1)), |_| (ok("safe"), Then::Close)).await;
    let mut over_tls = probe(server.port, "/");
    over_tls.tls = true;
    assert_eq!(get(over_tls).await, ProbeOutcome::success());
    // In clear text there it is no HTTP that comes back.
    let why = why(get(probe(server.port, "/")).await);
    assert!(why.starts_with("request to http://127.0.0.1:"), "{why}");
}

#[tokio::test]
async fn a_connection_that_is_refused_fails() {
    let why = why(get(probe(nowhere().await, "/")).await);
    assert!(why.contains("refused"), "{why}");
}

#[tokio::test]
async fn headers_that_cannot_be_sent_are_unknown() {
    for (name, value) in [("a b", "c"), ("X-A", "a\r\nX-B: b"), ("X-A", "a\n")] {
        let mut probe = probe(nowhere().await, "/");
        probe.headers = vec![(name.to_owned(), value.to_owned())];
        let outcome = get(probe).await;
        assert!(matches!(outcome, ProbeOutcome::Unknown(_)), "{name:?}: {outcome:?}");
    }
}
