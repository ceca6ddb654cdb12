//! Stopping containers: hooks, order, and a grace that may shrink while they stop.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ContainerSyncer;
use super::grace::{GraceClock, LEAST_STOP_GRACE};
use super::hooks::PodAt;
use crate::error::error_chain;
use crate::event::{Event, EventSubject, EventType};
use crate::ids::ContainerId;
use crate::observation::{ObservedContainer, PodObservation};
use crate::pod::{ContainerKind, ContainerView, PodRecord};
use crate::runtime::{ContainerState, RuntimeError};
use crate::syncer::{Doomed, StepContext, SyncError};

/// Why a container was not stopped.
#[derive(Debug)]
pub(super) enum KillError {
    /// The step was asked to stop.
    Stopped,
    Runtime(RuntimeError),
}

impl KillError {
    /// Whether the runtime was away, so that nobody was asked to stop.
    fn nothing_happened(&self) -> bool {
        matches!(
            self,
            Self::Runtime(RuntimeError::Unavailable { .. } | RuntimeError::Busy { .. })
        )
    }

    pub(super) fn into_sync_error(self, what: impl Into<String>) -> SyncError {
        match self {
            Self::Stopped => SyncError::Stopped,
            Self::Runtime(error) => SyncError::failed(what, error),
        }
    }
}

/// Whose turn it is in a pod with sidecars: they stop after all regular containers, last one first.
///
/// Source: kubelet 1.36, `kuberuntime_termination_order.go`.
#[derive(Debug, Default)]
struct StopOrder {
    stopped: BTreeMap<String, CancellationToken>,
    waits_for: BTreeMap<String, Vec<String>>,
}

impl StopOrder {
    fn of(pod: &PodRecord, running: &[&ObservedContainer]) -> Self {
        if !pod.facts().has_sidecars {
            return Self::default();
        }
        let runs = |name: &str| running.iter().any(|container| container.name == name);
        let mut order = Self::default();
        let mut earlier: Vec<String> = Vec::new();
        for container in ContainerView::regular(pod.spec()) {
            // What does not run is not waited for.
            if runs(container.name()) {
                earlier.push(container.name().to_owned());
            }
        }
        for sidecar in ContainerView::init(pod.spec()).rev() {
            if sidecar.kind() == ContainerKind::Sidecar && runs(sidecar.name()) {
                order.waits_for.insert(sidecar.name().to_owned(), earlier.clone());
                earlier.push(sidecar.name().to_owned());
            }
        }
        for name in earlier {
            order.stopped.insert(name, CancellationToken::new());
        }
        order
    }

    async fn turn(&self, name: &str) {
        for other in self.waits_for.get(name).into_iter().flatten() {
            if let Some(stopped) = self.stopped.get(other) {
                stopped.cancelled().await;
            }
        }
    }

    fn has_stopped(&self, name: &str) {
        if let Some(stopped) = self.stopped.get(name) {
            stopped.cancel();
        }
    }
}

impl ContainerSyncer {
    pub(super) async fn terminate_pod(&self, cx: &StepContext, doomed: Doomed<'_>) -> Result<(), SyncError> {
        let observed = doomed.observed();
        let memory = self.memory_of(doomed.uid());
        let began = {
            let mut memory = super::lock(&memory);
            let now = Instant::now();
            // A grace that starts anew is without what hooks had of it before.
            let had = observed
                .containers
                .iter()
                .filter(|container| container.state != ContainerState::Exited)
                .filter_map(|container| memory.prepared_to_stop.get(&container.id));
            let began = now.checked_sub(had.max().copied().unwrap_or_default()).unwrap_or(now);
            *memory.end_began.get_or_insert(began)
        };
        let grace = GraceClock::of_termination(began, cx.wish.clone());
        let pod = match doomed {
            Doomed::Pod(work) => Some(&*work.pod),
            Doomed::Orphan(_) => None,
        };
        let killed = self.kill_containers(cx, pod, observed, &grace).await;
        if let Err(error) = killed {
            if error.nothing_happened() {
                // No container was asked yet: its time, but for that of its hook, is still to come.
                super::lock(&memory).end_began = None;
            }
            // The sandbox takes what still runs down at once: not before the containers have had their time.
            let had_their_time = grace.clone().deadline() < Instant::now();
            if matches!(error, KillError::Stopped) || !had_their_time {
                return Err(error.into_sync_error("cannot stop containers"));
            }
        }
        self.stop_sandboxes(cx, observed).await?;
        // Whatever turns up late gets its own time.
        let mut memory = super::lock(&memory);
        memory.end_began = None;
        memory.prepared_to_stop.clear();
        Ok(())
    }

    /// Stops all containers of a pod side by side, sidecars in their order, then its sandboxes.
    pub(super) async fn kill_whole_pod(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        observed: &PodObservation,
    ) -> Result<(), SyncError> {
        let grace = GraceClock::own(pod.facts().termination_grace, cx.wish.clone());
        self.kill_containers(cx, Some(pod), observed, &grace)
            .await
            .map_err(|error| error.into_sync_error("cannot stop containers"))?;
        self.stop_sandboxes(cx, observed).await
    }

    async fn stop_sandboxes(&self, cx: &StepContext, observed: &PodObservation) -> Result<(), SyncError> {
        let mut outcome = Ok(());
        for sandbox in &observed.sandboxes {
            match self.call_stop_sandbox(&cx.notes, &sandbox.id).await {
                Ok(()) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => outcome = Err(SyncError::failed(format!("cannot stop sandbox {}", sandbox.id), error)),
            }
        }
        outcome
    }

    async fn kill_containers(
        &self,
        cx: &StepContext,
        pod: Option<&PodRecord>,
        observed: &PodObservation,
        grace: &GraceClock,
    ) -> Result<(), KillError> {
        let running: Vec<&ObservedContainer> = observed
            .containers
            .iter()
            .filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
            .collect();
        let order = pod.map_or_else(StopOrder::default, |pod| StopOrder::of(pod, &running));
        let kills = running.iter().map(|container| async {
            let message = format!("Stopping container {}", container.name);
            let killed = self
                .kill_container(
                    cx,
                    pod.map(|pod| PodAt::new(pod, &observed.ips)),
                    &container.id,
                    &container.name,
                    &message,
                    grace.clone(),
                    Some(&order),
                )
                .await;
            if killed.is_ok() {
                order.has_stopped(&container.name);
            }
            killed
        });
        join_all(kills).await.into_iter().collect()
    }

    /// Stops one container: pre-stop hook, its turn, then the runtime's stop, all within one grace.
    pub(super) async fn kill_one(
        &self,
        cx: &StepContext,
        pod: PodAt<'_>,
        id: &ContainerId,
        name: &str,
        message: &str,
        grace: Duration,
    ) -> Result<(), KillError> {
        let clock = GraceClock::own(grace, cx.wish.clone());
        self.kill_container(cx, Some(pod), id, name, message, clock, None).await
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "each is one fact of the stop, and there is one caller of each kind"
    )]
    async fn kill_container(
        &self,
        cx: &StepContext,
        at: Option<PodAt<'_>>,
        id: &ContainerId,
        name: &str,
        message: &str,
        mut grace: GraceClock,
        order: Option<&StopOrder>,
    ) -> Result<(), KillError> {
        let pod = at.map(|at| at.pod);
        let view = at.and_then(|at| at.pod.container(name).map(|view| (at, view)));
        let is_first = match pod {
            Some(pod) => {
                let memory = self.memory_of(pod.uid());
                let mut memory = super::lock(&memory);
                let is_first = !memory.prepared_to_stop.contains_key(id);
                if is_first {
                    memory.prepared_to_stop.insert(id.clone(), Duration::ZERO);
                }
                is_first
            }
            None => true,
        };
        if let Some((at, view)) = view.as_ref().filter(|_| is_first) {
            cx.events.record(Event::new(
                EventSubject::container(at.pod, view),
                EventType::Normal,
                "Killing",
                message,
            ));
            let begun = Instant::now();
            let prepared = self.pre_stop(cx, *at, view, id, &mut grace).await;
            let memory = self.memory_of(at.pod.uid());
            let mut memory = super::lock(&memory);
            if let Err(error) = prepared {
                // Cut short: whoever stops it next runs the hook again.
                memory.prepared_to_stop.remove(id);
                return Err(error);
            }
            memory.prepared_to_stop.insert(id.clone(), begun.elapsed());
        }
        if let Some(order) = order {
            tokio::select! {
                biased;
                () = cx.stop.cancelled() => return Err(KillError::Stopped),
                () = order.turn(name) => {}
                () = grace.expired() => {}
            }
        }
        if let Some(pod) = pod {
            self.probes.before_stop(pod.uid(), id).await;
        }
        let stopped = self.stop_within(cx, id, &mut grace).await;
        if let (Err(_), Some(pod)) = (&stopped, pod) {
            // It may go on: its pod may be kept after all.
            self.probes.stop_failed(pod.uid(), id);
        }
        stopped
    }

    async fn pre_stop(
        &self,
        cx: &StepContext,
        at: PodAt<'_>,
        view: &ContainerView<'_>,
        id: &ContainerId,
        grace: &mut GraceClock,
    ) -> Result<(), KillError> {
        let Some(hook) = view.lifecycle().and_then(|lifecycle| lifecycle.pre_stop.as_ref()) else {
            return Ok(());
        };
        let limit = grace.remaining();
        if limit.is_zero() {
            return Ok(());
        }
        let failed = tokio::select! {
            biased;
            () = cx.stop.cancelled() => return Err(KillError::Stopped),
            ended = self.run_hook(cx, at, view, id, hook, Some(limit)) => match ended {
                Ok(()) => None,
                Err(error) => Some(error_chain(&error)),
            },
            () = grace.expired() => Some("did not end within the grace period".to_owned()),
        };
        if let Some(why) = failed {
            tracing::warn!(pod = %at.pod.key(), container = view.name(), why, "pre-stop hook failed");
            cx.events.record(Event::new(
                EventSubject::container(at.pod, view),
                EventType::Warning,
                "FailedPreStopHook",
                "PreStopHook failed",
            ));
        }
        Ok(())
    }

    /// Asks the runtime to stop a container; asks again, beside the first call, when its grace has become less.
    async fn stop_within(&self, cx: &StepContext, id: &ContainerId, grace: &mut GraceClock) -> Result<(), KillError> {
        let mut calls = FuturesUnordered::new();
        let mut asked = grace.deadline();
        calls.push(self.call_stop(&cx.notes, id, grace.remaining().max(LEAST_STOP_GRACE)));
        loop {
            tokio::select! {
                biased;
                ended = calls.next() => match ended {
                    Some(Ok(())) => return Ok(()),
                    Some(Err(error)) if error.is_not_found() => return Ok(()),
                    Some(Err(error)) if calls.is_empty() => return Err(KillError::Runtime(error)),
                    // Another call for the same container still waits.
                    Some(Err(_)) => {}
                    None => return Ok(()),
                },
                () = cx.stop.cancelled() => return Err(KillError::Stopped),
                () = grace.cut_below(asked) => {
                    asked = grace.deadline();
                    calls.push(self.call_stop(&cx.notes, id, grace.remaining().max(LEAST_STOP_GRACE)));
                }
            }
        }
    }
}
