//! Probes over the network: HTTP, TCP and gRPC.

mod grpc;
mod http;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use async_trait::async_trait;
use kubelet_core::{ProbeAction, ProbeOutcome, ProbeTarget, Prober, TcpProbe, go_duration};
use tokio::time::timeout;

use crate::client::HyperClient;
use crate::dial::Dialer;

/// What requests say of who sends them, in HTTP and in gRPC.
///
/// Source: kubelet 1.36.
const USER_AGENT: &str = "kube-probe/1.36";

/// Carries out HTTP, TCP and gRPC probes: whoever builds a kubelet hands it to the builder.
///
/// Each run has a connection of its own, which ends with it. Nothing is kept between runs but what TLS is set up with. No answer,
/// whatever is in it, costs more than the timeout and some 100 kB of memory. Texts of failures are those of upstream where it has
/// them.
///
/// ```
/// # use std::time::Duration;
/// # use kubelet_core::{GrpcProbe, ProbeAction, ProbeOutcome, ProbeTarget, Prober};
/// # use kubelet_probe::NetworkProber;
/// # async fn is_serving() -> bool {
/// let action = ProbeAction::Grpc(GrpcProbe::new("10.0.0.7", 50051, ""));
/// let outcome = NetworkProber::new().probe(&ProbeTarget::new(action, Duration::from_secs(1))).await;
/// outcome == ProbeOutcome::success()
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct NetworkProber {
    client: HyperClient,
}

impl NetworkProber {
    /// A prober of this machine's network.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl Prober for NetworkProber {
    async fn probe(&self, target: &ProbeTarget) -> ProbeOutcome {
        if let Some(why) = target.action.fault() {
            return ProbeOutcome::Unknown(why);
        }
        match &target.action {
            ProbeAction::HttpGet(probe) => http::run(&self.client, probe, target.timeout).await,
            ProbeAction::TcpSocket(probe) => connects(self.client.dialer(), probe, target.timeout).await,
            ProbeAction::Grpc(probe) => grpc::run(probe, target.timeout).await,
            other => ProbeOutcome::Unknown(format!("this prober does not know how to ask for {other:?}")),
        }
    }
}

/// Connects, and closes at once.
async fn connects(dialer: &Dialer, probe: &TcpProbe, limit: Duration) -> ProbeOutcome {
    let place = place(&probe.host, probe.port);
    match timeout(limit, dialer.connect(&probe.host, probe.port)).await {
        // Closed in the ordinary way. A reset would leave nothing behind, but there are servers which take one for a fault of
        // theirs, and some that it ends.
        Ok(Ok(_stream)) => ProbeOutcome::success(),
        Ok(Err(error)) => ProbeOutcome::Failure(format!("dial tcp {place}: {error}")),
        Err(_) => ProbeOutcome::Failure(format!("dial tcp {place}: no connection within {}", go_duration(limit))),
    }
}

/// Host and port in one text.
fn place(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}
