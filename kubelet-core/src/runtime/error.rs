//! Why a runtime call failed.

use crate::error::BoxError;

/// Why a call to a [`ContainerRuntime`](crate::ContainerRuntime) or [`ImageService`](crate::ImageService) failed,
/// sorted by what the engine does next. The engine decides on the variant, never on a text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The object is gone. The engine looks at the pod again.
    #[error("{what} not found")]
    NotFound {
        /// Kind and id of the object.
        what: String,
    },
    /// No answer, and nothing happened. The engine retries with back-off.
    #[error("container runtime unavailable during {op}")]
    Unavailable {
        /// The call.
        op: &'static str,
        /// The cause.
        source: BoxError,
    },
    /// No answer in time: it may still happen. The engine looks before it repeats the call.
    #[error("outcome of {op} is unknown")]
    Uncertain {
        /// The call.
        op: &'static str,
        /// The cause.
        source: BoxError,
    },
    /// An object of this identity exists already. The engine looks for it and adopts it.
    #[error("{what} exists already")]
    Taken {
        /// Kind and identity of the object.
        what: String,
    },
    /// Another call on this object is running. The engine repeats it soon.
    #[error("{what} is busy")]
    Busy {
        /// Kind and id of the object.
        what: String,
    },
    /// Understood and refused. Shown on the pod; tried again at the pod's back-off.
    #[error("{message}")]
    Refused {
        /// What the runtime said, or what was refused.
        message: String,
        /// The status reason to show instead of the generic one, such as `ErrImagePull` or `InvalidImageName`.
        reason: Option<&'static str>,
    },
    /// This runtime cannot do it, now or later.
    #[error("{op} is not supported by this runtime")]
    Unsupported {
        /// The call.
        op: &'static str,
    },
}

impl RuntimeError {
    /// [`RuntimeError::Unsupported`] for a call.
    #[must_use]
    pub fn unsupported(op: &'static str) -> Self {
        Self::Unsupported { op }
    }

    /// [`RuntimeError::NotFound`] for an object, such as `container 12ab`.
    pub fn not_found(what: impl Into<String>) -> Self {
        Self::NotFound { what: what.into() }
    }

    /// [`RuntimeError::Refused`] with a message.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Refused {
            message: message.into(),
            reason: None,
        }
    }

    /// [`RuntimeError::Unavailable`] for a call, with its cause.
    pub fn unavailable(op: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Unavailable {
            op,
            source: source.into(),
        }
    }

    /// [`RuntimeError::Uncertain`] for a call, with its cause.
    pub fn uncertain(op: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Uncertain {
            op,
            source: source.into(),
        }
    }

    /// Whether the object is gone.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the runtime may still act, or is acting, on what was asked before, so that the pod must be looked at
    /// before anything is repeated.
    #[must_use]
    pub fn must_look_first(&self) -> bool {
        matches!(self, Self::Uncertain { .. } | Self::Taken { .. } | Self::Busy { .. })
    }
}
