//! The one source of chance in a simulation.

use std::time::Duration;

use kubelet_core::{RandomSource, SeededRandom};

#[derive(Debug)]
pub(crate) struct Dice(SeededRandom);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SeededRandom::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap_or(0)
    }

    /// Both ends included.
    pub(crate) fn between(&self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(crate) fn chance(&self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn millis(&self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    pub(crate) fn pick<'a, T>(&self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() {
            return None;
        }
        of.get(self.below(of.len()))
    }

    /// One of several, by weight.
    pub(crate) fn weighted<T: Copy>(&self, of: &[(u64, T)], otherwise: T) -> T {
        let total: u64 = of.iter().map(|(weight, _)| weight).sum();
        let mut left = self.next() % total.max(1);
        for (weight, choice) in of {
            if left < *weight {
                return *choice;
            }
            left -= weight;
        }
        otherwise
    }
}
