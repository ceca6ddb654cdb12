//! One life of the agent.

use std::time::Duration;

use kubelet_core::{CancellationToken, Kubelet, KubeletHandle, MetricValue, OnStop, RunError, StopReport};
use tokio::task::JoinSet;

/// How long a stop may take: [`kubelet_core::Settings::stop_within`], and time to notice.
pub(super) const STOP_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Agent {
    pub(super) handle: KubeletHandle,
    pub(super) on_stop: OnStop,
    stop: CancellationToken,
    task: JoinSet<Result<StopReport, RunError>>,
}

impl Agent {
    pub(super) fn start(kubelet: Kubelet, on_stop: OnStop) -> Self {
        let handle = kubelet.handle();
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(kubelet.run(stop.clone()));
        Self {
            handle,
            on_stop,
            stop,
            task,
        }
    }

    /// How it ended, if it did although nobody asked.
    pub(super) fn early_end(&mut self) -> Option<String> {
        self.task.try_join_next().map(|ended| format!("{ended:?}"))
    }

    /// Ends it as a crash does.
    pub(super) async fn kill(&mut self) {
        self.task.shutdown().await;
    }

    /// Asks it to end, and waits. An error says what was wrong with that.
    pub(super) async fn stop(&mut self) -> Result<StopReport, String> {
        self.stop.cancel();
        match tokio::time::timeout(STOP_WITHIN + Duration::from_secs(1), self.task.join_next()).await {
            Ok(Some(Ok(Ok(report)))) => Ok(report),
            Ok(ended) => Err(format!("the kubelet was stopped and ended with {ended:?}")),
            Err(_) => {
                self.kill().await;
                Err("the kubelet did not end in time".to_owned())
            }
        }
    }

    /// How often its workers went from one stage to another.
    pub(super) fn transitions(&self) -> Vec<((String, String), u64)> {
        let metrics = self.handle.metrics();
        let samples = metrics.samples().iter();
        samples
            .filter(|sample| sample.name == "kubelet_pod_worker_transitions_total")
            .filter_map(|sample| {
                let label = |name: &str| {
                    let found = sample.labels.iter().find(|(key, _)| *key == name);
                    found.map(|(_, value)| value.clone())
                };
                let MetricValue::Counter(count) = sample.value else {
                    return None;
                };
                Some(((label("from")?, label("to")?), count))
            })
            .collect()
    }
}
