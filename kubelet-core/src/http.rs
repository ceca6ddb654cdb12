//! One bounded HTTP request: what hooks, probes and the URL source need of a client.

mod pod_get;
mod reference;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::BoxError;

pub(crate) use pod_get::is_host;

/// A request that cannot cost more than its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BoundedRequest {
    /// Such as `GET`.
    pub method: String,
    /// The whole URL, `http` or `https`.
    pub url: String,
    /// Header names and values, in order; a name may repeat.
    pub headers: Vec<(String, String)>,
    /// Time for the whole exchange.
    pub timeout: Duration,
    /// How much of the answer's body is read, in bytes.
    pub body_limit_bytes: usize,
    /// How many redirects are followed, each only to the same host name.
    pub max_redirects: usize,
    /// Whether the server's certificate must be good.
    pub verify_tls: bool,
}

impl BoundedRequest {
    /// A GET of at most 10 s and 10 MiB that follows no redirects and verifies certificates.
    pub fn get(url: impl Into<String>) -> Self {
        Self {
            method: "GET".to_owned(),
            url: url.into(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
            body_limit_bytes: 10 << 20,
            max_redirects: 0,
            verify_tls: true,
        }
    }
}

/// An answer, its body cut at the request's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BoundedResponse {
    /// The status code.
    pub status: u16,
    /// Header names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body, up to the limit.
    pub body: Bytes,
    /// Whether there was more.
    pub truncated: bool,
}

impl BoundedResponse {
    /// An answer without headers whose body is whole.
    pub fn new(status: u16, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            truncated: false,
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The request makes no sense; repeating it is no use.
    #[error("bad request to {url}: {message}")]
    BadRequest {
        /// The URL.
        url: String,
        /// What is wrong with it.
        message: String,
    },
    /// No answer in time.
    #[error("no answer from {url} within {after:?}")]
    TimedOut {
        /// The URL.
        url: String,
        /// The request's timeout.
        after: Duration,
    },
    /// The other side speaks plain HTTP where TLS was asked for.
    #[error("request to {url} was answered in plain HTTP")]
    PlainHttp {
        /// The URL.
        url: String,
    },
    /// No connection, or it broke.
    #[error("request to {url} failed")]
    Failed {
        /// The URL.
        url: String,
        /// The cause.
        source: BoxError,
    },
}

/// Sends one bounded request.
///
/// # Contract
/// - The whole exchange ends within the request's timeout, whatever the server does.
/// - No more than the body limit is kept in memory, and what is cut is said to be truncated.
/// - The head of an answer is bounded too: one without end is an error.
/// - Connections are not kept for later requests.
/// - No proxy is used, whatever the environment says.
/// - Any status code is an answer; only the lack of one is an error.
/// - What is no answer, or is cut off, is `Failed`: never an empty or a short body.
/// - Plain HTTP that comes back where TLS was asked for is `PlainHttp`.
/// - A request is sent as it is asked for; header names of its answer are in lower case.
/// - A request that makes no sense is `BadRequest`, and nothing is sent.
/// - As many redirects are followed as the request allows, each only to the same host name; the next one is the answer.
/// - Requests may overlap each other.
/// - Dropping the future ends the exchange.
#[async_trait]
pub trait HttpClient: fmt::Debug + Send + Sync + 'static {
    /// Sends the request and reads the answer.
    ///
    /// # Errors
    /// [`HttpError`]; a status code is never one.
    async fn send(&self, req: BoundedRequest) -> Result<BoundedResponse, HttpError>;
}

#[async_trait]
impl<T: HttpClient + ?Sized> HttpClient for Arc<T> {
    async fn send(&self, req: BoundedRequest) -> Result<BoundedResponse, HttpError> {
        (**self).send(req).await
    }
}
