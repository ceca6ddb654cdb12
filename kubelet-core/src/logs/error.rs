//! Why a log could not be read.

use std::io;
use std::path::PathBuf;

/// Why reading a log ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// There is no such file: the container never logged, or its logs were collected.
    #[error("no log at {path:?}")]
    NotFound {
        /// The log that was asked for.
        path: PathBuf,
    },
    /// The first record is in no known format, so nothing in the file can be trusted to be a log.
    #[error("the log at {path:?} is in no known format")]
    Format {
        /// The log that was asked for.
        path: PathBuf,
        /// What the container log format misses.
        source: super::RecordError,
    },
    /// The file could not be read; asking again may help.
    #[error("failed to {op} the log at {path:?}")]
    Io {
        /// What was attempted.
        op: &'static str,
        /// The log that was asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl LogError {
    pub(super) fn io(op: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::NotFound {
            Self::NotFound { path: path.to_owned() }
        } else {
            Self::Io {
                op,
                path: path.to_owned(),
                source,
            }
        }
    }
}
