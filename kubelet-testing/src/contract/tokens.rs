//! The promises of [`TokenSource`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use kubelet_core::{Clock, ObjectError, PodUid, SystemClock, Token, TokenRequest, TokenSource, error_chain};

use crate::contract::check::within;
use crate::contract::fixture::random_uid;
use crate::contract::hook::{Given, Hook, hook};

/// Tells the suite of [`TokenSource`] for whom the source that it checks has tokens.
pub struct TokenFixture {
    namespace: String,
    accounts: [(String, String); 2],
    pod: (String, PodUid),
    reviewed: Given<Hook<String, Option<TokenRequest>>>,
    outage: Given<(Hook, Hook)>,
    patience: Duration,
}

impl fmt::Debug for TokenFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenFixture")
            .field("namespace", &self.namespace)
            .field("accounts", &self.accounts)
            .finish_non_exhaustive()
    }
}

impl TokenFixture {
    /// A fixture for a source that has tokens of two service accounts of a namespace, each given by name and UID.
    #[must_use]
    pub fn new(namespace: &str, one: (&str, &str), other: (&str, &str)) -> Self {
        Self {
            namespace: namespace.to_owned(),
            accounts: [one, other].map(|(name, uid)| (name.to_owned(), uid.to_owned())),
            pod: ("kubelet-tokens".to_owned(), PodUid::from(random_uid())),
            reviewed: Given::Unsaid,
            outage: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// The pod of that namespace that tokens are bound to, where the source has to know it.
    #[must_use]
    pub fn pod(mut self, name: &str, uid: PodUid) -> Self {
        self.pod = (name.to_owned(), uid);
        self
    }

    /// What a token is for, as those see it to whom it is shown: a request that has its service account, its audiences and its pod in it,
    /// and the UID of its service account where it tells. Nothing: it is no token.
    #[must_use]
    pub fn reviewed<F>(mut self, reviewed: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<TokenRequest>> + Send + 'static,
    {
        self.reviewed = Given::Here(hook(reviewed));
        self
    }

    /// How to make that the source can ask nobody, and that it can again.
    #[must_use]
    pub fn outage<D, U>(
        mut self,
        down: impl Fn() -> D + Send + Sync + 'static,
        up: impl Fn() -> U + Send + Sync + 'static,
    ) -> Self
    where
        D: Future<Output = ()> + Send + 'static,
        U: Future<Output = ()> + Send + 'static,
    {
        self.outage = Given::Here((hook(move |()| down()), hook(move |()| up())));
        self
    }

    /// For a source that asks nobody.
    #[must_use]
    pub fn always_there(mut self) -> Self {
        self.outage = Given::Never;
        self
    }

    /// How long a call may take; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// A request for one of the accounts, bound to the pod.
    fn request(&self, account: usize) -> TokenRequest {
        let (name, uid) = &self.accounts[account];
        let mut request = TokenRequest::new(&self.namespace, name).with_uid(uid);
        request.pod = Some(self.pod.clone());
        request
    }

    /// The same for an audience of the suite.
    fn for_audience(&self, account: usize, audience: &str) -> TokenRequest {
        self.request(account).with_audience(audience)
    }

    async fn ask(&self, source: &dyn TokenSource, request: &TokenRequest) -> Result<Token, ObjectError> {
        within("ask for a token", self.patience, source.token(request)).await
    }

    async fn given(&self, source: &dyn TokenSource, request: &TokenRequest) -> Token {
        match self.ask(source, request).await {
            Ok(token) => {
                assert!(!token.value.is_empty(), "a token is empty");
                token
            }
            Err(error) => panic!("a token for {request:?}: {}", error_chain(&error)),
        }
    }

    /// Checks a token, where the fixture says how.
    async fn check(&self, token: &Token, request: &TokenRequest) {
        let Some(reviewed) = self.reviewed.here() else { return };
        let Some(seen) = reviewed(token.value.clone()).await else {
            panic!("the token for {request:?} is none");
        };
        let account = |of: &TokenRequest| (of.namespace.clone(), of.service_account.clone());
        assert_eq!(account(&seen), account(request), "the service account of a token");
        if seen.service_account_uid.is_some() {
            let what = "the UID of a token's service account";
            assert_eq!(seen.service_account_uid, request.service_account_uid, "{what}");
        }
        let audiences = |of: &TokenRequest| of.audiences.iter().cloned().collect::<BTreeSet<_>>();
        // What the audience of an API server is called is its own affair.
        if !request.audiences.is_empty() {
            assert_eq!(audiences(&seen), audiences(request), "the audiences of a token");
        }
        assert_eq!(seen.pod, request.pod, "the pod that a token is bound to");
    }
}

/// Calls may overlap each other, for one request too.
///
/// # Panics
/// If the promise is broken.
pub async fn calls_may_overlap(source: &dyn TokenSource, fixture: &TokenFixture) {
    let audiences = ["one.example", "other.example"];
    let asks = (0..8).map(|round| async move {
        let request = fixture.for_audience(round % 2, audiences[round / 2 % 2]);
        let token = fixture.given(source, &request).await;
        fixture.check(&token, &request).await;
    });
    join_all(asks).await;
}

/// A token is that of its request: of its service account, for its audiences and no others, and bound to its pod.
///
/// # Panics
/// If the promise is broken.
pub async fn a_token_is_that_of_its_request(source: &dyn TokenSource, fixture: &TokenFixture) {
    let lacks = "the fixture does not say what a token is for";
    if fixture
        .reviewed
        .or_skip("a_token_is_that_of_its_request", lacks)
        .is_none()
    {
        return;
    }
    let both = fixture.for_audience(0, "one.example").with_audience("other.example");
    let mut unbound = fixture.for_audience(0, "one.example");
    unbound.pod = None;
    let mut of_any_uid = fixture.for_audience(0, "one.example");
    of_any_uid.service_account_uid = None;
    let requests = [
        fixture.for_audience(0, "one.example"),
        fixture.for_audience(1, "one.example"),
        fixture.for_audience(0, "other.example"),
        both,
        unbound,
        fixture.request(0),
        fixture
            .for_audience(0, "one.example")
            .with_lifetime(Duration::from_secs(7200)),
        // Once more, since a source may have kept it.
        fixture.for_audience(0, "one.example"),
    ];
    for request in &requests {
        let token = fixture.given(source, request).await;
        fixture.check(&token, request).await;
    }
    fixture.given(source, &of_any_uid).await;
}

/// A token that is handed out has not expired.
///
/// # Panics
/// If the promise is broken.
pub async fn a_token_has_not_expired(source: &dyn TokenSource, fixture: &TokenFixture) {
    let plain = fixture.for_audience(0, "one.example");
    let short = plain.clone().with_lifetime(Duration::from_secs(600));
    for request in [&plain, &short, &plain, &short] {
        let before = SystemClock.now();
        if let Some(until) = fixture.given(source, request).await.expires_at {
            assert!(
                until > before,
                "a token that expired at {until} is handed out at {before}"
            );
        }
    }
}

/// A service account that does not exist is [`ObjectError::NotFound`]; a source that cannot ask answers [`ObjectError::Unavailable`].
///
/// # Panics
/// If the promise is broken.
pub async fn not_found_is_a_fact(source: &dyn TokenSource, fixture: &TokenFixture) {
    let name = format!("kubelet-{}", random_uid());
    let missing = TokenRequest::new(&fixture.namespace, name).with_audience("one.example");
    let answer = fixture.ask(source, &missing).await;
    let is_not_found = matches!(&answer, Err(ObjectError::NotFound { key }) if key.name == missing.service_account);
    assert!(is_not_found, "a service account that does not exist gives {answer:?}");
    let lacks = "the fixture cannot keep the source from asking";
    let Some((down, up)) = fixture.outage.or_skip("not_found_is_a_fact", lacks) else {
        return;
    };
    down(()).await;
    // Nobody has asked for that one yet, so that it is not at hand.
    let unasked = fixture.for_audience(0, &format!("{}.example", random_uid()));
    let answers = [fixture.ask(source, &missing).await, fixture.ask(source, &unasked).await];
    up(()).await;
    for answer in answers {
        let is_unavailable = matches!(answer, Err(ObjectError::Unavailable { .. }));
        assert!(is_unavailable, "a source that cannot ask gives {answer:?}");
    }
    fixture.given(source, &unasked).await;
}

/// A service account of another UID than that of the request gets no token.
///
/// # Panics
/// If the promise is broken.
pub async fn a_service_account_of_another_uid_gets_no_token(source: &dyn TokenSource, fixture: &TokenFixture) {
    let right = fixture.for_audience(0, "one.example");
    let wrong = right.clone().with_uid(random_uid());
    // Before and after the right one was asked for.
    for _ in 0..2 {
        let answer = fixture.ask(source, &wrong).await;
        assert!(answer.is_err(), "a service account of another UID gives {answer:?}");
        fixture.given(source, &right).await;
    }
}

/// A call may be dropped at any time and leaves nothing behind.
///
/// # Panics
/// If the promise is broken.
pub async fn calls_may_be_dropped_at_any_time(source: &dyn TokenSource, fixture: &TokenFixture) {
    for polls in 0..6 {
        let request = fixture.for_audience(0, "one.example");
        let mut call = source.token(&request);
        for _ in 0..polls {
            if (&mut call).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        let token = fixture.given(source, &request).await;
        fixture.check(&token, &request).await;
    }
}

/// Makes one `#[test]` of each promise of [`TokenSource`].
///
/// Takes an async function without arguments that answers `Some((source, fixture))` with a
/// [`TokenFixture`](crate::contract::TokenFixture), or nothing where the source cannot be had. It is called once per promise.
///
/// ```
/// # mod example {
/// use kubelet_testing::FakeTokens;
/// use kubelet_testing::contract::{TokenFixture, now};
///
/// async fn fake() -> Option<(FakeTokens, TokenFixture)> {
///     let tokens = FakeTokens::new();
///     tokens.add_account("default", "one", "uid-1");
///     tokens.add_account("default", "other", "uid-2");
///     let (reviewer, down, up) = (tokens.clone(), tokens.clone(), tokens.clone());
///     let fixture = TokenFixture::new("default", ("one", "uid-1"), ("other", "uid-2"))
///         .reviewed(move |token| now(|| reviewer.review(&token)))
///         .outage(move || now(|| down.set_down(true)), move || now(|| up.set_down(false)));
///     Some((tokens, fixture))
/// }
///
/// kubelet_testing::token_contract!(fake);
/// # }
/// ```
#[macro_export]
macro_rules! token_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, tokens:
            a_service_account_of_another_uid_gets_no_token
            a_token_has_not_expired
            a_token_is_that_of_its_request
            calls_may_be_dropped_at_any_time
            calls_may_overlap
            not_found_is_a_fact
        }
    };
}
