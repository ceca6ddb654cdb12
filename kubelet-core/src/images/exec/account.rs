//! The service account that a plugin is shown.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::SOURCE_LIMIT;
use super::config::TokenAttributes;
use crate::error::error_chain;
use crate::images::provider::{CredentialError, CredentialRequest, ServiceAccountKey};
use crate::objects::{Freshness, Object, ObjectKey, ObjectKind};
use crate::tokens::{Token, TokenRequest};

/// For whom a plugin is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// For the node, or a pod that has no service account.
    Nobody,
    /// For a service account.
    Account(Account),
}

/// A service account, and what a plugin may know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) key: ServiceAccountKey,
    pub(super) annotations: BTreeMap<String, String>,
}

/// For whom a plugin is asked on behalf of a pod; nothing: it is not.
///
/// Source: kubelet 1.36, `credentialprovider/plugin/plugin.go`.
pub(super) async fn caller(
    attributes: Option<&TokenAttributes>,
    req: &CredentialRequest<'_>,
) -> Result<Option<Caller>, CredentialError> {
    let Some(attributes) = attributes else {
        return Ok(Some(Caller::Nobody));
    };
    let name = req.pod.spec().service_account_name.as_deref().unwrap_or_default();
    if name.is_empty() {
        return Ok((!attributes.is_required).then_some(Caller::Nobody));
    }
    let namespace = &*req.pod.key().namespace;
    let key = ObjectKey::new(ObjectKind::ServiceAccount, namespace, name);
    let objects = req.objects.ok_or_else(|| lacks("service accounts"))?;
    // A new pod must not see what its creator had replaced before.
    let want = match &req.pod.metadata().creation_timestamp {
        Some(created) => Freshness::NotOlderThan(created.0),
        None => Freshness::Cached,
    };
    let account = match timeout(SOURCE_LIMIT, objects.get(&key, want)).await {
        Ok(Ok(Object::ServiceAccount(account))) => account,
        Ok(Ok(other)) => {
            let what = other.kind().resource();
            return Err(CredentialError::new(format!(
                "read {key}: the source answered with a {what}"
            )));
        }
        Ok(Err(error)) => return Err(CredentialError::caused(format!("read {key}"), error)),
        Err(_) => return Err(unanswered(&format!("read {key}"))),
    };
    let has = account.metadata.annotations.as_ref();
    let told = |key: &String| has.and_then(|all| all.get_key_value(key));
    if attributes.required_keys.iter().any(|key| told(key).is_none()) {
        return Ok(None);
    }
    let keys = attributes.required_keys.iter().chain(&attributes.optional_keys);
    let annotations = keys.filter_map(told).map(|(key, value)| (key.clone(), value.clone()));
    Ok(Some(Caller::Account(Account {
        annotations: annotations.collect(),
        key: ServiceAccountKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: account.metadata.uid.clone().unwrap_or_default(),
        },
    })))
}

impl Account {
    /// A token of it that ends with the pod.
    pub(super) async fn token(
        &self,
        attributes: &TokenAttributes,
        req: &CredentialRequest<'_>,
    ) -> Result<Token, CredentialError> {
        let tokens = req.tokens.ok_or_else(|| lacks("service account tokens"))?;
        let key = &self.key;
        let mut request = TokenRequest::new(key.namespace.as_str(), key.name.as_str())
            .with_audience(attributes.audience.as_str())
            .bound_to(req.pod);
        if !key.uid.is_empty() {
            request = request.with_uid(key.uid.as_str());
        }
        let what = format!("get a token of service account {}/{}", key.namespace, key.name);
        match timeout(SOURCE_LIMIT, tokens.token(&request)).await {
            Ok(Ok(token)) if token.value.is_empty() => {
                let what = format!("the token of service account {}/{} is empty", key.namespace, key.name);
                Err(CredentialError::new(what))
            }
            Ok(Ok(token)) => Ok(token),
            Ok(Err(error)) => Err(CredentialError::caused(what, error)),
            Err(_) => Err(unanswered(&what)),
        }
    }

    /// Tells it from all others, and one token from another where there is one.
    pub(super) fn cache_key(&self, token: Option<&Token>) -> String {
        let hash = token.map(|token| {
            let digest = Sha256::digest(token.value.as_bytes());
            digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        });
        let key = &self.key;
        serde_json::json!([key.namespace, key.name, key.uid, self.annotations, hash]).to_string()
    }
}

fn lacks(what: &str) -> CredentialError {
    CredentialError::new(format!("this node has no source of {what}"))
}

/// Others may wait for the same.
fn unanswered(what: &str) -> CredentialError {
    CredentialError::new(format!("{what}: no answer within {SOURCE_LIMIT:?}"))
}

/// What is said of a plugin that failed.
pub(super) fn of_plugin(name: &str, error: &CredentialError) -> CredentialError {
    CredentialError::new(format!("plugin {name}: {}", error_chain(error)))
}
