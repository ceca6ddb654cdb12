//! Images of pods: their names, who may pull them with which credentials, and when.

mod docker_config;
mod keyring;
mod manager;
mod pattern;
mod provider;
mod pull_secrets;
mod reference;
mod turns;

pub use docker_config::DockerConfigError;
pub use keyring::Keyring;
pub(crate) use manager::{Candidates, ImageManager, LoggedProgress, PullFailure, Pulled};
pub use provider::{CredentialError, CredentialProvider, CredentialRequest, DockerConfigFiles};
pub(crate) use reference::{Reference, normalized};
