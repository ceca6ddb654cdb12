//! Parts with work of their own: started at their phase, joined, restarted where that can help, stopped in reverse order.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::gate::GateView;
use crate::clock::{RandomSource, jittered};
use crate::error::error_chain;
use crate::runnable::{NodeContext, Runnable, RunnableError, StartPhase};

/// First and longest wait before a part that failed is started again.
const RESTART_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A part that failed has recovered once it has run again for so long: it is not shown as failing any more, and its next
/// failure is its first. As long as the longest wait, so that one that keeps failing is shown most of the time.
const RECOVERED_AFTER: Duration = RESTART_BACKOFF.1;

/// What is wrong with which part, for the kubelet's health.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartHealth(Arc<Mutex<Vec<(String, String)>>>);

impl PartHealth {
    fn set(&self, part: &str, trouble: Option<String>) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|(name, _)| name != part);
        if let Some(trouble) = trouble {
            list.push((part.to_owned(), trouble));
        }
    }

    pub(crate) fn troubles(&self) -> Vec<(String, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What parts wait for and work with.
#[derive(Debug)]
pub(crate) struct PartsContext {
    pub(crate) node: NodeContext,
    pub(crate) gate: GateView,
    pub(crate) sources_ready: watch::Receiver<bool>,
    pub(crate) health: PartHealth,
    pub(crate) random: Arc<dyn RandomSource>,
}

/// Runs all parts until `stop`; then stops them one after another, last started first. Ends early only for a fatal error.
pub(crate) async fn run_parts(
    mut parts: Vec<Arc<dyn Runnable>>,
    cx: PartsContext,
    stop: CancellationToken,
) -> Result<(), RunnableError> {
    parts.sort_by_key(|part| part.phase());
    let cx = Arc::new(cx);
    let mut tasks = JoinSet::new();
    let (ended, mut ends) = mpsc::channel(parts.len().max(1));
    let mut stops = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        // Not a child of `stop`: parts are stopped in order.
        let part_stop = CancellationToken::new();
        stops.push(part_stop.clone());
        let (part, cx, ended) = (part.clone(), cx.clone(), ended.clone());
        tasks.spawn(async move {
            let outcome = run_part(&part, &cx, part_stop).await;
            // The receiver lives as long as the tasks.
            let _ = ended.send((index, outcome)).await;
        });
    }
    drop(ended);
    let mut done = vec![false; parts.len()];
    let mut outcome = Ok(());
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            end = ends.recv() => match end {
                None => {
                    stop.cancelled().await;
                    break;
                }
                Some((index, Ok(()))) => done[index] = true,
                Some((index, Err(error))) => {
                    done[index] = true;
                    outcome = Err(error);
                    break;
                }
            },
        }
    }
    for index in (0..parts.len()).rev() {
        stops[index].cancel();
        while !done[index] {
            match ends.recv().await {
                Some((ended, _)) => done[ended] = true,
                None => break,
            }
        }
    }
    while tasks.join_next().await.is_some() {}
    outcome
}

async fn run_part(part: &Arc<dyn Runnable>, cx: &PartsContext, stop: CancellationToken) -> Result<(), RunnableError> {
    let phase_reached = async {
        let mut ready = cx.sources_ready.clone();
        match part.phase() {
            StartPhase::Early => {}
            StartPhase::RuntimeReady => {
                cx.gate.opened().await;
            }
            StartPhase::SourcesReady => {
                let _ = ready.wait_for(|ready| *ready).await;
            }
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        () = phase_reached => {}
    }
    let mut pause = RESTART_BACKOFF.0;
    loop {
        // A part that panics is a bug in that part, and costs no more than one that fails.
        let running = AssertUnwindSafe(part.run(cx.node.clone(), stop.clone())).catch_unwind();
        tokio::pin!(running);
        let early = tokio::select! {
            biased;
            ended = &mut running => Some(ended),
            () = tokio::time::sleep(RECOVERED_AFTER) => None,
        };
        let ended = match early {
            Some(ended) => ended,
            None => {
                pause = RESTART_BACKOFF.0;
                cx.health.set(part.name(), None);
                running.await
            }
        };
        let ended = ended.unwrap_or_else(|_| {
            Err(RunnableError::Failed {
                what: "the part panicked".to_owned(),
                source: "see the log of panics".into(),
            })
        });
        let error = match ended {
            Ok(()) => {
                cx.health.set(part.name(), None);
                return Ok(());
            }
            Err(fatal @ RunnableError::Fatal { .. }) => return Err(fatal),
            Err(error) => error,
        };
        tracing::warn!(
            part = part.name(),
            error = &error as &dyn std::error::Error,
            "part failed, will be restarted"
        );
        cx.health.set(part.name(), Some(error_chain(&error)));
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(jittered(pause, 0.5, &*cx.random)) => {}
        }
        pause = (pause * 2).min(RESTART_BACKOFF.1);
    }
}
