//! Whether the backend can be asked anything: what every worker waits for before a step.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::error::error_chain;
use crate::syncer::{BackendStatus, PodSyncer};

/// How the backend was when it was last asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It was never asked with success.
    Unknown(Option<String>),
    /// It does not answer any more, or says that it is not ready: why, and what it last said of itself.
    Down(String, Arc<BackendStatus>),
    /// It is ready, but perhaps for its network.
    Open(Arc<BackendStatus>),
}

impl Gate {
    pub(crate) fn trouble(&self) -> Option<String> {
        match self {
            Self::Unknown(None) => Some("container runtime status was not checked yet".to_owned()),
            Self::Unknown(Some(why)) | Self::Down(why, _) => Some(why.clone()),
            Self::Open(_) => None,
        }
    }

    pub(crate) fn status(&self) -> Option<&Arc<BackendStatus>> {
        match self {
            Self::Open(status) => Some(status),
            Self::Unknown(_) | Self::Down(..) => None,
        }
    }

    /// What the backend last said of itself, ready or not.
    pub(crate) fn last_known(&self) -> Option<&Arc<BackendStatus>> {
        match self {
            Self::Open(status) | Self::Down(_, status) => Some(status),
            Self::Unknown(_) => None,
        }
    }
}

/// Where the gate is set.
#[derive(Debug)]
pub(crate) struct GateKeeper {
    gate: watch::Sender<Gate>,
    opened: Arc<Notify>,
}

/// How the backend was when it was last asked, for all who wait for it. A cheap clone.
#[derive(Clone, Debug)]
pub(crate) struct GateView {
    gate: watch::Receiver<Gate>,
    opened: Arc<Notify>,
}

/// A gate that nobody has looked through yet.
pub(crate) fn gate() -> (GateKeeper, GateView) {
    let (sender, receiver) = watch::channel(Gate::Unknown(None));
    let opened = Arc::new(Notify::new());
    let keeper = GateKeeper {
        gate: sender,
        opened: opened.clone(),
    };
    (keeper, GateView { gate: receiver, opened })
}

impl GateView {
    pub(crate) fn borrow(&self) -> watch::Ref<'_, Gate> {
        self.gate.borrow()
    }

    /// Waits until it is open. Those who wait are woken in the order in which they came: a watch would wake them in a
    /// random one, and no simulated run would repeat itself.
    pub(crate) async fn opened(&self) {
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            // Before looking, so that no opening goes by in between.
            opened.as_mut().enable();
            if self.gate.borrow().status().is_some() {
                return;
            }
            opened.await;
        }
    }
}

impl GateKeeper {
    fn set(&self, next: Gate) {
        let changed = self.gate.send_if_modified(|current| {
            let changed = *current != next;
            if changed {
                match next.trouble() {
                    Some(why) => tracing::warn!(why, "container runtime is not ready"),
                    None => tracing::info!("container runtime is ready"),
                }
                *current = next;
            }
            changed
        });
        if changed {
            self.opened.notify_waiters();
        }
    }
}

/// Asks the backend how it is, every `period`, and opens or closes the gate.
///
/// Source: kubelet 1.36, `kubelet.go`: a failed check changes nothing until the last good one is 30 s old.
pub(crate) async fn watch_backend(
    syncer: Arc<dyn PodSyncer>,
    period: Duration,
    gate: GateKeeper,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_good: Option<(Instant, Arc<BackendStatus>)> = None;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let answer = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            answer = tokio::time::timeout(syncer.down_after(), syncer.check()) => answer,
        };
        let next = match answer {
            Ok(Ok(status)) => {
                let status = Arc::new(status);
                last_good = Some((Instant::now(), status.clone()));
                match status.not_ready.clone() {
                    Some(why) => Gate::Down(why, status),
                    None => Gate::Open(status),
                }
            }
            failed => {
                let why = match failed {
                    Ok(Err(error)) => error_chain(&*error),
                    _ => "container runtime did not answer in time".to_owned(),
                };
                match &last_good {
                    Some((at, _)) if at.elapsed() < syncer.down_after() => continue,
                    Some((_, last)) => Gate::Down(format!("container runtime is down: {why}"), last.clone()),
                    None => Gate::Unknown(Some(why)),
                }
            }
        };
        gate.set(next);
    }
}
