//! What another face of the fake was asked for, in the words of its own protocol.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Kept beside the neutral config of a sandbox or a container, which may hold less.
#[derive(Clone, Default)]
pub(crate) struct Original(Option<Arc<dyn Any + Send + Sync>>);

impl fmt::Debug for Original {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Original").field(&self.0.is_some()).finish()
    }
}

#[cfg(feature = "fake-cri")]
impl Original {
    pub(crate) fn new<T: Any + Send + Sync>(words: Arc<T>) -> Self {
        Self(Some(words))
    }

    /// The words, if they are of that kind.
    pub(crate) fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}
