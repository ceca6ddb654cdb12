//! Where a node has credentials from, beside the pull secrets of pods.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use super::keyring::Keyring;
use crate::error::BoxError;
use crate::objects::ObjectSource;
use crate::pod::PodRecord;
use crate::runtime::RegistryAuth;
use crate::tokens::TokenSource;

/// What credentials are wanted for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CredentialRequest<'a> {
    /// Registry and path of the image, without tag and digest: `docker.io/library/nginx`.
    pub repository: &'a str,
    /// The pod that needs the image.
    pub pod: &'a PodRecord,
    /// Where tokens of its service account are.
    pub tokens: Option<&'a dyn TokenSource>,
    /// Where its service account is.
    pub objects: Option<&'a dyn ObjectSource>,
}

impl<'a> CredentialRequest<'a> {
    /// For a repository and the pod that needs it.
    #[must_use]
    pub fn new(repository: &'a str, pod: &'a PodRecord) -> Self {
        Self {
            repository,
            pod,
            tokens: None,
            objects: None,
        }
    }

    /// With a source of tokens.
    #[must_use]
    pub fn with_tokens(mut self, tokens: &'a dyn TokenSource) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// With a source of objects.
    #[must_use]
    pub fn with_objects(mut self, objects: &'a dyn ObjectSource) -> Self {
        self.objects = Some(objects);
        self
    }
}

/// Names one service account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct ServiceAccountKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, which tells it from an earlier one of that name.
    pub uid: String,
}

impl ServiceAccountKey {
    /// Names a service account.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, uid: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

/// Credentials, and whose they are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProvidedCredential {
    /// What to show the registry.
    pub auth: RegistryAuth,
    /// The service account that they are for, which is that of the pod. Nothing: they are the node's, and every pod may use what is pulled
    /// with them.
    pub service_account: Option<ServiceAccountKey>,
}

impl ProvidedCredential {
    /// Credentials of one service account.
    #[must_use]
    pub fn of_account(auth: RegistryAuth, account: ServiceAccountKey) -> Self {
        Self {
            auth,
            service_account: Some(account),
        }
    }
}

impl From<RegistryAuth> for ProvidedCredential {
    fn from(auth: RegistryAuth) -> Self {
        Self {
            auth,
            service_account: None,
        }
    }
}

/// Why a [`CredentialProvider`] has no answer. It is logged, and shown if the image cannot be pulled without.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct CredentialError {
    what: String,
    source: Option<BoxError>,
}

impl CredentialError {
    /// What was attempted on what. It never holds what is secret.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            source: None,
        }
    }

    /// The same with its cause, which holds nothing secret either.
    pub fn caused(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self {
            what: what.into(),
            source: Some(source.into()),
        }
    }
}

/// Gives credentials for registries: of the node, which every pod may use, or of the service account of the pod.
///
/// They are asked all at once, after the pull secrets of a pod were looked up, for each pull, and where a present image was pulled for
/// service accounts and none of the pod's secrets gives access to it;
/// their answers count in the order in which the providers were added. Nothing is kept of an answer: a provider to
/// which that costs much keeps its own. One that takes longer than the limit of runtime calls is given up.
///
/// # Contract
/// - Calls may overlap each other, for one repository too.
/// - The same repository and service account get the same credentials, in the order in which to try them, until they change, whatever else is
///   asked.
/// - Nothing to show is an empty list, never an error; neither is a repository that no registry can have.
/// - A failure is an error, never an empty list, and the next call tries again.
/// - A call may be dropped at any time and leaves nothing running; later ones are answered.
/// - Neither errors nor `Debug` tell what is secret.
#[async_trait]
pub trait CredentialProvider: fmt::Debug + Send + Sync + 'static {
    /// What it is called in messages.
    fn name(&self) -> &str;

    /// Whether it asks for tokens of service accounts. The kubelet is then not built without a source of them.
    fn needs_tokens(&self) -> bool {
        false
    }

    /// The credentials for a repository, in the order in which to try them.
    ///
    /// # Errors
    /// [`CredentialError`]; the image is then pulled with what others have, or without credentials.
    ///
    /// # Cancellation
    /// As the contract says.
    async fn credentials(&self, req: &CredentialRequest<'_>) -> Result<Vec<ProvidedCredential>, CredentialError>;
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: CredentialProvider + ?Sized> CredentialProvider for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn needs_tokens(&self) -> bool {
        (**self).needs_tokens()
    }
    async fn credentials(&self, req: &CredentialRequest<'_>) -> Result<Vec<ProvidedCredential>, CredentialError> {
        (**self).credentials(req).await
    }
}

/// Keeps the trait usable as a trait object.
const _: fn(&dyn CredentialProvider) = |_| {};

/// Credentials in the files in which docker keeps them, read anew for each pull.
///
/// The first `config.json` counts; if there is none, the first `.dockercfg`. Credential helpers that a file names are not
/// asked.
///
/// Source: kubelet 1.36, `credentialprovider/config.go`, which looks in the root directory, the working directory,
/// `$HOME/.docker` and `/.docker`.
#[derive(Clone, Debug)]
pub struct DockerConfigFiles {
    files: Vec<(PathBuf, Format)>,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Config,
    Cfg,
}

impl DockerConfigFiles {
    /// Looks in these folders.
    #[must_use]
    pub fn in_folders<P: AsRef<Path>>(folders: impl IntoIterator<Item = P>) -> Self {
        let folders: Vec<PathBuf> = folders.into_iter().map(|f| f.as_ref().to_owned()).collect();
        let named = |name: &'static str, format| folders.iter().map(move |folder| (folder.join(name), format));
        Self {
            files: named("config.json", Format::Config)
                .chain(named(".dockercfg", Format::Cfg))
                .collect(),
        }
    }

    async fn read(&self) -> Result<Keyring, CredentialError> {
        for (path, format) in &self.files {
            let failed = |source: BoxError| CredentialError::caused(format!("read {}", path.display()), source);
            let text = match tokio::fs::read(path).await {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error.into())),
            };
            let keyring = match format {
                Format::Config => Keyring::from_docker_config_json(&text),
                Format::Cfg => Keyring::from_dockercfg(&text),
            };
            return keyring.map_err(|error| failed(error.into()));
        }
        Ok(Keyring::new())
    }
}

#[async_trait]
impl CredentialProvider for DockerConfigFiles {
    fn name(&self) -> &str {
        "docker configuration"
    }

    async fn credentials(&self, req: &CredentialRequest<'_>) -> Result<Vec<ProvidedCredential>, CredentialError> {
        let keyring = self.read().await?;
        let found = keyring.lookup(req.repository).into_iter().cloned();
        Ok(found.map(ProvidedCredential::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{CredentialProvider, CredentialRequest, DockerConfigFiles};
    use crate::error::error_chain;
    use crate::pod::testing::record;

    #[tokio::test]
    async fn the_first_file_counts_and_an_error_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::create_dir(&one).unwrap();
        std::fs::create_dir(&two).unwrap();
        let files = DockerConfigFiles::in_folders([&one, &two]);
        let pod = record(json!({"spec": {"containers": []}}));
        let ask = || async {
            let found = files
                .credentials(&CredentialRequest::new("reg.example/app", &pod))
                .await;
            found.map(|found| found.into_iter().map(|found| found.auth.username).collect::<Vec<_>>())
        };
        assert!(ask().await.unwrap().is_empty());
        std::fs::write(one.join(".dockercfg"), r#"{"reg.example": {"username": "old"}}"#).unwrap();
        assert_eq!(ask().await.unwrap(), ["old"]);
        std::fs::write(
            two.join("config.json"),
            r#"{"auths": {"reg.example": {"username": "new"}}}"#,
        )
        .unwrap();
        assert_eq!(ask().await.unwrap(), ["new"]);
        std::fs::write(one.join("config.json"), "hunter2").unwrap();
        let error = error_chain(&ask().await.unwrap_err()).to_string();
        assert!(
            error.contains("one/config.json") && !error.contains("hunter2"),
            "{error}"
        );
    }
}
