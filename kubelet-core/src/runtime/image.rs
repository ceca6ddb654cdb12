//! The image seam.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use crate::ids::ImageId;
use crate::runtime::{RegistryAuth, RuntimeError, SandboxConfig};

/// An image as a pod asks for it, with the tag that is implied where none is given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct ImageRef {
    /// What to look for or pull, such as `registry.example/app:1`.
    pub name: String,
    /// The text in the pod's spec, for messages and statuses.
    pub asked: String,
}

impl ImageRef {
    /// An image whose name is used as it stands.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            asked: name.clone(),
            name,
        }
    }

    /// An image found under `name` that the pod asked for as `asked`.
    pub fn with_asked(name: impl Into<String>, asked: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            asked: asked.into(),
        }
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.asked)
    }
}

/// An image that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageRecord {
    /// Its id.
    pub id: ImageId,
    /// Names with a tag.
    pub tags: Vec<String>,
    /// Names with a digest.
    pub digests: Vec<String>,
    /// Size in bytes; 0 where unknown.
    pub size_bytes: u64,
    /// The user id that it is made for, where it says.
    pub uid: Option<i64>,
    /// The user name that it is made for, where it says.
    pub username: String,
    /// Whether it must never be collected.
    pub pinned: bool,
}

impl ImageRecord {
    /// A present image of that id.
    #[must_use]
    pub fn new(id: ImageId) -> Self {
        Self {
            id,
            tags: Vec::new(),
            digests: Vec::new(),
            size_bytes: 0,
            uid: None,
            username: String::new(),
            pinned: false,
        }
    }
}

/// A request to pull an image.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PullRequest<'a> {
    /// The image.
    pub image: &'a ImageRef,
    /// The runtime handler that it is for; empty: the default one.
    pub handler: &'a str,
    /// What to show the registry; absent: nothing, and then the service uses no credentials of its own accord either.
    pub auth: Option<&'a RegistryAuth>,
    /// The sandbox that it is for, where there is one. Its annotations, which are those of the pod, belong to the image too.
    pub sandbox: Option<&'a SandboxConfig>,
}

impl<'a> PullRequest<'a> {
    /// A pull without credentials for the default handler.
    #[must_use]
    pub fn new(image: &'a ImageRef) -> Self {
        Self {
            image,
            handler: "",
            auth: None,
            sandbox: None,
        }
    }

    /// With credentials.
    #[must_use]
    pub fn with_auth(mut self, auth: &'a RegistryAuth) -> Self {
        self.auth = Some(auth);
        self
    }

    /// For a sandbox.
    #[must_use]
    pub fn with_sandbox(mut self, sandbox: &'a SandboxConfig) -> Self {
        self.sandbox = Some(sandbox);
        self
    }
}

/// Is told how far a pull is.
pub trait PullProgress: Send + Sync {
    /// So many bytes are there, out of so many where that is known.
    fn progress(&self, done_bytes: u64, total_bytes: Option<u64>);
}

/// Ignores progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct IgnoreProgress;

impl PullProgress for IgnoreProgress {
    fn progress(&self, _done_bytes: u64, _total_bytes: Option<u64>) {}
}

/// Where images are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageFilesystems {
    /// Folders that hold images.
    pub images: Vec<PathBuf>,
    /// Folders that hold writable layers.
    pub containers: Vec<PathBuf>,
    /// How much room there is for images, where the service knows better than the folders' file system on this machine.
    pub space: Option<ImageSpace>,
}

/// How much room a file system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageSpace {
    /// All of it, in bytes.
    pub capacity_bytes: u64,
    /// What can still be used, in bytes.
    pub available_bytes: u64,
}

impl ImageSpace {
    /// So much in all, and so much left.
    #[must_use]
    pub fn new(capacity_bytes: u64, available_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            available_bytes,
        }
    }
}

/// Presence, pulls and removal of images. Credentials are chosen by core's image manager and handed in.
///
/// # Contract
/// - A successful pull makes `status` of the same reference answer with that image.
/// - Pulls may overlap each other and every other call; a pull ends when its future is dropped.
/// - Removing an image that is gone succeeds.
/// - A registry is shown the credentials of the request, and no others.
/// - An absent image is `Ok(None)`; [`RuntimeError::Unavailable`] never stands for it.
/// - A pull that cannot succeed as asked is [`RuntimeError::Refused`], with a message that says what is missing where.
#[async_trait]
pub trait ImageService: fmt::Debug + Send + Sync + 'static {
    /// The image, if it is present.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] if there was no answer, [`RuntimeError::Refused`] if the name cannot be an image.
    async fn status(&self, image: &ImageRef, handler: &str) -> Result<Option<ImageRecord>, RuntimeError>;

    /// All images that are present.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] if there was no answer.
    async fn list(&self) -> Result<Vec<ImageRecord>, RuntimeError>;

    /// Makes an image present, and current where it was.
    ///
    /// # Errors
    /// [`RuntimeError::Refused`] as in the contract.
    ///
    /// # Cancellation
    /// Dropping the future ends the pull; what is half there is of no harm to a later one.
    async fn pull(&self, req: PullRequest<'_>, progress: &dyn PullProgress) -> Result<ImageId, RuntimeError>;

    /// Removes an image.
    ///
    /// # Errors
    /// [`RuntimeError::Refused`] if it is in use, where the service minds.
    async fn remove(&self, id: &ImageId) -> Result<(), RuntimeError>;

    /// Where images are kept.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] if there was no answer.
    async fn filesystems(&self) -> Result<ImageFilesystems, RuntimeError>;

    /// The images of containers that are none of ours, in any state, by whichever names or ids the runtime has for them: they do
    /// not count as unused. Asked before images are removed. By default there are none.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] if there was no answer; nothing is removed then.
    async fn used_by_others(&self) -> Result<BTreeSet<String>, RuntimeError> {
        Ok(BTreeSet::new())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: ImageService + ?Sized> ImageService for Arc<T> {
    async fn status(&self, image: &ImageRef, handler: &str) -> Result<Option<ImageRecord>, RuntimeError> {
        (**self).status(image, handler).await
    }
    async fn list(&self) -> Result<Vec<ImageRecord>, RuntimeError> {
        (**self).list().await
    }
    async fn pull(&self, req: PullRequest<'_>, progress: &dyn PullProgress) -> Result<ImageId, RuntimeError> {
        (**self).pull(req, progress).await
    }
    async fn remove(&self, id: &ImageId) -> Result<(), RuntimeError> {
        (**self).remove(id).await
    }
    async fn filesystems(&self) -> Result<ImageFilesystems, RuntimeError> {
        (**self).filesystems().await
    }
    async fn used_by_others(&self) -> Result<BTreeSet<String>, RuntimeError> {
        (**self).used_by_others().await
    }
}
