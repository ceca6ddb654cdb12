//! One sync of a pod: what was decided is carried out, step by step.

use std::sync::PoisonError;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use tokio::time::Instant;

use super::ContainerSyncer;
use super::cgroups::Others;
use super::ground::Ground;
use super::hooks::PodAt;
use super::resize::Lags;
use super::start::Started;
use super::start_error::StartError;
use crate::actions::{
    ActionInputs, ContainerKillCause, KillAction, PodActions, SandboxAction, StartAction, compute_pod_actions,
};
use crate::event::{Event, EventSubject, EventType};
use crate::ids::ContainerId;
use crate::observation::PodObservation;
use crate::pod::{ContainerKind, PodRecord};
use crate::probes::ProbeKind;
use crate::syncer::{PodWork, Remains, StepContext, SyncError, Synced};

/// From how many unknown outcomes in a row on they are shown.
pub(super) const SHOWN_FROM: u32 = 3;

/// What became of the starts of one sync.
#[derive(Debug, Default)]
struct Outcome {
    retry_at: Option<Instant>,
    failure: Option<String>,
}

impl Outcome {
    fn retry(&mut self, at: Instant) {
        self.retry_at = Some(self.retry_at.map_or(at, |before| before.min(at)));
    }
}

impl ContainerSyncer {
    pub(super) async fn sync_pod(&self, cx: &StepContext, work: &PodWork) -> Result<Synced, SyncError> {
        let pod = &*work.pod;
        self.stop_hook_failed(cx, work).await?;
        self.link_unseen(work).await;
        let network = self
            .network_not_ready
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(why) = network.filter(|_| !pod.facts().host_network) {
            if work.observed.may_run() {
                // What runs goes on, and with it what its volumes are made from. Whoever makes them tells if that fails.
                let _ = self.volumes_ready(cx, &work.pod).await;
            }
            return Err(SyncError::NetworkNotReady { why });
        }
        let lags = Lags::of(work, cx.notes.is_resize_unsettled());
        let lowers = match &lags {
            Some(lags) => self.check_decreases(cx, lags).await,
            None => {
                // One that has failed may have been taken back.
                cx.notes.resize_failed(None);
                Ok(())
            }
        };
        if let Err(SyncError::Stopped) = lowers {
            return Err(SyncError::Stopped);
        }
        // What cannot be done as a whole is not begun.
        let to_restart = lags.as_ref().filter(|_| lowers.is_ok()).map(Lags::to_restart);
        let actions = self.decide(work, &to_restart.unwrap_or_default());
        let resize = async || match &lags {
            Some(lags) if lowers.is_ok() => self.resize(cx, lags, &actions).await,
            _ => Ok(()),
        };
        // Whatever its status makes of that: nothing more will come of it.
        let is_over = actions.sandbox == SandboxAction::None && actions.reset.is_empty() && !pod.is_deleted();
        let without_sandbox = if is_over { Synced::Terminal } else { Synced::Settled };
        if actions.is_empty() {
            let resized = resize().await.and(lowers);
            if let SandboxAction::None = actions.sandbox {
                return resized.map(|()| without_sandbox);
            }
            return match self.volumes_ready(cx, &work.pod).await {
                Ok(volumes) => resized.map(|()| without_sandbox.or_at(volumes.again_at)),
                // What runs goes on with what it has.
                Err(error) => Err(worse(resized, error)),
            };
        }
        if let Some(until) = self.held_back(pod, &actions) {
            return Ok(Synced::Again(until));
        }
        self.make_room(cx, work, &actions).await?;
        if let SandboxAction::None = actions.sandbox {
            return Ok(without_sandbox);
        }
        if cx.stop.is_cancelled() {
            return Err(SyncError::Stopped);
        }
        let mut others = Others {
            run: work.observed.containers.iter().any(|seen| seen.is_running()),
            before: lags.as_ref().map(|lags| lags.before().spec().clone()),
        };
        // Whatever comes of it: what is to be started waits for no resources of others.
        let resized = resize().await.and(lowers);
        if resized.is_ok() {
            // None lags any more. What was to be started anew has been stopped.
            others.before = None;
        }
        let volumes = match self.volumes_ready(cx, &work.pod).await {
            Ok(volumes) => volumes,
            Err(error) => return Err(worse(resized, error)),
        };
        let again_at = volumes.again_at;
        self.count_sandbox(pod, &actions);
        let Some(mut ground) = self.ground(cx, work, &actions, (&others, volumes)).await? else {
            return Ok(Synced::Settled);
        };
        ground.image_volumes = self.ensure_image_volumes(cx, &ground, &actions).await?;
        let synced = self.start_all(cx, &ground, &actions).await?;
        resized.map(|()| synced.or_at(again_at))
    }

    /// Holds back what would go round without end: sandboxes that do not last, and restarts of all containers. The first
    /// repetition is free, like that of a container.
    fn held_back(&self, pod: &PodRecord, actions: &PodActions) -> Option<Instant> {
        let now = Instant::now();
        let memory = self.memory_of(pod.uid());
        let mut memory = super::lock(&memory);
        if is_replaced(actions) {
            // Counted once it is made: a pod that waits for volumes goes round nothing.
            if let Some(until) = memory.sandboxes.until(&(), now) {
                return Some(until);
            }
        }
        if !actions.reset.is_empty() {
            if let Some(until) = memory.resets.until(&(), now) {
                return Some(until);
            }
            memory.resets.next((), now);
        }
        None
    }

    fn count_sandbox(&self, pod: &PodRecord, actions: &PodActions) {
        if is_replaced(actions) {
            let memory = self.memory_of(pod.uid());
            super::lock(&memory).sandboxes.next((), Instant::now());
        }
    }

    fn decide(&self, work: &PodWork, restart_to_resize: &[ContainerId]) -> PodActions {
        let memory = self.memory_of(work.pod.uid());
        let memory = super::lock(&memory);
        let per_name = self.node.settings.container_gc.max_per_container;
        let mut inputs = ActionInputs::new().with_dead_kept(per_name, self.young_after());
        if let Some(sandbox) = &memory.initialized_in {
            inputs = inputs.with_initialized_in(sandbox);
        }
        if is_restarting_all(&work.status) {
            inputs = inputs.with_restarting_all();
        }
        inputs = inputs.with_restart_to_resize(restart_to_resize);
        let probes = self.probes.results(work.pod.uid());
        if let Some(probes) = &probes {
            inputs = inputs.with_probes(probes);
        }
        let mut actions = compute_pod_actions(&work.pod, &work.observed, &inputs);
        if actions.reset.is_empty() {
            self.bound_dead(&work.observed, &mut actions);
        }
        actions
    }

    /// Stops and removes what is in the way.
    async fn make_room(&self, cx: &StepContext, work: &PodWork, actions: &PodActions) -> Result<(), SyncError> {
        let (pod, observed) = (&*work.pod, &*work.observed);
        let at = PodAt::new(pod, &observed.ips);
        if actions.kill_pod {
            if let SandboxAction::Create {
                replaces: Some(old), ..
            } = &actions.sandbox
                && super::lock(&self.memory_of(pod.uid())).tells_changed(old)
            {
                cx.events.record(Event::new(
                    EventSubject::pod(pod),
                    EventType::Normal,
                    "SandboxChanged",
                    "Pod sandbox changed, it will be killed and re-created.",
                ));
            }
            self.kill_whole_pod(cx, pod, observed).await?;
        } else {
            for kill in &actions.kill {
                self.kill_unwanted(cx, at, kill).await?;
            }
        }
        if !actions.reset.is_empty() {
            // All containers start anew, init containers among them.
            super::lock(&self.memory_of(pod.uid())).initialized_in = None;
        }
        for reset in &actions.reset {
            if let Some(id) = &reset.running {
                self.kill_one(cx, at, id, &reset.name, "killing", Duration::ZERO)
                    .await
                    .map_err(|error| error.into_sync_error(format!("cannot stop container {}", reset.name)))?;
            }
            for id in &reset.remove {
                self.call_remove(&cx.notes, id)
                    .await
                    .map_err(|error| SyncError::failed(format!("cannot remove container {}", reset.name), error))?;
            }
        }
        self.prune(cx, observed, actions).await
    }

    async fn kill_unwanted(&self, cx: &StepContext, at: PodAt<'_>, kill: &KillAction) -> Result<(), SyncError> {
        let grace = grace_of(at.pod, kill);
        self.kill_one(cx, at, &kill.id, &kill.name, &kill.message, grace)
            .await
            .map_err(|error| error.into_sync_error(format!("cannot stop container {}", kill.name)))
    }

    /// Removes leftovers that nothing needs any more, so that a crash loop piles nothing up. A failure is no reason to
    /// start nothing: the next sync tries again.
    async fn prune(&self, cx: &StepContext, observed: &PodObservation, actions: &PodActions) -> Result<(), SyncError> {
        let gone = observed
            .containers
            .iter()
            .filter(|container| actions.remove_containers.contains(&container.id));
        let of = (observed.key.as_ref(), &observed.uid);
        for container in gone {
            if let Err(error) = self.remove_container(cx, container, of, Remains::Keep).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "ended container not removed");
            }
        }
        for id in &actions.remove_sandboxes {
            if let Err(error) = self.call_remove_sandbox(&cx.notes, id).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "ended sandbox not removed");
            }
        }
        if cx.stop.is_cancelled() {
            return Err(SyncError::Stopped);
        }
        Ok(())
    }

    async fn start_all(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        actions: &PodActions,
    ) -> Result<Synced, SyncError> {
        let mut outcome = Outcome::default();
        for start in &actions.ephemeral {
            self.try_start(cx, ground, start, &mut outcome).await?;
        }
        for start in &actions.init {
            let started = self.try_start(cx, ground, start, &mut outcome).await?;
            let is_sidecar = ground
                .work
                .pod
                .container(&start.name)
                .is_some_and(|view| view.kind() == ContainerKind::Sidecar);
            // A sidecar that fails keeps nobody waiting; an init container keeps all that come after it.
            if !started && !is_sidecar {
                return outcome.into_synced();
            }
        }
        for start in &actions.regular {
            if self.try_start(cx, ground, start, &mut outcome).await? {
                let memory = self.memory_of(ground.work.pod.uid());
                super::lock(&memory).initialized_in = Some(ground.sandbox_id.clone());
            }
        }
        outcome.into_synced()
    }

    /// Starts one container; says whether that worked. Failures are noted, and end the sync only if it is to stop.
    async fn try_start(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        start: &StartAction,
        outcome: &mut Outcome,
    ) -> Result<bool, SyncError> {
        let Some(view) = ground.work.pod.container(&start.name) else {
            return Ok(false);
        };
        match self.start_container(cx, ground, &view, start.adopt.as_ref()).await {
            Ok(Started) => {
                let memory = self.memory_of(ground.work.pod.uid());
                super::lock(&memory).uncertain.remove(&start.name);
                cx.notes.started(&start.name);
                Ok(true)
            }
            Err(StartError::Stopped) => Err(SyncError::Stopped),
            Err(StartError::Uncertain(error)) => {
                let memory = self.memory_of(ground.work.pod.uid());
                let (pause, times) = super::lock(&memory).uncertain_again(&start.name);
                if times >= SHOWN_FROM {
                    let reason = if start.adopt.is_some() {
                        "RunContainerError"
                    } else {
                        "CreateContainerError"
                    };
                    let text = crate::error::error_chain(&error);
                    if times == SHOWN_FROM {
                        self.warn(cx, &ground.work.pod, &view, "Failed", format!("Error: {text}"));
                    }
                    cx.notes.start_failed(&start.name, reason, text);
                }
                outcome.retry(Instant::now() + pause);
                Ok(false)
            }
            Err(StartError::Failed {
                reason,
                message,
                retry_at,
            }) => {
                match retry_at {
                    Some(at) => outcome.retry(at),
                    None => outcome.failure = Some(format!("{}: {reason}: {message}", start.name)),
                }
                cx.notes.start_failed(&start.name, reason, message);
                Ok(false)
            }
        }
    }
}

impl Outcome {
    fn into_synced(self) -> Result<Synced, SyncError> {
        match (self.failure, self.retry_at) {
            (None, None) => Ok(Synced::Settled),
            // What is known to be of use then is done then; other failures wait no longer than that.
            (None, Some(at)) => Ok(Synced::Again(at)),
            (Some(what), retry_at) => Err(SyncError::Failed {
                what,
                retry_at: retry_at.filter(|at| *at < Instant::now() + Duration::from_secs(10)),
                source: None,
            }),
        }
    }
}

/// Whether a sandbox is to be made in place of another.
fn is_replaced(actions: &PodActions) -> bool {
    matches!(actions.sandbox, SandboxAction::Create { attempt, .. } if attempt > 0)
}

/// Of a resize and of volumes that have failed: what ends the pod or the step, else the resize, which is tried again no later than
/// after the back-off, whatever the volumes wait for.
fn worse(resized: Result<(), SyncError>, volumes: SyncError) -> SyncError {
    match (resized, volumes) {
        (Err(resized), SyncError::Failed { .. }) => resized,
        (_, volumes) => volumes,
    }
}

/// How much time a container gets to end. Source: kubelet 1.36, `kuberuntime_container.go`.
fn grace_of(pod: &PodRecord, kill: &KillAction) -> Duration {
    let kind = match kill.cause {
        ContainerKillCause::Liveness => Some(ProbeKind::Liveness),
        ContainerKillCause::Startup => Some(ProbeKind::Startup),
        _ => None,
    };
    let own = kind
        .and_then(|kind| pod.container(&kill.name)?.probe(kind)?.termination_grace_period_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok());
    own.map_or(pod.facts().termination_grace, Duration::from_secs)
}

/// Whether the pod's status says that all its containers are being restarted.
fn is_restarting_all(status: &PodStatus) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "AllContainersRestarting" && condition.status == "True")
}
