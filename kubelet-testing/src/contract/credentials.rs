//! The promises of [`CredentialProvider`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use kubelet_core::{
    CredentialError, CredentialProvider, CredentialRequest, PodRecord, RegistryAuth, SourceKind, SourceName,
    error_chain,
};

use crate::PodBuilder;
use crate::contract::check::{eventually, within};
use crate::contract::hook::{Given, Hook, hook};

/// Tells the suite of [`CredentialProvider`] for what the provider that it checks has credentials.
pub struct CredentialFixture {
    repository: String,
    known: Vec<RegistryAuth>,
    unknown: String,
    hangs: Given<(String, Hook<(), bool>)>,
    outage: Given<(Hook, Hook)>,
    patience: Duration,
}

impl fmt::Debug for CredentialFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialFixture")
            .field("repository", &self.repository)
            .field("unknown", &self.unknown)
            .finish_non_exhaustive()
    }
}

impl CredentialFixture {
    /// A fixture for a provider that has these credentials, with passwords of at least six letters, for one repository, such
    /// as `reg.example/team/app`, and none for the other.
    ///
    /// # Panics
    /// If there are no credentials.
    #[must_use]
    pub fn new(
        repository: impl Into<String>,
        known: impl IntoIterator<Item = RegistryAuth>,
        unknown: impl Into<String>,
    ) -> Self {
        let known: Vec<_> = known.into_iter().collect();
        assert!(!known.is_empty(), "the fixture has no credentials");
        Self {
            repository: repository.into(),
            known,
            unknown: unknown.into(),
            hangs: Given::Unsaid,
            outage: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// A repository whose credentials take so long that it does not matter how long, and how to see whether anything still
    /// works on that. Without it that is not checked.
    #[must_use]
    pub fn hangs<F>(mut self, repository: impl Into<String>, is_at_work: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.hangs = Given::Here((repository.into(), hook(move |()| is_at_work())));
        self
    }

    /// For a provider that has nothing to wait for but the machine's own files or memory.
    #[must_use]
    pub fn never_hangs(mut self) -> Self {
        self.hangs = Given::Never;
        self
    }

    /// How to break the provider, so that it has an error for the repository, and to mend it. Without it those promises
    /// are skipped.
    #[must_use]
    pub fn outage<D, U>(
        mut self,
        break_it: impl Fn() -> D + Send + Sync + 'static,
        mend_it: impl Fn() -> U + Send + Sync + 'static,
    ) -> Self
    where
        D: Future<Output = ()> + Send + 'static,
        U: Future<Output = ()> + Send + 'static,
    {
        self.outage = Given::Here((hook(move |()| break_it()), hook(move |()| mend_it())));
        self
    }

    /// For a provider that cannot fail.
    #[must_use]
    pub fn never_fails(mut self) -> Self {
        self.outage = Given::Never;
        self
    }

    /// How long anything may take that should take no time; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    async fn ask(
        &self,
        provider: &dyn CredentialProvider,
        repository: &str,
    ) -> Result<Vec<RegistryAuth>, CredentialError> {
        let pod = pod();
        let request = CredentialRequest::new(repository, &pod);
        let found = within("credentials", self.patience, provider.credentials(&request)).await?;
        Ok(found.into_iter().map(|found| found.auth).collect())
    }

    /// The credentials that are known, which must come as they are.
    async fn ask_known(&self, provider: &dyn CredentialProvider, when: &str) {
        match self.ask(provider, &self.repository).await {
            // Not by `assert_eq`: it would have to show them.
            Ok(found) => assert!(found == self.known, "other credentials for {} {when}", self.repository),
            Err(error) => panic!("no credentials for {} {when}: {}", self.repository, error_chain(&error)),
        }
    }

    async fn ask_unknown(&self, provider: &dyn CredentialProvider, when: &str) {
        match self.ask(provider, &self.unknown).await {
            Ok(found) => assert!(found.is_empty(), "credentials for {} {when}", self.unknown),
            Err(error) => panic!(
                "an error instead of nothing for {} {when}: {}",
                self.unknown,
                error_chain(&error)
            ),
        }
    }

    fn no_secret_in(&self, what: &str, text: &str) {
        for auth in &self.known {
            let secrets = [&auth.password, &auth.identity_token, &auth.registry_token];
            let told = secrets
                .into_iter()
                .any(|secret| !secret.is_empty() && text.contains(secret.as_str()));
            assert!(!told, "{what} tells a secret");
        }
    }
}

fn pod() -> Arc<PodRecord> {
    let pod = PodBuilder::new("app").container("app", |container| container).build();
    match PodRecord::new(&pod, SourceName::from("contract"), SourceKind::Managed) {
        Ok(pod) => Arc::new(pod),
        Err(error) => panic!("a pod of the suite: {error}"),
    }
}

/// Calls may overlap each other, for one repository too.
///
/// # Panics
/// If the promise is broken.
pub async fn calls_may_overlap_each_other(provider: &dyn CredentialProvider, fixture: &CredentialFixture) {
    let calls = (0..16).map(|call| async move {
        match call % 4 {
            0 => fixture.ask_unknown(provider, "among other calls").await,
            _ => fixture.ask_known(provider, "among other calls").await,
        }
    });
    join_all(calls).await;
}

/// The same repository and service account get the same credentials, in the order in which to try them, until they change, whatever else is
/// asked.
///
/// # Panics
/// If the promise is broken.
pub async fn the_same_repository_gets_the_same_credentials(
    provider: &dyn CredentialProvider,
    fixture: &CredentialFixture,
) {
    for when in ["at first", "again", "and again"] {
        fixture.ask_known(provider, when).await;
        fixture.ask_unknown(provider, when).await;
    }
}

/// Nothing to show is an empty list, never an error; neither is a repository that no registry can have.
///
/// # Panics
/// If the promise is broken.
pub async fn nothing_to_show_is_an_empty_list(provider: &dyn CredentialProvider, fixture: &CredentialFixture) {
    fixture.ask_unknown(provider, "at first").await;
    fixture.ask_known(provider, "afterwards").await;
    fixture.ask_unknown(provider, "afterwards").await;
    for nonsense in ["", "/", "reg.example:no-port/x"] {
        let answer = fixture.ask(provider, nonsense).await;
        assert!(
            answer.is_ok_and(|found| found.is_empty()),
            "the repository {nonsense:?} gives something else than nothing"
        );
    }
}

/// A call may be dropped at any time and leaves nothing running; later ones are answered.
///
/// # Panics
/// If the promise is broken.
pub async fn a_call_may_be_dropped_at_any_time(provider: &dyn CredentialProvider, fixture: &CredentialFixture) {
    let pod = pod();
    let request = CredentialRequest::new(&fixture.repository, &pod);
    for polls in 0..4 {
        let mut call = provider.credentials(&request);
        for _ in 0..polls {
            if (&mut call).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        fixture.ask_known(provider, "after a call that was dropped").await;
    }
    let promise = "a_call_may_be_dropped_at_any_time";
    let lacks = "the fixture has no repository that hangs";
    let Some((repository, is_at_work)) = fixture.hangs.or_skip(promise, lacks) else {
        return;
    };
    let request = CredentialRequest::new(repository, &pod);
    let begins = async {
        let begun = async || is_at_work(()).await.then_some(());
        eventually("work begins", fixture.patience, begun).await;
    };
    tokio::select! {
        biased;
        _ = provider.credentials(&request) => panic!("{repository} is answered, which hangs, says the fixture"),
        () = begins => {}
    }
    let ended = async || (!is_at_work(()).await).then_some(());
    eventually("what a dropped call left ends", fixture.patience, ended).await;
    fixture.ask_known(provider, "after one that hung").await;
}

/// A failure is an error, never an empty list, and the next call tries again.
///
/// # Panics
/// If the promise is broken.
pub async fn a_failure_is_an_error_and_the_next_call_tries_again(
    provider: &dyn CredentialProvider,
    fixture: &CredentialFixture,
) {
    let promise = "a_failure_is_an_error_and_the_next_call_tries_again";
    let Some((break_it, mend_it)) = fixture
        .outage
        .or_skip(promise, "the fixture does not break the provider")
    else {
        return;
    };
    // Before anything is known that may be kept.
    for _ in 0..2 {
        break_it(()).await;
        let answer = fixture.ask(provider, &fixture.repository).await;
        assert!(answer.is_err(), "a provider that is broken has an answer");
    }
    mend_it(()).await;
    fixture.ask_known(provider, "after a failure").await;
}

/// Neither errors nor `Debug` tell what is secret.
///
/// # Panics
/// If the promise is broken.
pub async fn nothing_secret_is_told(provider: &dyn CredentialProvider, fixture: &CredentialFixture) {
    fixture.no_secret_in("Debug", &format!("{provider:?} {provider:#?}"));
    fixture.no_secret_in("the name", provider.name());
    let lacks = "the fixture does not break the provider";
    if let Some((break_it, mend_it)) = fixture.outage.or_skip("nothing_secret_is_told", lacks) {
        break_it(()).await;
        if let Err(error) = fixture.ask(provider, &fixture.repository).await {
            let text = format!("{} {error:?}", error_chain(&error));
            fixture.no_secret_in("an error", &text);
        }
        mend_it(()).await;
    }
    fixture.ask_known(provider, "in the end").await;
    fixture.no_secret_in("Debug", &format!("{provider:?} {provider:#?}"));
}

/// Makes one `#[test]` of each promise of [`CredentialProvider`].
///
/// Takes an async function without arguments that answers `Some((provider, fixture))` with a
/// [`CredentialFixture`](crate::contract::CredentialFixture). It is called once per promise. The suite runs in real time.
///
/// ```
/// # mod example {
/// use std::fs;
/// use kubelet_core::{DockerConfigFiles, RegistryAuth};
/// use kubelet_testing::contract::CredentialFixture;
///
/// async fn docker() -> Option<(DockerConfigFiles, CredentialFixture)> {
///     let folder = std::env::temp_dir().join("docker-of-an-example");
///     fs::create_dir_all(&folder).ok()?;
///     fs::write(folder.join("config.json"), r#"{"auths": {"reg.example": {"username": "me", "password": "hunter2"}}}"#).ok()?;
///     let fixture = CredentialFixture::new("reg.example/app", [RegistryAuth::basic("me", "hunter2")], "other.example/app");
///     Some((DockerConfigFiles::in_folders([folder]), fixture.never_hangs().never_fails()))
/// }
///
/// kubelet_testing::credential_contract!(docker);
/// # }
/// ```
#[macro_export]
macro_rules! credential_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, credentials:
            a_call_may_be_dropped_at_any_time
            a_failure_is_an_error_and_the_next_call_tries_again
            calls_may_overlap_each_other
            nothing_secret_is_told
            nothing_to_show_is_an_empty_list
            the_same_repository_gets_the_same_credentials
        }
    };
}
