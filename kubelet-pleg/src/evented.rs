//! The generator that relies on the runtime's events.

use std::time::Duration;

use async_trait::async_trait;
use kubelet_core::{CancellationToken, MetricSet, PlegContext, PlegError, PodLifecycleEventGenerator};

use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::relister::run;
use crate::settings::EventedPlegSettings;

/// Looks at everything seldom while the runtime's events flow, and as often as [`GenericPleg`](crate::GenericPleg) while
/// they do not, or where the runtime has none.
///
/// An event is a hint: it makes the generator look at its pod, and is believed in nothing else. A stream that breaks is
/// opened again for ever. One that is open and does not tell of a change which a look found counts as broken too.
///
/// Source: kubelet 1.36, `pleg/evented.go`. It writes what events contain into its cache, gives events up for good after
/// five errors, and never finds out about missed ones.
#[derive(Debug, Default)]
pub struct EventedPleg {
    settings: EventedPlegSettings,
    metrics: Metrics,
}

impl EventedPleg {
    /// A generator with these numbers.
    #[must_use]
    pub fn new(settings: EventedPlegSettings) -> Self {
        Self {
            settings,
            metrics: Metrics::default(),
        }
    }
}

#[async_trait]
impl PodLifecycleEventGenerator for EventedPleg {
    async fn run(&self, cx: PlegContext, stop: CancellationToken) -> Result<(), PlegError> {
        let pace = Pace::evented(&self.settings);
        run(&self.settings.without_events, pace, &self.metrics, cx, stop).await;
        Ok(())
    }

    fn health_threshold(&self) -> Duration {
        self.settings.without_events.health_threshold
    }

    fn collect(&self, metrics: &mut MetricSet) {
        self.metrics.collect(metrics);
        self.metrics.collect_connections(metrics);
    }
}
