//! What a volume manager is told of its node.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::admission::NodeView;
use crate::clock::{Clock, RandomSource, SeededRandom, SystemClock};
use crate::event::{EventSink, TracingEvents};
use crate::objects::ObjectSource;
use crate::tokens::TokenSource;

/// The node as it is now: its labels, and what it has for pods. A cheap clone.
#[derive(Clone)]
pub struct NodeViews(Arc<dyn Fn() -> Arc<NodeView> + Send + Sync>);

impl NodeViews {
    /// A node that `view` tells of.
    pub fn new(view: impl Fn() -> Arc<NodeView> + Send + Sync + 'static) -> Self {
        Self(Arc::new(view))
    }

    /// How it is now.
    #[must_use]
    pub fn now(&self) -> Arc<NodeView> {
        (self.0)()
    }
}

impl fmt::Debug for NodeViews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeViews").finish_non_exhaustive()
    }
}

/// What a [`VolumeManager`](super::VolumeManager) is told of the node that it works for. A cheap clone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VolumeContext {
    /// The node.
    pub node: NodeViews,
    /// The folder that the folders of pods are in, below `pods`.
    pub root_dir: PathBuf,
    /// Where the objects come from that pods refer to; nothing where there are none.
    pub objects: Option<Arc<dyn ObjectSource>>,
    /// Where tokens of service accounts come from; nothing where there are none.
    pub tokens: Option<Arc<dyn TokenSource>>,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
    /// The wall time.
    pub clock: Arc<dyn Clock>,
    /// Where random choices come from.
    pub random: Arc<dyn RandomSource>,
}

impl VolumeContext {
    /// A node of that name, with its folders at `root_dir`: without objects and tokens, and with this machine's clock.
    pub fn new(node_name: impl Into<String>, root_dir: impl Into<PathBuf>) -> Self {
        let view = Arc::new(NodeView::new(node_name));
        Self {
            node: NodeViews::new(move || view.clone()),
            root_dir: root_dir.into(),
            objects: None,
            tokens: None,
            events: Arc::new(TracingEvents),
            clock: Arc::new(SystemClock),
            random: Arc::new(SeededRandom::from_process()),
        }
    }
}
