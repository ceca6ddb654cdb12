//! The seam to whoever carries out a probe over the network.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::http::is_host;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ProbeKind {
    /// Whether the container has come up; the other two wait for that.
    Startup,
    /// Whether it can do its work now.
    Readiness,
    /// Whether it has to be started anew.
    Liveness,
}

impl ProbeKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Readiness, Self::Liveness];

    /// As events and metrics have it, such as `Readiness`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One run of a probe over the network. Names of ports are resolved, and hosts are known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeTarget {
    /// What is asked.
    pub action: ProbeAction,
    /// Time for all of it.
    pub timeout: Duration,
}

impl ProbeTarget {
    /// A run that has this much time.
    pub fn new(action: ProbeAction, timeout: Duration) -> Self {
        Self { action, timeout }
    }
}

/// What a probe over the network asks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeAction {
    /// An HTTP GET.
    HttpGet(HttpProbe),
    /// A TCP connection.
    TcpSocket(TcpProbe),
    /// A call of `grpc.health.v1.Health/Check`.
    Grpc(GrpcProbe),
}

impl ProbeAction {
    /// Why nobody can be where this asks, if so. Nothing else is looked at.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let (host, port) = match self {
            Self::HttpGet(HttpProbe { host, port, .. })
            | Self::TcpSocket(TcpProbe { host, port })
            | Self::Grpc(GrpcProbe { host, port, .. }) => (host, *port),
        };
        let is_there = is_host(host) && port != 0;
        (!is_there).then(|| format!("nobody can be at port {port} of host {host:?}"))
    }
}

/// An HTTP GET, as probes and hooks ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpProbe {
    /// Whether it goes over TLS.
    pub tls: bool,
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query, as the pod has it; it may lack the leading slash.
    pub path: String,
    /// Names and values of headers, in order. An empty value of `Accept` or `User-Agent` takes that header away.
    pub headers: Vec<(String, String)>,
}

impl HttpProbe {
    /// A GET of `path` in clear text, without headers of its own.
    pub fn new(host: impl Into<String>, port: u16, path: impl Into<String>) -> Self {
        Self {
            tls: false,
            host: host.into(),
            port,
            path: path.into(),
            headers: Vec::new(),
        }
    }
}

/// A TCP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpProbe {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl TcpProbe {
    /// A connection to this port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }
}

/// A call of `grpc.health.v1.Health/Check` in clear text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrpcProbe {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The service that is asked after; empty for the whole server.
    pub service: String,
}

impl GrpcProbe {
    /// Asks after a service of the server at this port.
    pub fn new(host: impl Into<String>, port: u16, service: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            port,
            service: service.into(),
        }
    }
}

/// How one run of a probe went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeOutcome {
    /// The container is as it should be.
    Success {
        /// What is odd about it all the same.
        warning: Option<String>,
    },
    /// It is not, for this reason.
    Failure(String),
    /// Nobody can tell, for this reason. Counts as no run; it is tried again at once, up to twice.
    Unknown(String),
}

impl ProbeOutcome {
    /// The container is as it should be.
    #[must_use]
    pub fn success() -> Self {
        Self::Success { warning: None }
    }
}

/// Carries out probes over the network. Commands in containers are probes too, which core runs itself.
///
/// When a probe is due, what its failures mean, and that no two runs of one overlap is not its business.
///
/// # Contract
/// - A run that takes longer than its target's timeout is `Failure` then, whatever the other side does.
/// - A refused connection, and one that breaks, is `Failure`.
/// - An answer costs bounded memory, however long it is, and no more than 10 KiB of its body are told.
/// - Each run has connections of its own, closed at its end.
/// - No proxy is used, whatever the environment says.
/// - Certificates are not verified.
/// - HTTP: a status of 200 to 399 is `Success`, from 300 on with a warning; any other is `Failure`.
/// - HTTP: up to 10 redirects to the same host name are followed, and one more is `Failure`; one to another host name is the answer.
/// - HTTP: path and headers are those of the target, but for headers that describe a body; `User-Agent` and `Accept` are filled in
///   where it has none.
/// - TCP: a connection is `Success`, and nothing is sent.
/// - gRPC: the target's service is asked after, and only `SERVING` is `Success`.
/// - A target that makes no sense is `Unknown`, and nobody is asked.
/// - Runs may overlap each other.
/// - Dropping the future ends the run.
///
/// Source: kubelet 1.36, `pkg/probe`.
#[async_trait]
pub trait Prober: fmt::Debug + Send + Sync + 'static {
    /// Runs a probe once. Dropped at its timeout, should it not have ended by then.
    async fn probe(&self, target: &ProbeTarget) -> ProbeOutcome;
}

#[async_trait]
impl<T: Prober + ?Sized> Prober for Arc<T> {
    async fn probe(&self, target: &ProbeTarget) -> ProbeOutcome {
        (**self).probe(target).await
    }
}
