//! What is measured, and at which sizes.

use crate::measure::Row;
use crate::{burst, idle, memory, micro, probes, reaction, relist, volumes};

/// How much is measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Sizes {
    /// The numbers of pods, ascending; at least two.
    pub pods: Vec<usize>,
    /// Samples of one reaction.
    pub samples: usize,
    /// Repetitions of what takes microseconds.
    pub repeats: usize,
    /// Seconds of real time in which an idle node is watched.
    pub watch_seconds: u64,
    /// Seconds of simulated time of the idle hour.
    pub idle_seconds: u64,
    /// Whether processes of their own are started for their resident sets.
    pub processes: bool,
}

impl Sizes {
    /// What the design names.
    #[must_use]
    pub fn full() -> Self {
        Self {
            pods: vec![100, 1_000, 10_000],
            samples: 100,
            repeats: 1_000,
            watch_seconds: 10,
            idle_seconds: 3_600,
            processes: true,
        }
    }

    /// So small that only the code is tried.
    #[must_use]
    pub fn smoke() -> Self {
        Self {
            pods: vec![3, 6],
            samples: 3,
            repeats: 3,
            watch_seconds: 1,
            idle_seconds: 120,
            processes: false,
        }
    }
}

/// Measures one group of rows.
type Measure = fn(&Sizes, &mut dyn FnMut(Row));

/// Measures everything whose name begins with one of `chosen`, or simply everything, and hands out row by row.
pub fn run(sizes: &Sizes, chosen: &[String], mut tell: impl FnMut(&Row)) {
    let groups: [(&str, Measure); 8] = [
        ("micro", micro::measure),
        ("relist", relist::measure),
        ("memory", memory::measure),
        ("burst", burst::measure),
        ("reaction", reaction::measure),
        ("probes", probes::measure),
        ("idle", idle::measure),
        ("volumes", volumes::measure),
    ];
    for (name, measure) in groups {
        if chosen.is_empty() || chosen.iter().any(|word| name.starts_with(word.as_str())) {
            measure(sizes, &mut |row| tell(&row));
        }
    }
}
