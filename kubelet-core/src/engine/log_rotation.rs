//! Looks at the logs of running containers and rotates those that have grown too large.
//!
//! Source: kubelet 1.36, `logs/container_log_manager.go`.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::cache::PodStatusCache;
use crate::clock::Clock;
use crate::ids::ContainerId;
use crate::logs::{LogRotation, RotateError};
use crate::runtime::{ContainerRuntime, RuntimeError};

/// How many logs are rotated at a time: one runtime call that hangs holds up no other log.
const AT_ONCE: usize = 4;

/// What logs are rotated with.
#[derive(Debug)]
pub(crate) struct LogRotator {
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    pub(crate) cache: PodStatusCache,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rotation: LogRotation,
    pub(crate) period: Duration,
    /// How long the runtime may take to open a log anew.
    pub(crate) timeout: Duration,
}

impl LogRotator {
    /// Works until `stop`. A rotation that is dropped in the middle is finished by the next one.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(self.period.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = BTreeSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                is_of_use = self.look(&mut told) => if !is_of_use {
                    tracing::warn!("the container runtime cannot reopen logs, which grow without bound now");
                    stop.cancelled().await;
                    return;
                }
            }
        }
    }

    /// Rotates what is due. Says whether the runtime can.
    async fn look(&self, told: &mut BTreeSet<ContainerId>) -> bool {
        let running = self.running();
        told.retain(|id| running.iter().any(|(other, _)| other == id));
        let most = self.rotation.max_size_bytes;
        // All sizes in one go: most logs are not due.
        let due = tokio::task::spawn_blocking(move || {
            let mut due = running;
            due.retain(|(_, log)| match std::fs::metadata(log) {
                Ok(found) => found.len() >= most,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            });
            due
        })
        .await
        .unwrap_or_default();
        let rotations = stream::iter(due).map(async |(id, log)| {
            let outcome = self.rotate(&id, log).await;
            (id, outcome)
        });
        let mut rotations = std::pin::pin!(rotations.buffer_unordered(AT_ONCE));
        let mut is_of_use = true;
        while let Some((id, outcome)) = rotations.next().await {
            match outcome {
                Ok(()) => {
                    told.remove(&id);
                }
                Err(error) if is_unsupported(&error) => is_of_use = false,
                // It is tried again each time, and told once.
                Err(error) => {
                    if told.insert(id.clone()) {
                        tracing::warn!(error = &error as &dyn std::error::Error, container = %id, "log not rotated");
                    }
                }
            }
        }
        is_of_use
    }

    fn running(&self) -> Vec<(ContainerId, PathBuf)> {
        let pods = self.cache.present();
        let seen = pods.iter().filter_map(|uid| self.cache.current(uid));
        let containers = seen.flat_map(|pod| {
            let running = pod.containers.iter().filter(|container| container.is_running());
            running
                .filter_map(|container| Some((container.id.clone(), container.log_path.clone()?)))
                .collect::<Vec<_>>()
        });
        containers.collect()
    }

    async fn rotate(&self, id: &ContainerId, log: PathBuf) -> Result<(), RotateError> {
        let limit = self.timeout;
        let reopen = async {
            match tokio::time::timeout(limit, self.runtime.reopen_log(id)).await {
                Ok(answer) => answer,
                Err(_) => Err(RuntimeError::uncertain(
                    "reopen_log",
                    format!("no answer within {limit:?}"),
                )),
            }
        };
        let rotated = self.rotation.rotate_if_due(&log, self.clock.now(), reopen).await?;
        tracing::debug!(container = %id, ?rotated, "log looked at");
        Ok(())
    }
}

fn is_unsupported(error: &RotateError) -> bool {
    let RotateError::Reopen { source, .. } = error else {
        return false;
    };
    matches!(source.downcast_ref(), Some(RuntimeError::Unsupported { .. }))
}
