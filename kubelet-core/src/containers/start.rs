//! Starting one container: back-off, image, config, create, start, post-start hook.

use std::borrow::Cow;
use std::path::PathBuf;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ContainerSyncer;
use super::ground::Ground;
use super::hooks::PodAt;
use super::kill::KillError;
use super::memory::BackoffWindow;
use super::permits::{Permit, StartCall};
use super::start_error::{CONFIG_ERROR, StartError};
use crate::backoff::{BackoffDecision, CrashKey, go_duration};
use crate::event::{Event, EventSubject, EventType};
use crate::ids::ContainerId;
use crate::observation::ObservedContainer;
use crate::pod::{ContainerView, PodRecord};
use crate::runtime::{ContainerState, CreateContainer, RuntimeError};
use crate::syncer::{PodWork, StepContext, SyncError};

/// A container was started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started;

impl ContainerSyncer {
    pub(super) async fn start_container(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        view: &ContainerView<'_>,
        adopt: Option<&ContainerId>,
    ) -> Result<Started, StartError> {
        let pod = &*ground.work.pod;
        if let Some(target) = view.target_container()
            && ground.work.observed.newest(target).is_none()
        {
            let failed = StartError::failed(CONFIG_ERROR, format!("unable to find target container {target}"));
            self.tell_failed(cx, pod, view, &failed);
            return Err(failed);
        }
        let last = ground.work.observed.newest(view.name());
        if last.is_some_and(|last| last.state == ContainerState::Unknown) {
            // It was asked to stop just now, and whether it did is still to be seen. Made anew beside one whose state stays unknown,
            // containers would follow each other without a pause.
            return Err(StartError::Uncertain(RuntimeError::uncertain(
                "stop_container",
                "the state of the container is unknown",
            )));
        }
        let (id, log) = match adopt {
            // It was made when it was its time; it only was not started.
            Some(id) => {
                let made = ground.work.observed.containers.iter().find(|made| made.id == *id);
                (id.clone(), made.and_then(|made| made.log_path.clone()))
            }
            None => {
                self.check_crash_backoff(cx, ground, view)?;
                let (id, log) = self.create(cx, ground, view).await?;
                (id, Some(log))
            }
        };
        if cx.stop.is_cancelled() {
            return Err(StartError::Stopped);
        }
        let permit = self.permit(cx, StartCall::Start).await?;
        match self.call_start(&cx.notes, permit, &id).await {
            Ok(()) => {}
            Err(error) => {
                let failed = StartError::of_runtime("RunContainerError", error);
                self.tell_failed(cx, pod, view, &failed);
                return Err(failed);
            }
        }
        cx.events.record(Event::new(
            EventSubject::container(pod, view),
            EventType::Normal,
            "Started",
            "Container started",
        ));
        if let Some(log) = log {
            self.link_log(pod.key(), pod.uid(), view.name(), &id, log).await;
        }
        self.post_start(cx, PodAt::new(pod, &ground.pod_ips), view, &id).await?;
        Ok(Started)
    }

    async fn permit(&self, cx: &StepContext, of: StartCall) -> Result<Permit, StartError> {
        self.permits.acquire(of, &cx.stop).await.ok_or(StartError::Stopped)
    }

    /// Holds a container back that keeps ending.
    fn check_crash_backoff(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        view: &ContainerView<'_>,
    ) -> Result<(), StartError> {
        let pod = &*ground.work.pod;
        match self.crash_backoff(ground, view) {
            None | Some((_, BackoffDecision::StartNow)) => Ok(()),
            Some((ended, BackoffDecision::Wait { delay, until })) => {
                let memory = self.memory_of(pod.uid());
                let window = BackoffWindow::Crash(ended.id.clone());
                if super::lock(&memory).tells_backoff(view.name(), window) {
                    let (name, pod_text) = (view.name(), pod.describe());
                    let message = format!("Back-off restarting failed container {name} in pod {pod_text}");
                    self.warn(cx, pod, view, "BackOff", message);
                }
                Err(StartError::Failed {
                    reason: Cow::Borrowed("CrashLoopBackOff"),
                    message: format!(
                        "back-off {} restarting failed container={} pod={}",
                        go_duration(delay),
                        view.name(),
                        pod.describe()
                    ),
                    retry_at: Some(until),
                })
            }
        }
    }

    /// Whether a container that ended may start again now; nothing for one that never did.
    pub(super) fn crash_backoff<'a>(
        &self,
        ground: &Ground<'a>,
        view: &ContainerView<'_>,
    ) -> Option<(&'a ObservedContainer, BackoffDecision)> {
        let ended = last_end(ground, view)?;
        let key = CrashKey::of(view);
        let memory = self.memory_of(ground.work.pod.uid());
        let mut memory = super::lock(&memory);
        memory.crash.saw_end(&key, ended, Instant::now());
        let decision = memory.crash.peek(&key, ended, self.node.clock.now(), Instant::now());
        Some((ended, decision))
    }

    /// Makes a container. Gives its id and its log.
    async fn create(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        view: &ContainerView<'_>,
    ) -> Result<(ContainerId, PathBuf), StartError> {
        let pod = &*ground.work.pod;
        let images = async {
            let mounted = self.mounted_images(cx, ground, view).await?;
            let image = self.ensure_image(cx, ground, view).await?;
            Ok((image, mounted))
        };
        let (image, mounted) = match images.await {
            Ok(images) => images,
            Err(failed) => {
                match &failed {
                    // What is wrong with an image was told by itself, and what else is was not.
                    StartError::Failed { reason, .. } if reason != CONFIG_ERROR => {
                        self.warn(cx, pod, view, "Failed", format!("Error: {reason}"));
                    }
                    _ => self.tell_failed(cx, pod, view, &failed),
                }
                return Err(failed);
            }
        };
        // The wish may have changed during a long pull.
        if cx.stop.is_cancelled() {
            return Err(StartError::Stopped);
        }
        let config = match self.container_config(cx, ground, view, (&image, &mounted)).await {
            Ok(config) => config,
            Err(failed) => {
                self.tell_failed(cx, pod, view, &failed);
                return Err(failed);
            }
        };
        let permit = self.permit(cx, StartCall::Create).await?;
        if cx.stop.is_cancelled() {
            return Err(StartError::Stopped);
        }
        // Only a container that is really made counts as one more try: a pull that fails does not.
        if let Some(ended) = last_end(ground, view) {
            let memory = self.memory_of(pod.uid());
            super::lock(&memory)
                .crash
                .advance(&CrashKey::of(view), ended, self.node.clock.now(), Instant::now());
        }
        let request = CreateContainer::new(&ground.sandbox_id, &ground.sandbox, &config);
        match self.call_create(&cx.notes, permit, request).await {
            Ok(id) => {
                cx.notes.made_with(view.name(), &id, view.resources());
                cx.events.record(Event::new(
                    EventSubject::container(pod, view),
                    EventType::Normal,
                    "Created",
                    "Container created",
                ));
                Ok((id, ground.sandbox.log_directory.join(&config.log_path)))
            }
            Err(error) => {
                let failed = StartError::of_runtime("CreateContainerError", error);
                self.tell_failed(cx, pod, view, &failed);
                Err(failed)
            }
        }
    }

    async fn post_start(
        &self,
        cx: &StepContext,
        at: PodAt<'_>,
        view: &ContainerView<'_>,
        id: &ContainerId,
    ) -> Result<(), StartError> {
        let pod = at.pod;
        let Some(hook) = view.lifecycle().and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
            return Ok(());
        };
        // A hook runs once: a new spec is no reason to leave its outcome unknown, or without its consequence; an end of
        // the pod or the kubelet is.
        let run = self.run_hook(cx, at, view, id, hook, None);
        let failed = match despite_new_spec(cx, run).await {
            None => return Err(StartError::Stopped),
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => error,
        };
        let error = crate::error::error_chain(&failed);
        tracing::warn!(pod = %pod.key(), container = view.name(), error, "post-start hook failed");
        self.warn(cx, pod, view, "FailedPostStartHook", "PostStartHook failed".to_owned());
        let memory = self.memory_of(pod.uid());
        super::lock(&memory).hook_failed.insert(id.clone());
        let mut patient = cx.clone();
        patient.stop = CancellationToken::new();
        let kill = self.kill_one(
            &patient,
            at,
            id,
            view.name(),
            "FailedPostStartHook",
            pod.facts().termination_grace,
        );
        tokio::pin!(kill);
        let killed = match despite_new_spec(cx, &mut kill).await {
            Some(killed) => killed,
            None => {
                // Asked, not dropped: it notes how far it came.
                patient.stop.cancel();
                kill.await
            }
        };
        match killed {
            Ok(()) => {
                super::lock(&memory).hook_failed.remove(id);
            }
            // The next sync tries again.
            Err(error) => self.tell_still_running(cx, pod, view.name(), &still_runs(view.name(), error)),
        }
        Err(StartError::failed("PostStartHookError", "PostStartHook failed"))
    }

    /// Stops the containers whose post-start hook failed and that could not be stopped then.
    pub(super) async fn stop_hook_failed(&self, cx: &StepContext, work: &PodWork) -> Result<(), SyncError> {
        let pod = &*work.pod;
        let memory = self.memory_of(pod.uid());
        let to_stop: Vec<&ObservedContainer> = {
            let mut memory = super::lock(&memory);
            if memory.hook_failed.is_empty() {
                return Ok(());
            }
            let to_stop: Vec<_> = work
                .observed
                .containers
                .iter()
                .filter(|c| c.state != ContainerState::Exited && memory.hook_failed.contains(&c.id))
                .collect();
            // What has ended, or is gone, is done with.
            memory.hook_failed = to_stop.iter().map(|c| c.id.clone()).collect();
            to_stop
        };
        for container in to_stop {
            let (id, name, grace) = (&container.id, &container.name, pod.facts().termination_grace);
            let at = PodAt::new(pod, &work.observed.ips);
            if let Err(error) = self.kill_one(cx, at, id, name, "FailedPostStartHook", grace).await {
                let error = still_runs(name, error);
                self.tell_still_running(cx, pod, name, &error);
                return Err(error);
            }
            super::lock(&memory).hook_failed.remove(id);
        }
        Ok(())
    }

    fn tell_still_running(&self, cx: &StepContext, pod: &PodRecord, name: &str, error: &SyncError) {
        // A stop of the step is no failure.
        if let (SyncError::Failed { .. }, Some(view)) = (error, pod.container(name)) {
            let text = crate::error::error_chain(error);
            self.warn(
                cx,
                pod,
                &view,
                "FailedKillPod",
                format!("error killing container: {text}"),
            );
        }
    }

    pub(super) fn warn(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        view: &ContainerView<'_>,
        reason: &'static str,
        message: String,
    ) {
        cx.events.record(Event::new(
            EventSubject::container(pod, view),
            EventType::Warning,
            reason,
            message,
        ));
    }

    fn tell_failed(&self, cx: &StepContext, pod: &PodRecord, view: &ContainerView<'_>, failed: &StartError) {
        if let StartError::Failed { message, .. } = failed {
            self.warn(cx, pod, view, "Failed", format!("Error: {message}"));
        }
    }
}

fn still_runs(name: &str, error: KillError) -> SyncError {
    error.into_sync_error(format!("cannot stop container {name}, whose post-start hook failed"))
}

/// Works until the pod or the kubelet is to end; nothing then. A new spec, which asks a step to stop too, is no reason.
async fn despite_new_spec<T>(cx: &StepContext, work: impl Future<Output = T>) -> Option<T> {
    let mut wish = cx.wish.clone();
    tokio::select! {
        biased;
        () = cx.kubelet_stop.cancelled() => None,
        // Gone is the worker, and so is the wish, only when the kubelet is.
        _ = wish.wait_for(|wish| wish.terminate.is_some()) => None,
        ended = work => Some(ended),
    }
}

/// The newest end of a container of this name.
fn last_end<'a>(ground: &Ground<'a>, view: &ContainerView<'_>) -> Option<&'a ObservedContainer> {
    ground
        .work
        .observed
        .containers
        .iter()
        .find(|container| container.name == view.name() && container.state == ContainerState::Exited)
}
