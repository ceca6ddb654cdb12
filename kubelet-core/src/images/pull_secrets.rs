//! The credentials that a pod brings along.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;

use super::keyring::Keyring;
use super::provider::ServiceAccountKey;
use crate::error::error_chain;
use crate::objects::{Freshness, Object, ObjectKey, ObjectKind, ObjectSource};
use crate::pod::PodRecord;
use crate::runtime::RegistryAuth;

/// Where credentials came from: decides whose they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CredentialOrigin {
    /// The node's own: every pod has them.
    Node,
    /// The pod's service account.
    ServiceAccount(ServiceAccountKey),
    /// A secret that the pod names.
    Secret {
        uid: String,
        namespace: String,
        name: String,
    },
}

/// Credentials to pull with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PullCredential {
    pub(crate) auth: RegistryAuth,
    pub(crate) origin: CredentialOrigin,
}

/// The pull secrets of a pod, as far as they can be read.
#[derive(Debug, Default)]
pub(crate) struct PullSecrets {
    keyrings: Vec<(CredentialOrigin, Keyring)>,
    /// Names of those that give nothing, and why.
    pub(crate) faults: Vec<(String, String)>,
}

impl PullSecrets {
    /// Reads them, each within `limit`. One that cannot be read keeps no other from being used.
    ///
    /// Source: kubelet 1.36, `kubelet_pods.go` (`getPullSecretsForPod`); there a malformed one ends the attempt.
    pub(crate) async fn read(objects: Option<&dyn ObjectSource>, pod: &PodRecord, limit: Duration) -> Self {
        let names = pod.spec().image_pull_secrets.iter().flatten();
        let names: Vec<&str> = names
            .map(|secret| secret.name.as_str())
            .filter(|name| !name.is_empty())
            .collect();
        let read = names.iter().map(|name| read_one(objects, pod, name, limit));
        let mut secrets = Self::default();
        for (name, read) in names.iter().zip(join_all(read).await) {
            match read {
                Ok(found) => secrets.keyrings.push(found),
                Err(why) => secrets.faults.push(((*name).to_owned(), why)),
            }
        }
        secrets
    }

    /// What they have for a repository, in the order of the pod's spec.
    pub(crate) fn lookup(&self, repository: &str) -> Vec<PullCredential> {
        let of_one = |(origin, keyring): &(CredentialOrigin, Keyring)| {
            let found = keyring.lookup(repository).into_iter().cloned();
            found
                .map(|auth| PullCredential {
                    auth,
                    origin: origin.clone(),
                })
                .collect::<Vec<_>>()
        };
        self.keyrings.iter().flat_map(of_one).collect()
    }
}

async fn read_one(
    objects: Option<&dyn ObjectSource>,
    pod: &PodRecord,
    name: &str,
    limit: Duration,
) -> Result<(CredentialOrigin, Keyring), String> {
    let objects = objects.ok_or_else(|| "this node has no source of secrets".to_owned())?;
    let namespace = &*pod.key().namespace;
    let key = ObjectKey::new(ObjectKind::Secret, namespace, name);
    // A new pod must not see what its creator had replaced before.
    let want = match &pod.pod().metadata.creation_timestamp {
        Some(created) => Freshness::NotOlderThan(created.0),
        None => Freshness::Cached,
    };
    let secret = match tokio::time::timeout(limit, objects.get(&key, want)).await {
        Ok(Ok(Object::Secret(secret))) => secret,
        Ok(Ok(other)) => {
            return Err(format!(
                "the source of objects answered with a {}",
                other.kind().resource()
            ));
        }
        Ok(Err(error)) => return Err(error_chain(&error)),
        Err(_) => return Err(format!("no answer from the source of objects within {limit:?}")),
    };
    let keyring = keyring_of(&secret)?;
    let origin = CredentialOrigin::Secret {
        uid: secret.metadata.uid.clone().unwrap_or_default(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    Ok((origin, keyring))
}

type Reader = fn(&[u8]) -> Result<Keyring, super::DockerConfigError>;

fn keyring_of(secret: &Secret) -> Result<Keyring, String> {
    let kind = secret.type_.as_deref().unwrap_or("Opaque");
    let (field, read): (&str, Reader) = match kind {
        "kubernetes.io/dockerconfigjson" => (".dockerconfigjson", Keyring::from_docker_config_json),
        "kubernetes.io/dockercfg" => (".dockercfg", Keyring::from_dockercfg),
        _ => {
            return Err(format!(
                "its type {kind:?} is neither kubernetes.io/dockerconfigjson nor kubernetes.io/dockercfg"
            ));
        }
    };
    match secret.data.as_ref().and_then(|data| data.get(field)) {
        Some(bytes) => read(&bytes.0).map_err(|error| format!("field {field:?}: {error}")),
        None => Err(format!("it has no field {field:?}")),
    }
}
