//! Who looks at the runtime: the seam of the pod lifecycle event generator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::cache::{CacheWriter, RelistRequests};
use crate::clock::RandomSource;
use crate::metrics::MetricSet;
use crate::runtime::ContainerRuntime;
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
}

impl PlegContext {
    /// Everything that a generator works with.
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
        }
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
}

impl PlegHealth {
    /// Unhealthy until the first look, and from `threshold` after the begin of the last one that succeeded.
    #[must_use]
    pub fn new(threshold: Duration) -> Self {
        Self {
            shared: Arc::new(std::sync::Mutex::new(HealthState {
                last_look_begun: None,
                threshold,
            })),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HealthState> {
        self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A look at everything that began then has succeeded.
    pub fn looked(&self, begun: tokio::time::Instant) {
        self.lock().last_look_begun = Some(begun);
    }

    /// Changes the threshold, as a generator does when it changes its period.
    pub fn set_threshold(&self, threshold: Duration) {
        self.lock().threshold = threshold;
    }

    /// Why it is not healthy, or nothing if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let state = self.lock();
        match state.last_look_begun {
            None => Some("pleg has yet to be successful".to_owned()),
            Some(begun) if begun.elapsed() > state.threshold => Some(format!(
                "pleg was last seen active {:?} ago; threshold is {:?}",
                begun.elapsed(),
                state.threshold
            )),
            Some(_) => None,
        }
    }
}

/// Looks at the runtime and writes the status cache; nobody else has the writer.
///
/// # Contract
/// - Every change of a pod reaches the cache, and a signal for that pod follows it.
/// - A look takes [`CacheWriter::begin`] before it lists; [`CacheWriter::looked_at_all`] comes only when all pods that
///   changed are written or marked stale.
/// - A failed list changes nothing in the cache but [`CacheWriter::cannot_look`].
/// - A request to look at one pod is answered soon, whatever the period.
/// - One slow pod delays only itself.
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
