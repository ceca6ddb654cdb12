//! One container in memory, and the task that follows it from its start to its end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{ContainerId, ContainerRecord, ContainerState, ContainerStatus, RuntimeError};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::sync::watch;

use crate::control::{self, Request, Response};
use crate::record::{ContainerFile, ExitFile};
use crate::runtime::launch::{attach, launch, settle};
use crate::runtime::{Shared, blocking};
use crate::state::{ContainerDir, OnDisk};

/// A container that exists.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: ContainerId,
    pub(crate) file: ContainerFile,
    pub(crate) dir: ContainerDir,
    pub(crate) phase: watch::Sender<Phase>,
}

/// Where a container stands.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Created,
    Starting,
    Running(Timestamp),
    Exited(Option<Timestamp>, ExitFile),
}

impl From<OnDisk> for Phase {
    fn from(found: OnDisk) -> Self {
        match found {
            OnDisk::Created => Self::Created,
            OnDisk::Starting => Self::Starting,
            OnDisk::Running(process) => Self::Running(process.started_at),
            OnDisk::Exited(process, exit) => Self::Exited(process.map(|process| process.started_at), exit),
        }
    }
}

/// Where following a container begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Follow {
    /// With its start.
    Start,
    /// An earlier agent started it.
    Adopt,
}

impl Container {
    pub(crate) fn new(file: ContainerFile, dir: ContainerDir, phase: Phase) -> Self {
        Self {
            id: ContainerId::from(dir.id()),
            file,
            dir,
            phase: watch::Sender::new(phase),
        }
    }

    pub(crate) fn state(&self) -> ContainerState {
        match *self.phase.borrow() {
            // One whose start is under way has not started.
            Phase::Created | Phase::Starting => ContainerState::Created,
            Phase::Running(_) => ContainerState::Running,
            Phase::Exited(..) => ContainerState::Exited,
        }
    }

    pub(crate) fn record(&self) -> ContainerRecord {
        ContainerRecord::new(
            self.id.clone(),
            self.file.sandbox_id.clone(),
            self.file.pod_uid.clone(),
            self.file.name.clone(),
            self.file.attempt,
            self.state(),
            self.file.created_at,
        )
    }

    pub(crate) fn status(&self) -> ContainerStatus {
        let phase = self.phase.borrow().clone();
        let file = &self.file;
        let mut status = ContainerStatus::new(
            self.id.clone(),
            file.name.clone(),
            file.attempt,
            self.state(),
            file.created_at,
        );
        status.sandbox_id = Some(file.sandbox_id.clone());
        status.image = file.image.clone();
        status.image_ref = file.image_ref.clone();
        status.labels = file.labels.clone();
        status.annotations = file.annotations.clone();
        status.log_path = file.log_path.clone();
        match phase {
            Phase::Created | Phase::Starting => status.state = ContainerState::Created,
            Phase::Running(started_at) => {
                status.state = ContainerState::Running;
                status.started_at = Some(started_at);
            }
            Phase::Exited(started_at, exit) => {
                status.state = ContainerState::Exited;
                status.started_at = started_at;
                status.finished_at = Some(exit.finished_at);
                status.exit_code = exit.exit_code;
                status.reason = exit.reason;
                status.message = exit.message;
            }
        }
        status
    }

    /// Waits for a phase.
    pub(crate) async fn reach(&self, wanted: impl Fn(&Phase) -> bool) -> Phase {
        let mut phases = self.phase.subscribe();
        loop {
            let now = phases.borrow_and_update().clone();
            // The sender lives in `self`, so that waiting cannot fail.
            if wanted(&now) || phases.changed().await.is_err() {
                return now;
            }
        }
    }

    /// Stops the container. Each call counts its own grace, so that a later one with less ends it earlier.
    pub(crate) async fn stop(&self, grace: Duration) {
        let started = self.reach(|phase| !matches!(phase, Phase::Starting)).await;
        if !matches!(started, Phase::Running(_)) {
            return;
        }
        let is_over = |phase: &Phase| matches!(phase, Phase::Exited(..));
        if !grace.is_zero() {
            let stopped = async {
                self.ask(Request::Stop).await;
                self.reach(is_over).await
            };
            if tokio::time::timeout(grace, stopped).await.is_ok() {
                return;
            }
        }
        self.ask(Request::Kill).await;
        self.reach(is_over).await;
    }

    /// Makes the log be opened anew, if anybody writes it.
    pub(crate) async fn reopen_log(&self) -> Result<(), RuntimeError> {
        let dir = self.dir.clone();
        match blocking("reopen_log", move || control::ask(&dir, &Request::ReopenLog)).await {
            Ok(Response::Failed { message }) => Err(RuntimeError::refused(message)),
            Err(err) if self.state() == ContainerState::Running => Err(err),
            _ => Ok(()),
        }
    }

    async fn ask(&self, request: Request) {
        let dir = self.dir.clone();
        let id = self.id.clone();
        let asked = tokio::task::spawn_blocking(move || {
            if let Err(err) = control::ask(&dir, &request) {
                tracing::debug!(error = &err as &dyn std::error::Error, container = %id, "supervisor does not answer");
                if matches!(request, Request::Kill) {
                    // It has ended, or hangs. Without it, its container is lost, and ended as such.
                    if let Some(handle) = dir.supervisor()?.map(|who| who.open()).transpose()?.flatten() {
                        pidfd_send_signal(&handle, Signal::KILL)?;
                    }
                }
            }
            io::Result::Ok(())
        })
        .await;
        if let Ok(Err(err)) = asked {
            tracing::warn!(error = &err as &dyn std::error::Error, container = %self.id, "supervisor cannot be killed");
        }
    }

    fn set(&self, shared: &Shared, phase: Phase) {
        self.phase.send_replace(phase);
        shared.hint(&self.file.pod_uid);
    }
}

/// Follows a container to its end.
pub(crate) async fn follow(shared: Arc<Shared>, container: Arc<Container>, from: Follow) {
    let end = match from {
        Follow::Start => {
            let launched = {
                let (shared, container) = (shared.clone(), container.clone());
                tokio::task::spawn_blocking(move || {
                    launch(&container.dir, shared.supervisor.as_ref(), &shared.agent_alive)
                })
                .await
                .map_err(io::Error::from)
                .flatten()
            };
            match launched {
                Ok(launched) => launched.started().await.map(Some),
                Err(err) => {
                    let message = format!("cannot start a supervisor: {err}");
                    let exit = ExitFile::not_started(message, shared.clock.now());
                    let (dir, record) = (container.dir.clone(), exit.clone());
                    // If it cannot be recorded now, the next agent finds a start without an end, and records that.
                    let recorded = blocking("start_container", move || dir.write_exit(&record)).await;
                    if let Err(err) = recorded {
                        tracing::warn!(error = &err as &dyn std::error::Error, container = %container.id, "exit not recorded");
                    }
                    container.set(&shared, Phase::Exited(None, exit));
                    return;
                }
            }
        }
        Follow::Adopt => attach(&container.dir).await,
    };
    let ended = async {
        if let Some(end) = end? {
            let dir = container.dir.clone();
            let found = tokio::task::spawn_blocking(move || dir.read()).await??;
            if matches!(found, OnDisk::Running(_)) {
                container.set(&shared, found.into());
            }
            end.wait().await?;
        }
        io::Result::Ok(())
    }
    .await;
    if let Err(err) = ended {
        // What comes next waits for the supervisor's lock instead.
        tracing::warn!(error = &err as &dyn std::error::Error, container = %container.id, "cannot watch a supervisor");
    }
    let (dir, now) = (container.dir.clone(), shared.clock.now());
    let settled = blocking("settle", move || settle(&dir, now)).await;
    let phase = match settled {
        Ok(found) => found.into(),
        Err(err) => {
            tracing::warn!(error = &err as &dyn std::error::Error, container = %container.id, "end of a container unknown");
            Phase::Exited(None, ExitFile::lost("its record cannot be read", shared.clock.now()))
        }
    };
    container.set(&shared, phase);
}
