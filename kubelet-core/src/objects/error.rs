//! Why an object could not be read.

use std::error::Error;

use super::key::ObjectKey;
use super::object::ObjectKind;

/// Why an [`ObjectSource`](super::ObjectSource) call failed, sorted by what the caller does next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// It does not exist. An optional reference is skipped; for any other the pod waits and asks again.
    #[error("{} {:?} not found", key.kind.resource(), key.name)]
    NotFound {
        /// The object that was asked for.
        key: ObjectKey,
    },
    /// This source never has objects of that kind. The pod is refused: waiting does not help.
    #[error("{} objects are not available on this node", kind.resource())]
    NotServed {
        /// The kind that was asked for.
        kind: ObjectKind,
    },
    /// Nobody could be asked, so nothing is known. Retried with back-off, for optional references too.
    #[error("cannot read {what}")]
    Unavailable {
        /// What was to be read.
        what: String,
        /// What stood in the way.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Understood and refused. Shown on the pod, and tried again at the pod's back-off.
    #[error("not allowed to read {what}")]
    Refused {
        /// What was to be read.
        what: String,
        /// The refusal.
        source: Box<dyn Error + Send + Sync>,
    },
}

#[cfg(test)]
mod tests {
    use super::{ObjectError, ObjectKey, ObjectKind};

    #[test]
    fn the_text_of_a_missing_object_is_the_one_pods_show() {
        let error = ObjectError::NotFound {
            key: ObjectKey::new(ObjectKind::ConfigMap, "default", "settings"),
        };
        assert_eq!(error.to_string(), r#"configmap "settings" not found"#);
    }
}
