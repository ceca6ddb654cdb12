//! What a worker tells of its pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::Worker;
use crate::engine::checkpoint::Essence;
use crate::engine::shared::Shared;
use crate::event::{Event, EventSubject, EventType};
use crate::observation::PodObservation;
use crate::pod::{PodRecord, resize_summary};
use crate::probes::Course;
use crate::runtime::{ContainerState, SandboxState};
use crate::status::{
    SetStatus, StartReasons, StatusInput, StatusOverride, active_deadline, final_status, generate_pod_status,
    is_resizing, rejected_status, told_containers, told_id, waiting_status,
};
use crate::syncer::{KillCause, PodWish, Termination};

/// Whether the pod lacks a sandbox to start containers in. A backend without sandboxes needs none for what it shows.
fn sandbox_needed(observed: &PodObservation) -> bool {
    match observed.newest_sandbox() {
        Some(sandbox) => sandbox.state != SandboxState::Ready,
        None => observed.containers.is_empty(),
    }
}

/// The status that follows from the first look at a pod in this life of the agent.
pub(crate) fn status_at_start(
    shared: &Shared,
    pod: &PodRecord,
    observed: &PodObservation,
    restored: Option<&PodStatus>,
) -> PodStatus {
    let empty = PodStatus::default();
    let previous = restored.or(pod.api_status().map(|status| &**status)).unwrap_or(&empty);
    let runtime_name = shared.runtime_name();
    let mut input = StatusInput::new(pod, observed, previous, &runtime_name, shared.clock.now());
    input.sandbox_needed = sandbox_needed(observed);
    generate_pod_status(&input)
}

/// A look at a pod that has ended for good, or is about to.
#[derive(Clone, Copy)]
enum Ending<'a> {
    /// It goes on.
    No,
    /// It is being stopped.
    Stopping(&'a PodWish),
    /// Nothing of it runs any more.
    Stopped(&'a PodWish),
}

impl Worker {
    /// The status before: the last one told, else that of an earlier life.
    fn previous(&self) -> Arc<PodStatus> {
        self.shared
            .statuses
            .get(&self.uid)
            .or_else(|| self.restored.clone())
            .unwrap_or_default()
    }

    pub(super) fn last_status(&self, _pod: &PodRecord) -> Arc<PodStatus> {
        self.previous()
    }

    pub(super) fn status_of(&self, pod: &Arc<PodRecord>, observed: &PodObservation) -> PodStatus {
        self.generate(pod, observed, Ending::No)
    }

    /// The status of a pod that is being stopped.
    pub(super) fn ending_status(&self, pod: &Arc<PodRecord>, observed: &PodObservation, wish: &PodWish) -> PodStatus {
        self.generate(pod, observed, Ending::Stopping(wish))
    }

    /// The status of a pod of which nothing runs any more.
    pub(super) fn ended_status(&self, pod: &Arc<PodRecord>, observed: &PodObservation, wish: &PodWish) -> PodStatus {
        self.generate(pod, observed, Ending::Stopped(wish))
    }

    /// Also has the probes of what runs followed, since they are part of the status.
    fn generate(&self, pod: &Arc<PodRecord>, observed: &PodObservation, ending: Ending<'_>) -> PodStatus {
        let previous = self.previous();
        let host_ips = self.shared.host_ips();
        let course = match ending {
            Ending::No => Course::Running,
            Ending::Stopping(_) | Ending::Stopped(_) => Course::Ending,
        };
        let followed = self.shared.probes.as_ref();
        let probes = followed.and_then(|probes| probes.follow(pod, observed, &previous, &host_ips, course));
        let (terminal, end) = match ending {
            Ending::No => (false, None),
            Ending::Stopping(wish) => (false, wish.terminate.as_ref()),
            // A stop of the kubelet is no end of the pod: what its containers say by themselves is all that counts.
            Ending::Stopped(wish) => (!wish.is_paused(), wish.terminate.as_ref()),
        };
        if let Some(rejection) = end.and_then(rejection) {
            return rejected_status(pod, &rejection.reason, &rejection.message, self.shared.clock.now());
        }
        let reasons = self.notes.reasons();
        let runtime_name = self.shared.runtime_name();
        let resizes = self.notes.resizes();
        let mut input = StatusInput::new(pod, observed, &previous, &runtime_name, self.shared.clock.now());
        input.actual_resources = &resizes.actual;
        input.resources_as_a_whole = resizes.whole.as_deref();
        input.resize_error = resizes.error.as_deref();
        input.pending_resize = self.taken.resize.as_deref();
        input.probes = probes.as_deref();
        input.reasons = &reasons;
        input.host_ips = &host_ips;
        input.active_now = self.active_now();
        input.terminal = terminal;
        input.sandbox_needed = sandbox_needed(observed);
        input.status_override = end.and_then(|end| end.status.as_ref());
        generate_pod_status(&input)
    }

    /// The status of a pod that waits for something before anything of it may run.
    pub(super) fn waiting_status(&self, pod: &PodRecord, reason: &str, message: &str) -> PodStatus {
        let mut status = waiting_status(pod, reason, message, self.shared.clock.now());
        let previous = self.previous();
        // Its active time runs while it waits.
        if let Some(start) = previous.start_time.clone() {
            status.start_time = Some(start);
        }
        carry_over(&mut status.init_container_statuses, &previous.init_container_statuses);
        carry_over(&mut status.container_statuses, &previous.container_statuses);
        status
    }

    /// Tells of a pod that waits for its name, so that it is not unheard of. One of which something is there is told of
    /// once that was looked at.
    pub(super) async fn show_pending(&mut self, pod: &Arc<PodRecord>) {
        if self.shared.statuses.get(&self.uid).is_none() && !self.shared.cache.is_present(&self.uid) {
            let status = self.status_of(pod, &PodObservation::absent(self.uid.clone()));
            if !crate::status::pod_is_terminal(&status) {
                self.publish(pod, status).await;
            }
        }
    }

    /// When the pod is to be looked into again because its active time ends.
    pub(super) fn deadline(&self, pod: &PodRecord, status: &PodStatus) -> Option<Instant> {
        let left = active_deadline(pod, status)?.duration_since(self.active_now());
        Some(Instant::now() + left.try_into().unwrap_or_default())
    }

    pub(super) fn is_overdue(&self, pod: &PodRecord, status: &PodStatus) -> bool {
        active_deadline(pod, status).is_some_and(|end: Timestamp| end <= self.active_now())
    }

    /// Tells a status, after what must never be unsaid is on disk.
    pub(super) async fn publish(&mut self, pod: &Arc<PodRecord>, status: PodStatus) -> Arc<PodStatus> {
        self.tell(pod, status, SetStatus::live()).await
    }

    /// The same, of a pod of which nothing runs any more.
    pub(super) async fn publish_down(&mut self, pod: &Arc<PodRecord>, status: PodStatus) {
        self.tell(pod, status, SetStatus::stopped()).await;
    }

    /// The last word on a pod.
    pub(super) async fn publish_finished(&mut self, pod: &Arc<PodRecord>, wish: &PodWish) {
        if wish.is_paused() {
            return;
        }
        let previous = self.previous();
        let is_rejected = wish.terminate.as_ref().is_some_and(|end| rejection(end).is_some());
        let status = if is_rejected {
            (*previous).clone()
        } else {
            final_status(pod, &previous, self.shared.clock.now())
        };
        self.tell(pod, status, SetStatus::finished()).await;
    }

    async fn tell(&mut self, pod: &Arc<PodRecord>, status: PodStatus, how: SetStatus) -> Arc<PodStatus> {
        let is_rejected = self
            .wish
            .borrow()
            .terminate
            .as_ref()
            .is_some_and(|end| rejection(end).is_some());
        let essence = Essence::of(pod, &status);
        // A rejection binds only this life: after a restart there may be room.
        // What was there is also taken back: it may say what is not so any more.
        let says_something = !essence.is_empty() || !self.saved.is_empty();
        if essence != self.saved && says_something && !is_rejected {
            match self.shared.checkpoints.save(&self.uid, &status).await {
                Ok(()) => {
                    self.saved = essence;
                    self.unsaved = false;
                }
                Err(error) => {
                    self.unsaved = true;
                    tracing::warn!(
                        pod = %pod.key(),
                        error = &error as &dyn std::error::Error,
                        "pod checkpoint not written"
                    );
                }
            }
        }
        let was_resizing = is_resizing(&self.previous());
        self.shared.statuses.set(pod, status, how);
        // What counts is what was taken, which never goes back.
        let taken = self.previous();
        self.notes
            .resizes_shown(|id| told_containers(&taken).any(|told| told_id(told) == Some(id.as_str())));
        if was_resizing && !is_resizing(&taken) && !crate::status::pod_is_terminal(&taken) {
            self.shared.events.record(Event::new(
                EventSubject::pod(pod),
                EventType::Normal,
                "ResizeCompleted",
                format!("Pod resize completed: {}", resize_summary(pod)),
            ));
        }
        taken
    }

    /// Shows why containers could not be started, and what became of their resources, unless a step only got something going:
    /// then the next look tells.
    pub(super) async fn show_new_notes(
        &mut self,
        pod: &Arc<PodRecord>,
        observed: &PodObservation,
        before: &StartReasons,
    ) {
        let now = self.notes.reasons();
        if self.notes.has_resize_news() || now.iter().any(|(name, reason)| before.get(name) != Some(reason)) {
            // What was told during the step must not be taken back: a look from before the step would seem to say that
            // what it started is lost.
            let status = match self.shared.cache.current(&self.uid) {
                Some(newest) => {
                    let newest = self.with_termination_messages(pod, newest).await;
                    self.status_of(pod, &newest)
                }
                None => self.status_of(pod, observed),
            };
            if !crate::status::pod_is_terminal(&status) {
                self.publish(pod, status).await;
            }
        }
    }

    /// Adds what ended containers left as their termination messages, each read once.
    pub(super) async fn with_termination_messages(
        &mut self,
        pod: &PodRecord,
        observed: Arc<PodObservation>,
    ) -> Arc<PodObservation> {
        let ended: Vec<usize> = observed
            .containers
            .iter()
            .enumerate()
            .filter(|(_, c)| {
                c.state == ContainerState::Exited && (c.termination_message_path.is_some() || c.fallback_to_logs)
            })
            .map(|(index, _)| index)
            .collect();
        if ended.is_empty() {
            self.messages.clear();
            return observed;
        }
        let in_pod = pod.facts().containers.len();
        let mut seen = (*observed).clone();
        let mut present = BTreeSet::new();
        for index in ended {
            let container = &mut seen.containers[index];
            let message = match self.messages.get(&container.id) {
                Some(message) => message.clone(),
                None => {
                    let message = self.shared.files.termination_message(container.clone(), in_pod).await;
                    self.messages.insert(container.id.clone(), message.clone());
                    message
                }
            };
            if let Some(message) = message {
                container.message = message;
            }
            present.insert(container.id.clone());
        }
        self.messages.retain(|id, _| present.contains(id));
        Arc::new(seen)
    }
}

/// Keeps what was told of containers that ran before: their restart counts, and how they last ended.
fn carry_over(now: &mut Option<Vec<ContainerStatus>>, before: &Option<Vec<ContainerStatus>>) {
    for status in now.iter_mut().flatten() {
        let Some(before) = before.iter().flatten().find(|before| before.name == status.name) else {
            continue;
        };
        status.restart_count = before.restart_count;
        let ended = before.state.as_ref().filter(|state| state.terminated.is_some());
        status.last_state = ended.or(before.last_state.as_ref()).cloned();
    }
}

/// The rejection that a termination tells of, if it does.
fn rejection(end: &Termination) -> Option<&StatusOverride> {
    end.status.as_ref().filter(|_| end.cause == KillCause::Rejected)
}
