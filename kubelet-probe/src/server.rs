//! A server for the tests of this crate.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::BoundedRequest;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub(crate) const CERTIFICATE: &[u8] = include_bytes!("client/testdata/cert.der");
/// Of version 1, which has no extensions, and which many a tool makes by default.
pub(crate) const CERTIFICATE_V1: &[u8] = include_bytes!("client/testdata/cert-v1.der");
const KEY: &[u8] = include_bytes!("client/testdata/key.der");

/// Serves until it is dropped; each connection is answered by `answer`, given the head of the request.
pub(crate) struct Server {
    pub(crate) port: u16,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start(answer: impl AsyncAnswer) -> Self {
        Self::with_tls(None, answer).await
    }

    pub(crate) async fn with_tls(tls: Option<TlsAcceptor>, answer: impl AsyncAnswer) -> Self {
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

    pub(crate) fn get(&self, path: &str) -> BoundedRequest {
        let mut request = BoundedRequest::get(format!("http://127.0.0.1:{}{path}", self.port));
        request.timeout = Duration::from_secs(20);
        request
    }
}

/// From the head of a request to what is written: all of it, then again and again the last part if there is one.
pub(crate) trait AsyncAnswer: Fn(String) -> (Vec<u8>, Then) + Clone + Send + Sync + 'static {}
impl<F: Fn(String) -> (Vec<u8>, Then) + Clone + Send + Sync + 'static> AsyncAnswer for F {}

pub(crate) enum Then {
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

pub(crate) fn ok(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub(crate) fn tls(certificate: &'static [u8]) -> TlsAcceptor {
    let provider = ring::default_provider();
    let key = PrivateKeyDer::try_from(KEY).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let certified = CertifiedKey::new(vec![CertificateDer::from(certificate)], key);
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    TlsAcceptor::from(Arc::new(config))
}
