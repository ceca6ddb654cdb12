//! The promises of [`HttpClient`](kubelet_core::HttpClient).
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

mod answers;
mod limits;
mod proxy;

use std::time::Duration;

pub use answers::{
    a_request_is_sent_as_it_is_asked_for, any_status_code_is_an_answer, nonsense_is_a_bad_request,
    plain_http_is_told_apart, redirects_are_followed_as_far_as_allowed, requests_may_overlap_each_other,
    what_is_cut_off_is_an_error,
};
pub use limits::{
    connections_are_not_kept, dropping_the_future_ends_the_exchange, no_more_than_the_body_limit_is_kept,
    the_head_is_bounded_too, the_whole_exchange_ends_within_the_timeout,
};
pub use proxy::no_proxy_is_used;

/// Tells the suite of [`HttpClient`](kubelet_core::HttpClient) what it needs beside the client that it checks.
///
/// The suite brings the servers along, on ports of this machine.
#[derive(Clone, Debug)]
pub struct HttpFixture {
    patience: Duration,
}

impl Default for HttpFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpFixture {
    /// A fixture for a client that can reach `127.0.0.1`.
    #[must_use]
    pub fn new() -> Self {
        let patience = Duration::from_secs(20);
        Self { patience }
    }

    /// How long an exchange may take that is to end early, whatever its request says; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// Makes one `#[test]` of each promise of [`HttpClient`](kubelet_core::HttpClient).
///
/// Takes an async function without arguments that answers `Some((client, fixture))` with an
/// [`HttpFixture`](crate::contract::HttpFixture). It is called once per promise. The suite runs in real time, against servers on
/// ports of this machine that are slow, send floods, break off or talk garbage. What a client does with certificates it does
/// not check. One test starts itself again, as a process with a proxy in its environment.
///
/// ```no_run
/// # mod example {
/// # use kubelet_core::{BoundedRequest, BoundedResponse, HttpClient, HttpError, async_trait};
/// # #[derive(Debug)]
/// # struct MyClient;
/// # #[async_trait]
/// # impl HttpClient for MyClient {
/// #     async fn send(&self, _: BoundedRequest) -> Result<BoundedResponse, HttpError> { Ok(BoundedResponse::new(200, "")) }
/// # }
/// use kubelet_testing::contract::HttpFixture;
///
/// async fn mine() -> Option<(MyClient, HttpFixture)> {
///     Some((MyClient, HttpFixture::new()))
/// }
///
/// kubelet_testing::http_contract!(mine);
/// # }
/// ```
#[macro_export]
macro_rules! http_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, http:
            a_request_is_sent_as_it_is_asked_for
            any_status_code_is_an_answer
            connections_are_not_kept
            dropping_the_future_ends_the_exchange
            no_more_than_the_body_limit_is_kept
            nonsense_is_a_bad_request
            plain_http_is_told_apart
            redirects_are_followed_as_far_as_allowed
            requests_may_overlap_each_other
            the_head_is_bounded_too
            the_whole_exchange_ends_within_the_timeout
            what_is_cut_off_is_an_error
        }

        #[test]
        fn no_proxy_is_used() {
            $crate::contract::check_without_proxy(
                concat!(module_path!(), "::no_proxy_is_used"),
                $make,
                async |client, fixture| $crate::contract::http::no_proxy_is_used(client, fixture).await,
            );
        }
    };
}
