//! A runtime whose answers can be held back: what they say is from before, and is then out of date.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::BoxStream;
use kubelet_core::{
    ContainerId, ContainerRecord, ContainerRuntime, ContainerStatus, CreateContainer, ExecOutput, ExecRequest,
    LinuxResources, RuntimeError, RuntimeHint, RuntimeInfo, SandboxConfig, SandboxId, SandboxRecord, SandboxStatus,
    Scope, Target, async_trait,
};
use tokio::sync::watch;

use crate::FakeRuntime;

/// The fake, with answers that wait.
#[derive(Debug)]
pub(super) struct HeldRuntime {
    pub(super) fake: FakeRuntime,
    held: watch::Sender<Held>,
    waiting: watch::Sender<BTreeSet<String>>,
}

#[derive(Clone, Debug, Default)]
struct Held {
    lists: bool,
    /// Ids of sandboxes and containers.
    statuses: BTreeSet<String>,
}

impl HeldRuntime {
    pub(super) fn new(fake: FakeRuntime) -> Self {
        Self {
            fake,
            held: watch::Sender::default(),
            waiting: watch::Sender::default(),
        }
    }

    /// Holds the answers of lists back, or lets them go.
    pub(super) fn hold_lists(&self, hold: bool) {
        self.held.send_modify(|held| held.lists = hold);
    }

    /// Holds the statuses of those back.
    pub(super) fn hold_statuses(&self, ids: [&str; 2]) {
        let ids = ids.into_iter().map(str::to_owned);
        self.held.send_modify(|held| held.statuses.extend(ids));
    }

    /// Lets all statuses go.
    pub(super) fn release_statuses(&self) {
        self.held.send_modify(|held| held.statuses.clear());
    }

    /// Waits until an answer is held back: that of a list of containers, or of an id.
    pub(super) async fn is_waited_for(&self, one_of: &[&str]) {
        let there = |waiting: &BTreeSet<String>| one_of.iter().any(|what| waiting.contains(*what));
        // The sender is ours, so that it is there for as long as we are.
        let _ = self.waiting.subscribe().wait_for(there).await;
    }

    async fn pass(&self, what: &str) {
        let free = |held: &Held| match what {
            LISTS => !held.lists,
            id => !held.statuses.contains(id),
        };
        let mut held = self.held.subscribe();
        if free(&held.borrow()) {
            return;
        }
        self.waiting.send_modify(|waiting| waiting.extend([what.to_owned()]));
        let _ = held.wait_for(free).await;
        self.waiting.send_modify(|waiting| {
            waiting.remove(what);
        });
    }
}

/// How lists are called among what is waited for.
pub(super) const LISTS: &str = "lists";

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ContainerRuntime for HeldRuntime {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        self.fake.info().await
    }
    async fn list_sandboxes(&self, of: Scope<'_>) -> Result<Vec<SandboxRecord>, RuntimeError> {
        // Not held, so that a generator which makes one list after the other comes to the second.
        self.fake.list_sandboxes(of).await
    }
    async fn list_containers(&self, of: Scope<'_>) -> Result<Vec<ContainerRecord>, RuntimeError> {
        let answer = self.fake.list_containers(of).await;
        self.pass(LISTS).await;
        answer
    }
    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError> {
        let answer = self.fake.sandbox_status(id).await;
        self.pass(id.as_str()).await;
        answer
    }
    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError> {
        let answer = self.fake.container_status(id).await;
        self.pass(id.as_str()).await;
        answer
    }
    async fn run_sandbox(&self, config: &SandboxConfig, handler: &str) -> Result<SandboxId, RuntimeError> {
        self.fake.run_sandbox(config, handler).await
    }
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.fake.stop_sandbox(id).await
    }
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.fake.remove_sandbox(id).await
    }
    async fn create_container(&self, req: CreateContainer<'_>) -> Result<ContainerId, RuntimeError> {
        self.fake.create_container(req).await
    }
    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.fake.start_container(id).await
    }
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        self.fake.stop_container(id, grace).await
    }
    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.fake.remove_container(id).await
    }
    async fn exec(&self, id: &ContainerId, req: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        self.fake.exec(id, req).await
    }
    async fn update_resources(&self, of: Target<'_>, to: &LinuxResources) -> Result<(), RuntimeError> {
        self.fake.update_resources(of, to).await
    }
    async fn reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.fake.reopen_log(id).await
    }
    fn events(&self) -> BoxStream<'static, Result<RuntimeHint, RuntimeError>> {
        self.fake.events()
    }
}
