//! Promises about what is sent, and what counts as an answer.

use futures::future::join_all;
use kubelet_core::{BoundedRequest, HttpClient, HttpError};

use crate::contract::http::HttpFixture;
use crate::contract::http::limits::send;
use crate::contract::server::{Answer, Server, listen};

/// A request is sent as it is asked for; header names of its answer are in lower case.
///
/// # Panics
/// If the promise is broken.
pub async fn a_request_is_sent_as_it_is_asked_for(client: &dyn HttpClient, fixture: &HttpFixture) {
    let server = Server::start(|head| Answer::whole(200, head)).await;
    let mut request = server.get("/a/b?c=d&e=%20f", fixture.patience);
    request.method = "DELETE".to_owned();
    let headers = [("X-One", "first"), ("x-one", "second"), ("X-Two", "a b, c")];
    request.headers = headers
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    let answer = match send(client, fixture, request).await {
        Ok(answer) => answer,
        Err(error) => panic!("a request gives {error:?}"),
    };
    let head = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(
        head.starts_with("DELETE /a/b?c=d&e=%20f HTTP/1.1\r\n"),
        "the request is {head:?}"
    );
    let of = |wanted: &str| -> Vec<_> {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        let named = lines.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        named.map(|(_, value)| value.trim().to_owned()).collect()
    };
    assert_eq!(of("x-one"), ["first", "second"], "a header that repeats");
    assert_eq!(of("x-two"), ["a b, c"], "another header");
    assert_eq!(of("host"), [format!("127.0.0.1:{}", server.port())], "the header Host");
    let told = answer
        .headers
        .iter()
        .any(|(name, value)| name == "x-answer" && value == "Yes");
    assert!(told, "the headers of an answer are {:?}", answer.headers);
    let mut named = server.get("/", fixture.patience);
    named.headers = vec![("Host".to_owned(), "pod.example".to_owned())];
    match send(client, fixture, named).await {
        Ok(answer) => {
            let head = String::from_utf8_lossy(&answer.body).to_ascii_lowercase();
            let hosts: Vec<_> = head.lines().filter(|line| line.starts_with("host:")).collect();
            assert_eq!(hosts, ["host: pod.example"], "a header Host that was asked for");
        }
        Err(error) => panic!("a request with a header Host gives {error:?}"),
    }
}

/// Requests may overlap each other.
///
/// # Panics
/// If the promise is broken.
pub async fn requests_may_overlap_each_other(client: &dyn HttpClient, fixture: &HttpFixture) {
    let server = Server::start(|head| Answer::whole(200, head)).await;
    let requests = (0..16).map(|number| {
        let path = format!("/number/{number}");
        let request = server.get(&path, fixture.patience);
        async move {
            match send(client, fixture, request).await {
                Ok(answer) => {
                    let own = answer.body.starts_with(format!("GET {path} ").as_bytes());
                    assert!(own, "the answer to {path} is another one's: {:?}", answer.body);
                }
                Err(error) => panic!("one of many requests gives {error:?}"),
            }
        }
    });
    join_all(requests).await;
}

/// Any status code is an answer; only the lack of one is an error.
///
/// # Panics
/// If the promise is broken.
pub async fn any_status_code_is_an_answer(client: &dyn HttpClient, fixture: &HttpFixture) {
    for status in [200, 201, 301, 302, 400, 401, 404, 418, 429, 500, 503, 599] {
        let server = Server::always(Answer::whole(status, "why")).await;
        match send(client, fixture, server.get("/", fixture.patience)).await {
            Ok(answer) => assert_eq!((answer.status, &answer.body[..]), (status, &b"why"[..])),
            Err(error) => panic!("status {status} gives {error:?}"),
        }
    }
    for status in [204, 304] {
        let server = Server::always(Answer::hang(format!("HTTP/1.1 {status} Status\r\n\r\n"))).await;
        match send(client, fixture, server.get("/", fixture.patience)).await {
            Ok(answer) => assert_eq!((answer.status, answer.body.len()), (status, 0)),
            Err(error) => panic!("status {status} without a body gives {error:?}"),
        }
    }
    let old = Server::always(Answer::close("HTTP/1.0 200 OK\r\n\r\nends with its connection")).await;
    match send(client, fixture, old.get("/", fixture.patience)).await {
        Ok(answer) => assert_eq!(
            (&answer.body[..], answer.truncated),
            (&b"ends with its connection"[..], false)
        ),
        Err(error) => panic!("an answer of HTTP/1.0 gives {error:?}"),
    }
}

/// What is no answer, or is cut off, is `Failed`: never an empty or a short body.
///
/// # Panics
/// If the promise is broken.
pub async fn what_is_cut_off_is_an_error(client: &dyn HttpClient, fixture: &HttpFixture) {
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
        (
            "sends garbage",
            Answer::close(vec![0xff, 0x00, 0x16, 0x03, 0x01, b'\r', b'\n', b'\r', b'\n']),
        ),
        ("has no status", Answer::close("HTTP/1.1 OK\r\n\r\n")),
        (
            "lies about its length",
            Answer::close("HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nfew"),
        ),
    ];
    for (what, answer) in cases {
        let server = Server::always(answer).await;
        let error = send(client, fixture, server.get("/", fixture.patience)).await;
        assert!(
            matches!(error, Err(HttpError::Failed { .. })),
            "a server that {what} gives {error:?}"
        );
    }
    let (listener, port) = listen().await;
    drop(listener);
    let request = BoundedRequest::get(format!("http://127.0.0.1:{port}/"));
    let error = send(client, fixture, request).await;
    assert!(
        matches!(error, Err(HttpError::Failed { .. })),
        "a port where nobody listens gives {error:?}"
    );
}

/// Plain HTTP that comes back where TLS was asked for is `PlainHttp`.
///
/// # Panics
/// If the promise is broken.
pub async fn plain_http_is_told_apart(client: &dyn HttpClient, fixture: &HttpFixture) {
    let answers = [
        ("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", true),
        ("HTTP/1.0 200 OK\r\n\r\nold style", true),
        ("SSH-2.0-nothing for you\r\n", false),
    ];
    for (says, is_http) in answers {
        let server = Server::blurts(says).await;
        for verify_tls in [true, false] {
            let mut request = server.get("/", fixture.patience);
            request.url = request.url.replace("http:", "https:");
            request.verify_tls = verify_tls;
            let error = send(client, fixture, request).await;
            let told = match &error {
                Err(HttpError::PlainHttp { .. }) => is_http,
                Err(HttpError::Failed { .. }) => !is_http,
                _ => false,
            };
            assert!(told, "a server that is asked for TLS and says {says:?} gives {error:?}");
        }
        server.is_left(fixture.patience).await;
    }
}

/// As many redirects are followed as the request allows, each only to the same host name; the next one is the answer.
///
/// # Panics
/// If the promise is broken.
pub async fn redirects_are_followed_as_far_as_allowed(client: &dyn HttpClient, fixture: &HttpFixture) {
    let server = Server::start(|head| match head.split(' ').nth(1) {
        Some("/a") => Answer::redirect("/b"),
        Some("/b") => Answer::redirect("c"),
        Some("/loop") => Answer::redirect("/loop"),
        Some(path) if path.starts_with("/away") => {
            let port = head
                .split("127.0.0.1:")
                .nth(1)
                .and_then(|rest| rest.split("\r\n").next());
            Answer::redirect(&format!("http://localhost:{}/c", port.unwrap_or("1")))
        }
        _ => Answer::whole(200, "arrived"),
    })
    .await;
    let cases = [
        ("/a", 2, 200, 3),
        ("/a", 1, 302, 2),
        ("/a", 0, 302, 1),
        ("/loop", 5, 302, 6),
        ("/away", 5, 302, 1),
        ("/c", 0, 200, 1),
    ];
    for (path, allowed, status, requests) in cases {
        let before = server.heads().len();
        let mut request = server.get(path, fixture.patience);
        request.max_redirects = allowed;
        match send(client, fixture, request).await {
            Ok(answer) => assert_eq!(answer.status, status, "{path} with {allowed} redirects"),
            Err(error) => panic!("{path} with {allowed} redirects gives {error:?}"),
        }
        assert_eq!(
            server.heads().len() - before,
            requests,
            "requests for {path} with {allowed} redirects"
        );
    }
}

/// A request that makes no sense is `BadRequest`, and nothing is sent.
///
/// # Panics
/// If the promise is broken.
pub async fn nonsense_is_a_bad_request(client: &dyn HttpClient, fixture: &HttpFixture) {
    let server = Server::always(Answer::whole(200, "")).await;
    let fine = || server.get("/", fixture.patience);
    let mut requests: Vec<_> = ["", "no URL", "http://", "/path", "ftp://127.0.0.1/", "unix:/run/x"]
        .map(BoundedRequest::get)
        .to_vec();
    for (name, value) in [
        ("a b", "c"),
        ("", "c"),
        ("a\r\nb", "c"),
        ("a", "b\r\nc: d"),
        ("a", "b\n"),
    ] {
        let mut request = fine();
        request.headers = vec![(name.to_owned(), value.to_owned())];
        requests.push(request);
    }
    for method in ["", "G T", "GET / HTTP/1.1\r\nX: y\r\n\r\n"] {
        let mut request = fine();
        request.method = method.to_owned();
        requests.push(request);
    }
    for request in requests {
        let what = format!("{:?} {:?} with {:?}", request.method, request.url, request.headers);
        let error = send(client, fixture, request).await;
        assert!(
            matches!(error, Err(HttpError::BadRequest { .. })),
            "{what} gives {error:?}"
        );
    }
    assert_eq!(server.heads(), [""; 0], "what is sent of nonsense");
}
