//! Sources of tokens that break a promise.

use std::sync::{Arc, Mutex};

use kubelet_core::jiff::Timestamp;
use kubelet_core::{ObjectError, Token, TokenRequest, TokenSource, async_trait};
use kubelet_testing::FakeTokens;
use kubelet_testing::contract::{TokenFixture, now};

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    OneAtATime,
    KeepsTheFirst,
    ForgetsThePod,
    AddsAnAudience,
    KnowsOnlyOneAccount,
    HandsOutTheExpired,
    MissingIsUnavailable,
    OutageIsNotFound,
    AnyUid,
    DroppedIsLost,
}

#[derive(Debug)]
struct Broken {
    fake: FakeTokens,
    fault: Fault,
    first: Mutex<Option<Token>>,
    in_hand: Arc<Mutex<bool>>,
}

/// Takes a mark away once it is dropped, unless that is the fault.
struct Mark(Arc<Mutex<bool>>, bool);

impl Drop for Mark {
    fn drop(&mut self) {
        if self.1 {
            *self.0.lock().unwrap() = false;
        }
    }
}

#[async_trait]
impl TokenSource for Broken {
    async fn token(&self, req: &TokenRequest) -> Result<Token, ObjectError> {
        let mut asked = req.clone();
        if matches!(self.fault, Fault::OneAtATime | Fault::DroppedIsLost) {
            let was_in_hand = std::mem::replace(&mut *self.in_hand.lock().unwrap(), true);
            assert!(!was_in_hand, "one call at a time");
            let mut mark = Mark(self.in_hand.clone(), self.fault == Fault::OneAtATime);
            tokio::task::yield_now().await;
            mark.1 = true;
        }
        match self.fault {
            Fault::ForgetsThePod => asked.pod = None,
            Fault::AddsAnAudience => asked.audiences.push("more.example".to_owned()),
            Fault::KnowsOnlyOneAccount if self.fake.token(&asked).await.is_ok() => {
                asked.service_account = "one".to_owned();
                asked.service_account_uid = Some("uid-1".to_owned());
            }
            Fault::AnyUid => asked.service_account_uid = None,
            _ => {}
        }
        let mut token = match (self.fake.token(&asked).await, self.fault) {
            (Err(ObjectError::NotFound { .. }), Fault::MissingIsUnavailable) => {
                let what = "a token".to_owned();
                let source = "who knows".into();
                return Err(ObjectError::Unavailable { what, source });
            }
            (Err(ObjectError::Unavailable { .. }), Fault::OutageIsNotFound) => {
                let kind = kubelet_core::ObjectKind::ServiceAccount;
                let key = kubelet_core::ObjectKey::new(kind, &req.namespace, &req.service_account);
                return Err(ObjectError::NotFound { key });
            }
            (answer, _) => answer?,
        };
        match self.fault {
            Fault::KeepsTheFirst => {
                return Ok(self.first.lock().unwrap().get_or_insert(token).clone());
            }
            Fault::HandsOutTheExpired => token.expires_at = Some(Timestamp::UNIX_EPOCH),
            _ => {}
        }
        Ok(token)
    }
}

fn broken(fault: Fault) -> (Broken, TokenFixture) {
    let fake = FakeTokens::new();
    fake.add_account("default", "one", "uid-1");
    fake.add_account("default", "other", "uid-2");
    let (reviewer, down, up) = (fake.clone(), fake.clone(), fake.clone());
    let fixture = TokenFixture::new("default", ("one", "uid-1"), ("other", "uid-2"))
        .reviewed(move |token| now(|| reviewer.review(&token)))
        .outage(move || now(|| down.set_down(true)), move || now(|| up.set_down(false)));
    let source = Broken {
        fake,
        fault,
        first: Mutex::default(),
        in_hand: Arc::default(),
    };
    (source, fixture)
}

async fn sound() -> Option<(Broken, TokenFixture)> {
    Some(broken(Fault::None))
}

kubelet_testing::token_contract!(sound);

fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Broken, TokenFixture)> {
    async move || Some(broken(fault))
}

faults! { tokens:
    one_at_a_time: with(Fault::OneAtATime), calls_may_overlap, "one call at a time";
    keeps_the_first: with(Fault::KeepsTheFirst), a_token_is_that_of_its_request, "the service account of a token";
    forgets_the_pod: with(Fault::ForgetsThePod), a_token_is_that_of_its_request, "the pod that a token is bound to";
    adds_an_audience: with(Fault::AddsAnAudience), a_token_is_that_of_its_request, "the audiences of a token";
    knows_only_one_account: with(Fault::KnowsOnlyOneAccount), a_token_is_that_of_its_request, "the service account of a token";
    hands_out_the_expired: with(Fault::HandsOutTheExpired), a_token_has_not_expired, "a token that expired at 1970";
    missing_is_unavailable: with(Fault::MissingIsUnavailable), not_found_is_a_fact, "a service account that does not exist gives";
    outage_is_not_found: with(Fault::OutageIsNotFound), not_found_is_a_fact, "a source that cannot ask gives";
    any_uid: with(Fault::AnyUid), a_service_account_of_another_uid_gets_no_token, "a service account of another UID";
    dropped_is_lost: with(Fault::DroppedIsLost), calls_may_be_dropped_at_any_time, "one call at a time";
}
