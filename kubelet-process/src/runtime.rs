//! The runtime as the engine sees it.

mod container;
mod convert;
mod exec;
mod index;
mod launch;
mod open;

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::{self, BoxStream};
use kubelet_core::{
    Clock, ContainerId, ContainerRecord, ContainerRuntime, ContainerStatus, CreateContainer, ExecOutput, ExecRequest,
    NamespaceMode, PodKey, PodUid, RuntimeError, RuntimeHint, RuntimeInfo, SandboxConfig, SandboxId, SandboxRecord,
    SandboxStatus, Scope,
};
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::init::Supervisor;
use crate::record::{START_REASON, SandboxFile};
use crate::settings::{OpenError, Settings};
use crate::state::{self, ContainerDir};
use crate::{host, image};

use container::{Container, Follow, Phase, follow};
use convert::{Agent, container_file};
use index::{Index, Sandbox, container_not_found, covers, sandbox_not_found};
use open::{Opened, containers_dir, sandboxes_dir};

/// Hints that a slow listener may lag behind before it is told that it lost some.
const HINTS: usize = 256;

/// Runs pods as supervised processes of the host.
///
/// Dropping it leaves supervised containers alone, and kills those that it supervises itself.
#[derive(Debug)]
pub struct ProcessRuntime {
    shared: Arc<Shared>,
    /// One task per running container. They are aborted when the runtime is dropped.
    tasks: Mutex<JoinSet<()>>,
    /// Closed when the runtime is dropped, however that comes about.
    _alive: PipeWriter,
    _lock: File,
}

/// What calls and tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) supervisor: Option<Supervisor>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) agent_alive: PipeReader,
    agent: Agent,
    state_dir: PathBuf,
    images_dir: PathBuf,
    boot_id: String,
    node_ip: IpAddr,
    index: Mutex<Index>,
    hints: broadcast::Sender<RuntimeHint>,
}

impl Shared {
    pub(crate) fn hint(&self, pod_uid: &PodUid) {
        // Nobody listening is no error: who begins to listen lists.
        let _ = self.hints.send(RuntimeHint::Pod(pod_uid.clone()));
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // Every change is one insertion or removal, so that a panic elsewhere leaves nothing half done.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn container(&self, id: &ContainerId) -> Option<Arc<Container>> {
        self.index().containers.get(id).cloned()
    }
}

impl ProcessRuntime {
    /// Opens a state directory, adopts what an earlier agent left running, and ends what lost its supervisor.
    ///
    /// Without a `supervisor`, containers are supervised on threads of this process and end with it.
    ///
    /// # Errors
    /// [`OpenError`] if another runtime uses the folder, or it cannot be used.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O and time drivers enabled.
    pub async fn open(supervisor: Option<Supervisor>, settings: Settings) -> Result<Arc<Self>, OpenError> {
        let unusable = |err: io::Error| OpenError::StateDir {
            path: settings.state_dir.clone(),
            source: err.into(),
        };
        let now = settings.clock.now();
        let opened = {
            let (state_dir, images_dir) = (settings.state_dir.clone(), settings.images_dir.clone());
            tokio::task::spawn_blocking(move || open::open(&state_dir, &images_dir, now))
        };
        let opened: Opened = opened.await.map_err(|err| unusable(err.into()))??;
        let (agent_alive, alive) = io::pipe().map_err(unusable)?;
        let shared = Arc::new(Shared {
            supervisor,
            clock: settings.clock,
            agent_alive,
            agent: Agent::current(),
            state_dir: opened.state_dir,
            images_dir: opened.images_dir,
            boot_id: opened.boot_id,
            node_ip: settings.node_ip.unwrap_or_else(host::primary_address),
            index: Mutex::new(opened.index),
            hints: broadcast::Sender::new(HINTS),
        });
        let runtime = Arc::new(Self {
            shared,
            tasks: Mutex::new(JoinSet::new()),
            _alive: alive,
            _lock: opened.lock,
        });
        for container in opened.alive {
            runtime.follow(container, Follow::Adopt);
        }
        Ok(runtime)
    }

    /// Stops the containers that would not outlive this process, each with that grace. Where a supervisor was given these
    /// are none.
    ///
    /// # Cancellation
    /// Those that were asked to stop may still do so.
    pub async fn shutdown(&self, grace: Duration) {
        if self.shared.supervisor.is_some() {
            return;
        }
        let all: Vec<_> = self.shared.index().containers.values().cloned().collect();
        // One that was adopted has a supervisor of its own, and goes on.
        let ours = all
            .iter()
            .filter(|container| !matches!(container.dir.supervisor(), Ok(Some(_))));
        join_all(ours.map(|container| container.stop(grace))).await;
    }

    pub(crate) fn images_dir(&self) -> &Path {
        &self.shared.images_dir
    }

    pub(crate) fn state_dir(&self) -> &Path {
        &self.shared.state_dir
    }

    fn follow(&self, container: Arc<Container>, from: Follow) {
        let span = tracing::info_span!("container", id = %container.id, name = container.file.name);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended are taken out here, since nobody waits for them.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(follow(self.shared.clone(), container, from).instrument(span));
    }

    async fn remove(&self, container: &Container) -> Result<(), RuntimeError> {
        container.stop(Duration::ZERO).await;
        let (parent, id) = (containers_dir(&self.shared.state_dir), container.dir.id());
        blocking("remove_container", move || state::remove(&parent, &id)).await?;
        self.shared.index().containers.remove(&container.id);
        self.shared.hint(&container.file.pod_uid);
        Ok(())
    }
}

/// Does what waits for the disk elsewhere.
pub(crate) async fn blocking<T: Send + 'static>(
    op: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(err)) => Err(RuntimeError::unavailable(op, err)),
        Err(err) => Err(RuntimeError::uncertain(op, err)),
    }
}

fn new_id() -> io::Result<String> {
    // Not from a seed: ids tell whose processes are whose on the whole host, in whatever runtime.
    let mut bytes = [0u8; 32];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[async_trait]
impl ContainerRuntime for ProcessRuntime {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        let mut info = RuntimeInfo::new("process", env!("CARGO_PKG_VERSION"));
        info.survives_restart = self.shared.supervisor.is_some();
        info.makes_container_cgroups = false;
        info.updates_resources = false;
        Ok(info)
    }

    async fn list_sandboxes(&self, of: Scope<'_>) -> Result<Vec<SandboxRecord>, RuntimeError> {
        let index = self.shared.index();
        let sandboxes = index.sandboxes.values();
        Ok(sandboxes
            .filter(|sandbox| covers(of, &sandbox.file.pod_uid))
            .map(Sandbox::record)
            .collect())
    }

    async fn list_containers(&self, of: Scope<'_>) -> Result<Vec<ContainerRecord>, RuntimeError> {
        let index = self.shared.index();
        let containers = index.containers.values();
        Ok(containers
            .filter(|container| covers(of, &container.file.pod_uid))
            .map(|container| container.record())
            .collect())
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError> {
        let index = self.shared.index();
        let sandbox = index.sandboxes.get(id).ok_or_else(|| sandbox_not_found(id))?;
        let file = &sandbox.file;
        let mut status = SandboxStatus::new(
            id.clone(),
            file.pod_uid.clone(),
            PodKey::new(file.namespace.as_str(), file.name.as_str()),
            file.attempt,
            sandbox.state(),
            file.created_at,
        );
        // What was asked for, although all share the host's: a sandbox that told otherwise would be replaced. For the same
        // reason every pod has an address.
        status.host_network = file.host_network;
        status.ips = vec![self.shared.node_ip];
        status.handler = file.handler.clone();
        status.labels = file.labels.clone();
        status.annotations = file.annotations.clone();
        let containers = index.containers_of(id);
        status.containers = Some(containers.iter().map(|container| container.status()).collect());
        Ok(status)
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError> {
        match self.shared.container(id) {
            Some(container) => Ok(container.status()),
            None => Err(container_not_found(id)),
        }
    }

    async fn run_sandbox(&self, config: &SandboxConfig, handler: &str) -> Result<SandboxId, RuntimeError> {
        const OP: &str = "run_sandbox";
        if !handler.is_empty() {
            return Err(RuntimeError::refused(format!(
                "there is no runtime handler {handler:?}"
            )));
        }
        if !config.sysctls.is_empty() {
            return Err(RuntimeError::refused(
                "sysctls would be those of the host: the process runtime has no namespaces",
            ));
        }
        self.shared.index().sandbox_is_free(&config.pod_uid, config.attempt)?;
        let file = SandboxFile {
            pod_uid: config.pod_uid.clone(),
            namespace: config.key.namespace.to_string(),
            name: config.key.name.to_string(),
            attempt: config.attempt,
            boot_id: self.shared.boot_id.clone(),
            created_at: self.shared.clock.now(),
            handler: handler.to_owned(),
            host_network: config.security.namespaces.network == NamespaceMode::Node,
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        };
        let file = Arc::new(file);
        let parent = sandboxes_dir(&self.shared.state_dir);
        let (id, dir) = {
            let file = file.clone();
            blocking(OP, move || {
                let id = new_id()?;
                let dir = state::create_with_config(&parent, &id, &*file)?;
                Ok((SandboxId::from(id), dir))
            })
            .await?
        };
        let sandbox = Sandbox {
            id: id.clone(),
            file,
            dir,
            ready: true,
        };
        self.shared.index().sandboxes.insert(id.clone(), sandbox);
        self.shared.hint(&config.pod_uid);
        Ok(id)
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let dir = self.shared.index().sandboxes.get(id).map(|sandbox| sandbox.dir.clone());
        let Some(dir) = dir else { return Ok(()) };
        let marked = blocking("stop_sandbox", move || state::mark_stopped(&dir)).await;
        let containers = {
            let mut index = self.shared.index();
            let Some(sandbox) = index.sandboxes.get_mut(id) else {
                // Removed meanwhile.
                return Ok(());
            };
            marked?;
            // From here on nothing can be started in it: a start is claimed under the same lock.
            if std::mem::replace(&mut sandbox.ready, false) {
                self.shared.hint(&sandbox.file.pod_uid);
            }
            index.containers_of(id)
        };
        join_all(containers.iter().map(|container| container.stop(Duration::ZERO))).await;
        Ok(())
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.stop_sandbox(id).await?;
        let containers = self.shared.index().containers_of(id);
        for container in containers {
            self.remove(&container).await?;
        }
        let (parent, name) = (sandboxes_dir(&self.shared.state_dir), id.to_string());
        let known = self.shared.index().sandboxes.contains_key(id);
        // Only what we know is removed: an id is not a path.
        if known {
            blocking("remove_sandbox", move || state::remove(&parent, &name)).await?;
            let removed = self.shared.index().sandboxes.remove(id);
            if let Some(sandbox) = removed {
                self.shared.hint(&sandbox.file.pod_uid);
            }
        }
        Ok(())
    }

    async fn create_container(&self, req: CreateContainer<'_>) -> Result<ContainerId, RuntimeError> {
        const OP: &str = "create_container";
        let shared = &self.shared;
        let config = req.container;
        {
            let index = shared.index();
            index.sandbox_is_ready(req.sandbox_id)?;
            index.container_is_free(&req.sandbox.pod_uid, &config.name, config.attempt)?;
        }
        let image = {
            let (dir, image) = (shared.images_dir.clone(), config.image.clone());
            blocking(OP, move || Ok(image::find(&dir, &image))).await?
        };
        let image = image.map_err(RuntimeError::refused)?;
        let file = container_file(&shared.agent, &req, image, &shared.boot_id, shared.clock.now())?;
        let parent = containers_dir(&shared.state_dir);
        let (file, dir) = blocking(OP, move || {
            let dir = state::create_with_config(&parent, &new_id()?, &file)?;
            Ok((file, ContainerDir::new(dir)))
        })
        .await?;
        let container = Arc::new(Container::new(file, dir, Phase::Created));
        let id = container.id.clone();
        let added = {
            let mut index = shared.index();
            // Looked at again under the lock: the sandbox may have been stopped meanwhile.
            let still = index.sandbox_is_ready(req.sandbox_id);
            if still.is_ok() {
                index.containers.insert(id.clone(), container.clone());
            }
            still
        };
        if let Err(err) = added {
            self.remove(&container).await?;
            return Err(err);
        }
        shared.hint(&req.sandbox.pod_uid);
        Ok(id)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let container = self.shared.index().claim_start(id)?;
        // In a task of its own, so that a start goes on, and is followed, when this future is dropped.
        self.follow(container.clone(), Follow::Start);
        match container.reach(|phase| !matches!(phase, Phase::Starting)).await {
            Phase::Exited(_, exit) if exit.reason == START_REASON => Err(RuntimeError::refused(exit.message)),
            _ => Ok(()),
        }
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        if let Some(container) = self.shared.container(id) {
            container.stop(grace).await;
        }
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.shared.container(id) {
            Some(container) => self.remove(&container).await,
            None => Ok(()),
        }
    }

    async fn exec(&self, id: &ContainerId, req: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        match self.shared.container(id) {
            Some(container) => exec::exec(&container, req).await,
            None => Err(container_not_found(id)),
        }
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.shared.container(id) {
            Some(container) => container.reopen_log().await,
            None => Err(container_not_found(id)),
        }
    }

    fn events(&self) -> BoxStream<'static, Result<RuntimeHint, RuntimeError>> {
        let hints = self.shared.hints.subscribe();
        let later = stream::unfold(hints, |mut hints| async move {
            match hints.recv().await {
                Ok(hint) => Some((Ok(hint), hints)),
                Err(broadcast::error::RecvError::Lagged(_)) => Some((Ok(RuntimeHint::Lost), hints)),
                // The runtime was dropped.
                Err(broadcast::error::RecvError::Closed) => None,
            }
        });
        stream::once(async { Ok(RuntimeHint::Ready) }).chain(later).boxed()
    }
}
