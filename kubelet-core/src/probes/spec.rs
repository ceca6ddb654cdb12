//! The numbers of one probe.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

/// When a probe runs, and how many runs mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeSpec {
    pub(super) initial_delay: Duration,
    pub(super) period: Duration,
    pub(super) timeout: Duration,
    pub(super) success_threshold: u32,
    pub(super) failure_threshold: u32,
}

impl ProbeSpec {
    /// With the API's defaults for what is not given.
    pub(super) fn of(probe: &Probe) -> Self {
        let positive = |value: Option<i32>, default| {
            value
                .and_then(|v| u32::try_from(v).ok())
                .filter(|v| *v > 0)
                .unwrap_or(default)
        };
        let seconds = |value, default| Duration::from_secs(positive(value, default).into());
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: positive(probe.success_threshold, 1),
            failure_threshold: positive(probe.failure_threshold, 3),
        }
    }
}
