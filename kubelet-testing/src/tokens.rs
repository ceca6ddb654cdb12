//! A source of tokens that does what a test says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubelet_core::{
    Clock, ObjectError, ObjectKey, ObjectKind, SystemClock, Token, TokenRequest, TokenSource, async_trait,
};

/// How long a token is valid that nobody said anything of.
const LIFETIME: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
struct State {
    /// UIDs, by namespace and name.
    accounts: BTreeMap<(String, String), String>,
    /// What was asked for and given, by token.
    given: BTreeMap<String, TokenRequest>,
    requests: Vec<TokenRequest>,
    is_down: bool,
    generation: u64,
}

/// An in-memory [`TokenSource`]. A clone is another handle to the same one.
///
/// Its tokens are texts without a meaning of their own; [`review`](Self::review) says what they are. The same request gives the same token
/// until [`rotate`](Self::rotate) is called.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use kubelet_core::{TokenRequest, TokenSource};
/// use kubelet_testing::FakeTokens;
///
/// let tokens = FakeTokens::new();
/// tokens.add_account("default", "builder", "uid-1");
/// let request = TokenRequest::new("default", "builder").with_audience("registry.example");
/// let token = tokens.token(&request).await.unwrap();
/// assert_eq!(tokens.review(&token.value), Some(request));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FakeTokens {
    state: Arc<Mutex<State>>,
    clock: Arc<dyn Clock>,
}

impl Default for FakeTokens {
    fn default() -> Self {
        Self::with_clock(SystemClock)
    }
}

impl FakeTokens {
    /// One that knows no service account, on the clock of this machine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One on another clock.
    #[must_use]
    pub fn with_clock(clock: impl Clock) -> Self {
        Self {
            state: Arc::default(),
            clock: Arc::new(clock),
        }
    }

    /// Makes a service account, or another of that name.
    pub fn add_account(&self, namespace: impl Into<String>, name: impl Into<String>, uid: impl Into<String>) {
        let key = (namespace.into(), name.into());
        self.lock().accounts.insert(key, uid.into());
    }

    /// Gives new tokens from now on.
    pub fn rotate(&self) {
        self.lock().generation += 1;
    }

    /// Whether nobody can be asked.
    pub fn set_down(&self, is_down: bool) {
        self.lock().is_down = is_down;
    }

    /// All requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<TokenRequest> {
        self.lock().requests.clone()
    }

    /// What a token was given for; nothing: it is none.
    #[must_use]
    pub fn review(&self, token: &str) -> Option<TokenRequest> {
        self.lock().given.get(token).cloned()
    }

    // A panic while the lock is held leaves plain data in a readable state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl TokenSource for FakeTokens {
    async fn token(&self, req: &TokenRequest) -> Result<Token, ObjectError> {
        let key = ObjectKey::new(ObjectKind::ServiceAccount, &req.namespace, &req.service_account);
        let mut state = self.lock();
        state.requests.push(req.clone());
        let what = format!("a token of {key}");
        if state.is_down {
            let source = "the source is down".into();
            return Err(ObjectError::Unavailable { what, source });
        }
        let account = (req.namespace.clone(), req.service_account.clone());
        let Some(uid) = state.accounts.get(&account) else {
            return Err(ObjectError::NotFound { key });
        };
        if req.service_account_uid.as_ref().is_some_and(|wanted| wanted != uid) {
            let source = format!("the service account has UID {uid:?}").into();
            return Err(ObjectError::Refused { what, source });
        }
        let generation = state.generation;
        let known = state
            .given
            .iter()
            .find(|(token, given)| *given == req && token.starts_with(&format!("token-{generation}-")));
        let value = match known {
            Some((token, _)) => token.clone(),
            None => format!("token-{generation}-{}", state.given.len()),
        };
        state.given.insert(value.clone(), req.clone());
        let lifetime = req.lifetime.unwrap_or(LIFETIME);
        Ok(Token::new(value, self.clock.now().checked_add(lifetime).ok()))
    }
}
