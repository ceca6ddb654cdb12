//! What a source says.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::error::BoxError;
use crate::ids::{PodKey, PodUid};
use crate::manifest::{Locator, UnknownField};

/// Where a pod was read: a path, a URL, or an embedder's own name for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// A file.
    File(Arc<Path>),
    /// A URL, and the place of the pod in its answer.
    Url(Arc<str>, usize),
    /// Something else that the source can name.
    Named(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url(url, 0) => f.write_str(url),
            Self::Url(url, index) => write!(f, "{url} (pod {index})"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// A pod as its source has it: before defaulting, validation and decoration, which are the mux's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RawPod {
    /// The pod.
    pub pod: Pod,
    /// Where it was read, where that is a place of its own.
    pub origin: Option<Origin>,
    /// Its text, kept as the last good one of its origin.
    pub text: Option<Arc<[u8]>>,
    /// Fields that nobody knows: reported, not refused.
    pub unknown_fields: Vec<UnknownField>,
    /// Finds the line of a field.
    pub locator: Option<Locator>,
    /// Whether it was defaulted and validated before, by an API server.
    pub checked: bool,
}

impl RawPod {
    /// A pod that is yet to be defaulted and validated, from no place of its own.
    #[must_use]
    pub fn new(pod: Pod) -> Self {
        Self {
            pod,
            origin: None,
            text: None,
            unknown_fields: Vec::new(),
            locator: None,
            checked: false,
        }
    }

    /// A pod that an API server has defaulted and validated.
    #[must_use]
    pub fn checked(pod: Pod) -> Self {
        Self {
            checked: true,
            ..Self::new(pod)
        }
    }
}

/// Why a source could not look, or what is wrong with something that it read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// It cannot be read now; the source goes on trying.
    #[error("cannot read {what}")]
    Unreadable {
        /// The path or URL.
        what: String,
        /// The cause.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// It was read and is not a good manifest; only a change of it can help. Names line, field and value where known.
    #[error("{what}: {message}")]
    Invalid {
        /// The path or URL.
        what: String,
        /// What is wrong, and where.
        message: String,
    },
}

impl SourceError {
    /// Something that cannot be read now.
    pub fn unreadable(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Unreadable {
            what: what.into(),
            source: Arc::from(source.into()),
        }
    }

    /// Something that is not a good manifest.
    pub fn invalid(what: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid {
            what: what.into(),
            message: message.into(),
        }
    }
}

/// A manifest that did not become a pod.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InvalidManifest {
    /// Where it was read: the last good version of this origin goes on.
    pub origin: Origin,
    /// The pod, as far as it could be told.
    pub pod: Option<PodKey>,
    /// What is wrong.
    pub error: SourceError,
}

impl InvalidManifest {
    /// A manifest that did not become a pod.
    #[must_use]
    pub fn new(origin: Origin, pod: Option<PodKey>, error: SourceError) -> Self {
        Self { origin, pod, error }
    }
}

/// What is no longer wished for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Removed {
    /// A pod by its UID.
    Uid(PodUid),
    /// Whatever came from this origin.
    Origin(Origin),
}

/// What a source says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SourceItem {
    /// All its pods. A remembered snapshot (from an earlier life) starts pods, makes nothing ready and stops nothing.
    Snapshot {
        /// The pods.
        pods: Vec<RawPod>,
        /// Manifests that did not become pods: whatever last came from these origins stays.
        invalid: Vec<InvalidManifest>,
        /// Whether it is from an earlier life.
        remembered: bool,
    },
    /// One pod is new or changed.
    Upsert(Box<RawPod>),
    /// One pod is gone.
    Remove(Removed),
    /// One manifest is not good: the last good version goes on.
    Invalid(InvalidManifest),
    /// It cannot look: not a truth about pods.
    Trouble(SourceError),
}

impl SourceItem {
    /// A live snapshot without invalid manifests.
    #[must_use]
    pub fn snapshot(pods: Vec<RawPod>) -> Self {
        Self::Snapshot {
            pods,
            invalid: Vec::new(),
            remembered: false,
        }
    }
}
