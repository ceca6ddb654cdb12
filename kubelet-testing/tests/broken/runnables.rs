//! Parts with work of their own that break a promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use kubelet_core::{CancellationToken, NodeContext, Runnable, RunnableError, StartPhase};
use kubelet_testing::contract::{RunnableFixture, now};
use tokio::sync::Notify;

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    DeafToStop,
    ListensOnlyForLaterStops,
    RunsOnce,
    HidesItsFailure,
    ComplainsOfBeingStopped,
    ChangesItsPhase,
}

/// Waits until it is stopped, or told to fail.
#[derive(Debug)]
struct Waiter {
    fault: Fault,
    fail: Arc<Notify>,
    at_work: Arc<AtomicU32>,
    runs: AtomicU32,
    asked: AtomicU32,
}

fn failed(what: &str) -> RunnableError {
    RunnableError::Failed {
        what: what.to_owned(),
        source: "as it was told to".into(),
    }
}

#[async_trait]
impl Runnable for Waiter {
    fn name(&self) -> &str {
        "waiter"
    }

    fn phase(&self) -> StartPhase {
        if self.fault == Fault::ChangesItsPhase && self.asked.fetch_add(1, Ordering::SeqCst) > 0 {
            return StartPhase::SourcesReady;
        }
        StartPhase::Early
    }

    async fn run(&self, _node: NodeContext, stop: CancellationToken) -> Result<(), RunnableError> {
        if self.runs.fetch_add(1, Ordering::SeqCst) > 0 && self.fault == Fault::RunsOnce {
            std::future::pending::<()>().await;
        }
        let is_late = self.fault == Fault::ListensOnlyForLaterStops && stop.is_cancelled();
        self.at_work.fetch_add(1, Ordering::SeqCst);
        let told = tokio::select! {
            biased;
            () = stop.cancelled(), if self.fault != Fault::DeafToStop && !is_late => None,
            () = self.fail.notified() => Some(failed("it failed")),
        };
        self.at_work.fetch_sub(1, Ordering::SeqCst);
        match told {
            Some(_) if self.fault == Fault::HidesItsFailure => Ok(()),
            Some(error) => Err(error),
            None if self.fault == Fault::ComplainsOfBeingStopped => Err(failed("it was stopped")),
            None => Ok(()),
        }
    }
}

fn waiter(fault: Fault, patience: Duration) -> (Waiter, RunnableFixture) {
    let waiter = Waiter {
        fault,
        fail: Arc::default(),
        at_work: Arc::default(),
        runs: AtomicU32::new(0),
        asked: AtomicU32::new(0),
    };
    let (fail, at_work) = (waiter.fail.clone(), waiter.at_work.clone());
    let fixture = RunnableFixture::new()
        .works(move || now(|| at_work.load(Ordering::SeqCst) > 0))
        .fails(move || now(|| fail.notify_one()))
        .patience(patience);
    (waiter, fixture)
}

async fn sound() -> Option<(Waiter, RunnableFixture)> {
    Some(waiter(Fault::None, Duration::from_secs(20)))
}

kubelet_testing::runnable_contract!(sound);

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Waiter, RunnableFixture)> {
    async move || Some(waiter(fault, Duration::from_secs(5)))
}

faults! { runnables, check_runnable:
    deaf_to_stop: with(Fault::DeafToStop), run_returns_soon_after_it_is_stopped, "the part returns: not within";
    listens_only_for_later_stops: with(Fault::ListensOnlyForLaterStops), run_returns_soon_if_it_is_stopped_already,
        "which was stopped before: not within";
    runs_once: with(Fault::RunsOnce), run_may_be_called_again_after_an_error, "the part works: not within";
    hides_its_failure: with(Fault::HidesItsFailure), run_may_be_called_again_after_an_error, "does not fail in round 1";
    complains_of_being_stopped: with(Fault::ComplainsOfBeingStopped), run_returns_soon_after_it_is_stopped,
        "the part fails: it was stopped: as it was told to";
    changes_its_phase: with(Fault::ChangesItsPhase), it_says_the_same_of_itself_each_time, "the phase of the part changes";
}
