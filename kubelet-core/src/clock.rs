//! Wall time and randomness as arguments, so that many nodes in one process and simulated runs are possible.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Tells the wall time, for values that leave the process. Durations and deadlines use `tokio::time`.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;
}

#[deny(clippy::missing_trait_methods)]
impl<T: Clock + ?Sized> Clock for Arc<T> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one Clock that reads the machine")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let nanos = i128::try_from(since_epoch.as_nanos()).unwrap_or(i128::MAX);
        Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX)
    }
}

/// A clock that starts at a given time and then follows `tokio::time`, simulated or real.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: Timestamp,
    since: Instant,
}

impl TokioClock {
    /// A clock that shows `start` now.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        Self {
            start,
            since: Instant::now(),
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.since.elapsed()).unwrap_or(SignedDuration::MAX);
        self.start.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

/// Where random choices (jitter, file names) come from.
pub trait RandomSource: fmt::Debug + Send + Sync + 'static {
    /// 64 random bits.
    fn next_u64(&self) -> u64;
}

#[deny(clippy::missing_trait_methods)]
impl<T: RandomSource + ?Sized> RandomSource for Arc<T> {
    fn next_u64(&self) -> u64 {
        (**self).next_u64()
    }
}

/// A small seeded generator: the same seed gives the same sequence. Not for secrets.
#[derive(Debug)]
pub struct SeededRandom {
    state: AtomicU64,
}

impl SeededRandom {
    /// Starts the sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            state: AtomicU64::new(seed),
        }
    }

    /// Starts a sequence that differs in each process and at each call.
    #[must_use]
    pub fn from_process() -> Self {
        // The standard library seeds each `RandomState` from the system, which saves a dependency.
        Self::new(RandomState::new().build_hasher().finish())
    }
}

impl RandomSource for SeededRandom {
    fn next_u64(&self) -> u64 {
        // SplitMix64: a Weyl sequence, then a mixer, so that it needs no lock.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Stretches `base` by a random factor in `[1, 1 + factor)`.
///
/// Source: kubelet 1.36 spreads its resyncs and back-offs with a factor of 0.5.
#[must_use]
pub fn jittered(base: Duration, factor: f64, random: &dyn RandomSource) -> Duration {
    // 53 bits are what an f64 holds exactly.
    let unit = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    base.mul_f64(1.0 + factor * unit)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{RandomSource, SeededRandom, jittered};

    #[test]
    fn a_seed_repeats_its_sequence() {
        let (a, b) = (SeededRandom::new(7), SeededRandom::new(7));
        for _ in 0..100 {
            assert_eq!(a.next_u64(), b.next_u64());
        }
    }

    #[test]
    fn jitter_stays_within_its_factor() {
        let random = SeededRandom::new(1);
        for _ in 0..1000 {
            let d = jittered(Duration::from_secs(10), 0.5, &random);
            assert!(d >= Duration::from_secs(10) && d < Duration::from_secs(15));
        }
    }
}
