//! Tokens of service accounts: what shows others that a pod is who it is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::jiff::Timestamp;

use crate::ids::PodUid;
use crate::objects::ObjectError;
use crate::pod::PodRecord;

/// What a token is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenRequest {
    /// The namespace of the service account, and of the pod.
    pub namespace: String,
    /// The service account's name.
    pub service_account: String,
    /// The UID that the service account must have, where that matters.
    pub service_account_uid: Option<String>,
    /// For whom the token is; empty: for the API server.
    pub audiences: Vec<String>,
    /// How long it should be valid; nothing: as long as the source likes. It may be less.
    pub lifetime: Option<Duration>,
    /// The pod that the token ends with, by name and UID.
    pub pod: Option<(String, PodUid)>,
}

impl TokenRequest {
    /// A token of a service account for the API server, which no pod is named for.
    pub fn new(namespace: impl Into<String>, service_account: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            service_account: service_account.into(),
            service_account_uid: None,
            audiences: Vec::new(),
            lifetime: None,
            pod: None,
        }
    }

    /// Only of the service account with this UID.
    #[must_use]
    pub fn with_uid(mut self, uid: impl Into<String>) -> Self {
        self.service_account_uid = Some(uid.into());
        self
    }

    /// For one more audience.
    #[must_use]
    pub fn with_audience(mut self, audience: impl Into<String>) -> Self {
        self.audiences.push(audience.into());
        self
    }

    /// Valid for so long, if that can be had.
    #[must_use]
    pub fn with_lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }

    /// Valid as long as this pod is there.
    #[must_use]
    pub fn bound_to(mut self, pod: &PodRecord) -> Self {
        self.pod = Some((pod.key().name.to_string(), pod.uid().clone()));
        self
    }
}

/// A token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Token {
    /// What is shown to others.
    pub value: String,
    /// Until when it is valid, where that is known.
    pub expires_at: Option<Timestamp>,
}

impl Token {
    /// A token, and until when it is valid.
    pub fn new(value: impl Into<String>, expires_at: Option<Timestamp>) -> Self {
        Self {
            value: value.into(),
            expires_at,
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// Gives out tokens of service accounts.
///
/// Callers ask whenever they need a token and keep none; a source may hand out the same one again while enough of its life is left.
/// Errors are logged and shown on pods: none may tell a token.
///
/// # Contract
/// - Calls may overlap each other, for one request too.
/// - A token is that of its request: of its service account, for its audiences and no others, and bound to its pod.
/// - A token that is handed out has not expired.
/// - A service account that does not exist is [`ObjectError::NotFound`]; a source that cannot ask answers
///   [`ObjectError::Unavailable`].
/// - A service account of another UID than that of the request gets no token.
/// - A call may be dropped at any time and leaves nothing behind.
#[async_trait]
pub trait TokenSource: fmt::Debug + Send + Sync + 'static {
    /// A token.
    ///
    /// No timeout is applied; the caller bounds the call.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] if the service account does not exist, [`ObjectError::Unavailable`] if nobody could be asked,
    /// [`ObjectError::Refused`] if this node may not have it, such as for a pod that is not its own.
    ///
    /// # Cancellation
    /// A dropped call may still have made a token, which nobody has.
    async fn token(&self, req: &TokenRequest) -> Result<Token, ObjectError>;
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: TokenSource + ?Sized> TokenSource for Arc<T> {
    async fn token(&self, req: &TokenRequest) -> Result<Token, ObjectError> {
        (**self).token(req).await
    }
}

/// Keeps the trait usable as a trait object.
const _: fn(&dyn TokenSource) = |_| {};

#[cfg(test)]
mod tests {
    use super::Token;

    #[test]
    fn debug_does_not_show_a_token() {
        let text = format!("{:?}", Token::new("hunter2", None));
        assert_eq!(text, "Token { expires_at: None, .. }");
    }
}
