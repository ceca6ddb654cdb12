//! Steps that many promises begin with.

use std::time::Duration;

use kubelet_core::{
    ContainerId, ContainerRecord, ContainerRuntime, ContainerState, ContainerStatus, CreateContainer, RuntimeError,
    SandboxId, SandboxState, Scope,
};

use crate::contract::check::{eventually, must, within};
use crate::contract::fixture::{RuntimeFixture, TestPod, Workload};

/// More grace than any test waits for.
pub(super) const LONG_GRACE: Duration = Duration::from_secs(600);

/// The runtime under test and its fixture.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    pub(super) runtime: &'a dyn ContainerRuntime,
    pub(super) fixture: &'a RuntimeFixture,
}

impl<'a> Bench<'a> {
    pub(super) fn new(runtime: &'a dyn ContainerRuntime, fixture: &'a RuntimeFixture) -> Self {
        Self { runtime, fixture }
    }

    /// A new pod and its sandbox.
    pub(super) async fn sandbox(self) -> (TestPod, SandboxId) {
        let pod = self.fixture.pod();
        let made = self.runtime.run_sandbox(&pod.sandbox, &self.fixture.handler).await;
        (pod, must("run a sandbox", made))
    }

    pub(super) async fn try_create(
        self,
        pod: &TestPod,
        sandbox: &SandboxId,
        name: &str,
        attempt: u32,
        runs: &Workload,
    ) -> Result<ContainerId, RuntimeError> {
        let config = pod.container(name, attempt, runs);
        self.fixture.prepare_log(pod, &config);
        self.fixture.pull(&config.image).await;
        let req = CreateContainer::new(sandbox, &pod.sandbox, &config);
        self.runtime.create_container(req).await
    }

    pub(super) async fn create(self, pod: &TestPod, sandbox: &SandboxId, name: &str, runs: &Workload) -> ContainerId {
        must("create a container", self.try_create(pod, sandbox, name, 0, runs).await)
    }

    pub(super) async fn start(self, pod: &TestPod, sandbox: &SandboxId, name: &str, runs: &Workload) -> ContainerId {
        let id = self.create(pod, sandbox, name, runs).await;
        must("start a container", self.runtime.start_container(&id).await);
        id
    }

    /// A new pod with one running container.
    pub(super) async fn running(self, runs: &Workload) -> (TestPod, SandboxId, ContainerId) {
        let (pod, sandbox) = self.sandbox().await;
        let id = self.start(&pod, &sandbox, "app", runs).await;
        (pod, sandbox, id)
    }

    pub(super) async fn containers(self, pod: &TestPod) -> Vec<ContainerRecord> {
        let listed = self.runtime.list_containers(Scope::Pod(pod.uid())).await;
        must("list the containers of a pod", listed)
    }

    /// The state of a container in the list of its pod.
    pub(super) async fn state(self, pod: &TestPod, id: &ContainerId) -> Option<ContainerState> {
        let listed = self.containers(pod).await;
        listed
            .into_iter()
            .find(|record| record.id == *id)
            .map(|record| record.state)
    }

    /// The state of a sandbox in the list of its pod.
    pub(super) async fn sandbox_state(self, pod: &TestPod, id: &SandboxId) -> Option<SandboxState> {
        let listed = self.runtime.list_sandboxes(Scope::Pod(pod.uid())).await;
        let listed = must("list the sandboxes of a pod", listed);
        listed
            .into_iter()
            .find(|record| record.id == *id)
            .map(|record| record.state)
    }

    pub(super) async fn status(self, id: &ContainerId) -> ContainerStatus {
        must(
            "read the status of a container",
            self.runtime.container_status(id).await,
        )
    }

    pub(super) async fn until_exited(self, pod: &TestPod, id: &ContainerId) {
        eventually("a container is listed as exited", self.fixture.patience, async || {
            (self.state(pod, id).await == Some(ContainerState::Exited)).then_some(())
        })
        .await;
    }

    /// Stops a container, which must not take longer than the fixture's patience.
    pub(super) async fn stop_soon(self, id: &ContainerId, grace: Duration) {
        let stop = self.runtime.stop_container(id, grace);
        must(
            "stop a container",
            within("stop a container", self.fixture.patience, stop).await,
        );
    }
}
