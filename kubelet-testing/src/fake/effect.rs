//! What the changing calls do to the world, as data, so that it can also happen later than its call.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{
    ContainerConfig, ContainerId, ContainerState, LinuxResources, PodUid, RuntimeError, SandboxConfig, SandboxId,
    SandboxState, label,
};
use tokio::time::Instant;

use crate::fake::original::Original;
use crate::fake::program::Program;
use crate::fake::world::{KILLED, World};

#[derive(Debug)]
pub(crate) enum Effect {
    RunSandbox {
        config: Arc<SandboxConfig>,
        handler: String,
        original: Original,
    },
    StopSandbox(SandboxId),
    RemoveSandbox(SandboxId),
    Create {
        sandbox: SandboxId,
        pod: PodUid,
        config: Arc<ContainerConfig>,
        /// A text refuses the container.
        program: Result<Box<Program>, String>,
        original: Original,
    },
    Start(ContainerId),
    Stop(ContainerId, Duration),
    Remove(ContainerId),
    UpdateSandbox(SandboxId, LinuxResources, Option<LinuxResources>),
    UpdateContainer(ContainerId, LinuxResources),
}

/// What a changing call made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Made {
    Nothing,
    Sandbox(SandboxId),
    Container(ContainerId),
}

impl World {
    pub(crate) fn apply(&mut self, effect: &Effect, now: Instant) -> Result<Made, RuntimeError> {
        self.journal.calling = true;
        let made = self.carry_out(effect, now);
        self.journal.calling = false;
        made
    }

    fn carry_out(&mut self, effect: &Effect, now: Instant) -> Result<Made, RuntimeError> {
        match effect {
            Effect::RunSandbox {
                config,
                handler,
                original,
            } => self.run_sandbox(config, handler, original, now),
            Effect::Create {
                sandbox,
                pod,
                config,
                program,
                original,
            } => self.create(sandbox, pod, config, (program, original), now),
            Effect::Start(id) => self.start(id, now),
            Effect::StopSandbox(id) => {
                if let Some(n) = self.sandbox_number(id) {
                    self.must_be_marked(self.sandboxes[&n].marked, "stop_sandbox", id.as_str());
                    self.bring_down(n, KILLED, now);
                }
                Ok(Made::Nothing)
            }
            Effect::RemoveSandbox(id) => {
                if let Some(n) = self.sandbox_number(id) {
                    self.must_be_marked(self.sandboxes[&n].marked, "remove_sandbox", id.as_str());
                    self.bring_down(n, KILLED, now);
                    self.take_sandbox(n);
                }
                Ok(Made::Nothing)
            }
            Effect::Stop(id, grace) => {
                if let Some(n) = self.container_number(id) {
                    self.must_be_marked(self.containers[&n].marked, "stop_container", id.as_str());
                    self.ask_to_stop(n, *grace, now);
                }
                Ok(Made::Nothing)
            }
            Effect::Remove(id) => {
                if let Some(n) = self.container_number(id) {
                    self.must_be_marked(self.containers[&n].marked, "remove_container", id.as_str());
                    self.end_now(n, KILLED, "Error", String::new(), now);
                    self.take_container(n);
                }
                Ok(Made::Nothing)
            }
            Effect::UpdateSandbox(id, to, overhead) => {
                let n = self.sandbox_number(id).ok_or_else(|| no_sandbox(id))?;
                if let Some(sandbox) = self.sandboxes.get_mut(&n) {
                    sandbox.resources = Some((to.clone(), overhead.clone()));
                }
                Ok(Made::Nothing)
            }
            Effect::UpdateContainer(id, to) => {
                let container = self.container_mut(id).ok_or_else(|| no_container(id))?;
                if container.state == ContainerState::Exited {
                    return Err(RuntimeError::refused(format!("container {id} has exited")));
                }
                container.resources = Some(to.clone());
                Ok(Made::Nothing)
            }
        }
    }

    /// Leaves a container exited, as one that could not be started.
    pub(crate) fn fail_start(&mut self, id: &ContainerId, message: &str, now: Instant) {
        if let Some(n) = self.container_number(id)
            && self.containers[&n].state == ContainerState::Created
        {
            self.end_now(n, 128, "StartError", message.to_owned(), now);
        }
    }

    fn run_sandbox(
        &mut self,
        config: &Arc<SandboxConfig>,
        handler: &str,
        original: &Original,
        now: Instant,
    ) -> Result<Made, RuntimeError> {
        let (uid, attempt) = (&config.pod_uid, config.attempt);
        let what = || format!("sandbox {attempt} of pod {uid}");
        let mut ready = false;
        for n in self.sandboxes_of(uid) {
            let other = &self.sandboxes[&n];
            if other.config.attempt == attempt {
                return Err(RuntimeError::Taken { what: what() });
            }
            ready |= other.state == SandboxState::Ready;
        }
        // Still on its way from a call that outlived its deadline. A list cannot show it yet, so it is not `Taken`.
        let on_its_way = self.pending().any(|late| match late {
            Effect::RunSandbox { config, .. } => config.pod_uid == *uid && config.attempt == attempt,
            _ => false,
        });
        if on_its_way {
            return Err(RuntimeError::Busy { what: what() });
        }
        if ready {
            self.violation(format!("run_sandbox for pod {uid}, which has one that is ready"));
        }
        let marked = config.labels.get(label::POD_UID).map(String::as_str) == Some(uid.as_str());
        if !marked {
            self.violation(format!(
                "run_sandbox for pod {uid} without the label {}",
                label::POD_UID
            ));
        }
        let id = self.add_sandbox(config.clone(), handler.to_owned(), original.clone(), marked, now);
        Ok(Made::Sandbox(id))
    }

    fn create(
        &mut self,
        sandbox: &SandboxId,
        uid: &PodUid,
        config: &Arc<ContainerConfig>,
        (program, original): (&Result<Box<Program>, String>, &Original),
        now: Instant,
    ) -> Result<Made, RuntimeError> {
        let (name, attempt) = (&config.name, config.attempt);
        let what = || format!("container {name} {attempt} of pod {uid}");
        let program = program.as_ref().map_err(RuntimeError::refused)?;
        let n = self.sandbox_number(sandbox).ok_or_else(|| no_sandbox(sandbox))?;
        for other in self.containers_of(uid) {
            let other = &self.containers[&other].config;
            if other.name == *name && other.attempt == attempt {
                return Err(RuntimeError::Taken { what: what() });
            }
        }
        let on_its_way = self.pending().any(|late| match late {
            Effect::Create { pod, config, .. } => pod == uid && config.name == *name && config.attempt == attempt,
            _ => false,
        });
        if on_its_way {
            return Err(RuntimeError::Busy { what: what() });
        }
        if self.sandboxes[&n].state != SandboxState::Ready {
            if !self.sandboxes[&n].died {
                self.violation(format!(
                    "create_container {name} of pod {uid} in sandbox {sandbox}, which is not ready"
                ));
            }
            return Err(RuntimeError::refused(format!("sandbox {sandbox} is not ready")));
        }
        if self.sandboxes[&n].config.pod_uid != *uid {
            self.violation(format!(
                "create_container {name} of pod {uid} in sandbox {sandbox} of another pod"
            ));
        }
        let marked = config.labels.get(label::POD_UID).map(String::as_str) == Some(uid.as_str());
        if !marked {
            self.violation(format!(
                "create_container {name} of pod {uid} without the label {}",
                label::POD_UID
            ));
        }
        let made = (Program::clone(program), original.clone());
        let id = self.add_container(n, uid.clone(), config.clone(), made, marked, now);
        Ok(Made::Container(id))
    }

    fn start(&mut self, id: &ContainerId, now: Instant) -> Result<Made, RuntimeError> {
        let n = self.container_number(id).ok_or_else(|| no_container(id))?;
        let container = &self.containers[&n];
        let (name, uid) = (container.config.name.clone(), container.pod.clone());
        self.must_be_marked(container.marked, "start_container", id.as_str());
        let container = &self.containers[&n];
        if container.state != ContainerState::Created {
            // Its caller may have looked just before the late start.
            if container.started_late {
                return Err(RuntimeError::refused(format!("container {id} was started before")));
            }
            self.violation(format!(
                "start_container {id} ({name} of pod {uid}), which was started before"
            ));
            return Err(RuntimeError::refused(format!("container {id} was started before")));
        }
        let sandbox = self.sandboxes.get(&container.sandbox);
        if sandbox.is_none_or(|s| s.state != SandboxState::Ready) {
            self.fail_start(id, "its sandbox is not ready", now);
            return Err(RuntimeError::refused(format!(
                "the sandbox of container {id} is not ready"
            )));
        }
        if let Some(reason) = container.program.start_error.clone() {
            self.fail_start(id, &reason, now);
            return Err(RuntimeError::refused(reason));
        }
        let twin = self.containers_of(&uid).into_iter().find(|other| {
            let other = &self.containers[other];
            other.config.name == name && other.state == ContainerState::Running
        });
        if let Some(twin) = twin {
            let twin = self.containers[&twin].id.clone();
            self.violation(format!(
                "start_container {id} ({name} of pod {uid}) while {twin} of that name runs"
            ));
        }
        self.set_running(n, now);
        Ok(Made::Nothing)
    }

    fn must_be_marked(&mut self, marked: bool, op: &str, id: &str) {
        if !marked {
            self.violation(format!("{op} {id}, which has no label {}", label::POD_UID));
        }
    }
}

pub(crate) fn no_sandbox(id: &SandboxId) -> RuntimeError {
    RuntimeError::not_found(format!("sandbox {id}"))
}

pub(crate) fn no_container(id: &ContainerId) -> RuntimeError {
    RuntimeError::not_found(format!("container {id}"))
}
