//! The client against servers that behave and servers that do not.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{BoundedRequest, HttpClient, HttpError};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::HyperClient;

const CERTIFICATE: &[u8] = include_bytes!("testdata/cert.der");
const KEY: &[u8] = include_bytes!("testdata/key.der");

/// Serves until it is dropped; each connection is answered by `answer`, given the head of the request.
struct Server {
    port: u16,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn start(answer: impl AsyncAnswer) -> Self {
        Self::with_tls(None, answer).await
    }

    async fn with_tls(tls: Option<TlsAcceptor>, answer: impl AsyncAnswer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, answer) = (tls.clone(), answer.clone());
                connections.spawn(async move {
                    match tls {
                        None => converse(stream, answer).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                converse(stream, answer).await;
                            }
                        }
                    }
                });
            }
        });
        Self { port, _tasks: tasks }
    }

    fn get(&self, path: &str) -> BoundedRequest {
        let mut request = BoundedRequest::get(format!("http://127.0.0.1:{}{path}", self.port));
        request.timeout = Duration::from_secs(20);
        request
    }
}

/// From the head of a request to what is written: all of it, then again and again the last part if there is one.
trait AsyncAnswer: Fn(String) -> (Vec<u8>, Then) + Clone + Send + Sync + 'static {}
impl<F: Fn(String) -> (Vec<u8>, Then) + Clone + Send + Sync + 'static> AsyncAnswer for F {}

enum Then {
    Close,
    Hang,
    Flood(Vec<u8>),
}

async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: impl AsyncAnswer) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let (bytes, then) = answer(String::from_utf8(head).unwrap());
    if stream.write_all(&bytes).await.is_err() {
        return;
    }
    match then {
        Then::Close => {
            let _ = stream.shutdown().await;
        }
        // Ends when the client goes away.
        Then::Hang => while stream.read_u8().await.is_ok() {},
        Then::Flood(more) => while stream.write_all(&more).await.is_ok() {},
    }
}

fn ok(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

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

#[tokio::test]
async fn certificates_are_checked_unless_told_otherwise() {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from(CERTIFICATE)],
            PrivateKeyDer::try_from(KEY).unwrap(),
        )
        .unwrap();
    let tls = TlsAcceptor::from(Arc::new(config));
    let server = Server::with_tls(Some(tls), |_| (ok("safe"), Then::Close)).await;
    let mut request = server.get("/");
    request.url = request.url.replace("http:", "https:");
    let error = HyperClient::new().send(request.clone()).await.unwrap_err();
    assert!(matches!(error, HttpError::Failed { .. }), "{error:?}");
    let knowing = HyperClient::new().root_certificate(CERTIFICATE);
    assert_eq!(knowing.send(request.clone()).await.unwrap().body, "safe");
    request.verify_tls = false;
    assert_eq!(HyperClient::new().send(request).await.unwrap().body, "safe");
    let plain = Server::start(|_| (ok("plain"), Then::Close)).await;
    let mut request = plain.get("/");
    request.url = request.url.replace("http:", "https:");
    request.timeout = Duration::from_secs(1);
    request.verify_tls = false;
    assert!(HyperClient::new().send(request).await.is_err());
}
