//! The client against servers that behave and servers that do not.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{BoundedRequest, HttpClient, HttpError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::HyperClient;
use crate::server::{CERTIFICATE, CERTIFICATE_V1, Server, Then, ok, tls};

#[tokio::test]
async fn an_answer_is_read_and_the_request_is_as_asked() {
    let server = Server::start(|head| (ok(&head), Then::Close)).await;
    let mut request = server.get("/a?b=c");
    request.headers = vec![("X-One".into(), "1".into()), ("x-one".into(), "2".into())];
    let answer = HyperClient::new().send(request).await.unwrap();
    assert_eq!((answer.status, answer.truncated), (200, false));
    assert!(answer.headers.contains(&("x-a".into(), "b".into())));
    let head = String::from_utf8(answer.body.to_vec()).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("get /a?b=c http/1.1\r\n"), "{head}");
    assert!(head.contains("x-one: 1\r\n") && head.contains("x-one: 2\r\n"), "{head}");
    assert!(head.contains(&format!("host: 127.0.0.1:{}\r\n", server.port)), "{head}");
}

#[tokio::test]
async fn any_status_is_an_answer_even_with_a_server_that_never_closes() {
    let server = Server::start(|_| {
        let answer = "HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\ndown";
        (answer.into(), Then::Hang)
    })
    .await;
    let answer = HyperClient::new().send(server.get("/")).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (503, &b"down"[..]));
}

#[tokio::test]
async fn a_body_that_ends_with_the_connection_is_whole() {
    let server = Server::start(|_| (b"HTTP/1.0 200 OK\r\n\r\nold style".to_vec(), Then::Close)).await;
    let answer = HyperClient::new().send(server.get("/")).await.unwrap();
    assert_eq!((&answer.body[..], answer.truncated), (&b"old style"[..], false));
}

#[tokio::test]
async fn a_silent_server_and_an_endless_body_end_with_the_timeout() {
    let starts: [&[u8]; 4] = [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal",
        b"HTTP/1.1 200 OK\r\n\r\nnever closed",
    ];
    for start in starts {
        let server = Server::start(move |_| (start.to_vec(), Then::Hang)).await;
        let mut request = server.get("/");
        request.timeout = Duration::from_millis(100);
        let error = HyperClient::new().send(request).await.unwrap_err();
        assert!(matches!(error, HttpError::TimedOut { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_flood_is_cut_at_the_limit() {
    let server = Server::start(|_| (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), Then::Flood(vec![b'x'; 4096]))).await;
    for limit in [0, 10, 100_000] {
        let mut request = server.get("/");
        request.body_limit_bytes = limit;
        let answer = HyperClient::new().send(request).await.unwrap();
        assert_eq!((answer.body.len(), answer.truncated), (limit, true));
    }
    let exact = Server::start(|_| (ok("12345"), Then::Close)).await;
    let mut request = exact.get("/");
    request.body_limit_bytes = 5;
    let answer = HyperClient::new().send(request).await.unwrap();
    assert_eq!((&answer.body[..], answer.truncated), (&b"12345"[..], false));
}

#[tokio::test]
async fn endless_headers_and_garbage_are_errors() {
    let floods = [
        (b"HTTP/1.1 200 OK\r\n".to_vec(), Then::Flood(b"A: b\r\n".repeat(100))),
        (b"HTTP/1.1 200 OK\r\nA: ".to_vec(), Then::Flood(vec![b'x'; 4096])),
        (b"SSH-2.0-nothing for you\r\n\r\n".to_vec(), Then::Close),
        (Vec::new(), Then::Close),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_vec(),
            Then::Close,
        ),
    ];
    for (start, then) in floods {
        let then = Arc::new(then);
        let server = Server::start(move |_| {
            let then = match &*then {
                Then::Flood(more) => Then::Flood(more.clone()),
                _ => Then::Close,
            };
            (start.clone(), then)
        })
        .await;
        let error = HyperClient::new().send(server.get("/")).await.unwrap_err();
        assert!(matches!(error, HttpError::Failed { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn nobody_there_is_a_failure_and_nonsense_a_bad_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let error = HyperClient::new().send(BoundedRequest::get(url)).await.unwrap_err();
    assert!(matches!(error, HttpError::Failed { .. }), "{error:?}");
    let mut header = BoundedRequest::get("http://127.0.0.1/");
    header.headers = vec![("a".into(), "secret\n".into())];
    let mut method = BoundedRequest::get("http://127.0.0.1/");
    method.method = "G T".into();
    for request in [BoundedRequest::get("unix:/run/x"), header, method] {
        let error = HyperClient::new().send(request).await.unwrap_err();
        assert!(matches!(error, HttpError::BadRequest { .. }), "{error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn redirects_are_followed_to_the_same_host_only() {
    let server = Server::start(|head| {
        let to = match head.split(' ').nth(1).unwrap() {
            "/far" => "http://localhost/",
            "/a" => "b",
            "/b" => "/c",
            "/loop" => "/loop",
            _ => return (ok(&head), Then::Close),
        };
        let answer = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
        (answer.into_bytes(), Then::Close)
    })
    .await;
    let client = HyperClient::new();
    for (path, allowed, status, body) in [
        ("/a", 2, 200, "GET /c"),
        ("/a", 1, 302, ""),
        ("/a", 0, 302, ""),
        ("/far", 9, 302, ""),
        ("/loop", 9, 302, ""),
    ] {
        let mut request = server.get(path);
        request.max_redirects = allowed;
        let answer = client.send(request).await.unwrap();
        assert_eq!(answer.status, status, "{path} {allowed}");
        assert!(answer.body.starts_with(body.as_bytes()), "{path} {allowed}");
    }
}

fn over_tls(mut request: BoundedRequest) -> BoundedRequest {
    request.url = request.url.replace("http:", "https:");
    request
}

#[tokio::test]
async fn certificates_are_checked_unless_told_otherwise() {
    let server = Server::with_tls(Some(tls(CERTIFICATE)), |_| (ok("safe"), Then::Close)).await;
    let mut request = over_tls(server.get("/"));
    let error = HyperClient::new().send(request.clone()).await.unwrap_err();
    assert!(matches!(error, HttpError::Failed { .. }), "{error:?}");
    let knowing = HyperClient::new().root_certificate(CERTIFICATE);
    assert_eq!(knowing.send(request.clone()).await.unwrap().body, "safe");
    request.verify_tls = false;
    assert_eq!(HyperClient::new().send(request).await.unwrap().body, "safe");
}

#[tokio::test]
async fn a_certificate_that_is_not_checked_may_be_of_any_version() {
    let server = Server::with_tls(Some(tls(CERTIFICATE_V1)), |_| (ok("old"), Then::Close)).await;
    let mut request = over_tls(server.get("/"));
    let knowing = HyperClient::new().root_certificate(CERTIFICATE);
    let error = knowing.send(request.clone()).await.unwrap_err();
    assert!(matches!(error, HttpError::Failed { .. }), "{error:?}");
    request.verify_tls = false;
    assert_eq!(HyperClient::new().send(request).await.unwrap().body, "old");
}

#[tokio::test]
async fn who_speaks_no_tls_is_told_apart_if_it_is_http() {
    for (says, is_http) in [
        ("HTTP/1.1 400 Bad Request\r\n\r\nno TLS here", true),
        ("HTTP/1.0 200 OK\r\n\r\n", true),
        ("HTTP", false),
        ("SSH-2.0-nothing for you\r\n", false),
        ("", false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut request = BoundedRequest::get(format!("https://{}/", listener.local_addr().unwrap()));
        request.verify_tls = false;
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The hello is read first: what is unread when a connection is closed resets it.
            let mut hello = [0; 4096];
            let _ = stream.read(&mut hello).await;
            stream.write_all(says.as_bytes()).await.unwrap();
            let _ = stream.shutdown().await;
            while matches!(stream.read(&mut hello).await, Ok(1..)) {}
        };
        let client = HyperClient::new();
        let (answer, ()) = tokio::join!(client.send(request), serve);
        let error = answer.unwrap_err();
        assert_eq!(
            matches!(error, HttpError::PlainHttp { .. }),
            is_http,
            "{says:?}: {error:?}"
        );
        assert_eq!(
            matches!(error, HttpError::Failed { .. }),
            !is_http,
            "{says:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_request_says_that_its_connection_is_for_it_alone() {
    let server = Server::start(|head| (ok(&head), Then::Close)).await;
    let sent = |answer: &[u8]| String::from_utf8(answer.to_vec()).unwrap();
    let answer = HyperClient::new().send(server.get("/")).await.unwrap();
    let head = sent(&answer.body);
    assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
    let mut request = server.get("/");
    request.headers = vec![("Connection".into(), "keep-alive".into())];
    let answer = HyperClient::new().send(request).await.unwrap();
    let head = sent(&answer.body);
    assert!(
        head.contains("\r\nConnection: keep-alive\r\n") && !head.contains("close"),
        "{head}"
    );
}

#[tokio::test]
async fn a_value_may_have_letters_beyond_ascii() {
    let server = Server::start(|head| (ok(&head), Then::Close)).await;
    let mut request = server.get("/");
    request.headers = vec![("X-Name".into(), "Zo\u{eb}".into())];
    let answer = HyperClient::new().send(request).await.unwrap();
    let head = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(head.contains("\r\nX-Name: Zo\u{eb}\r\n"), "{head}");
}

#[tokio::test]
async fn a_host_of_the_requests_own_goes_with_a_path_and_not_with_a_url() {
    let server = Server::start(|head| {
        let port = head.split("X-Port: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let to = match head.split(' ').nth(1).unwrap() {
            "/path" => "/end".to_owned(),
            "/url" => format!("http://127.0.0.1:{}/end", port.unwrap()),
            _ => return (ok(&head), Then::Close),
        };
        let answer = format!("HTTP/1.1 307 Go\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
        (answer.into_bytes(), Then::Close)
    })
    .await;
    let own = format!("127.0.0.1:{}", server.port);
    for (path, host) in [("/path", "pod.example"), ("/url", own.as_str())] {
        let mut request = server.get(path);
        request.max_redirects = 1;
        request.headers = vec![
            ("Host".into(), "pod.example".into()),
            ("X-Port".into(), server.port.to_string()),
        ];
        let answer = HyperClient::new().send(request).await.unwrap();
        let head = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(head.contains(&format!("\r\nHost: {host}\r\n")), "{path}: {head}");
    }
}
