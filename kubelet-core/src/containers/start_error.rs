//! Why a container was not started.

use std::borrow::Cow;

use tokio::time::Instant;

use crate::runtime::RuntimeError;

/// The reason of what cannot be made from its spec.
pub(super) const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// Why a container was not started.
#[derive(Debug)]
pub(super) enum StartError {
    /// The step was asked to stop.
    Stopped,
    /// It may have been: the next look tells.
    Uncertain(RuntimeError),
    /// Shown as the container's waiting reason.
    Failed {
        reason: Cow<'static, str>,
        message: String,
        /// When it is of use to try again, where that is known.
        retry_at: Option<Instant>,
    },
}

impl StartError {
    pub(super) fn failed(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Failed {
            reason: Cow::Borrowed(reason),
            message: message.into(),
            retry_at: None,
        }
    }

    pub(super) fn of_runtime(reason: &'static str, error: RuntimeError) -> Self {
        if error.must_look_first() {
            return Self::Uncertain(error);
        }
        Self::failed(reason, crate::error::error_chain(&error))
    }
}
