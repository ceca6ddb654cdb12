//! Connections, over a socket or in memory. Killing the server drops all of them, with the calls in them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use futures::StreamExt;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use kubelet_proto::cri::v1::image_service_server::ImageServiceServer;
use kubelet_proto::cri::v1::runtime_service_server::RuntimeServiceServer;
use kubelet_proto::tonic::body::Body;
use kubelet_proto::tonic::codegen::{Service, http};
use kubelet_proto::tonic::transport::{Channel, Endpoint as Target, Uri};
use kubelet_proto::unix::{self, Endpoint, Incoming, ListenError, ListenSettings};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::task::JoinSet;

use crate::fake_cri::face::Face;

/// What a connection in memory holds of what was not read yet.
const BUFFER: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Server {
    face: Arc<Face>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    down: bool,
    /// Everything that serves.
    tasks: JoinSet<()>,
    listens: Vec<(Endpoint, ListenSettings)>,
}

impl Server {
    pub(crate) fn new(face: Arc<Face>) -> Self {
        Self {
            face,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn listen(&self, endpoint: Endpoint, settings: ListenSettings) -> Result<(), ListenError> {
        let incoming = unix::listen(&endpoint, settings.clone()).await?;
        let mut state = self.state();
        state.tasks.spawn(accept(incoming, self.face.clone()));
        state.listens.push((endpoint, settings));
        Ok(())
    }

    pub(crate) async fn go_down(&self) {
        let mut tasks = {
            let mut state = self.state();
            state.down = true;
            std::mem::take(&mut state.tasks)
        };
        tasks.shutdown().await;
    }

    pub(crate) async fn come_up(&self) -> Result<(), ListenError> {
        let listens = std::mem::take(&mut self.state().listens);
        for (endpoint, settings) in listens {
            self.listen(endpoint, settings).await?;
        }
        self.state().down = false;
        Ok(())
    }

    /// A new connection in memory: the client's end of it.
    fn connect(&self) -> io::Result<DuplexStream> {
        let mut state = self.state();
        if state.down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (client, server) = tokio::io::duplex(BUFFER);
        state.tasks.spawn(connection(server, self.face.clone()));
        while state.tasks.try_join_next().is_some() {}
        Ok(client)
    }
}

/// A channel whose connections are in memory.
pub(crate) fn channel(server: &Arc<Server>) -> Channel {
    let connector = Connector(Arc::downgrade(server));
    Target::from_static("http://localhost").connect_with_connector_lazy(connector)
}

struct Connector(Weak<Server>);

impl Service<Uri> for Connector {
    type Response = TokioIo<DuplexStream>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let server = self.0.upgrade().ok_or_else(|| io::ErrorKind::ConnectionRefused.into());
        std::future::ready(server.and_then(|server| server.connect()).map(TokioIo::new))
    }
}

async fn accept(mut incoming: Incoming, face: Arc<Face>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            stream = incoming.next() => match stream {
                Some(Ok(stream)) => drop(connections.spawn(connection(stream, face.clone()))),
                Some(Err(_)) => {}
                None => return,
            }
        }
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, face: Arc<Face>) {
    let calls = Calls::default();
    let _ends_with_it = EndCalls(calls.clone());
    let service = TowerToHyperService::new(Both {
        runtime: RuntimeServiceServer::from_arc(face.clone()),
        images: ImageServiceServer::from_arc(face),
    });
    // How a connection ends is the caller's to see.
    let _ = http2::Builder::new(calls)
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The tasks of one connection's calls, which end with it.
#[derive(Clone, Debug, Default)]
struct Calls(Arc<Mutex<JoinSet<()>>>);

impl<F> hyper::rt::Executor<F> for Calls
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(call);
    }
}

/// Ends the calls of a connection, whoever still holds them.
struct EndCalls(Calls);

impl Drop for EndCalls {
    fn drop(&mut self) {
        (self.0).0.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }
}

/// Both services on one connection, told apart by their paths.
#[derive(Clone)]
struct Both {
    runtime: RuntimeServiceServer<Face>,
    images: ImageServiceServer<Face>,
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, std::convert::Infallible>> + Send>>;

impl Service<http::Request<hyper::body::Incoming>> for Both {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<hyper::body::Incoming>) -> Self::Future {
        if request.uri().path().starts_with("/runtime.v1.ImageService/") {
            self.images.call(request)
        } else {
            // Answers that it does not know what is another service's.
            self.runtime.call(request)
        }
    }
}
