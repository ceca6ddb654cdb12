//! Probers that break a promise.

mod plain;

use std::env;
use std::time::Duration;

use kubelet_testing::contract::ProberFixture;
use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::faults;
use plain::{Fault, Plain, TLS_HELLO};

async fn sound() -> Option<(Plain, ProberFixture)> {
    Some((Plain::new(Fault::None), ProberFixture::new().tls(serve_tls)))
}

kubelet_testing::prober_contract!(sound);

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Plain, ProberFixture)> {
    async move || {
        let fixture = ProberFixture::new().tls(serve_tls).patience(Duration::from_secs(3));
        Some((Plain::new(fault), fixture))
    }
}

/// What `Plain` takes for TLS: three bytes at the beginning, and all else in clear text.
async fn serve_tls(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let serve = async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut hello = [0; 3];
            if stream.read_exact(&mut hello).await.is_ok() && hello == TLS_HELLO {
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut server).await;
            }
        }
    };
    #[expect(clippy::disallowed_methods, reason = "it ends with the runtime of the test")]
    drop(tokio::spawn(serve));
    own
}

faults! { probers:
    has_no_timeout: with(Fault::HasNoTimeout), what_takes_longer_is_failure, "not within";
    each_redirect_has_its_timeout: with(Fault::EachRedirectHasItsTimeout), what_takes_longer_is_failure, "redirects slowly";
    grpc_has_no_timeout: with(Fault::GrpcHasNoTimeout), what_takes_longer_is_failure, "not within";
    a_timeout_is_unknown: with(Fault::TimeoutIsUnknown), what_takes_longer_is_failure, "says nothing gives Unknown";
    refusals_are_unknown: with(Fault::ErrorsAreUnknown), what_breaks_is_failure, "nobody listens gives Unknown";
    a_short_body_is_whole: with(Fault::ShortBodyIsWhole), what_breaks_is_failure, "closes in its body";
    silence_is_health: with(Fault::SilenceIsHealth), what_breaks_is_failure, "closes at once gives Success";
    keeps_whole_bodies: with(Fault::KeepsWholeBodies), an_answer_costs_bounded_memory, "";
    keeps_whole_heads: with(Fault::KeepsWholeHeads), an_answer_costs_bounded_memory, "";
    keeps_whole_messages: with(Fault::KeepsWholeMessages), an_answer_costs_bounded_memory, "";
    tells_too_much: with(Fault::TellsTooMuch), an_answer_costs_bounded_memory, "bytes are told of a body";
    keeps_connections: with(Fault::KeepsConnections), connections_end_with_their_run, "closes its connection";
    goes_on_alone: with(Fault::GoesOnAlone), dropping_the_future_ends_the_run, "closes its connection";
    verifies_certificates: with(Fault::VerifiesCertificates), certificates_are_not_verified, "that nobody knows gives Failure";
    asks_in_clear_text: with(Fault::AsksInClearText), certificates_are_not_verified, "that nobody knows gives Failure";
    only_200_is_success: with(Fault::Only200IsSuccess), http_statuses_are_what_counts, "status 201 gives";
    any_answer_is_success: with(Fault::AnyAnswerIsSuccess), http_statuses_are_what_counts, "status 400 gives";
    warns_of_nothing: with(Fault::WarnsOfNothing), http_statuses_are_what_counts, "status 300 gives";
    follows_anywhere: with(Fault::FollowsAnywhere), http_redirects_are_followed_at_the_same_host, "redirects from /away";
    follows_nothing: with(Fault::FollowsNothing), http_redirects_are_followed_at_the_same_host, "redirects from /left/1 ";
    follows_nine: with(Fault::FollowsNine), http_redirects_are_followed_at_the_same_host, "redirects from /left/10";
    follows_eleven: with(Fault::FollowsEleven), http_redirects_are_followed_at_the_same_host, "redirects from /left/11";
    one_too_many_is_an_answer: with(Fault::OneTooManyIsAnAnswer), http_redirects_are_followed_at_the_same_host, "redirects from /left/11";
    sends_paths_as_they_are: with(Fault::SendsPathsAsTheyAre), http_requests_are_the_targets, "the request for";
    headers_only_once: with(Fault::HeadersOnlyOnce), http_requests_are_the_targets, "the headers x-one";
    says_not_who_asks: with(Fault::SaysNotWhoAsks), http_requests_are_the_targets, "user agents of";
    fills_in_what_is_empty: with(Fault::FillsInWhatIsEmpty), http_requests_are_the_targets, "the headers user-agent";
    sends_words_of_a_body: with(Fault::SendsWordsOfABody), http_requests_are_the_targets, "the headers content-length";
    two_hosts: with(Fault::TwoHosts), http_requests_are_the_targets, "the host of";
    talks_over_tcp: with(Fault::TalksOverTcp), a_tcp_connection_is_success, "what came over it";
    resets_connections: with(Fault::ResetsConnections), a_tcp_connection_is_success, "what came over it";
    asks_after_the_whole_server: with(Fault::AsksAfterTheWholeServer), only_serving_is_success, "gives Success";
    any_status_is_serving: with(Fault::AnyStatusIsServing), only_serving_is_success, "gives Success";
    ends_do_not_count: with(Fault::EndsDoNotCount), only_serving_is_success, "up, but broken";
    sends_nonsense: with(Fault::SendsNonsense), nonsense_is_unknown, "gives";
    asks_before_it_thinks: with(Fault::AsksBeforeItThinks), nonsense_is_unknown, "connections for nonsense";
    one_at_a_time: with(Fault::OneAtATime), runs_may_overlap_each_other, "";
}

#[test]
fn uses_a_proxy() {
    use kubelet_testing::contract::check_without_proxy;
    use kubelet_testing::contract::probers::no_proxy_is_used;

    let test = concat!(module_path!(), "::uses_a_proxy");
    let check = || {
        check_without_proxy(test, with(Fault::UsesAProxy), async |prober, fixture| {
            no_proxy_is_used(prober, fixture).await;
        });
    };
    // In the process that is started with a proxy the check is all there is to do.
    if env::var_os("KUBELET_TESTING_BEHIND_PROXY").is_some() {
        return check();
    }
    let said = crate::caught(check);
    assert!(said.contains("a proxy that the environment names was asked"), "{said}");
}
