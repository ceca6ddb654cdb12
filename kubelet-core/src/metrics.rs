//! Small metric types without a registry: a part owns its numbers, and whoever asks pulls them.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Counts up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds `amount`, which may be negative.
    pub fn add(&self, amount: i64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts durations by upper bound.
pub struct Histogram {
    bounds: &'static [f64],
    state: Mutex<HistogramState>,
}

#[derive(Clone, Debug)]
struct HistogramState {
    counts: Box<[u64]>,
    sum: f64,
    count: u64,
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram").finish_non_exhaustive()
    }
}

/// The bounds in seconds that suit most durations. Source: the default buckets of the Kubernetes components.
pub const DEFAULT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

impl Default for Histogram {
    fn default() -> Self {
        Self::new(DEFAULT_BUCKETS)
    }
}

impl Histogram {
    /// A histogram with these upper bounds, in seconds and rising.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            state: Mutex::new(HistogramState {
                counts: vec![0; bounds.len()].into(),
                sum: 0.0,
                count: 0,
            }),
        }
    }

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(index) = self.bounds.iter().position(|bound| seconds <= *bound) {
            state.counts[index] += 1;
        }
        state.sum += seconds;
        state.count += 1;
    }

    /// What was counted, cumulatively as the text format wants it.
    pub fn sample(&self) -> MetricValue {
        let state = self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        let mut below = 0;
        let buckets = self
            .bounds
            .iter()
            .zip(state.counts.iter())
            .map(|(bound, count)| {
                below += count;
                (*bound, below)
            })
            .collect();
        MetricValue::Histogram {
            buckets,
            sum: state.sum,
            count: state.count,
        }
    }
}

/// The value of one sample.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MetricValue {
    /// A count.
    Counter(u64),
    /// A value that goes up and down.
    Gauge(f64),
    /// Counts up to and including each bound, the sum of all values, and their number.
    Histogram {
        /// Upper bound and cumulative count.
        buckets: Vec<(f64, u64)>,
        /// The sum.
        sum: f64,
        /// The number.
        count: u64,
    },
}

/// One sample of a metric.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MetricSample {
    /// The metric's full name, such as `kubelet_running_pods`.
    pub name: &'static str,
    /// What it tells.
    pub help: &'static str,
    /// Label names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: MetricValue,
}

/// What was collected, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricSet {
    samples: Vec<MetricSample>,
}

impl MetricSet {
    /// Adds a sample.
    pub fn add(&mut self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)], value: MetricValue) {
        self.samples.push(MetricSample {
            name,
            help,
            labels: labels
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
            value,
        });
    }

    /// Adds a counter without labels.
    pub fn counter(&mut self, name: &'static str, help: &'static str, counter: &Counter) {
        self.add(name, help, &[], MetricValue::Counter(counter.get()));
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, gauge: &Gauge) {
        self.add(name, help, &[], MetricValue::Gauge(gauge.get() as f64));
    }

    /// The samples.
    #[must_use]
    pub fn samples(&self) -> &[MetricSample] {
        &self.samples
    }

    /// The first sample of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&MetricValue> {
        self.samples.iter().find(|s| s.name == name).map(|s| &s.value)
    }
}

/// Has numbers to tell. Pulled, so that nothing has to be registered or dropped.
pub trait MetricSource: fmt::Debug + Send + Sync + 'static {
    /// Adds its samples.
    fn collect(&self, metrics: &mut MetricSet);
}

#[deny(clippy::missing_trait_methods)]
impl<T: MetricSource + ?Sized> MetricSource for Arc<T> {
    fn collect(&self, metrics: &mut MetricSet) {
        (**self).collect(metrics);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Histogram, MetricValue};

    #[test]
    fn buckets_are_cumulative() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for ms in [50, 100, 500, 5000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let MetricValue::Histogram { buckets, count, .. } = histogram.sample() else {
            unreachable!()
        };
        assert_eq!(buckets, [(0.1, 2), (1.0, 3)]);
        assert_eq!(count, 4);
    }
}
