//! What cannot be put together.

use crate::ids::SourceName;

/// Why a kubelet cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no source, so that no pod would ever run.
    #[error("no pod source: add one with KubeletBuilder::source, such as FileSource or ChannelSource")]
    NoSource,
    /// Two sources have one name, and their pods could not be told apart.
    #[error("two pod sources are named {name}")]
    DuplicateSource {
        /// The name.
        name: SourceName,
    },
    /// The node's name cannot be part of pod names.
    #[error("node name {name:?} is not a DNS subdomain: {why}")]
    NodeName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Images could not be collected as asked for.
    #[error("image garbage collection: {field}: {why}")]
    ImageGc {
        /// The field of [`ImageGcPolicy`](crate::ImageGcPolicy).
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// An entry of [`ImageVerification::NeverVerifyAllowlistedImages`](crate::ImageVerification::NeverVerifyAllowlistedImages) is none.
    #[error("image allowlist entry {entry:?}: {why}")]
    ImageAllowlist {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A folder is relative, so that it would change with the working directory.
    #[error("{what} {path} is not an absolute path")]
    RelativePath {
        /// Which folder.
        what: &'static str,
        /// The path.
        path: String,
    },
    /// A part cannot do what it is configured for without another one.
    #[error("{part} needs {needs}")]
    PartMissing {
        /// The part that is there.
        part: String,
        /// What is not, and how to add it.
        needs: &'static str,
    },
    /// A setting has a value that cannot be.
    #[error("{what}: {why}")]
    Setting {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}
