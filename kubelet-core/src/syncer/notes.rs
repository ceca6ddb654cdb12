//! What a step tells its worker while it runs.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::ResourceRequirements;

use super::resized::ResizeNotes;
use crate::ids::ContainerId;
use crate::status::{StartReason, StartReasons};

/// What a step tells its worker: why containers could not be started, and whether it changed anything.
#[derive(Debug, Default)]
pub struct StepNotes {
    reasons: Mutex<StartReasons>,
    resizes: Mutex<ResizeNotes>,
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

    fn resizes_mut(&self) -> MutexGuard<'_, ResizeNotes> {
        self.resizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A container of that name was made with these resources. Those of its spec may change before it is first told of.
    pub fn made_with(&self, name: &str, container: &ContainerId, resources: Option<&ResourceRequirements>) {
        self.resizes_mut().note(name, container, resources);
    }

    /// A container of that name that runs has these resources now.
    pub fn resized(&self, name: &str, container: &ContainerId, resources: Option<&ResourceRequirements>) {
        let mut resizes = self.resizes_mut();
        resizes.note(name, container, resources);
        resizes.is_news = true;
    }

    /// The pod as a whole has these resources now.
    pub fn resized_as_a_whole(&self, resources: Option<&ResourceRequirements>) {
        let mut resizes = self.resizes_mut();
        resizes.whole = Some(Box::new(resources.cloned().unwrap_or_default()));
        resizes.is_news = true;
    }

    /// A change of resources has begun: until it is settled what anything of the pod has may be either.
    pub(crate) fn resize_begun(&self) {
        self.resizes_mut().is_unsettled = true;
    }

    /// All has what it was granted.
    pub(crate) fn resize_settled(&self) {
        self.resizes_mut().is_unsettled = false;
    }

    pub(crate) fn is_resize_unsettled(&self) -> bool {
        self.resizes_mut().is_unsettled
    }

    pub(crate) fn has_resize_news(&self) -> bool {
        self.resizes_mut().is_news
    }

    /// Whether a change of resources has failed, and why; shown until one goes well. Says whether it is the first in a row: what
    /// exactly is wrong may differ each time.
    pub fn resize_failed(&self, error: Option<String>) -> bool {
        let mut resizes = self.resizes_mut();
        let is_first = resizes.error.is_none();
        resizes.is_news |= resizes.error != error;
        resizes.error = error;
        is_first
    }

    pub(crate) fn resizes(&self) -> ResizeNotes {
        self.resizes_mut().clone()
    }

    /// These containers are told with what they have: it is in their status from now on.
    pub(crate) fn resizes_shown(&self, is_told: impl Fn(&ContainerId) -> bool) {
        let mut resizes = self.resizes_mut();
        resizes.is_news = false;
        resizes.whole = None;
        if !resizes.actual.is_empty() {
            resizes.actual.retain(|one| !is_told(&one.container));
            resizes.actual.shrink_to_fit();
        }
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
