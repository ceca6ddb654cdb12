//! Identities as newtypes, so that a pod's UID is never taken for its name.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a text as it is; nothing is checked.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), &self.0)
            }
        }
    };
}

string_id! {
    /// What identifies a pod: never its name, which a later pod may carry too.
    PodUid
}
string_id! {
    /// A container's id, as its runtime gave it.
    ContainerId
}
string_id! {
    /// A pod sandbox's id, as its runtime gave it.
    SandboxId
}
string_id! {
    /// An image's id, as its image service gave it.
    ImageId
}
string_id! {
    /// The name of a pod source, as in the annotation `kubernetes.io/config.source`: `file`, `http`, `api`, or an embedder's own.
    SourceName
}

/// Namespace and name of a pod: what people call it. Not an identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl PodKey {
    /// Joins a namespace and a name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The kubelet's full name: `<name>_<namespace>`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}_{}", self.name, self.namespace)
    }

    /// How messages name a pod: `<name>_<namespace>(<uid>)`.
    #[must_use]
    pub fn describe(&self, uid: &PodUid) -> String {
        format!("{}_{}({uid})", self.name, self.namespace)
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::{PodKey, PodUid};

    #[test]
    fn a_pod_key_has_the_three_forms_of_the_kubelet() {
        let key = PodKey::new("kube-system", "dns");
        assert_eq!(key.to_string(), "kube-system/dns");
        assert_eq!(key.full_name(), "dns_kube-system");
        assert_eq!(key.describe(&PodUid::from("u1")), "dns_kube-system(u1)");
    }
}
