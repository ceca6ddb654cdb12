//! What a volume manager does by itself, as a part of the kubelet.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::VolumeManager;
use crate::runnable::{NodeContext, Runnable, RunnableError, StartPhase};
use crate::signals::PodSignals;

/// Runs a volume manager.
#[derive(Debug)]
pub(crate) struct VolumeWork {
    manager: Arc<dyn VolumeManager>,
    wake: PodSignals,
}

impl VolumeWork {
    pub(crate) fn new(manager: Arc<dyn VolumeManager>, wake: PodSignals) -> Self {
        Self { manager, wake }
    }
}

#[async_trait]
impl Runnable for VolumeWork {
    fn name(&self) -> &'static str {
        "volumes"
    }

    fn phase(&self) -> StartPhase {
        StartPhase::Early
    }

    async fn run(&self, _node: NodeContext, stop: CancellationToken) -> Result<(), RunnableError> {
        let ended = self.manager.run(self.wake.clone(), stop).await;
        ended.map_err(|source| RunnableError::Failed {
            what: "the volume manager ended".to_owned(),
            source,
        })
    }
}
