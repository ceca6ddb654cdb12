//! Where the objects that pods refer to come from: an API server, a directory, the embedder's memory.

mod directory;
mod error;
mod key;
mod manifest;
mod map;
mod object;
mod watch;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

pub use directory::{DirectoryObjects, ObjectFileFault};
pub use error::ObjectError;
pub use key::{Freshness, ObjectKey, ObjectQuery};
pub use map::MapObjects;
pub use object::{Object, ObjectKind};
pub use watch::{ObjectWatch, Watched};

/// Reads and watches the objects that pods refer to: secrets, config maps, services, claims and so on.
///
/// # Contract
/// - All methods may overlap each other, for the same object too.
/// - A kind that is not served is answered with [`ObjectError::NotServed`], never with "not found".
/// - [`ObjectError::NotFound`] is a fact: a source that cannot look answers [`ObjectError::Unavailable`].
/// - `get` with [`Freshness::NotOlderThan`] answers with the state at that time or later.
/// - `get` and `list` may be dropped at any time and leave nothing behind.
/// - A list has all objects of its query and no others, sorted by namespace and name.
/// - A watch yields what is known when it starts, then each later state; fast changes may collapse into the last one.
/// - A watch outlives troubles of the source, and tells nothing of them.
/// - Dropping the watch releases everything the source held for it.
#[async_trait]
pub trait ObjectSource: fmt::Debug + Send + Sync + 'static {
    /// Whether objects of `kind` can be read here; the answer never changes.
    ///
    /// Pods that need a kind that is not served are refused with that reason. Services are the
    /// exception: without them a container simply gets no service variables.
    fn serves(&self, kind: ObjectKind) -> bool;

    /// Whether the objects live on this node, so that static pods may refer to them.
    ///
    /// A static pod must not depend on the API server, which may be one of the pods it describes.
    fn is_local(&self) -> bool;

    /// Reads one object.
    ///
    /// No timeout is applied; the caller bounds the call.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] if it does not exist, [`ObjectError::NotServed`] if the kind is not
    /// served, [`ObjectError::Unavailable`] if nobody could be asked, [`ObjectError::Refused`] if
    /// this node may not read it.
    ///
    /// # Cancellation
    /// A dropped call has no effect.
    async fn get(&self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError>;

    /// Reads all objects that match `query`, sorted by namespace and name.
    ///
    /// An empty list means that there are none; a source that has not looked yet is unavailable.
    ///
    /// # Errors
    /// As for [`get`](ObjectSource::get), but never [`ObjectError::NotFound`].
    ///
    /// # Cancellation
    /// A dropped call has no effect.
    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError>;

    /// Follows one object until the watch is dropped.
    ///
    /// The watch counts as a reference: a source may keep a cache or a connection for as long as it
    /// lives. For a kind that is not served it ends at once.
    fn watch(&self, key: &ObjectKey) -> ObjectWatch;
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: ObjectSource + ?Sized> ObjectSource for Arc<T> {
    fn serves(&self, kind: ObjectKind) -> bool {
        (**self).serves(kind)
    }

    fn is_local(&self) -> bool {
        (**self).is_local()
    }

    async fn get(&self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError> {
        (**self).get(key, want).await
    }

    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        (**self).list(query).await
    }

    fn watch(&self, key: &ObjectKey) -> ObjectWatch {
        (**self).watch(key)
    }
}

/// Keeps the trait usable as a trait object.
const _: fn(&dyn ObjectSource) = |_| {};
