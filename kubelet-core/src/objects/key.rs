//! How objects are asked for.

use std::fmt;

use k8s_openapi::jiff::Timestamp;

use super::object::ObjectKind;

/// Names one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct ObjectKey {
    /// The kind.
    pub kind: ObjectKind,
    /// The namespace; empty for kinds that have none.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// Makes a key. The namespace is dropped for kinds that have none.
    pub fn new(kind: ObjectKind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        let namespace = if kind.is_namespaced() {
            namespace.into()
        } else {
            String::new()
        };
        Self {
            kind,
            namespace,
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = self.kind.resource();
        if self.namespace.is_empty() {
            write!(f, "{resource} {}", self.name)
        } else {
            write!(f, "{resource} {}/{}", self.namespace, self.name)
        }
    }
}

/// Selects objects for a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectQuery {
    /// The kind.
    pub kind: ObjectKind,
    /// Only objects of this namespace; all namespaces if absent.
    pub namespace: Option<String>,
}

impl ObjectQuery {
    /// Selects all objects of `kind`, in every namespace.
    pub fn new(kind: ObjectKind) -> Self {
        Self { kind, namespace: None }
    }

    /// Narrows the query to one namespace.
    #[must_use]
    pub fn with_namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Whether an object with this key is selected.
    pub fn matches(&self, key: &ObjectKey) -> bool {
        self.kind == key.kind && self.namespace.as_deref().is_none_or(|wanted| wanted == key.namespace)
    }
}

impl fmt::Display for ObjectQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = self.kind.resource();
        match &self.namespace {
            Some(namespace) => write!(f, "{resource} objects in namespace {namespace}"),
            None => write!(f, "{resource} objects"),
        }
    }
}

/// How old an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freshness {
    /// Whatever is at hand, however old.
    Cached,
    /// The state at this time or later. For a new pod this is its creation: it must not start with
    /// values that had been replaced before it existed.
    NotOlderThan(Timestamp),
    /// Read from the source during the call.
    Live,
}
