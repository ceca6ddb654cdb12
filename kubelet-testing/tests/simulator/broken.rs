//! Engines that are broken from outside, and the invariant that catches each.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::futures::stream::BoxStream;
use kubelet_core::{
    ContainerId, ContainerRecord, ContainerRuntime, ContainerStatus, CreateContainer, ExecOutput, ExecRequest,
    LinuxResources, RuntimeError, RuntimeHint, RuntimeInfo, RuntimeParts, SandboxConfig, SandboxId, SandboxRecord,
    SandboxStatus, Scope, Target, async_trait,
};
use kubelet_pleg::GenericPleg;
use kubelet_testing::{FakeRuntime, Invariant, Simulation, SimulationSettings};

/// How many seeds may pass before a broken engine is caught.
const SEEDS: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Containers are killed at once when they are asked to stop.
    GraceSkipped,
    /// A list that fails is an empty one.
    FailedListIsEmpty,
    /// A creation that timed out is repeated at once, as another attempt.
    SecondCreate,
}

/// What a broken engine's calls come to.
#[derive(Debug)]
struct Broken {
    inner: FakeRuntime,
    fault: Fault,
}

impl Broken {
    fn or_empty<T>(&self, listed: Result<Vec<T>, RuntimeError>) -> Result<Vec<T>, RuntimeError> {
        match listed {
            Err(_) if self.fault == Fault::FailedListIsEmpty => Ok(Vec::new()),
            listed => listed,
        }
    }
}

#[async_trait]
impl ContainerRuntime for Broken {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        self.inner.info().await
    }
    async fn list_sandboxes(&self, of: Scope<'_>) -> Result<Vec<SandboxRecord>, RuntimeError> {
        self.or_empty(self.inner.list_sandboxes(of).await)
    }
    async fn list_containers(&self, of: Scope<'_>) -> Result<Vec<ContainerRecord>, RuntimeError> {
        self.or_empty(self.inner.list_containers(of).await)
    }
    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError> {
        self.inner.sandbox_status(id).await
    }
    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError> {
        self.inner.container_status(id).await
    }
    async fn run_sandbox(&self, config: &SandboxConfig, handler: &str) -> Result<SandboxId, RuntimeError> {
        self.inner.run_sandbox(config, handler).await
    }
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.inner.stop_sandbox(id).await
    }
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.inner.remove_sandbox(id).await
    }
    async fn create_container(&self, req: CreateContainer<'_>) -> Result<ContainerId, RuntimeError> {
        let (sandbox_id, sandbox, container) = (req.sandbox_id, req.sandbox, req.container);
        match self.inner.create_container(req).await {
            Err(RuntimeError::Uncertain { .. }) if self.fault == Fault::SecondCreate => {
                let mut container = container.clone();
                container.attempt += 1;
                let again = CreateContainer::new(sandbox_id, sandbox, &container);
                self.inner.create_container(again).await
            }
            made => made,
        }
    }
    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.inner.start_container(id).await
    }
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let grace = match self.fault {
            Fault::GraceSkipped => Duration::ZERO,
            _ => grace,
        };
        self.inner.stop_container(id, grace).await
    }
    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.inner.remove_container(id).await
    }
    async fn exec(&self, id: &ContainerId, req: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        self.inner.exec(id, req).await
    }
    async fn update_resources(&self, of: Target<'_>, to: &LinuxResources) -> Result<(), RuntimeError> {
        self.inner.update_resources(of, to).await
    }
    async fn reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.inner.reopen_log(id).await
    }
    fn events(&self) -> BoxStream<'static, Result<RuntimeHint, RuntimeError>> {
        self.inner.events()
    }
}

/// Runs seeds until one catches the fault by one of these invariants. A fault breaks others on its way, and which one
/// first is not what is asked here.
fn caught(fault: Fault, by: &[Invariant]) {
    let mut others = Vec::new();
    for seed in 0..SEEDS {
        let simulation = Simulation::new(seed, SimulationSettings::default()).wrap_runtime(move |inner| {
            let images = Arc::new(inner.clone());
            RuntimeParts::new(Arc::new(Broken { inner, fault }), images)
        });
        for violation in simulation.run(GenericPleg::default).violations {
            if by.contains(&violation.invariant) {
                println!("{fault:?}: seed {seed}: {:?}: {}", violation.invariant, violation.what);
                return;
            }
            others.push((seed, violation.invariant));
        }
    }
    panic!("{fault:?} was not caught by {by:?} in {SEEDS} seeds, which caught {others:?}");
}

#[test]
fn a_skipped_grace_is_caught() {
    caught(Fault::GraceSkipped, &[Invariant::Grace]);
}

#[test]
fn a_failed_list_that_is_taken_as_empty_is_caught() {
    caught(
        Fault::FailedListIsEmpty,
        &[Invariant::Contract, Invariant::Twice, Invariant::Readiness],
    );
}

#[test]
fn a_second_create_after_a_timeout_is_caught() {
    caught(Fault::SecondCreate, &[Invariant::Twice]);
}
