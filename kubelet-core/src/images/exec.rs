//! Credentials from plugins: programs that are asked for them.

mod account;
mod cache;
mod config;
mod duration;
mod process;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::account::{Caller, of_plugin};
use self::cache::Cache;
pub use self::config::CredentialConfigError;
use self::config::ProviderConfig;
use self::process::{Complaints, Program};
use self::wire::Shown;
use super::keyring::Keyring;
use super::pattern::RegistryPattern;
use super::provider::{CredentialError, CredentialProvider, CredentialRequest, ProvidedCredential, ServiceAccountKey};
use crate::clock::{Clock, SystemClock};
use crate::error::error_chain;
use crate::tokens::Token;

/// How long a plugin may run.
const LIMIT: Duration = Duration::from_secs(60);

/// How long the sources of service accounts and of tokens may take.
const SOURCE_LIMIT: Duration = Duration::from_secs(10);

/// How long one plugin may take in all, with what it is shown and its turn: less than all of them have by default.
const PLUGIN_LIMIT: Duration = Duration::from_secs(100);

/// How long answers for a token are kept at most of which nobody said until when it is valid.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// Asks credential provider plugins: programs that read a `CredentialProviderRequest` and answer with a
/// `CredentialProviderResponse`.
///
/// Each plugin is asked for the images that its configuration names. Answers are kept as long as they say; for one image a
/// plugin runs once at a time, and at most a minute. It inherits the environment of this process. A plugin that fails, or is shown
/// nothing in time, is logged, and the others count.
///
/// A plugin with `tokenAttributes` is shown a token of the pod's service account, and gives credentials of that account. It needs
/// [`KubeletBuilder::tokens`](crate::KubeletBuilder::tokens), and an object source that serves service accounts. Where it fails, what it
/// has written to its standard error is told nobody, since that may quote the token.
///
/// Source: kubelet 1.36, `credentialprovider/plugin`.
pub struct ExecCredentialProviders {
    plugins: Vec<Plugin>,
    clock: Arc<dyn Clock>,
}

/// One plugin.
struct Plugin {
    config: ProviderConfig,
    program: Program,
    cache: Mutex<Cache>,
    /// Those that run, by image and whom it is for.
    running: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

impl ExecCredentialProviders {
    /// Reads a `CredentialProviderConfig`, or all of a folder (`.json`, `.yaml` and `.yml`, in the order of their names), and
    /// makes sure that each plugin is in `bin_dir`.
    ///
    /// # Errors
    /// [`CredentialConfigError`] names the file, the field and its value.
    pub async fn load(config: impl AsRef<Path>, bin_dir: impl AsRef<Path>) -> Result<Self, CredentialConfigError> {
        let (config, bin_dir) = (config.as_ref().to_owned(), bin_dir.as_ref().to_owned());
        let at = config.clone();
        let loaded = tokio::task::spawn_blocking(move || Self::load_now(&config, &bin_dir));
        loaded.await.map_err(|error| CredentialConfigError::Read {
            path: at,
            source: error.into(),
        })?
    }

    fn load_now(config: &Path, bin_dir: &Path) -> Result<Self, CredentialConfigError> {
        let configs = config::read(config)?;
        let mut plugins = Vec::with_capacity(configs.len());
        for config in configs {
            let path = bin_dir.join(&config.name);
            process::check(&path).map_err(|source| CredentialConfigError::Program {
                provider: config.name.clone(),
                path: path.clone(),
                source,
            })?;
            plugins.push(Plugin::new(config, path));
        }
        Ok(Self {
            plugins,
            clock: Arc::new(SystemClock),
        })
    }

    /// The same with another clock, which says how long tokens are valid.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }
}

impl fmt::Debug for ExecCredentialProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.plugins.iter().map(|plugin| &plugin.config.name).collect();
        f.debug_struct("ExecCredentialProviders")
            .field("plugins", &names)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl CredentialProvider for ExecCredentialProviders {
    fn name(&self) -> &str {
        "credential provider plugins"
    }

    fn needs_tokens(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin.config.tokens.is_some())
    }

    async fn credentials(&self, req: &CredentialRequest<'_>) -> Result<Vec<ProvidedCredential>, CredentialError> {
        let Ok(wanted) = RegistryPattern::parse(req.repository) else {
            return Ok(Vec::new());
        };
        let fitting: Vec<_> = self.plugins.iter().filter(|plugin| plugin.serves(&wanted)).collect();
        let answers = join_all(fitting.iter().map(|plugin| plugin.provide_in_time(req, &*self.clock))).await;
        let (mut keyring, mut failures) = (Keyring::new(), Vec::new());
        let (mut of_node, mut of_account) = (Keyring::new(), Keyring::new());
        // All accounts are that of the pod.
        let mut account = None;
        for answer in answers {
            match answer {
                Ok((more, None)) => {
                    of_node.extend(more.clone());
                    keyring.extend(more);
                }
                Ok((more, of)) => {
                    account = of;
                    of_account.extend(more.clone());
                    keyring.extend(more);
                }
                Err(error) => failures.push(error),
            }
        }
        let (of_node, of_account) = (of_node.lookup(req.repository), of_account.lookup(req.repository));
        let mut found = Vec::new();
        for auth in keyring.lookup(req.repository) {
            // What both have is the node's, and shows whom the pod is all the same.
            let node = of_node.contains(&auth).then_some(None);
            let account = account.clone().filter(|_| of_account.contains(&auth)).map(Some);
            for service_account in node.into_iter().chain(account) {
                let auth = auth.clone();
                let credential = ProvidedCredential { auth, service_account };
                if !found.contains(&credential) {
                    found.push(credential);
                }
            }
        }
        if found.is_empty() && !failures.is_empty() {
            let texts: Vec<String> = failures.iter().map(|error| error_chain(error).to_string()).collect();
            return Err(CredentialError::new(texts.join("; ")));
        }
        for error in failures {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "credential provider plugin failed"
            );
        }
        Ok(found)
    }
}

impl Plugin {
    fn new(config: ProviderConfig, path: PathBuf) -> Self {
        Self {
            program: Program {
                path,
                args: config.args.clone(),
                env: config.env.clone(),
            },
            config,
            cache: Mutex::default(),
            running: Mutex::default(),
        }
    }

    fn serves(&self, repository: &RegistryPattern) -> bool {
        self.config
            .match_images
            .iter()
            .any(|pattern| pattern.matches(repository))
    }

    /// One that waits for others costs nobody else their answers.
    async fn provide_in_time(
        &self,
        req: &CredentialRequest<'_>,
        clock: &dyn Clock,
    ) -> Result<(Keyring, Option<ServiceAccountKey>), CredentialError> {
        let provided = tokio::time::timeout(PLUGIN_LIMIT, self.provide(req, clock)).await;
        provided.unwrap_or_else(|_| {
            let why = CredentialError::new(format!("no answer within {PLUGIN_LIMIT:?}"));
            Err(of_plugin(&self.config.name, &why))
        })
    }

    /// Its answer, and the service account that it is for; nothing: for every pod.
    async fn provide(
        &self,
        req: &CredentialRequest<'_>,
        clock: &dyn Clock,
    ) -> Result<(Keyring, Option<ServiceAccountKey>), CredentialError> {
        let named = |error: CredentialError| of_plugin(&self.config.name, &error);
        match account::caller(self.config.tokens.as_ref(), req).await.map_err(named)? {
            None => Ok((Keyring::new(), None)),
            Some(caller) => {
                let keyring = self.provide_for(req, &caller, clock).await.map_err(named)?;
                let account = match caller {
                    Caller::Nobody => None,
                    Caller::Account(account) => Some(account.key),
                };
                Ok((keyring, account))
            }
        }
    }

    async fn provide_for(
        &self,
        req: &CredentialRequest<'_>,
        caller: &Caller,
        clock: &dyn Clock,
    ) -> Result<Keyring, CredentialError> {
        let repository = req.repository;
        let account = match (caller, &self.config.tokens) {
            (Caller::Account(account), Some(attributes)) => Some((account, attributes)),
            _ => None,
        };
        let mut token = None;
        if let Some((account, attributes)) = account.filter(|(_, attributes)| attributes.is_cached_by_token) {
            token = Some(account.token(attributes, req).await?);
        }
        let whom = account.map_or_else(String::new, |(account, _)| account.cache_key(token.as_ref()));
        if let Some(known) = self.known(&whom, repository) {
            return Ok(known);
        }
        let running = Running::of(&self.running, format!("{repository} {whom}"));
        // Nobody closes it.
        let _turn = running.turns.acquire().await;
        // Whoever ran before may have brought it.
        if let Some(known) = self.known(&whom, repository) {
            return Ok(known);
        }
        if let Some((account, attributes)) = account.filter(|_| token.is_none()) {
            token = Some(account.token(attributes, req).await?);
        }
        let shown = account.zip(token.as_ref()).map(|((account, _), token)| Shown {
            token: &token.value,
            annotations: &account.annotations,
        });
        let request = wire::request(&self.config.api_version, repository, shown);
        let complaints = match &token {
            Some(_) => Complaints::Hidden,
            None => Complaints::Told,
        };
        let answer = tokio::time::timeout(LIMIT, self.program.run(&request, complaints))
            .await
            .map_err(|_| CredentialError::new(format!("no answer within {LIMIT:?}")))?
            .map_err(CredentialError::new)?;
        let answer = wire::read(&answer, &self.config.api_version).map_err(|why| {
            let quotes_token = token.as_ref().is_some_and(|token| why.contains(&token.value));
            CredentialError::new(if quotes_token {
                "its answer is of no use, and has the token where none belongs".to_owned()
            } else {
                why
            })
        })?;
        // Kept for the account, it would outlive the token.
        let is_kept_for_token = account.is_some_and(|(_, attributes)| attributes.is_cached_by_token);
        let has_password = |token: &Token| answer.keyring.has_password(&token.value);
        if !is_kept_for_token && token.as_ref().is_some_and(has_password) {
            let why = "its answer has the token as a password, which takes tokenAttributes.cacheType Token";
            return Err(CredentialError::new(why));
        }
        let mut lasts = answer.cache_duration.unwrap_or(self.config.default_cache_duration);
        if let Some(token) = token.filter(|_| is_kept_for_token) {
            // Nobody asks with it any longer.
            lasts = lasts.min(left_of(&token, clock));
        }
        if !lasts.is_zero() {
            let key = answer.cache_key.of(repository);
            self.cache()
                .put(&whom, key, answer.keyring.clone(), lasts, Instant::now());
        }
        Ok(answer.keyring)
    }

    fn known(&self, whom: &str, repository: &str) -> Option<Keyring> {
        self.cache().get(whom, repository, Instant::now())
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a token is still valid, as far as that is known.
fn left_of(token: &Token, clock: &dyn Clock) -> Duration {
    match token.expires_at {
        Some(until) => Duration::try_from(until.duration_since(clock.now())).unwrap_or_default(),
        None => TOKEN_LIFE,
    }
}

/// A place in the queue of those that want the same.
struct Running<'a> {
    all: &'a Mutex<BTreeMap<String, Arc<Semaphore>>>,
    what: String,
    turns: Arc<Semaphore>,
}

impl<'a> Running<'a> {
    fn of(all: &'a Mutex<BTreeMap<String, Arc<Semaphore>>>, what: String) -> Self {
        let mut map = all.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = map.entry(what.clone()).or_insert_with(|| Arc::new(Semaphore::new(1)));
        let turns = Arc::clone(turns);
        drop(map);
        Self { all, what, turns }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut map = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // The map has one and this the other: nobody waits. Under the lock nobody comes either.
        if Arc::strong_count(&self.turns) == 2 {
            map.remove(&self.what);
        }
    }
}
