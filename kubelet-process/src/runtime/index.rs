//! What exists, in memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kubelet_core::{ContainerId, PodKey, PodUid, RuntimeError, SandboxId, SandboxRecord, SandboxState, Scope};

use crate::record::SandboxFile;
use crate::runtime::container::{Container, Phase};

/// A sandbox that exists.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) file: Arc<SandboxFile>,
    pub(crate) dir: PathBuf,
    pub(crate) ready: bool,
}

impl Sandbox {
    pub(crate) fn state(&self) -> SandboxState {
        if self.ready {
            SandboxState::Ready
        } else {
            SandboxState::NotReady
        }
    }

    pub(crate) fn record(&self) -> SandboxRecord {
        SandboxRecord::new(
            self.id.clone(),
            self.file.pod_uid.clone(),
            self.file.attempt,
            self.state(),
            self.file.created_at,
        )
        .with_key(PodKey::new(&*self.file.namespace, &*self.file.name))
    }
}

/// Sandboxes and containers by id.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) sandboxes: BTreeMap<SandboxId, Sandbox>,
    pub(crate) containers: BTreeMap<ContainerId, Arc<Container>>,
}

impl Index {
    pub(crate) fn sandbox_is_free(&self, pod_uid: &PodUid, attempt: u32) -> Result<(), RuntimeError> {
        let mut sandboxes = self.sandboxes.values();
        match sandboxes.find(|sandbox| sandbox.file.pod_uid == *pod_uid && sandbox.file.attempt == attempt) {
            None => Ok(()),
            Some(_) => Err(RuntimeError::Taken {
                what: format!("sandbox {attempt} of pod {pod_uid}"),
            }),
        }
    }

    pub(crate) fn container_is_free(&self, pod_uid: &PodUid, name: &str, attempt: u32) -> Result<(), RuntimeError> {
        let mut containers = self.containers.values();
        let same = |file: &crate::record::ContainerFile| {
            file.pod_uid == *pod_uid && file.name == name && file.attempt == attempt
        };
        match containers.find(|container| same(&container.file)) {
            None => Ok(()),
            Some(_) => Err(RuntimeError::Taken {
                what: format!("container {name} {attempt} of pod {pod_uid}"),
            }),
        }
    }

    /// Whether containers may be made and started in a sandbox.
    pub(crate) fn sandbox_is_ready(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        match self.sandboxes.get(id) {
            None => Err(sandbox_not_found(id)),
            Some(sandbox) if sandbox.ready => Ok(()),
            Some(_) => Err(RuntimeError::refused(format!("sandbox {id} is not ready"))),
        }
    }

    /// Claims the one start of a container.
    pub(crate) fn claim_start(&self, id: &ContainerId) -> Result<Arc<Container>, RuntimeError> {
        let container = self.containers.get(id).ok_or_else(|| container_not_found(id))?;
        self.sandbox_is_ready(&container.file.sandbox_id)?;
        let claimed = container.phase.send_if_modified(|phase| {
            let created = matches!(phase, Phase::Created);
            if created {
                *phase = Phase::Starting;
            }
            created
        });
        if claimed {
            Ok(container.clone())
        } else {
            Err(RuntimeError::refused(format!("container {id} was started before")))
        }
    }

    pub(crate) fn containers_of(&self, id: &SandboxId) -> Vec<Arc<Container>> {
        self.containers
            .values()
            .filter(|container| container.file.sandbox_id == *id)
            .cloned()
            .collect()
    }
}

/// Whether a list is about this pod.
pub(crate) fn covers(of: Scope<'_>, pod_uid: &PodUid) -> bool {
    match of {
        Scope::All => true,
        Scope::Pod(wanted) => wanted == pod_uid,
    }
}

pub(crate) fn sandbox_not_found(id: &SandboxId) -> RuntimeError {
    RuntimeError::not_found(format!("sandbox {id}"))
}

pub(crate) fn container_not_found(id: &ContainerId) -> RuntimeError {
    RuntimeError::not_found(format!("container {id}"))
}
