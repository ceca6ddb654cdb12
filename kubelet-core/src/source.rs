//! Where wished-for pods come from.

mod channel;
mod file;
mod http;
mod item;

use std::fmt;
use std::sync::Arc;

use futures::stream::BoxStream;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::ids::SourceName;

pub use channel::{ChannelError, ChannelHandle, ChannelSource};
pub use file::FileSource;
pub use http::HttpSource;
pub use item::{InvalidManifest, Origin, RawPod, Removed, SourceError, SourceItem};

/// Whose word a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SourceKind {
    /// The source itself is the truth, like a folder of manifests: its pods are decorated as static pods are, defaulted
    /// and validated, and may refer to objects only where a local [`ObjectSource`](crate::ObjectSource) serves them.
    Static,
    /// The source speaks for a control plane or an embedder that manages the pods: they keep their names and UIDs.
    Managed,
}

/// What a source is given when it is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SourceContext {
    /// The node's name.
    pub node_name: Arc<str>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Cancelled when the kubelet ends; the stream ends then, and only then.
    pub stop: CancellationToken,
}

impl SourceContext {
    /// A context for one run.
    #[must_use]
    pub fn new(node_name: Arc<str>, clock: Arc<dyn Clock>, stop: CancellationToken) -> Self {
        Self { node_name, clock, stop }
    }
}

/// Where wished-for pods come from.
///
/// # Contract
/// - `open` is called once per run; the stream ends only once `stop` is cancelled, and then soon.
/// - `name` is not empty; it and `kind` never change.
/// - A source is ready from its first [`SourceItem::Snapshot`] that is not `remembered`.
/// - Without pods its snapshot is empty; a source that says nothing holds up all that waits for the sources.
/// - A snapshot is the whole truth of the source: what it does not name is no longer wished for.
/// - What changes while nobody polls the stream is told when it is polled again; states in between may be left out.
/// - What cannot be read is [`SourceItem::Trouble`], never an empty snapshot.
/// - A pod that cannot be understood is reported as invalid, with its origin, and hurts no other pod.
/// - Pods of a managed source carry a UID that never changes, and is never used again for another pod.
pub trait PodSource: fmt::Debug + Send + Sync + 'static {
    /// Its name, as in the annotation `kubernetes.io/config.source`.
    fn name(&self) -> &SourceName;

    /// Whose word it is.
    fn kind(&self) -> SourceKind;

    /// Starts to look. Dropping the stream stops it.
    fn open(&self, cx: SourceContext) -> BoxStream<'static, SourceItem>;
}

impl<T: PodSource + ?Sized> PodSource for Arc<T> {
    fn name(&self) -> &SourceName {
        (**self).name()
    }
    fn kind(&self) -> SourceKind {
        (**self).kind()
    }
    fn open(&self, cx: SourceContext) -> BoxStream<'static, SourceItem> {
        (**self).open(cx)
    }
}
