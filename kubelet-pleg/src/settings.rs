//! Numbers of the generators.

use std::num::NonZeroUsize;
use std::time::Duration;

/// Numbers of [`GenericPleg`](crate::GenericPleg).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GenericPlegSettings {
    /// How long after the end of a relist the next one begins. Default: 1 s, as in kubelet 1.36.
    pub period: Duration,
    /// How old the last good relist may be, counted from its begin, before the node counts as unhealthy. Default: 3 min,
    /// as in kubelet 1.36.
    pub health_threshold: Duration,
    /// How many pods are inspected at a time, and how many are listed alone at a time. Default: 8. Inspections that
    /// take longer than a second do not count, up to four times this number in all.
    pub max_parallel: NonZeroUsize,
    /// How long the two lists of one look may take together. Default: 2 min, the `runtimeRequestTimeout` of kubelet 1.36.
    pub list_timeout: Duration,
    /// How long the inspection of one pod may take. Default: 2 min.
    pub inspect_timeout: Duration,
}

impl Default for GenericPlegSettings {
    fn default() -> Self {
        const PARALLEL: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);
        Self {
            period: Duration::from_secs(1),
            health_threshold: Duration::from_secs(180),
            max_parallel: PARALLEL,
            list_timeout: Duration::from_secs(120),
            inspect_timeout: Duration::from_secs(120),
        }
    }
}

/// Numbers of [`EventedPleg`](crate::EventedPleg).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventedPlegSettings {
    /// How long after the end of a relist the next one begins while events flow. Default: 5 min, as in kubelet 1.36.
    pub period: Duration,
    /// How old the last good relist may be while events flow, counted from its begin, before the node counts as unhealthy.
    /// Default: 10 min, as in kubelet 1.36.
    pub health_threshold: Duration,
    /// How long an event may come after the change that it tells of was found by a look. Default: 10 s.
    pub deaf_after: Duration,
    /// What holds while no events flow, and the numbers that have nothing to do with events.
    pub without_events: GenericPlegSettings,
}

impl Default for EventedPlegSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(300),
            health_threshold: Duration::from_secs(600),
            deaf_after: Duration::from_secs(10),
            without_events: GenericPlegSettings::default(),
        }
    }
}
