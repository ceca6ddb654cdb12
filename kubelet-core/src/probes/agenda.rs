//! Which probe is due when.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// Names one probe of one container for as long as it is followed; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProbeToken(pub(super) u64);

/// The times of all probes, earliest first.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    due: BTreeSet<(Instant, ProbeToken)>,
}

impl Agenda {
    pub(super) fn put(&mut self, at: Instant, token: ProbeToken) {
        self.due.insert((at, token));
    }

    pub(super) fn take_off(&mut self, at: Instant, token: ProbeToken) {
        self.due.remove(&(at, token));
    }

    /// The earliest time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the earliest, if it is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, ProbeToken)> {
        self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first()
    }
}

/// The first of the times `first + k * period` that is not before `now`: a run that took long puts none of the later ones off.
pub(super) fn on_grid(first: Instant, period: Duration, now: Instant) -> Instant {
    let since = now.saturating_duration_since(first).as_nanos();
    let period = period.as_nanos().max(1);
    let runs = since.div_ceil(period);
    let nanos = u64::try_from(runs.saturating_mul(period)).unwrap_or(u64::MAX);
    first + Duration::from_nanos(nanos)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::on_grid;

    proptest! {
        #[test]
        fn the_next_run_is_a_whole_number_of_periods_after_the_first_and_less_than_one_away(
            period in 1_u64..1_000_000,
            since in 0_u64..1_000_000_000,
        ) {
            let first = Instant::now();
            let now = first + Duration::from_micros(since);
            let next = on_grid(first, Duration::from_micros(period), now);
            prop_assert!(next >= now);
            prop_assert!(next - now < Duration::from_micros(period));
            prop_assert_eq!((next - first).as_micros() % u128::from(period), 0);
        }
    }
}
