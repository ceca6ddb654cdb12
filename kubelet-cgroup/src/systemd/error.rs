//! Why systemd did not do what it was asked.

use std::io;
use std::time::Duration;

use kubelet_core::{CgroupError, error_chain};
use zbus::DBusError;

/// Where the bus is, unless somebody says otherwise.
const SYSTEM: &str = "the system's bus";
/// Answers after which another call is of no use before somebody has changed something.
const REFUSALS: [&str; 5] = [
    "org.freedesktop.DBus.Error.AccessDenied",
    "org.freedesktop.DBus.Error.AuthFailed",
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.ServiceUnknown",
];

#[derive(Debug, thiserror::Error)]
pub(super) enum BusError {
    /// There is no connection.
    #[error("cannot connect to {address}")]
    Dial { address: String, source: zbus::Error },
    /// The connection was there, and is no more. What was asked may have been done.
    #[error("the connection to the bus was lost")]
    Lost { source: Option<zbus::Error> },
    /// Nothing was heard. What was asked may be done yet.
    #[error("{call} was not answered within {after:?}")]
    NoAnswer { call: &'static str, after: Duration },
    /// The answer is an error.
    #[error("{call} was refused")]
    Refused {
        call: &'static str,
        name: String,
        source: zbus::Error,
    },
    /// The answer is none that such a call has.
    #[error("the answer to {call} cannot be read")]
    Malformed { call: &'static str, source: zbus::Error },
    /// It was begun, and did not work.
    #[error("the job of {method} has ended with {result:?}")]
    Job { method: &'static str, result: String },
    /// It was begun, and may end yet.
    #[error("the job of {method} has not ended within {after:?}")]
    Unfinished { method: &'static str, after: Duration },
}

impl BusError {
    pub(super) fn dial(address: Option<&str>, source: zbus::Error) -> Self {
        Self::Dial {
            address: address.unwrap_or(SYSTEM).to_owned(),
            source,
        }
    }

    pub(super) fn lost(source: zbus::Error) -> Self {
        Self::Lost { source: Some(source) }
    }

    /// Of a call that has failed.
    pub(super) fn of(call: &'static str, after: Duration, source: zbus::Error) -> Self {
        let name = match &source {
            zbus::Error::InputOutput(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Self::NoAnswer { call, after };
            }
            zbus::Error::InputOutput(_) => return Self::lost(source),
            zbus::Error::MethodError(name, ..) => name.to_string(),
            zbus::Error::FDO(error) => error.name().to_string(),
            _ => return Self::Malformed { call, source },
        };
        Self::Refused { call, name, source }
    }

    /// Whether the answer is the error of that name.
    pub(super) fn is(&self, error: &str) -> bool {
        matches!(self, Self::Refused { name, .. } if name == error)
    }

    /// What follows for who asked for a cgroup.
    pub(super) fn about(self, what: String) -> CgroupError {
        let is_lasting = match &self {
            Self::Dial { source, .. } => match source {
                zbus::Error::Connection(error, _) => {
                    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
                }
                zbus::Error::InputOutput(_) => false,
                // An address that is none, or a bus that does not want this user.
                _ => true,
            },
            Self::Refused { name, .. } => REFUSALS.contains(&name.as_str()),
            _ => false,
        };
        match is_lasting {
            true => CgroupError::Unsupported {
                why: format!("{what}: {}", error_chain(&self)),
            },
            false => CgroupError::failed(what, self),
        }
    }
}
