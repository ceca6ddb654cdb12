//! The generator that relists.

use std::time::Duration;

use async_trait::async_trait;
use kubelet_core::{CancellationToken, MetricSet, PlegContext, PlegError, PodLifecycleEventGenerator};

use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::relister::run;
use crate::settings::GenericPlegSettings;

/// Looks at everything once in a period, at single pods when asked, and at a pod at once when the runtime hints at it.
///
/// A look compares what the lists show with what is known, and inspects the pods that changed, several at a time. It does
/// not wait for them: the next look may begin while a slow pod is still being inspected.
///
/// Source: kubelet 1.36, `pleg/generic.go`. It inspects one pod after the other, and has no use for hints.
#[derive(Debug, Default)]
pub struct GenericPleg {
    settings: GenericPlegSettings,
    metrics: Metrics,
}

impl GenericPleg {
    /// A generator with these numbers.
    #[must_use]
    pub fn new(settings: GenericPlegSettings) -> Self {
        Self {
            settings,
            metrics: Metrics::default(),
        }
    }
}

#[async_trait]
impl PodLifecycleEventGenerator for GenericPleg {
    async fn run(&self, cx: PlegContext, stop: CancellationToken) -> Result<(), PlegError> {
        run(&self.settings, Pace::even(&self.settings), &self.metrics, cx, stop).await;
        Ok(())
    }

    fn health_threshold(&self) -> Duration {
        self.settings.health_threshold
    }

    fn collect(&self, metrics: &mut MetricSet) {
        self.metrics.collect(metrics);
    }
}
