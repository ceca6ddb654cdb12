//! Short records: what a relist compares.

use k8s_openapi::jiff::Timestamp;

use crate::ids::{ContainerId, PodKey, PodUid, SandboxId};

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SandboxState {
    /// It holds the pod's namespaces; containers can be made in it.
    Ready,
    /// It has ended or been stopped.
    NotReady,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ContainerState {
    /// Made and not started.
    Created,
    /// Its process runs.
    Running,
    /// Its process has ended, or could not be started.
    Exited,
    /// The runtime cannot tell.
    Unknown,
}

/// A sandbox, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SandboxRecord {
    /// Its id.
    pub id: SandboxId,
    /// The pod that it belongs to, from the label [`label::POD_UID`](crate::label::POD_UID).
    pub pod_uid: PodUid,
    /// That pod's namespace and name, where the list tells them. No static pod starts beside another one of its name; of
    /// one that cannot be inspected, nothing but this says how it is called.
    pub key: Option<PodKey>,
    /// How many sandboxes of the pod came before it.
    pub attempt: u32,
    /// Its state.
    pub state: SandboxState,
    /// When it was made.
    pub created_at: Timestamp,
}

impl SandboxRecord {
    /// A record of a sandbox, without its pod's [key](Self::key).
    #[must_use]
    pub fn new(id: SandboxId, pod_uid: PodUid, attempt: u32, state: SandboxState, created_at: Timestamp) -> Self {
        Self {
            id,
            pod_uid,
            key: None,
            attempt,
            state,
            created_at,
        }
    }

    /// The same, of a pod of this namespace and name.
    #[must_use]
    pub fn with_key(mut self, key: PodKey) -> Self {
        self.key = Some(key);
        self
    }
}

/// A container, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerRecord {
    /// Its id.
    pub id: ContainerId,
    /// The sandbox that it was made in.
    pub sandbox_id: SandboxId,
    /// The pod that it belongs to, from the label [`label::POD_UID`](crate::label::POD_UID).
    pub pod_uid: PodUid,
    /// Its name in the pod's spec.
    pub name: String,
    /// How many containers of this name came before it in this pod.
    pub attempt: u32,
    /// Its state.
    pub state: ContainerState,
    /// When it was made.
    pub created_at: Timestamp,
}

impl ContainerRecord {
    /// A record of a container.
    #[must_use]
    pub fn new(
        id: ContainerId,
        sandbox_id: SandboxId,
        pod_uid: PodUid,
        name: String,
        attempt: u32,
        state: ContainerState,
        created_at: Timestamp,
    ) -> Self {
        Self {
            id,
            sandbox_id,
            pod_uid,
            name,
            attempt,
            state,
            created_at,
        }
    }
}
