//! gRPC probes: `grpc.health.v1.Health/Check`, in clear text.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::uri::PathAndQuery;
use ::http::{HeaderMap, HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use kubelet_core::futures::FutureExt;
use kubelet_core::futures::future::{BoxFuture, poll_immediate};
use kubelet_core::futures::stream::{FuturesUnordered, StreamExt};
use kubelet_core::{GrpcProbe, ProbeOutcome, error_chain, go_duration};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Status};
use tonic_prost::ProstCodec;

use super::{USER_AGENT, place};

/// More is taken neither of a message nor of the headers of an answer.
const ANSWER_LIMIT_BYTES: usize = 10 << 10;
/// How much may be on its way; the least that there is in HTTP/2 without asking for less.
const WINDOW_BYTES: u32 = (64 << 10) - 1;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// Asks once.
///
/// Source: kubelet 1.36, `pkg/probe/grpc/grpc.go`. A connection that is refused fails at once here; upstream tries until the timeout.
pub(super) async fn run(probe: &GrpcProbe, limit: Duration) -> ProbeOutcome {
    let place = place(&probe.host, probe.port);
    let is_connected = AtomicBool::new(false);
    let ask = async {
        let stream = TcpStream::connect((probe.host.as_str(), probe.port)).await;
        let stream = stream.map_err(|error| format!("error: failed to connect service at {place:?}: {error}"))?;
        is_connected.store(true, Ordering::Relaxed);
        let asked = check(stream, &place, &probe.service, limit).await;
        asked.map_err(|status| text_of(&status, limit))
    };
    let answer = match timeout(limit, ask).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(why)) => return ProbeOutcome::Failure(why),
        Err(_) if is_connected.load(Ordering::Relaxed) => return ProbeOutcome::Failure(too_late(limit)),
        Err(_) => {
            let limit = go_duration(limit);
            return ProbeOutcome::Failure(format!("timeout: failed to connect service {place:?} within {limit}"));
        }
    };
    let said = match ServingStatus::try_from(answer.status) {
        Ok(ServingStatus::Serving) => return ProbeOutcome::success(),
        Ok(ServingStatus::NotServing) => "NOT_SERVING".to_owned(),
        Ok(ServingStatus::ServiceUnknown) => "SERVICE_UNKNOWN".to_owned(),
        Ok(ServingStatus::Unknown) => "UNKNOWN".to_owned(),
        Err(_) => answer.status.to_string(),
    };
    ProbeOutcome::Failure(format!("service unhealthy (responded with {said:?})"))
}

fn too_late(limit: Duration) -> String {
    format!("timeout: health rpc did not complete within {}", go_duration(limit))
}

fn text_of(status: &Status, limit: Duration) -> String {
    match status.code() {
        Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        ),
        // The server was told the limit, and may be the first to notice.
        Code::DeadlineExceeded => too_late(limit),
        code => {
            let why = status.source().map(error_chain);
            let why = why.unwrap_or_else(|| status.message().to_owned());
            format!("error: health rpc probe failed: rpc error: code = {code:?} desc = {why}")
        }
    }
}

/// One call over a fresh connection, which ends with this future, whatever the server does.
async fn check(stream: TcpStream, place: &str, service: &str, limit: Duration) -> Result<HealthCheckResponse, Status> {
    // A request is a few small segments.
    let prepared = stream.set_nodelay(true);
    prepared.map_err(|error| Status::from_error(error.into()))?;
    let origin: Uri = format!("http://{place}").parse().map_err(broken)?;
    let driver = Driver::default();
    let (sender, connection) = http2::Builder::new(driver.clone())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(u32::try_from(ANSWER_LIMIT_BYTES).unwrap_or(u32::MAX))
        .handshake::<_, Body>(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let mut headers = HeaderMap::new();
    headers.insert("user-agent", HeaderValue::from_static(USER_AGENT));
    let message = HealthCheckRequest {
        service: service.to_owned(),
    };
    let mut request = tonic::Request::from_parts(MetadataMap::from_headers(headers), Extensions::default(), message);
    request.set_timeout(limit);
    let call = async {
        let service = OneConnection(sender);
        let mut grpc = Grpc::with_origin(service, origin).max_decoding_message_size(ANSWER_LIMIT_BYTES);
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        Ok(grpc.unary(request, path, codec).await?.into_inner())
    };
    let drive = driver.drive(connection).fuse();
    tokio::pin!(call, drive);
    let answer = tokio::select! {
        biased;
        answer = &mut call => answer,
        // The call has heard of it by now, and says why.
        () = &mut drive => {
            let answer = poll_immediate(&mut call).await;
            answer.unwrap_or_else(|| Err(Status::unavailable("the connection ended")))
        }
    };
    // Nobody holds the sender any more: what is said at the end of a connection is said, if there is room for it at once.
    let _ = poll_immediate(drive).await;
    answer
}

fn broken(error: impl Error + Send + Sync + 'static) -> Status {
    Status::from_error(error.into())
}

/// Sends requests over one connection.
struct OneConnection(http2::SendRequest<Body>);

impl GrpcService<Body> for OneConnection {
    type ResponseBody = Incoming;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Response<Incoming>, hyper::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// What a connection would have tasks for: it is polled with the call, so that nothing goes on without it.
#[derive(Clone, Default)]
struct Driver(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Driver {
    fn execute(&self, future: F) {
        self.begun().push(Box::pin(future));
    }
}

impl Driver {
    fn begun(&self) -> MutexGuard<'_, Vec<BoxFuture<'static, ()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives the connection to its end.
    async fn drive(&self, connection: impl Future<Output = Result<(), hyper::Error>>) {
        let mut tasks = FuturesUnordered::new();
        let mut connection = std::pin::pin!(async {
            if let Err(error) = connection.await {
                tracing::trace!(error = &error as &dyn Error, "connection ended");
            }
        });
        let mut has_ended = false;
        poll_fn(|cx| {
            loop {
                if !has_ended {
                    has_ended = connection.as_mut().poll(cx).is_ready();
                }
                // What was begun meanwhile has not been polled yet.
                tasks.extend(self.begun().drain(..));
                match Pin::new(&mut tasks).poll_next_unpin(cx) {
                    Poll::Ready(Some(())) => {}
                    Poll::Ready(None) if has_ended => return Poll::Ready(()),
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }
}
