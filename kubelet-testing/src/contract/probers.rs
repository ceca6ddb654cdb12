//! The promises of [`Prober`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

mod answers;
mod health;
mod limits;
mod requests;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use kubelet_core::{GrpcProbe, HttpProbe, ProbeAction, ProbeOutcome, ProbeTarget, Prober, TcpProbe};

use crate::contract::check::within;
use crate::contract::hook::{Given, Hook, hook};

pub use answers::{
    a_tcp_connection_is_success, certificates_are_not_verified, http_redirects_are_followed_at_the_same_host,
    http_statuses_are_what_counts, only_serving_is_success, what_breaks_is_failure,
};
pub use limits::{
    an_answer_costs_bounded_memory, connections_end_with_their_run, dropping_the_future_ends_the_run,
    what_takes_longer_is_failure,
};
pub use requests::{http_requests_are_the_targets, no_proxy_is_used, nonsense_is_unknown, runs_may_overlap_each_other};

/// Tells the suite of [`Prober`] what it needs beside the prober that it checks.
///
/// The suite brings the servers along, on ports of this machine, but for one that speaks TLS.
pub struct ProberFixture {
    patience: Duration,
    tls: Given<Hook<u16, u16>>,
}

impl fmt::Debug for ProberFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProberFixture")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Default for ProberFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl ProberFixture {
    /// A fixture for a prober that can reach `127.0.0.1`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            patience: Duration::from_secs(20),
            tls: Given::Unsaid,
        }
    }

    /// How long a run may take that is to end early, whatever its timeout; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Starts a server of TLS on a port of `127.0.0.1`, with a certificate that nobody has reason to trust, and answers that port.
    /// It passes on what it is told, in clear text, to the port that it is given, and back.
    #[must_use]
    pub fn tls<F>(mut self, start: impl Fn(u16) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = u16> + Send + 'static,
    {
        self.tls = Given::Here(hook(start));
        self
    }
}

/// The targets at a port, one of each kind.
fn all_kinds(port: u16) -> [ProbeAction; 3] {
    [http(port, "/"), tcp(port), grpc(port, "")]
}

fn http(port: u16, path: &str) -> ProbeAction {
    ProbeAction::HttpGet(HttpProbe::new("127.0.0.1", port, path))
}

fn tcp(port: u16) -> ProbeAction {
    ProbeAction::TcpSocket(TcpProbe::new("127.0.0.1", port))
}

fn grpc(port: u16, service: &str) -> ProbeAction {
    ProbeAction::Grpc(GrpcProbe::new("127.0.0.1", port, service))
}

/// Runs a probe that is to end before its time is over.
async fn run(prober: &dyn Prober, fixture: &ProberFixture, action: ProbeAction) -> ProbeOutcome {
    run_within(prober, fixture, action, fixture.patience).await
}

async fn run_within(
    prober: &dyn Prober,
    fixture: &ProberFixture,
    action: ProbeAction,
    timeout: Duration,
) -> ProbeOutcome {
    let target = ProbeTarget::new(action, timeout);
    within("the end of a run", fixture.patience, prober.probe(&target)).await
}

/// Makes one `#[test]` of each promise of [`Prober`].
///
/// Takes an async function without arguments that answers `Some((prober, fixture))` with a
/// [`ProberFixture`](crate::contract::ProberFixture). It is called once per promise. The suite runs in real time, against servers on
/// ports of this machine that are slow, send floods, break off or talk garbage. One test starts itself again, as a process with a
/// proxy in its environment; one needs a server of TLS, and is skipped where [`ProberFixture::tls`](crate::contract::ProberFixture::tls) does not give it.
///
/// ```no_run
/// # mod example {
/// # use kubelet_core::{ProbeOutcome, ProbeTarget, Prober, async_trait};
/// # #[derive(Debug)]
/// # struct MyProber;
/// # #[async_trait]
/// # impl Prober for MyProber {
/// #     async fn probe(&self, _: &ProbeTarget) -> ProbeOutcome { ProbeOutcome::success() }
/// # }
/// use kubelet_testing::contract::ProberFixture;
///
/// async fn mine() -> Option<(MyProber, ProberFixture)> {
///     Some((MyProber, ProberFixture::new()))
/// }
///
/// kubelet_testing::prober_contract!(mine);
/// # }
/// ```
#[macro_export]
macro_rules! prober_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, probers:
            a_tcp_connection_is_success
            an_answer_costs_bounded_memory
            certificates_are_not_verified
            connections_end_with_their_run
            dropping_the_future_ends_the_run
            http_redirects_are_followed_at_the_same_host
            http_requests_are_the_targets
            http_statuses_are_what_counts
            nonsense_is_unknown
            only_serving_is_success
            runs_may_overlap_each_other
            what_breaks_is_failure
            what_takes_longer_is_failure
        }

        #[test]
        fn no_proxy_is_used() {
            $crate::contract::check_without_proxy(
                concat!(module_path!(), "::no_proxy_is_used"),
                $make,
                async |prober, fixture| $crate::contract::probers::no_proxy_is_used(prober, fixture).await,
            );
        }
    };
}
