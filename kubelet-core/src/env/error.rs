//! Why an environment cannot be built.

use super::env_file::EnvFileError;
use super::field_ref::FieldRefError;
use super::file_key::EnvFileAccessError;
use super::resource_ref::ResourceRefError;
use crate::objects::{ObjectError, ObjectKey, ObjectKind};

/// Why the environment of a container cannot be built.
///
/// The container waits with reason `CreateContainerConfigError` and this text as message. Whether it
/// is worth asking again is told by [`is_retryable`](EnvError::is_retryable).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// The pod was not defaulted: `enableServiceLinks` is absent.
    #[error("enableServiceLinks is not set, cannot construct envvars")]
    ServiceLinksUnset,
    /// Services are not known yet. Static pods do not wait for them.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesUnread {
        /// Why they could not be listed.
        source: ObjectError,
    },
    /// An object is needed, and this node has no source of objects.
    #[error("couldn't get {} {}/{}, no kubeClient defined", lower_camel(object.kind), object.namespace, object.name)]
    NoSource {
        /// The object that is needed.
        object: ObjectKey,
    },
    /// An object could not be read.
    #[error(transparent)]
    Object(ObjectError),
    /// The object lacks the key.
    #[error("couldn't find key {key} in {} {}/{}", camel(object.kind), object.namespace, object.name)]
    KeyMissing {
        /// The object.
        object: ObjectKey,
        /// The key.
        key: String,
    },
    /// A secret holds bytes that cannot be the value of a variable.
    #[error("key {key} in {} {}/{} is not UTF-8 text", camel(object.kind), object.namespace, object.name)]
    NotText {
        /// The object.
        object: ObjectKey,
        /// The key.
        key: String,
    },
    /// A field of the pod has no value.
    #[error(transparent)]
    Field(FieldRefError),
    /// A resource of a container has no value.
    #[error(transparent)]
    Resource(ResourceRefError),
    /// The volume with an env file is not mounted.
    #[error("cannot find the volume {volume:?} referenced by FileKeyRef")]
    VolumeNotMounted {
        /// The volume.
        volume: String,
    },
    /// An env file could not be read.
    #[error("couldn't read env file {path:?} in volume {volume:?}")]
    EnvFileUnreadable {
        /// The volume.
        volume: String,
        /// The path inside it.
        path: String,
        /// What stood in the way.
        source: EnvFileAccessError,
    },
    /// An env file breaks the rules of its syntax.
    #[error("couldn't parse env file")]
    EnvFile {
        /// Where and how.
        source: EnvFileError,
    },
    /// An env file lacks the key, or has it with an empty value.
    #[error("couldn't find key {key} in env file {path:?} in volume {volume:?}")]
    EnvFileKeyMissing {
        /// The volume.
        volume: String,
        /// The path inside it.
        path: String,
        /// The key.
        key: String,
    },
}

impl EnvError {
    /// Whether asking again can help while the pod stays as it is. Otherwise only a change of the
    /// pod, or another node, helps.
    pub fn is_retryable(&self) -> bool {
        match self {
            EnvError::ServicesUnread { .. }
            | EnvError::KeyMissing { .. }
            | EnvError::NotText { .. }
            | EnvError::VolumeNotMounted { .. }
            | EnvError::EnvFile { .. }
            | EnvError::EnvFileKeyMissing { .. } => true,
            EnvError::Object(error) => !matches!(error, ObjectError::NotServed { .. }),
            EnvError::Field(error) => error.is_retryable(),
            EnvError::EnvFileUnreadable { source, .. } => !matches!(source, EnvFileAccessError::Path),
            EnvError::ServiceLinksUnset | EnvError::NoSource { .. } | EnvError::Resource(_) => false,
        }
    }
}

/// The kind as messages about keys write it.
fn camel(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::ConfigMap => "ConfigMap",
        ObjectKind::Secret => "Secret",
        other => other.resource(),
    }
}

/// The kind as messages about a missing source write it.
fn lower_camel(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::ConfigMap => "configMap",
        other => other.resource(),
    }
}
