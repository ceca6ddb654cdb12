//! Deadlines and sizes.

use std::time::Duration;

/// How a runtime is talked to.
///
/// Source of the defaults: kubelet 1.36.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CriSettings {
    /// The deadline of a call, 2 min. Sandboxes get twice that, stops and commands their own time besides, pulls none.
    pub request_timeout: Duration,
    /// The largest answer that is taken, in bytes; 16 MiB.
    pub max_message_bytes: usize,
    /// How often `RuntimeConfig` is tried when a runtime is connected, 2 s apart; 3.
    pub config_tries: u32,
    /// The socket of the image service, where it is another one.
    pub image_endpoint: Option<String>,
}

impl Default for CriSettings {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(120),
            max_message_bytes: 16 << 20,
            config_tries: 3,
            image_endpoint: None,
        }
    }
}

/// Whole seconds, rounded up: a grace that is cut short would be no grace.
pub(crate) fn whole_seconds(duration: Duration) -> i64 {
    let seconds = duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::whole_seconds;

    #[test]
    fn seconds_are_rounded_up() {
        for (millis, seconds) in [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (30_000, 30)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(whole_seconds(Duration::MAX), i64::MAX);
    }
}
