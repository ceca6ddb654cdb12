//! The HTTP client: one connection per request, bounded in time and memory.

mod noting;
mod target;
mod tls;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONNECTION, COOKIE, HOST, LOCATION, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kubelet_core::{BoundedRequest, BoundedResponse, BoxError, HttpClient, HttpError};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use self::noting::Noting;
use self::target::{Redirect, Target};
use crate::dial::Dialer;

/// More memory than this is not given to the head of an answer.
const HEAD_LIMIT_BYTES: usize = 64 << 10;

/// Sends requests over HTTP/1.1, in plain or over TLS.
///
/// Certificates are checked against the machine's own roots and those added here; the cryptography is ring's, without
/// a provider for the whole process. Answers whose head has more than 64 KiB or 100 headers are errors. Credentials
/// (`Authorization`, `Cookie`) do not follow a redirect from `https` to `http`. Clones share what was loaded.
#[derive(Clone, Default)]
pub struct HyperClient {
    extra_roots: Vec<Vec<u8>>,
    dialer: Dialer,
    verifying: Arc<OnceLock<Arc<ClientConfig>>>,
    trusting: Arc<OnceLock<Arc<ClientConfig>>>,
}

impl HyperClient {
    /// A client that trusts the machine's roots. They are read at the first request that needs them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts one more certificate authority, given as DER.
    #[must_use]
    pub fn root_certificate(mut self, der: impl Into<Vec<u8>>) -> Self {
        self.extra_roots.push(der.into());
        self.verifying = Arc::default();
        self
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    async fn tls(&self, verify: bool) -> Result<Arc<ClientConfig>, BoxError> {
        let place = if verify { &self.verifying } else { &self.trusting };
        if let Some(config) = place.get() {
            return Ok(Arc::clone(config));
        }
        if !verify {
            return Ok(keep(place, tls::trusting()?));
        }
        let roots = self.extra_roots.clone();
        // The roots are files.
        let config = tokio::task::spawn_blocking(move || tls::verifying(&roots)).await??;
        Ok(keep(place, config))
    }

    /// Sends the request within its time, and follows redirects.
    pub(crate) async fn fetch(&self, req: &BoundedRequest) -> Result<Fetched, HttpError> {
        let followed = timeout(req.timeout, self.follow(req)).await;
        followed.unwrap_or_else(|_elapsed| {
            Err(HttpError::TimedOut {
                url: req.url.clone(),
                after: req.timeout,
            })
        })
    }

    async fn follow(&self, req: &BoundedRequest) -> Result<Fetched, HttpError> {
        let mut target = Target::parse(&req.url).map_err(|message| bad(req, message))?;
        let mut method = Method::from_bytes(req.method.as_bytes()).map_err(|error| bad(req, error.to_string()))?;
        let mut headers = headers(req)?;
        let mut followed = 0;
        loop {
            let answer = self.exchange(req, &target, &method, &headers).await;
            let answer = answer.map_err(|source| failed(req, source))?;
            let Some(location) = &answer.location else {
                return Ok(Fetched::answer(answer.response));
            };
            let (next, keeps_host) = match target.redirect(location.as_bytes(), followed, req.max_redirects) {
                Redirect::To { target, keeps_host } => (target, keeps_host),
                Redirect::Elsewhere => return Ok(Fetched::answer(answer.response)),
                Redirect::TooMany => {
                    return Ok(Fetched {
                        response: answer.response,
                        too_many_redirects: true,
                    });
                }
            };
            followed += 1;
            if matches!(answer.response.status, 301..=303) && method != Method::HEAD {
                method = Method::GET;
            }
            if target.is_tls() && !next.is_tls() {
                for name in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION] {
                    headers.remove(name);
                }
            }
            if !keeps_host {
                headers.remove(HOST);
            }
            target = next;
        }
    }

    async fn exchange(
        &self,
        req: &BoundedRequest,
        target: &Target,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Answer, BoxError> {
        let mut request = Request::builder()
            .method(method)
            .uri(target.path())
            .body(Empty::new())?;
        *request.headers_mut() = headers.clone();
        if !headers.contains_key(HOST) {
            let authority = HeaderValue::from_str(target.authority())?;
            request.headers_mut().insert(HOST, authority);
        }
        // Nothing follows on this connection. A server that closes it first is also the one whose socket lingers.
        if !headers.contains_key(CONNECTION) {
            request
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let stream = self.dialer.connect(target.host(), target.port()).await?;
        // A request is one small segment that nothing follows.
        stream.set_nodelay(true)?;
        if target.is_tls() {
            let connector = TlsConnector::from(self.tls(req.verify_tls).await?);
            let name = target.host().to_owned().try_into()?;
            let connect = connector.connect(name, Noting::new(stream)).into_fallible();
            let stream = connect.await.map_err(|(error, stream)| -> BoxError {
                if stream.heard_http() {
                    PlainHttp.into()
                } else {
                    error.into()
                }
            })?;
            over(stream, request, req.body_limit_bytes).await
        } else {
            over(stream, request, req.body_limit_bytes).await
        }
    }
}

impl fmt::Debug for HyperClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperClient")
            .field("extra_roots", &self.extra_roots.len())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for HyperClient {
    async fn send(&self, req: BoundedRequest) -> Result<BoundedResponse, HttpError> {
        Ok(self.fetch(&req).await?.response)
    }
}

/// The last answer to a request.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) response: BoundedResponse,
    /// Whether it is a redirect that would be followed, had not so many come before it.
    pub(crate) too_many_redirects: bool,
}

impl Fetched {
    fn answer(response: BoundedResponse) -> Self {
        Self {
            response,
            too_many_redirects: false,
        }
    }
}

/// The other side was asked for TLS.
#[derive(Debug, thiserror::Error)]
#[error("the server speaks plain HTTP")]
struct PlainHttp;

struct Answer {
    response: BoundedResponse,
    /// The place that a redirect names.
    location: Option<HeaderValue>,
}

/// Sends one request over a fresh connection. The connection ends with this future, whatever the server does.
async fn over(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Empty<Bytes>>,
    limit: usize,
) -> Result<Answer, BoxError> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_LIMIT_BYTES);
    // Names of headers have no case; some servers do not know that, and look for this one.
    builder.title_case_headers(true);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        read(response, limit).await
    };
    let drive = async {
        // Its errors also reach the exchange, and an end still leaves it what was buffered.
        if let Err(error) = connection.await {
            tracing::trace!(error = &error as &dyn std::error::Error, "connection ended");
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        answer = exchange => answer,
        () = drive => Err("the connection ended".into()),
    }
}

async fn read(response: Response<Incoming>, limit: usize) -> Result<Answer, BoxError> {
    let (head, mut body) = response.into_parts();
    let mut kept = BytesMut::new();
    let mut truncated = false;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        let room = limit - kept.len();
        kept.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            truncated = true;
            break;
        }
    }
    let mut answer = BoundedResponse::new(head.status.as_u16(), kept.freeze());
    answer.truncated = truncated;
    answer.headers = head
        .headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        })
        .collect();
    let location = head.headers.get(LOCATION).filter(|_| is_redirect(head.status));
    Ok(Answer {
        response: answer,
        location: location.filter(|value| !value.is_empty()).cloned(),
    })
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn headers(req: &BoundedRequest) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::with_capacity(req.headers.len());
    for (name, value) in &req.headers {
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad(req, format!("bad header name {name:?}")))?;
        // The value may be a secret.
        let value =
            HeaderValue::from_bytes(value.as_bytes()).map_err(|_| bad(req, format!("bad value of header {name}")))?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn bad(req: &BoundedRequest, message: String) -> HttpError {
    HttpError::BadRequest {
        url: req.url.clone(),
        message,
    }
}

fn failed(req: &BoundedRequest, source: BoxError) -> HttpError {
    let url = req.url.clone();
    if source.is::<PlainHttp>() {
        return HttpError::PlainHttp { url };
    }
    HttpError::Failed { url, source }
}

fn keep(place: &OnceLock<Arc<ClientConfig>>, config: ClientConfig) -> Arc<ClientConfig> {
    Arc::clone(place.get_or_init(|| Arc::new(config)))
}
