//! Who looks at the runtime: the seam of the pod lifecycle event generator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::cache::{CacheWriter, RelistRequests};
use crate::clock::{Clock, RandomSource, SystemClock};
use crate::error::error_chain;
use crate::metrics::MetricSet;
use crate::runtime::{ContainerRuntime, RuntimeError};
use crate::signals::PodSignals;

/// What a generator works with.
#[derive(Debug)]
#[non_exhaustive]
pub struct PlegContext {
    /// What it looks at.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Where it writes what it sees. Nobody else does.
    pub cache: CacheWriter,
    /// Wishes that a pod be looked at now.
    pub requests: RelistRequests,
    /// Where it tells that a pod changed.
    pub signals: PodSignals,
    /// For jitter.
    pub random: Arc<dyn RandomSource>,
    /// Where its health is reported.
    pub health: PlegHealth,
    /// For times that leave the process in metrics.
    pub clock: Arc<dyn Clock>,
}

impl PlegContext {
    /// Everything that a generator works with, and the machine's clock.
    #[must_use]
    pub fn new(
        runtime: Arc<dyn ContainerRuntime>,
        cache: CacheWriter,
        requests: RelistRequests,
        signals: PodSignals,
        random: Arc<dyn RandomSource>,
        health: PlegHealth,
    ) -> Self {
        Self {
            runtime,
            cache,
            requests,
            signals,
            random,
            health,
            clock: Arc::new(SystemClock),
        }
    }

    /// The same with another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }
}

/// Why a generator ended before it was stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlegError {
    /// It cannot go on; the kubelet ends.
    #[error("pod lifecycle event generator ended: {message}")]
    Fatal {
        /// Why.
        message: String,
    },
}

/// How well the generator keeps up. A cheap clone; the generator reports, the kubelet's health reads.
#[derive(Clone, Debug)]
pub struct PlegHealth {
    shared: Arc<std::sync::Mutex<HealthState>>,
}

#[derive(Debug)]
struct HealthState {
    last_look_begun: Option<tokio::time::Instant>,
    threshold: Duration,
    /// Why the looks since the last good one failed.
    failure: Option<String>,
}

impl PlegHealth {
    /// Unhealthy until the first look, and from `threshold` after the begin of the last one that succeeded.
    #[must_use]
    pub fn new(threshold: Duration) -> Self {
        Self {
            shared: Arc::new(std::sync::Mutex::new(HealthState {
                last_look_begun: None,
                threshold,
                failure: None,
            })),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HealthState> {
        self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A look at everything that began then has succeeded.
    pub fn looked(&self, begun: tokio::time::Instant) {
        let mut state = self.lock();
        state.last_look_begun = Some(begun);
        state.failure = None;
    }

    /// A look at everything failed. Changes nothing about its health, but is told as the cause once it is unhealthy.
    pub fn failed(&self, why: &RuntimeError) {
        self.lock().failure = Some(error_chain(why));
    }

    /// Changes the threshold, as a generator does when it changes its period.
    pub fn set_threshold(&self, threshold: Duration) {
        self.lock().threshold = threshold;
    }

    /// Why it is not healthy, or nothing if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let state = self.lock();
        let trouble = match state.last_look_begun {
            None => "pleg has yet to be successful".to_owned(),
            Some(begun) if begun.elapsed() > state.threshold => format!(
                "pleg was last seen active {:?} ago; threshold is {:?}",
                begun.elapsed(),
                state.threshold
            ),
            Some(_) => return None,
        };
        Some(match &state.failure {
            Some(why) => format!("{trouble}: {why}"),
            None => trouble,
        })
    }
}

/// Looks at the runtime and writes the status cache; nobody else has the writer.
///
/// # Contract
/// - Every change of a pod reaches the cache, and a signal for that pod follows it.
/// - A look takes [`CacheWriter::begin`] before it lists: what changed while it was under way is not what it saw.
/// - [`CacheWriter::looked_at_all`] comes only when all pods that changed are written or marked stale.
/// - A failed list changes nothing in the cache but [`CacheWriter::cannot_look`].
/// - A request to look at one pod is answered soon, whatever the period.
/// - A request to inspect one is granted even if its records did not change, and a signal follows.
/// - One slow pod delays only itself.
/// - A look at everything that succeeded is told to the health; one that failed is not.
/// - It returns soon after `stop`, whatever the runtime does, and may be run again.
#[async_trait]
pub trait PodLifecycleEventGenerator: fmt::Debug + Send + Sync + 'static {
    /// Looks until it is stopped. May be called again once it has returned.
    ///
    /// # Errors
    /// [`PlegError::Fatal`] if looking is impossible for good.
    async fn run(&self, cx: PlegContext, stop: CancellationToken) -> Result<(), PlegError>;

    /// How old the last look may be before the node counts as unhealthy. Source: kubelet 1.36: 3 min.
    fn health_threshold(&self) -> Duration {
        Duration::from_secs(180)
    }

    /// Adds its metrics.
    fn collect(&self, metrics: &mut MetricSet) {
        let _ = metrics;
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: PodLifecycleEventGenerator + ?Sized> PodLifecycleEventGenerator for Arc<T> {
    async fn run(&self, cx: PlegContext, stop: CancellationToken) -> Result<(), PlegError> {
        (**self).run(cx, stop).await
    }
    fn health_threshold(&self) -> Duration {
        (**self).health_threshold()
    }
    fn collect(&self, metrics: &mut MetricSet) {
        (**self).collect(metrics);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::PlegHealth;
    use crate::runtime::RuntimeError;

    #[tokio::test(start_paused = true)]
    async fn health_names_the_cause_once_the_last_look_is_too_old() {
        let health = PlegHealth::new(Duration::from_secs(3));
        assert_eq!(health.trouble().unwrap(), "pleg has yet to be successful");
        health.looked(Instant::now());
        health.failed(&RuntimeError::unavailable("list_sandboxes", "socket closed"));
        assert_eq!(health.trouble(), None);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(
            health.trouble().unwrap(),
            "pleg was last seen active 4s ago; threshold is 3s: \
             container runtime unavailable during list_sandboxes: socket closed"
        );
        health.looked(Instant::now());
        assert_eq!(health.trouble(), None);
    }
}
