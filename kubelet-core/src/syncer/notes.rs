//! What a step tells its worker while it runs.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::status::{StartReason, StartReasons};

/// What a step tells its worker: why containers could not be started, and whether it changed anything.
#[derive(Debug, Default)]
pub struct StepNotes {
    reasons: Mutex<StartReasons>,
    acted: AtomicBool,
    /// A list of one or two, and mostly empty: a map would keep a node for as long as the pod is there.
    in_flight: Mutex<Vec<(u64, String)>>,
}

impl StepNotes {
    fn reasons_mut(&self) -> MutexGuard<'_, StartReasons> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_flight_mut(&self) -> MutexGuard<'_, Vec<(u64, String)>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A container could not be started; shown as its waiting reason until it can.
    pub fn start_failed(&self, container: &str, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) {
        self.reasons_mut()
            .insert(container.to_owned(), StartReason::new(reason, message));
    }

    /// A container was started.
    pub fn started(&self, container: &str) {
        self.reasons_mut().remove(container);
    }

    /// Why containers could not be started when that was last tried.
    #[must_use]
    pub fn reasons(&self) -> StartReasons {
        self.reasons_mut().clone()
    }

    /// Something was changed, or may have been: the pod is looked at, and the worker goes by no look from before the
    /// step's end. A step that does not say so is taken to have changed nothing.
    pub fn acted(&self) {
        self.acted.store(true, Ordering::Relaxed);
    }

    /// Whether something was changed since this was last asked.
    pub fn take_acted(&self) -> bool {
        self.acted.swap(false, Ordering::Relaxed)
    }

    /// A call has begun; the report of a kubelet that cannot wait for its end names it.
    pub fn call_begun(&self, number: u64, what: String) {
        self.in_flight_mut().push((number, what));
    }

    /// A call has ended.
    pub fn call_ended(&self, number: u64) {
        let mut calls = self.in_flight_mut();
        calls.retain(|(begun, _)| *begun != number);
        if calls.is_empty() {
            *calls = Vec::new();
        }
    }

    /// The calls that have not ended.
    #[must_use]
    pub fn in_flight(&self) -> Vec<String> {
        self.in_flight_mut().iter().map(|(_, what)| what.clone()).collect()
    }
}
