//! Images of pods: their names, who may pull them with which credentials, and when.

mod docker_config;
mod exec;
mod keyring;
mod manager;
mod pattern;
mod provider;
mod pull_secrets;
mod records;
mod reference;
mod turns;
mod verification;

pub use docker_config::DockerConfigError;
pub use exec::{CredentialConfigError, ExecCredentialProviders};
pub use keyring::Keyring;
pub(crate) use manager::{Candidates, ImageManager, ImageParts, LoggedProgress, PullFailure, Pulled};
pub use provider::{
    CredentialError, CredentialProvider, CredentialRequest, DockerConfigFiles, ProvidedCredential, ServiceAccountKey,
};
pub(crate) use records::PullRecords;
pub(crate) use reference::{BadReference, Reference, normalized};
pub use verification::ImageVerification;
