//! What containers are started in: the sandbox of their pod.

use tokio::time::Instant;

use super::ContainerSyncer;
use super::cgroups::Others;
use super::image_volumes::ImageVolumes;
use super::permits::StartCall;
use super::sync::SHOWN_FROM;
use crate::actions::{PodActions, SandboxAction};
use crate::event::{Event, EventSubject, EventType};
use crate::ids::SandboxId;
use crate::pod::PodRecord;
use crate::runtime::{SandboxConfig, SandboxState};
use crate::status::reason;
use crate::syncer::{PodWork, StepContext, SyncError};
use crate::volumes::PodVolumes;

/// The sandbox among the things whose outcome may be unknown: no container is named so.
const SANDBOX: &str = "";

/// What the containers of a pod are started in.
pub(super) struct Ground<'a> {
    pub(super) sandbox_id: SandboxId,
    pub(super) sandbox: SandboxConfig,
    pub(super) pod_ips: Vec<std::net::IpAddr>,
    /// Those that the containers which are made now mount.
    pub(super) image_volumes: ImageVolumes,
    /// What its volumes add, which are there.
    pub(super) volumes: PodVolumes,
    pub(super) work: &'a PodWork,
}

impl ContainerSyncer {
    /// The sandbox to start containers in: the one that is there, or a new one. Nothing means: not now.
    pub(super) async fn ground<'a>(
        &self,
        cx: &StepContext,
        work: &'a PodWork,
        actions: &PodActions,
        (others, volumes): (&Others, PodVolumes),
    ) -> Result<Option<Ground<'a>>, SyncError> {
        let pod = &*work.pod;
        match &actions.sandbox {
            SandboxAction::None => Ok(None),
            SandboxAction::Keep(id) => {
                self.has_sandbox(cx, pod);
                self.ensure_cgroup(cx, pod, others).await?;
                let attempt = work
                    .observed
                    .sandboxes
                    .iter()
                    .find(|sandbox| sandbox.id == *id)
                    .map_or(0, |sandbox| sandbox.attempt);
                Ok(Some(Ground {
                    sandbox_id: id.clone(),
                    sandbox: self.sandbox_config(cx, pod, &volumes, attempt, false).await?,
                    pod_ips: work.observed.ips.clone(),
                    image_volumes: ImageVolumes::default(),
                    volumes,
                    work,
                }))
            }
            SandboxAction::Create { attempt, .. } => {
                if let Err(error) = self.ensure_cgroup(cx, pod, &Others::default()).await {
                    show_no_sandbox(cx, actions, &error);
                    return Err(error);
                }
                let prepared = self.prepare_sandbox(cx, pod, &volumes, *attempt).await;
                if let Err(error @ SyncError::Failed { .. }) = &prepared {
                    self.tell_no_sandbox(cx, pod, error);
                    show_no_sandbox(cx, actions, error);
                }
                let (sandbox, handler) = prepared?;
                self.make_pod_dirs(cx, pod, &sandbox).await?;
                let Some(permit) = self.permits.acquire(StartCall::Sandbox, &cx.stop).await else {
                    return Err(SyncError::Stopped);
                };
                let made = self.call_run_sandbox(&cx.notes, permit, &sandbox, &handler).await;
                let sandbox_id = match made {
                    Ok(id) => id,
                    // It may be there already, or turn up later: the next look tells, and it is then used.
                    Err(error) if error.must_look_first() => {
                        let memory = self.memory_of(pod.uid());
                        let (pause, times) = super::lock(&memory).uncertain_again(SANDBOX);
                        if times == SHOWN_FROM {
                            self.tell_no_sandbox(cx, pod, &error);
                        }
                        if times >= SHOWN_FROM {
                            show_no_sandbox(cx, actions, &error);
                        }
                        return Err(SyncError::Failed {
                            what: "cannot create pod sandbox".to_owned(),
                            retry_at: Some(Instant::now() + pause),
                            source: Some(error.into()),
                        });
                    }
                    Err(error) => {
                        // A pod that is being ended does not care.
                        if !cx.stop.is_cancelled() {
                            self.tell_no_sandbox(cx, pod, &error);
                            show_no_sandbox(cx, actions, &error);
                        }
                        return Err(SyncError::failed("cannot create pod sandbox", error));
                    }
                };
                self.has_sandbox(cx, pod);
                let status = match self.call_sandbox_status(&cx.notes, &sandbox_id).await {
                    Ok(status) => status,
                    Err(error) => {
                        cx.events.record(Event::new(
                            EventSubject::pod(pod),
                            EventType::Warning,
                            "FailedPodSandBoxStatus",
                            format!(
                                "Failed to get pod sandbox status: {}",
                                crate::error::error_chain(&error)
                            ),
                        ));
                        return Err(SyncError::failed("cannot look at the new sandbox", error));
                    }
                };
                if status.state != SandboxState::Ready {
                    return Err(SyncError::Failed {
                        what: "the new sandbox ended at once".to_owned(),
                        retry_at: None,
                        source: None,
                    });
                }
                Ok(Some(Ground {
                    sandbox_id,
                    sandbox,
                    pod_ips: status.ips,
                    image_volumes: ImageVolumes::default(),
                    volumes,
                    work,
                }))
            }
        }
    }

    /// Takes back what was shown for lack of a sandbox: it was made, or turned up.
    fn has_sandbox(&self, cx: &StepContext, pod: &PodRecord) {
        super::lock(&self.memory_of(pod.uid())).uncertain.remove(SANDBOX);
        for (container, failed) in cx.notes.reasons() {
            if failed.reason == reason::CREATE_POD_SANDBOX_ERROR {
                cx.notes.started(&container);
            }
        }
    }

    /// What a new sandbox is made from, and the runtime handler that makes it.
    async fn prepare_sandbox(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        volumes: &PodVolumes,
        attempt: u32,
    ) -> Result<(SandboxConfig, String), SyncError> {
        let handler = self.runtime_handler(cx, pod).await?;
        self.check_users(pod, &handler)?;
        let sandbox = self.sandbox_config(cx, pod, volumes, attempt, true).await?;
        Ok((sandbox, handler))
    }

    fn tell_no_sandbox(&self, cx: &StepContext, pod: &PodRecord, error: &(dyn std::error::Error + 'static)) {
        cx.events.record(Event::new(
            EventSubject::pod(pod),
            EventType::Warning,
            "FailedCreatePodSandBox",
            format!("Failed to create pod sandbox: {}", crate::error::error_chain(error)),
        ));
    }
}

/// Shows why the containers wait that would be started now.
fn show_no_sandbox(cx: &StepContext, actions: &PodActions, error: &(dyn std::error::Error + 'static)) {
    let text = crate::error::error_chain(error);
    for start in actions.starts() {
        cx.notes
            .start_failed(&start.name, reason::CREATE_POD_SANDBOX_ERROR, text.clone());
    }
}
