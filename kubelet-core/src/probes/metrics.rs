//! Counts of probes.

use std::time::Duration;

use super::prober::{ProbeKind, ProbeOutcome};
use crate::metrics::Histogram;

/// How often a container's probe of a kind has run, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) successes: u64,
    pub(crate) failures: u64,
    pub(crate) unknown: u64,
}

impl Counts {
    pub(super) fn add(&mut self, outcome: &ProbeOutcome) {
        match outcome {
            ProbeOutcome::Success { .. } => self.successes += 1,
            ProbeOutcome::Failure(_) => self.failures += 1,
            ProbeOutcome::Unknown(_) => self.unknown += 1,
        }
    }
}

/// What is measured of all probes of a node.
#[derive(Debug)]
pub(crate) struct Times {
    durations: [Histogram; ProbeKind::ALL.len()],
    /// From the time that a probe is due until it begins.
    pub(crate) lateness: Histogram,
}

impl Default for Times {
    fn default() -> Self {
        const LATE: &[f64] = &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];
        Self {
            durations: std::array::from_fn(|_| Histogram::default()),
            lateness: Histogram::new(LATE),
        }
    }
}

impl Times {
    pub(crate) fn ran(&self, kind: ProbeKind, took: Duration) {
        self.of(kind).observe(took);
    }

    pub(crate) fn of(&self, kind: ProbeKind) -> &Histogram {
        &self.durations[kind as usize]
    }
}
