//! Runtime calls with deadlines: what does not answer in time is uncertain, and whoever made the call looks first.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ContainerSyncer;
use super::permits::Permit;
use crate::http::{BoundedRequest, BoundedResponse, HttpClient, HttpError};
use crate::ids::{ContainerId, SandboxId};
use crate::runtime::{
    CreateContainer, ExecOutput, ExecRequest, LinuxResources, RuntimeError, SandboxConfig, SandboxStatus, Target,
};
use crate::syncer::StepNotes;

/// Takes a call out of the list of those under way, also when its future is dropped.
struct InFlight<'a> {
    notes: &'a StepNotes,
    number: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.notes.call_ended(self.number);
    }
}

impl ContainerSyncer {
    fn in_flight<'a>(&self, notes: &'a StepNotes, op: &str, what: &str) -> InFlight<'a> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        notes.call_begun(number, format!("{op} {what}"));
        InFlight { notes, number }
    }

    async fn bounded<T>(
        &self,
        notes: &StepNotes,
        op: &'static str,
        what: &str,
        limit: Duration,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        let _in_flight = self.in_flight(notes, op, what);
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(RuntimeError::uncertain(op, format!("no answer within {limit:?}"))),
        }
    }

    fn limit(&self) -> Duration {
        self.node.settings.runtime_request_timeout
    }

    pub(super) async fn call_run_sandbox(
        &self,
        notes: &StepNotes,
        permit: Permit,
        config: &SandboxConfig,
        handler: &str,
    ) -> Result<SandboxId, RuntimeError> {
        notes.acted();
        let call = self.runtime.run_sandbox(config, handler);
        // Making a sandbox sets up its network too. Source: kubelet 1.36 gives it twice the time.
        let pod = config.key.to_string();
        let call = self.bounded(notes, "run_sandbox", &pod, self.limit() * 2, call);
        permit.cover(call).await
    }

    pub(super) async fn call_sandbox_status(
        &self,
        notes: &StepNotes,
        id: &SandboxId,
    ) -> Result<SandboxStatus, RuntimeError> {
        let call = self.runtime.sandbox_status(id);
        self.bounded(notes, "sandbox_status", id.as_str(), self.limit(), call)
            .await
    }

    pub(super) async fn call_stop_sandbox(&self, notes: &StepNotes, id: &SandboxId) -> Result<(), RuntimeError> {
        notes.acted();
        let call = self.runtime.stop_sandbox(id);
        self.bounded(notes, "stop_sandbox", id.as_str(), self.limit(), call)
            .await
    }

    pub(super) async fn call_remove_sandbox(&self, notes: &StepNotes, id: &SandboxId) -> Result<(), RuntimeError> {
        notes.acted();
        let call = self.runtime.remove_sandbox(id);
        self.bounded(notes, "remove_sandbox", id.as_str(), self.limit(), call)
            .await
    }

    pub(super) async fn call_create(
        &self,
        notes: &StepNotes,
        permit: Permit,
        request: CreateContainer<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        notes.acted();
        let call = self.runtime.create_container(request);
        let call = self.bounded(notes, "create_container", &request.container.name, self.limit(), call);
        permit.cover(call).await
    }

    pub(super) async fn call_start(
        &self,
        notes: &StepNotes,
        permit: Permit,
        id: &ContainerId,
    ) -> Result<(), RuntimeError> {
        notes.acted();
        let call = self.runtime.start_container(id);
        let call = self.bounded(notes, "start_container", id.as_str(), self.limit(), call);
        permit.cover(call).await
    }

    pub(super) async fn call_stop(
        &self,
        notes: &StepNotes,
        id: &ContainerId,
        grace: Duration,
    ) -> Result<(), RuntimeError> {
        notes.acted();
        let call = self.runtime.stop_container(id, grace);
        self.bounded(notes, "stop_container", id.as_str(), self.limit() + grace, call)
            .await
    }

    /// Changes nothing that a look at the pod shows.
    pub(super) async fn call_update(
        &self,
        notes: &StepNotes,
        of: Target<'_>,
        to: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        let what = match of {
            Target::Container(id) => id.as_str(),
            Target::Sandbox { id, .. } => id.as_str(),
        };
        let call = self.runtime.update_resources(of, to);
        self.bounded(notes, "update_resources", what, self.limit(), call).await
    }

    pub(super) async fn call_remove(&self, notes: &StepNotes, id: &ContainerId) -> Result<(), RuntimeError> {
        notes.acted();
        let call = self.runtime.remove_container(id);
        self.bounded(notes, "remove_container", id.as_str(), self.limit(), call)
            .await
    }

    pub(super) async fn call_exec(
        &self,
        notes: &StepNotes,
        id: &ContainerId,
        request: ExecRequest,
    ) -> Result<ExecOutput, RuntimeError> {
        // A command without a timeout may run for as long as it likes: its caller ends the wait.
        let limit = request.timeout.map_or(Duration::MAX, |timeout| timeout + self.limit());
        let call = self.runtime.exec(id, request);
        self.bounded(notes, "exec", id.as_str(), limit, call).await
    }

    /// A request of a hook, which its client bounds by the request's timeout.
    pub(super) async fn call_http(
        &self,
        notes: &StepNotes,
        id: &ContainerId,
        client: &dyn HttpClient,
        request: BoundedRequest,
    ) -> Result<BoundedResponse, HttpError> {
        let _in_flight = self.in_flight(notes, "http_hook", id.as_str());
        client.send(request).await
    }
}
