//! Clocks, and rows of the table.

use std::fmt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    what: String,
    pods: usize,
    value: String,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>, pods: usize, value: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            pods,
            value: value.into(),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<52} {:>6} pods  {}", self.what, self.pods, self.value)
    }
}

/// The processor time of this process so far.
pub(crate) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The processor time of this thread so far.
pub(crate) fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The resident set of this process, in bytes.
pub(crate) fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    pages * rustix::param::page_size()
}

/// The middle and the 99th percentile.
pub(crate) fn middle_and_p99(mut samples: Vec<Duration>) -> (Duration, Duration) {
    samples.sort_unstable();
    let at = |share: usize| samples[(samples.len() - 1) * share / 100];
    (at(50), at(99))
}

/// A runtime of one thread with simulated time.
pub(crate) fn simulated() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().expect("a runtime")
}

/// A runtime with real time, of one thread or of two.
pub(crate) fn real(threads: usize) -> Runtime {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        more => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(more);
            builder
        }
    };
    builder.enable_all().build().expect("a runtime")
}
