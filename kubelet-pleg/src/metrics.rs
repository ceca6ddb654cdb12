//! Numbers of a generator.

use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{Counter, Gauge, Histogram, MetricSet, MetricValue};

use crate::record::{CONTAINER_STATES, Tally};

/// Upstream's metrics, as far as they mean something here: nothing is ever discarded.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    relist_duration: Histogram,
    pod_relist_duration: Histogram,
    relist_interval: Histogram,
    last_seen: Gauge,
    running_pods: Gauge,
    containers: [Gauge; CONTAINER_STATES.len()],
    connections: Counter,
    cuts: Counter,
}

impl Metrics {
    /// Forgets the pods, not the durations: a run begins.
    pub(crate) fn reset(&self) {
        self.running_pods.set(0);
        for gauge in &self.containers {
            gauge.set(0);
        }
    }

    /// A relist begins, this long after the previous one began.
    pub(crate) fn begun(&self, now: Timestamp, interval: Option<Duration>) {
        self.last_seen.set(now.as_second());
        if let Some(interval) = interval {
            self.relist_interval.observe(interval);
        }
    }

    /// A look at everything has been compared.
    pub(crate) fn looked_at_all(&self, took: Duration) {
        self.relist_duration.observe(took);
    }

    /// A look at one pod has been compared.
    pub(crate) fn looked_at_one(&self, took: Duration) {
        self.pod_relist_duration.observe(took);
    }

    /// A pod that counted as `old` counts as `new` now.
    pub(crate) fn recount(&self, old: Tally, new: Tally) {
        if old == new {
            return;
        }
        self.running_pods.add(i64::from(new.running) - i64::from(old.running));
        for (gauge, (old, new)) in self
            .containers
            .iter()
            .zip(old.containers.into_iter().zip(new.containers))
        {
            gauge.add(i64::from(new) - i64::from(old));
        }
    }

    /// Events flow.
    pub(crate) fn connected(&self) {
        self.connections.increment();
    }

    /// Events were cut off, or could not be had.
    pub(crate) fn cut(&self) {
        self.cuts.increment();
    }

    /// What only a generator tells that relies on events.
    pub(crate) fn collect_connections(&self, metrics: &mut MetricSet) {
        metrics.counter(
            "kubelet_evented_pleg_connection_success_count",
            "The number of times a streaming client was obtained to receive CRI Events.",
            &self.connections,
        );
        metrics.counter(
            "kubelet_evented_pleg_connection_error_count",
            "The number of errors encountered during the establishment of streaming connection with the CRI runtime.",
            &self.cuts,
        );
    }

    pub(crate) fn collect(&self, metrics: &mut MetricSet) {
        metrics.add(
            "kubelet_pleg_relist_duration_seconds",
            "Duration in seconds for relisting pods in PLEG, until changed pods are known.",
            &[],
            self.relist_duration.sample(),
        );
        metrics.add(
            "kubelet_pleg_pod_relist_duration_seconds",
            "Duration in seconds for relisting a single pod in PLEG, until it is known whether it changed.",
            &[],
            self.pod_relist_duration.sample(),
        );
        metrics.add(
            "kubelet_pleg_relist_interval_seconds",
            "Interval in seconds between relisting in PLEG.",
            &[],
            self.relist_interval.sample(),
        );
        metrics.gauge(
            "kubelet_pleg_last_seen_seconds",
            "Timestamp in seconds when PLEG was last seen active.",
            &self.last_seen,
        );
        metrics.gauge(
            "kubelet_running_pods",
            "Number of pods that have a running pod sandbox.",
            &self.running_pods,
        );
        for (state, gauge) in CONTAINER_STATES.into_iter().zip(&self.containers) {
            metrics.add(
                "kubelet_running_containers",
                "Number of containers by state.",
                &[("container_state", state)],
                MetricValue::Gauge(gauge.get() as f64),
            );
        }
    }
}
