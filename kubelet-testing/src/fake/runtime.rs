//! [`FakeRuntime`] as a [`ContainerRuntime`].

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kubelet_core::{
    ContainerConfig, ContainerId, ContainerRecord, ContainerRuntime, ContainerStatus, CreateContainer, ExecOutput,
    ExecRequest, LinuxResources, PodUid, RuntimeError, RuntimeHint, RuntimeInfo, SandboxConfig, SandboxId,
    SandboxRecord, SandboxStatus, Scope, Target, async_trait,
};
use tokio::time::Instant;

use crate::fake::FakeRuntime;
use crate::fake::call::{Op, Outcome, Subject};
use crate::fake::effect::{Effect, Made, no_container, no_sandbox};
use crate::fake::gate::{Passage, apply};
use crate::fake::hints;
use crate::fake::original::Original;
use crate::fake::program::Program;
use crate::fake::state::State;

pub(crate) fn of_scope(of: Scope<'_>) -> Subject {
    Subject {
        pod: match of {
            Scope::All => None,
            Scope::Pod(uid) => Some(uid.clone()),
        },
        ..Subject::default()
    }
}

pub(crate) fn of_sandbox(id: &SandboxId) -> Subject {
    Subject {
        sandbox_id: Some(id.clone()),
        ..Subject::default()
    }
}

pub(crate) fn of_container(id: &ContainerId) -> Subject {
    Subject {
        container_id: Some(id.clone()),
        ..Subject::default()
    }
}

impl State {
    fn sandbox_records(&self, of: Scope<'_>) -> Vec<SandboxRecord> {
        let record = |n: &u64| {
            let sandbox = self.world.sandboxes.get(n).filter(|s| s.marked)?;
            let (id, uid) = (sandbox.id.clone(), sandbox.config.pod_uid.clone());
            let (attempt, state) = (sandbox.config.attempt, sandbox.state);
            let record = SandboxRecord::new(id, uid, attempt, state, sandbox.created);
            Some(record.with_key(sandbox.config.key.clone()))
        };
        match of {
            Scope::All => self.world.sandboxes.keys().filter_map(record).collect(),
            Scope::Pod(uid) => self.world.sandboxes_of(uid).iter().filter_map(record).collect(),
        }
    }

    fn container_records(&self, of: Scope<'_>) -> Vec<ContainerRecord> {
        let record = |n: &u64| {
            let container = self.world.containers.get(n).filter(|c| c.marked)?;
            Some(ContainerRecord::new(
                container.id.clone(),
                self.world.sandboxes.get(&container.sandbox)?.id.clone(),
                container.pod.clone(),
                container.config.name.clone(),
                container.config.attempt,
                container.state,
                container.created,
            ))
        };
        match of {
            Scope::All => self.world.containers.keys().filter_map(record).collect(),
            Scope::Pod(uid) => self.world.containers_of(uid).iter().filter_map(record).collect(),
        }
    }
}

impl FakeRuntime {
    pub(crate) async fn make_sandbox(
        &self,
        config: Arc<SandboxConfig>,
        handler: &str,
        original: Original,
    ) -> Result<SandboxId, RuntimeError> {
        let subject = Subject {
            pod: Some(config.pod_uid.clone()),
            attempt: Some(config.attempt),
            ..Subject::default()
        };
        let effect = Effect::RunSandbox {
            config,
            handler: handler.to_owned(),
            original,
        };
        match self.change(Op::RunSandbox, subject, effect).await? {
            Made::Sandbox(id) => Ok(id),
            _ => Err(RuntimeError::unsupported("run_sandbox")),
        }
    }

    /// Records that somebody wants to listen; an error says why they cannot.
    pub(crate) fn begin_events(&self) -> Result<(), RuntimeError> {
        let mut state = self.lock();
        state.advance(Instant::now());
        let at = state.made.elapsed();
        let number = state.log.begin(at, Op::Events, Subject::default());
        state.log.end(number, at, Op::Events, Outcome::Done);
        if !state.has_events {
            return Err(RuntimeError::unsupported("events"));
        }
        if state.is_down() {
            return Err(RuntimeError::unavailable("events", state.faults.words()));
        }
        Ok(())
    }

    /// A text instead of a program refuses the container.
    pub(crate) async fn make_container(
        &self,
        sandbox: &SandboxId,
        pod: &PodUid,
        config: Arc<ContainerConfig>,
        (program, original): (Result<Program, String>, Original),
    ) -> Result<ContainerId, RuntimeError> {
        let subject = Subject {
            pod: Some(pod.clone()),
            container: Some(config.name.clone()),
            attempt: Some(config.attempt),
            sandbox_id: Some(sandbox.clone()),
            ..Subject::default()
        };
        let effect = Effect::Create {
            sandbox: sandbox.clone(),
            pod: pod.clone(),
            config,
            program: program.map(Box::new),
            original,
        };
        match self.change(Op::CreateContainer, subject, effect).await? {
            Made::Container(id) => Ok(id),
            _ => Err(RuntimeError::unsupported("create_container")),
        }
    }
}

#[async_trait]
impl ContainerRuntime for FakeRuntime {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        self.read(Op::Info, Subject::default(), |state| Ok(state.info.clone()))
            .await
    }

    async fn list_sandboxes(&self, of: Scope<'_>) -> Result<Vec<SandboxRecord>, RuntimeError> {
        self.read(Op::ListSandboxes, of_scope(of), |state| Ok(state.sandbox_records(of)))
            .await
    }

    async fn list_containers(&self, of: Scope<'_>) -> Result<Vec<ContainerRecord>, RuntimeError> {
        self.read(
            Op::ListContainers,
            of_scope(of),
            |state| Ok(state.container_records(of)),
        )
        .await
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError> {
        self.read(Op::SandboxStatus, of_sandbox(id), |state| {
            let sandbox = state.world.sandbox(id).ok_or_else(|| no_sandbox(id))?;
            Ok(state.sandbox_status(sandbox))
        })
        .await
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError> {
        self.read(Op::ContainerStatus, of_container(id), |state| {
            let container = state.world.container(id).ok_or_else(|| no_container(id))?;
            Ok(state.container_status(container))
        })
        .await
    }

    async fn run_sandbox(&self, config: &SandboxConfig, handler: &str) -> Result<SandboxId, RuntimeError> {
        self.make_sandbox(Arc::new(config.clone()), handler, Original::default())
            .await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let effect = Effect::StopSandbox(id.clone());
        self.change(Op::StopSandbox, of_sandbox(id), effect).await.map(drop)
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let effect = Effect::RemoveSandbox(id.clone());
        self.change(Op::RemoveSandbox, of_sandbox(id), effect).await.map(drop)
    }

    async fn create_container(&self, req: CreateContainer<'_>) -> Result<ContainerId, RuntimeError> {
        let uid = &req.sandbox.pod_uid;
        let program = self.lock().program(uid, req.container);
        let config = Arc::new(req.container.clone());
        self.make_container(req.sandbox_id, uid, config, (program, Original::default()))
            .await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let effect = Effect::Start(id.clone());
        self.change(Op::StartContainer, of_container(id), effect)
            .await
            .map(drop)
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let mut subject = of_container(id);
        subject.grace = Some(grace);
        let effect = Effect::Stop(id.clone(), grace);
        let mut passage = Passage::begin(self, Op::StopContainer, subject, Some(effect));
        passage.wait().await;
        let result = match passage.settle(apply) {
            Ok(_) => passage.until_ended(id).await,
            Err(error) => Err(error),
        };
        passage.finish(result)
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let effect = Effect::Remove(id.clone());
        self.change(Op::RemoveContainer, of_container(id), effect)
            .await
            .map(drop)
    }

    async fn exec(&self, id: &ContainerId, req: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        self.run_exec(id, req).await
    }

    async fn update_resources(&self, of: Target<'_>, to: &LinuxResources) -> Result<(), RuntimeError> {
        let (op, subject, effect) = match of {
            Target::Container(id) => {
                let effect = Effect::UpdateContainer(id.clone(), to.clone());
                (Op::UpdateResources, of_container(id), effect)
            }
            Target::Sandbox { id, overhead } => {
                let effect = Effect::UpdateSandbox(id.clone(), to.clone(), overhead.cloned());
                (Op::UpdateSandbox, of_sandbox(id), effect)
            }
        };
        self.change(op, subject, effect).await.map(drop)
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.read(Op::ReopenLog, of_container(id), |state| {
            let container = state.world.container(id).ok_or_else(|| no_container(id))?;
            if container.is_running() {
                Ok(())
            } else {
                Err(RuntimeError::refused(format!("container {id} does not run")))
            }
        })
        .await
    }

    fn events(&self) -> BoxStream<'static, Result<RuntimeHint, RuntimeError>> {
        match self.begin_events() {
            Err(error) => stream::iter([Err(error)]).boxed(),
            Ok(()) => hints::listen(self),
        }
    }
}
