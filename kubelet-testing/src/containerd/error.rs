//! Why a component is not there.

use std::error::Error;
use std::io;

/// Why a test has no component of its own, sorted by what the test does next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComponentError {
    /// The machine lacks it. The test is skipped, or fails where that is forbidden.
    #[error("{what}")]
    Missing {
        /// What is missing, and what brings it.
        what: String,
    },
    /// It is there and does not do its work. The test fails.
    #[error("{op}")]
    Failed {
        /// What was attempted, on what.
        op: String,
        /// Why it failed.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ComponentError {
    pub(crate) fn missing(what: impl Into<String>) -> Self {
        Self::Missing { what: what.into() }
    }

    pub(crate) fn failed(op: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed {
            op: op.into(),
            source: source.into(),
        }
    }

    /// For `map_err` of what reads and writes files.
    pub(crate) fn io(op: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::failed(op, error)
    }
}
