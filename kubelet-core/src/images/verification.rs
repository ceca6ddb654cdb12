//! Whether a pod may use an image that is present.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pull_secrets::{CredentialOrigin, PullCredential};

/// How many secrets, and how many service accounts, are kept for one repository of an image.
const MAX_HOLDERS: usize = 100;

/// Which images that are present a pod may use only if it could have pulled them.
///
/// Source: kubelet 1.36, `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageVerification {
    /// None: whoever comes first pulls for all.
    NeverVerify,
    /// Those that this kubelet has pulled.
    #[default]
    NeverVerifyPreloadedImages,
    /// All but these repositories: each without tag and digest, or the beginning of some with `/*` at its end.
    NeverVerifyAllowlistedImages(Vec<String>),
    /// All.
    AlwaysVerify,
}

impl ImageVerification {
    /// What is wrong with the entries of a list, if anything is.
    pub(crate) fn check(&self) -> Result<(), (String, &'static str)> {
        let Self::NeverVerifyAllowlistedImages(entries) = self else {
            return Ok(());
        };
        for entry in entries {
            let (repository, example) = match entry.strip_suffix("/*") {
                // A port is no tag.
                Some(beginning) => (beginning, format!("{beginning}/x")),
                None => (entry.as_str(), entry.clone()),
            };
            let why = if repository.is_empty() || repository.contains(char::is_whitespace) {
                "must be a repository"
            } else if repository.contains('*') {
                "may have * only after its last /"
            } else if trimmed(&example) != example {
                "must have neither tag nor digest"
            } else {
                continue;
            };
            return Err((entry.clone(), why));
        }
        Ok(())
    }

    /// `names` are the repository as the pod has it and in full.
    fn requires(&self, names: &[&str], is_ours: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => is_ours,
            Self::NeverVerifyAllowlistedImages(entries) => !entries.iter().any(|entry| {
                names.iter().any(|name| match entry.strip_suffix('*') {
                    Some(beginning) => name.starts_with(beginning),
                    None => name == entry,
                })
            }),
            Self::AlwaysVerify => true,
        }
    }
}

/// The name of an image without tag and digest, and else as it was written.
pub(crate) fn trimmed(image: &str) -> &str {
    let named = image.split('@').next().unwrap_or(image);
    match named.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => named,
    }
}

/// Who may use an image under one of its names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Access {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) kubernetes_secrets: Vec<SecretAccess>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) kubernetes_service_accounts: Vec<AccountAccess>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) node_pods_accessible: bool,
}

/// A secret with which an image was pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SecretAccess {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) credential_hash: String,
}

/// A service account for which an image was pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountAccess {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl SecretAccess {
    fn is_of(&self, other: &Self) -> bool {
        // An object without a UID may be another one of that name.
        !self.uid.is_empty() && (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

impl Access {
    fn has_holders(&self) -> bool {
        !self.kubernetes_secrets.is_empty() || !self.kubernetes_service_accounts.is_empty()
    }

    /// Adds those who have these credentials; says whether that changes anything.
    pub(crate) fn grant(&mut self, with: Option<&PullCredential>) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        let secret = match with.map(holder_of) {
            Some(Holder::Secret(secret)) => secret,
            Some(Holder::Account(account)) => return self.grant_account(account),
            Some(Holder::Node) | None => {
                *self = Self {
                    node_pods_accessible: true,
                    ..Self::default()
                };
                return true;
            }
        };
        if self.kubernetes_secrets.contains(&secret) {
            return false;
        }
        self.kubernetes_secrets.retain(|known| !known.is_of(&secret));
        if self.kubernetes_secrets.len() >= MAX_HOLDERS {
            self.kubernetes_secrets.remove(0);
        }
        self.kubernetes_secrets.push(secret);
        true
    }

    fn grant_account(&mut self, account: AccountAccess) -> bool {
        if self.kubernetes_service_accounts.contains(&account) {
            return false;
        }
        if self.kubernetes_service_accounts.len() >= MAX_HOLDERS {
            self.kubernetes_service_accounts.remove(0);
        }
        self.kubernetes_service_accounts.push(account);
        true
    }

    /// The credential of a pod that gives it access, if one does.
    fn covers<'a>(&self, of_pod: &'a [PullCredential]) -> Option<&'a PullCredential> {
        let secrets = || {
            of_pod.iter().filter_map(|credential| match holder_of(credential) {
                Holder::Secret(secret) => Some((credential, secret)),
                Holder::Account(_) | Holder::Node => None,
            })
        };
        let same_content = secrets().find(|(_, secret)| {
            let hash = &secret.credential_hash;
            !hash.is_empty()
                && self
                    .kubernetes_secrets
                    .iter()
                    .any(|known| known.credential_hash == *hash)
        });
        let has_room = self.kubernetes_secrets.len() < MAX_HOLDERS;
        let same_secret = || {
            secrets().find(|(_, secret)| has_room && self.kubernetes_secrets.iter().any(|known| known.is_of(secret)))
        };
        let same_account = || {
            of_pod.iter().find(|credential| match holder_of(credential) {
                // An object without a UID may be another one of that name.
                Holder::Account(account) => {
                    !account.uid.is_empty() && self.kubernetes_service_accounts.contains(&account)
                }
                Holder::Secret(_) | Holder::Node => false,
            })
        };
        let by_secret = same_content.or_else(same_secret);
        by_secret.map(|(credential, _)| credential).or_else(same_account)
    }
}

/// Whose a credential is.
enum Holder {
    Node,
    Secret(SecretAccess),
    Account(AccountAccess),
}

fn holder_of(credential: &PullCredential) -> Holder {
    match &credential.origin {
        CredentialOrigin::Node => Holder::Node,
        CredentialOrigin::Secret { uid, namespace, name } => Holder::Secret(SecretAccess {
            uid: uid.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
            credential_hash: super::records::credential_hash(&credential.auth),
        }),
        CredentialOrigin::ServiceAccount(account) => Holder::Account(AccountAccess {
            uid: account.uid.clone(),
            namespace: account.namespace.clone(),
            name: account.name.clone(),
        }),
    }
}

/// What is known of a present image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing: it was there before this kubelet, or came past it.
    Nothing,
    /// It is being pulled, or was when the agent ended.
    Intended,
    /// It was pulled; who may use it, by name without tag and digest.
    Pulled(BTreeMap<String, Access>),
    /// What was written of it cannot be read.
    Unreadable,
}

/// What is to be done before a pod uses a present image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Use,
    /// It is pulled with what the pod has.
    Pull,
    /// Its secrets, and credentials for its service account, are looked at.
    AskCredentials(Access),
}

/// Decides on a pod that asks for the image by `name`, which is `repository` in full.
pub(crate) fn verdict(policy: &ImageVerification, name: &str, repository: &str, known: &Known) -> Verdict {
    let name = trimmed(name);
    let is_ours = *known != Known::Nothing;
    if *policy == ImageVerification::NeverVerify {
        return Verdict::Use;
    }
    if *known == Known::Unreadable {
        return Verdict::Pull;
    }
    if !policy.requires(&[name, repository], is_ours) {
        return Verdict::Use;
    }
    let Known::Pulled(by_name) = known else {
        return Verdict::Pull;
    };
    match by_name.get(name) {
        Some(access) if access.node_pods_accessible => Verdict::Use,
        Some(access) if access.has_holders() => Verdict::AskCredentials(access.clone()),
        _ => Verdict::Pull,
    }
}

/// The credential of a pod that gives it access, if one does.
pub(crate) fn covering<'a>(access: &Access, of_pod: &'a [PullCredential]) -> Option<&'a PullCredential> {
    access.covers(of_pod)
}

#[cfg(test)]
mod tests;
