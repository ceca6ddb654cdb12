//! One type of volume: the seam for those who add one.

mod cx;
mod spec;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use kubelet_core::BoxError;
use tokio::time::Instant;

pub(crate) use cx::blocking;
pub use cx::{Ownership, PluginNode, SetUp, TearDown};
pub use spec::{VolumeMode, VolumeSpec};

/// Why a volume cannot be made, or cannot go. It is tried again.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct VolumeFault {
    what: String,
    #[source]
    source: Option<BoxError>,
    pub(crate) there: Option<Box<Placed>>,
}

impl VolumeFault {
    /// For a reason that says it all.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            source: None,
            there: None,
        }
    }

    /// Something failed, for a cause.
    pub fn of(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self {
            what: what.into(),
            source: Some(source.into()),
            there: None,
        }
    }

    /// The volume is there all the same, as an earlier life of the agent made it: containers go on with that.
    #[must_use]
    pub fn but_there(mut self, placed: Placed) -> Self {
        self.there = Some(Box::new(placed));
        self
    }
}

/// When a volume that is there is set up again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refresh {
    /// Never: what is there stays.
    #[default]
    Never,
    /// When an object changed that it was made from.
    Objects,
    /// At each sync of its pod too, since it tells of the pod itself.
    Pod,
}

/// How what a volume uses is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Measure {
    /// Not at all.
    #[default]
    Nothing,
    /// By looking at each of its files, within bounds; how much there is in all is that of its file system.
    Files,
    /// As its file system says.
    FileSystem,
}

/// What a type of volume can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PluginFeatures {
    /// Whether it is a place of the host: nothing is made in the pod's folder, and nothing is torn down.
    pub is_elsewhere: bool,
    /// Whether it takes mount options.
    pub mount_options: bool,
    /// Whether it can be given to a container as a device.
    pub block: bool,
    /// How what it uses is measured.
    pub measure: Measure,
    /// Whether its data goes with the pod, is on the node's own disk, and counts against the pod's limit. Memory does not.
    pub is_ephemeral: bool,
}

/// A volume that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placed {
    /// What containers mount, or the device that they are given.
    pub path: PathBuf,
    /// Whether it cannot be written, whatever its mounts say.
    pub read_only: bool,
    /// Whether the runtime gives it a container's SELinux label.
    pub selinux_relabel: bool,
    /// When it is set up again.
    pub refresh: Refresh,
    /// When it is to be set up again in any case.
    pub again_at: Option<Instant>,
    /// Whether it counts as the pod's ephemeral storage, where that is not the same for all volumes of its type.
    pub is_ephemeral: Option<bool>,
    /// What it was made from, as a number that is another one whenever that is. Given to the next [`SetUp`].
    pub fingerprint: Option<u64>,
}

impl Placed {
    /// A writable volume at a path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            ..Self::default()
        }
    }
}

/// A type of volume.
///
/// The manager calls it for one volume of one pod at a time; for different volumes calls overlap. What `set_up` made is found by
/// `tear_down` from the folder's name alone, also in a later life of the agent.
///
/// # Contract
/// - Its name has one slash at most, no `~`, and stays what it is.
/// - `set_up` may be repeated, also after a crash in the middle of it, and loses nothing that was written into the volume.
/// - All that it makes for a pod is in the two folders that it is given, or is mounted there.
/// - `tear_down` leaves neither of them, and may be repeated; what is not there is no error.
/// - It never removes what is mounted, nor what is reached through a link.
/// - Work on files is done by [`SetUp::blocking`] and [`TearDown::blocking`], so that a dropped call ends before the next begins.
#[async_trait]
pub trait VolumePlugin: fmt::Debug + Send + Sync + 'static {
    /// Its name, such as `kubernetes.io/empty-dir`. Folders are named for it.
    fn name(&self) -> &str;

    /// Whether a volume is of this type.
    fn takes(&self, volume: &VolumeSpec<'_>) -> bool;

    /// What it can do.
    fn features(&self) -> PluginFeatures;

    /// Makes a volume for a pod, or brings it up to date.
    ///
    /// # Errors
    /// [`VolumeFault`], told as an event of the pod; repeated with back-off.
    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault>;

    /// Has a volume of a pod gone.
    ///
    /// # Errors
    /// [`VolumeFault`]; repeated with back-off.
    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault>;
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<T: VolumePlugin + ?Sized> VolumePlugin for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        (**self).takes(volume)
    }
    fn features(&self) -> PluginFeatures {
        (**self).features()
    }
    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        (**self).set_up(cx).await
    }
    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        (**self).tear_down(cx).await
    }
}

/// Keeps the trait usable as a trait object.
const _: fn(&dyn VolumePlugin) = |_| {};
