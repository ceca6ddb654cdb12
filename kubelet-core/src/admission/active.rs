//! The admitted pods, and what they hold together.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::PodUid;
use crate::pod::PodRecord;

/// The admitted pods that are not terminated.
#[derive(Clone, Debug, Default)]
pub struct ActivePods {
    pods: BTreeMap<PodUid, Arc<PodRecord>>,
}

impl ActivePods {
    /// The pods, sorted by UID.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PodRecord>> {
        self.pods.values()
    }
}
