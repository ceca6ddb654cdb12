//! The runtime seam: what the engine asks of whatever runs containers.

mod auth;
mod config;
mod error;
mod image;
mod info;
mod labels;
mod mount;
mod record;
mod resources;
mod status;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::ids::{ContainerId, PodUid, SandboxId};

pub use auth::RegistryAuth;
pub use config::{
    ContainerConfig, CreateContainer, ExecOutput, ExecRequest, LinuxSecurity, NamespaceMode, Namespaces, PortMapping,
    PortProtocol, SandboxConfig, SecurityProfile, SelinuxOptions,
};
pub use error::RuntimeError;
pub use image::{
    IgnoreProgress, ImageFilesystems, ImageRecord, ImageRef, ImageService, ImageSpace, PullProgress, PullRequest,
};
pub use info::{
    CgroupDriver, ImageMounts, NETWORK_READY, RUNTIME_READY, RuntimeCondition, RuntimeHandler, RuntimeInfo,
};
pub use labels::{ContainerAnnotations, annotation, label};
pub use mount::{Device, IdMapping, ImageMount, Mount, MountError, MountPropagation, UserNamespace};
pub use record::{ContainerRecord, ContainerState, SandboxRecord, SandboxState};
pub use resources::LinuxResources;
pub use status::{ContainerStatus, SandboxStatus};

/// Which objects a list call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Every object that carries our mark.
    All,
    /// Those of one pod.
    Pod(&'a PodUid),
}

/// What an update of resources is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// One container.
    Container(&'a ContainerId),
    /// A pod's sandbox: all of the pod but its overhead, as in [`SandboxConfig::resources`].
    Sandbox {
        /// The sandbox.
        id: &'a SandboxId,
        /// What the pod costs beside its containers, as in [`SandboxConfig::overhead`].
        overhead: Option<&'a LinuxResources>,
    },
}

/// Says that something happened to a pod, so that it is looked at. Carries no truth.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuntimeHint {
    /// The stream works; always its first item.
    Ready,
    /// Look at this pod.
    Pod(PodUid),
    /// Hints were lost: look at everything.
    Lost,
}

/// Starts, stops and reports sandboxes and containers for the engine.
///
/// # Contract
/// - Only objects with our mark (the label [`label::POD_UID`]) are listed or touched.
/// - Calls are repeated after a crash: stopping or removing what is gone succeeds.
/// - Reads, exec and stop may overlap anything; create, start, update and remove come one at a time per container,
///   `run_sandbox` one at a time per pod.
/// - A second stop with less grace takes effect while the first still waits.
/// - A call that returned success shows in every list begun later.
/// - Containers are created in a sandbox that is ready; stopping a sandbox kills what still runs in it.
/// - Removing a running container or sandbox stops it first.
/// - [`RuntimeError::Taken`] means that an object of this pod, name and attempt exists: it can be found in a list.
/// - [`RuntimeError::Uncertain`] means that the call may still happen: the engine looks before it repeats.
#[async_trait]
pub trait ContainerRuntime: fmt::Debug + Send + Sync + 'static {
    /// Name, version, conditions and abilities.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] if there was no answer.
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError>;

    /// The sandboxes with our mark, in any state and order.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] if there was no answer: never an empty list instead.
    async fn list_sandboxes(&self, of: Scope<'_>) -> Result<Vec<SandboxRecord>, RuntimeError>;

    /// The containers with our mark, in any state and order. Labels and annotations come only with a status.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] if there was no answer: never an empty list instead.
    async fn list_containers(&self, of: Scope<'_>) -> Result<Vec<ContainerRecord>, RuntimeError>;

    /// One sandbox in full; may bring the statuses of its containers.
    ///
    /// # Errors
    /// [`RuntimeError::NotFound`] if it is gone.
    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError>;

    /// One container in full.
    ///
    /// # Errors
    /// [`RuntimeError::NotFound`] if it is gone.
    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError>;

    /// Makes and starts a pod's sandbox, with the runtime handler of that name (empty: the default one).
    ///
    /// # Errors
    /// [`RuntimeError::Taken`] if one of this UID and attempt exists, [`RuntimeError::Uncertain`] if it may yet appear.
    ///
    /// # Cancellation
    /// Not dropped by the engine while it runs, unless the kubelet itself ends.
    async fn run_sandbox(&self, config: &SandboxConfig, handler: &str) -> Result<SandboxId, RuntimeError>;

    /// Stops a sandbox and kills what still runs in it. One that is gone is no error.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] or [`RuntimeError::Uncertain`]; repeating is safe.
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError>;

    /// Removes a sandbox and its containers. One that is gone is no error.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] or [`RuntimeError::Uncertain`]; repeating is safe.
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError>;

    /// Creates a container, without starting it.
    ///
    /// # Errors
    /// [`RuntimeError::Taken`] if one of this pod, name and attempt exists, [`RuntimeError::Refused`] if the config
    /// cannot work.
    async fn create_container(&self, req: CreateContainer<'_>) -> Result<ContainerId, RuntimeError>;

    /// Starts a created container. A container starts at most once: it is created anew to run again.
    ///
    /// # Errors
    /// [`RuntimeError::Refused`] if it cannot be started; it is then exited, with the reason in its status.
    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// Stops a container, killing it once `grace` has passed; zero kills at once. Returns when it has ended.
    ///
    /// Source: CRI v1 `StopContainer`, which counts whole seconds, so that `grace` may be rounded up.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] or [`RuntimeError::Uncertain`]. A container that is gone is no error.
    ///
    /// # Cancellation
    /// A dropped call may still stop the container; repeating it is safe.
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError>;

    /// Removes a container, killing it if it runs. One that is gone is no error. Its logs are kept.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] or [`RuntimeError::Uncertain`]; repeating is safe.
    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// Runs a command in a running container and collects its output. Ends at the request's own timeout, whatever happens.
    ///
    /// # Errors
    /// [`RuntimeError::NotFound`] if the container is gone, [`RuntimeError::Refused`] if the command cannot be started
    /// or the container does not run. A timeout is not an error: [`ExecOutput::timed_out`] is set.
    async fn exec(&self, id: &ContainerId, req: ExecRequest) -> Result<ExecOutput, RuntimeError>;

    /// Changes the limits of a running container or sandbox.
    ///
    /// A sandbox is asked about before the cgroup of its pod is changed, and asked about once more, with what it had, if that
    /// fails. Whoever has nothing to do with it says [`RuntimeError::Unsupported`], and is not minded.
    ///
    /// # Errors
    /// [`RuntimeError::Unsupported`] if this runtime cannot, which is the default.
    async fn update_resources(&self, of: Target<'_>, to: &LinuxResources) -> Result<(), RuntimeError> {
        let _ = (of, to);
        Err(RuntimeError::unsupported("update_resources"))
    }

    /// Makes the writer of a container's log open its path anew, after a rotation.
    ///
    /// # Errors
    /// [`RuntimeError::Unsupported`] if this runtime cannot, which is the default.
    async fn reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let _ = id;
        Err(RuntimeError::unsupported("reopen_log"))
    }

    /// Hints that something happened. The first item is [`RuntimeHint::Ready`], or the stream ends with
    /// [`RuntimeError::Unsupported`], after which the caller relists for good. Any other end or error item means:
    /// reconnect with back-off. A gap shows as [`RuntimeHint::Lost`].
    fn events(&self) -> BoxStream<'static, Result<RuntimeHint, RuntimeError>>;
}

macro_rules! forward_runtime {
    ($($wrapper:ty),*) => { $(
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<T: ContainerRuntime + ?Sized> ContainerRuntime for $wrapper {
            async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
                (**self).info().await
            }
            async fn list_sandboxes(&self, of: Scope<'_>) -> Result<Vec<SandboxRecord>, RuntimeError> {
                (**self).list_sandboxes(of).await
            }
            async fn list_containers(&self, of: Scope<'_>) -> Result<Vec<ContainerRecord>, RuntimeError> {
                (**self).list_containers(of).await
            }
            async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError> {
                (**self).sandbox_status(id).await
            }
            async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError> {
                (**self).container_status(id).await
            }
            async fn run_sandbox(&self, config: &SandboxConfig, handler: &str) -> Result<SandboxId, RuntimeError> {
                (**self).run_sandbox(config, handler).await
            }
            async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
                (**self).stop_sandbox(id).await
            }
            async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
                (**self).remove_sandbox(id).await
            }
            async fn create_container(&self, req: CreateContainer<'_>) -> Result<ContainerId, RuntimeError> {
                (**self).create_container(req).await
            }
            async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
                (**self).start_container(id).await
            }
            async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
                (**self).stop_container(id, grace).await
            }
            async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
                (**self).remove_container(id).await
            }
            async fn exec(&self, id: &ContainerId, req: ExecRequest) -> Result<ExecOutput, RuntimeError> {
                (**self).exec(id, req).await
            }
            async fn update_resources(&self, of: Target<'_>, to: &LinuxResources) -> Result<(), RuntimeError> {
                (**self).update_resources(of, to).await
            }
            async fn reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
                (**self).reopen_log(id).await
            }
            fn events(&self) -> BoxStream<'static, Result<RuntimeHint, RuntimeError>> {
                (**self).events()
            }
        }
    )* };
}

forward_runtime!(Arc<T>);

/// The image and container halves of one runtime, as [`crate::Containers`] takes them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuntimeParts {
    /// Sandboxes and containers.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Images.
    pub images: Arc<dyn ImageService>,
}

impl RuntimeParts {
    /// Joins the two halves.
    pub fn new(runtime: Arc<dyn ContainerRuntime>, images: Arc<dyn ImageService>) -> Self {
        Self { runtime, images }
    }
}

impl<T: ContainerRuntime + ImageService> From<Arc<T>> for RuntimeParts {
    fn from(both: Arc<T>) -> Self {
        Self::new(both.clone(), both)
    }
}
