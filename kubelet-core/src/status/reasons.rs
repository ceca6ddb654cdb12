//! Reasons and messages of statuses, and why starts failed.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Reasons that statuses of pods and containers carry.
///
/// Source: kubelet 1.36; kept byte for byte, since people and controllers look for them.
pub mod reason {
    /// A container waits to be made.
    pub const CONTAINER_CREATING: &str = "ContainerCreating";
    /// A container waits for the pod's init containers, or is one that waits for its turn.
    pub const POD_INITIALIZING: &str = "PodInitializing";
    /// A container ended with code 0.
    pub const COMPLETED: &str = "Completed";
    /// How a container ended is not known.
    pub const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
    /// The runtime could not run the container's command.
    pub const CONTAINER_CANNOT_RUN: &str = "ContainerCannotRun";
    /// A container was removed so that all containers of its pod start anew.
    pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";

    /// An image could not be pulled.
    pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
    /// An image could not be pulled, and the next try waits.
    pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
    /// An image is absent and must not be pulled.
    pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
    /// An image's name cannot be understood.
    pub const INVALID_IMAGE_NAME: &str = "InvalidImageName";
    /// The image service could not be asked about an image.
    pub const IMAGE_INSPECT_ERROR: &str = "ImageInspectError";
    /// The registry of an image does not answer.
    pub const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
    /// An image's signature is not accepted.
    pub const SIGNATURE_VALIDATION_FAILED: &str = "SignatureValidationFailed";
    /// The sandbox that the container is to be made in could not be made. Upstream only tells an event of that.
    pub const CREATE_POD_SANDBOX_ERROR: &str = "CreatePodSandboxError";
    /// What the container is to be made from could not be put together.
    pub const CREATE_CONTAINER_CONFIG_ERROR: &str = "CreateContainerConfigError";
    /// Preparing the making of a container failed.
    pub const PRE_CREATE_HOOK_ERROR: &str = "PreCreateHookError";
    /// The runtime could not make the container.
    pub const CREATE_CONTAINER_ERROR: &str = "CreateContainerError";
    /// Preparing the start of a container failed.
    pub const PRE_START_HOOK_ERROR: &str = "PreStartHookError";
    /// The runtime could not start the container.
    pub const RUN_CONTAINER_ERROR: &str = "RunContainerError";
    /// The container's post-start hook failed.
    pub const POST_START_HOOK_ERROR: &str = "PostStartHookError";
    /// The container ended before, and its next start waits.
    pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";

    /// The pod was active for longer than it may be.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";

    /// Of a condition: the pod succeeded.
    pub const POD_COMPLETED: &str = "PodCompleted";
    /// Of a condition: the pod failed.
    pub const POD_FAILED: &str = "PodFailed";
    /// Of a condition: there are no container statuses.
    pub const UNKNOWN_CONTAINER_STATUSES: &str = "UnknownContainerStatuses";
    /// Of a condition: init containers are not done.
    pub const CONTAINERS_NOT_INITIALIZED: &str = "ContainersNotInitialized";
    /// Of a condition: containers are not ready.
    pub const CONTAINERS_NOT_READY: &str = "ContainersNotReady";
    /// Of a condition: readiness gates are not open.
    pub const READINESS_GATES_NOT_READY: &str = "ReadinessGatesNotReady";
    /// Of a condition: a container's end asks for a restart of all.
    pub const RESTART_ALL_CONTAINERS_STARTED: &str = "RestartAllContainersStarted";
    /// Of a condition: this agent ends the pod for the node's sake.
    pub const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";
}

/// Exit code of a container of which nobody knows how it ended: that of a killed one.
pub(super) const UNKNOWN_EXIT_CODE: i32 = 137;
pub(super) const LOST_WHEN_TERMINATED: &str = "The container could not be located when the pod was terminated";
pub(super) const LOST_WHEN_DELETED: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
pub(super) const INIT_TAKEN_AS_DONE: &str = "Unable to get init container status from container runtime and pod has \
                                             been initialized, treat it as exited normally";
pub(super) const REMOVED_TO_RESTART_ALL: &str = "The container was removed because all containers of the pod restart";
pub(super) const RESTART_ALL_STARTED: &str = "container exited with restart policy rule";
pub(super) const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// Why the last start of a container failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartReason {
    /// One word, one of those in [`reason`].
    pub reason: Cow<'static, str>,
    /// What happened, for people.
    pub message: String,
}

impl StartReason {
    /// A reason with its message.
    pub fn new(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// By container name, why its last start failed. A container whose last start succeeded is not in it.
pub type StartReasons = BTreeMap<String, StartReason>;
