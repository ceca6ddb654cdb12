//! The contract suites of HTTP clients and probers.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the failure")]

use std::sync::Arc;

use kubelet_probe::{HyperClient, NetworkProber};
use kubelet_testing::contract::{HttpFixture, ProberFixture};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

async fn hyper() -> Option<(HyperClient, HttpFixture)> {
    Some((HyperClient::new(), HttpFixture::new()))
}

kubelet_testing::http_contract!(hyper);

async fn network() -> Option<(NetworkProber, ProberFixture)> {
    Some((NetworkProber::new(), ProberFixture::new().tls(serve_tls)))
}

mod prober {
    kubelet_testing::prober_contract!(super::network);
}

/// Speaks TLS on a port of its own, for a server at `port`; until the runtime ends.
async fn serve_tls(port: u16) -> u16 {
    let certificate = CertificateDer::from(&include_bytes!("../src/client/testdata/cert.der")[..]);
    let key = PrivateKeyDer::try_from(&include_bytes!("../src/client/testdata/key.der")[..]);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.unwrap())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let serve = async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                let _ = copy_bidirectional(&mut stream, &mut server).await;
            }
        }
    };
    #[expect(clippy::disallowed_methods, reason = "it ends with the runtime of the test")]
    drop(tokio::spawn(serve));
    own
}
