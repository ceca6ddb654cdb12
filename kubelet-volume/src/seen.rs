//! Which state of an object something was made from.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kubelet_core::{Object, ObjectError, ObjectKey, Watched};

/// A state of an object, as far as it is needed to tell it from others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    /// Nobody could be asked.
    Unknown,
    Absent,
    /// As the cluster numbers its states.
    Version(String),
    /// Of a source that does not number them.
    State(Object),
}

impl Seen {
    fn of(object: &Object) -> Self {
        match object.metadata().resource_version.as_deref() {
            Some(version) if !version.is_empty() => Self::Version(version.to_owned()),
            _ => Self::State(object.clone()),
        }
    }

    pub(crate) fn of_watched(watched: &Watched) -> Self {
        match watched {
            Watched::Present(object) => Self::of(object),
            Watched::Absent => Self::Absent,
            _ => Self::Unknown,
        }
    }

    /// Whether what was made from the one is what would be made from the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        !matches!((self, other), (Self::Unknown, _) | (_, Self::Unknown)) && self == other
    }
}

/// The objects that something is made from, as they are read.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<BTreeMap<ObjectKey, Seen>>);

impl Reads {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is about to be read: also if nothing comes of that.
    pub(crate) fn begin(&self, key: &ObjectKey) {
        self.lock().insert(key.clone(), Seen::Unknown);
    }

    pub(crate) fn end(&self, key: &ObjectKey, found: &Result<Object, ObjectError>) {
        let seen = match found {
            Ok(object) => Seen::of(object),
            Err(ObjectError::NotFound { .. }) => Seen::Absent,
            Err(_) => Seen::Unknown,
        };
        self.lock().insert(key.clone(), seen);
    }

    pub(crate) fn take(&self) -> BTreeMap<ObjectKey, Seen> {
        std::mem::take(&mut *self.lock())
    }
}
