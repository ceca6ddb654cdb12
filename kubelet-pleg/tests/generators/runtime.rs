//! A runtime that a test drives: scripted pods, delays and faults, counted calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc;
use futures::stream::BoxStream;
use kubelet_core::jiff::Timestamp;
use kubelet_core::{
    ContainerId, ContainerRecord, ContainerRuntime, ContainerState, ContainerStatus, CreateContainer, ExecOutput,
    ExecRequest, PodKey, PodUid, RuntimeError, RuntimeHint, RuntimeInfo, SandboxConfig, SandboxId, SandboxRecord,
    SandboxState, SandboxStatus, Scope, async_trait,
};
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) type HintResult = Result<RuntimeHint, RuntimeError>;

/// One sandbox, and containers by id.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) sandbox: SandboxState,
    pub(crate) containers: BTreeMap<String, ContainerState>,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) pods: BTreeMap<String, Pod>,
    /// Begin of each list of everything.
    pub(crate) lists: Vec<Instant>,
    /// The pods that were listed alone.
    pub(crate) pod_lists: Vec<String>,
    /// The pods whose sandbox status was fetched.
    pub(crate) inspected: Vec<String>,
    pub(crate) busy: Vec<String>,
    /// Inspections of a pod that was being inspected already.
    pub(crate) overlaps: usize,
    pub(crate) most_busy: usize,
    pub(crate) lists_fail: bool,
    /// Pods whose statuses fail.
    pub(crate) broken: BTreeSet<String>,
    /// Containers that have gone when their status is fetched.
    pub(crate) gone: BTreeSet<String>,
    /// What a status takes, by the object's id (a sandbox has its pod's); `""` stands for all other sandboxes.
    pub(crate) status_takes: BTreeMap<String, Duration>,
    /// Connections still to be made; without one, events are unsupported.
    pub(crate) streams: VecDeque<mpsc::Receiver<HintResult>>,
    pub(crate) connections: Vec<Instant>,
}

#[derive(Debug)]
pub(crate) struct Scripted {
    world: Mutex<World>,
    /// What each list takes. Lists that wait already end early when it becomes zero.
    pub(crate) list_takes: watch::Sender<Duration>,
}

impl Scripted {
    /// A runtime with `pods` pods `p000`, `p001` … of one sandbox and one running container.
    pub(crate) fn with_pods(pods: usize) -> Self {
        let scripted = Self {
            world: Mutex::default(),
            list_takes: watch::Sender::new(Duration::ZERO),
        };
        for index in 0..pods {
            scripted.start(&format!("p{index:03}"));
        }
        scripted
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Starts a pod.
    pub(crate) fn start(&self, uid: &str) {
        let pod = Pod {
            sandbox: SandboxState::Ready,
            containers: BTreeMap::from([(format!("{uid}/0"), ContainerState::Running)]),
        };
        self.world().pods.insert(uid.to_owned(), pod);
    }

    /// Sets a container's state.
    pub(crate) fn set(&self, uid: &str, container: u32, state: ContainerState) {
        let id = format!("{uid}/{container}");
        self.world().pods.get_mut(uid).unwrap().containers.insert(id, state);
    }

    pub(crate) fn remove(&self, uid: &str) {
        self.world().pods.remove(uid);
    }

    /// How often a pod was inspected.
    pub(crate) fn inspections(&self, uid: &str) -> usize {
        self.world().inspected.iter().filter(|other| *other == uid).count()
    }

    /// Waits as lists do, after its snapshot was taken: the hard case.
    async fn list_wait(&self) {
        let mut takes = self.list_takes.subscribe();
        let delay = *takes.borrow_and_update();
        if !delay.is_zero() {
            let fast = takes.wait_for(Duration::is_zero);
            let _ = tokio::time::timeout(delay, fast).await;
        }
    }

    fn listed(&self, of: Scope<'_>) -> Result<Vec<(String, Pod)>, RuntimeError> {
        let world = self.world();
        if world.lists_fail {
            return Err(RuntimeError::unavailable("list_sandboxes", "socket closed"));
        }
        let wanted = |uid: &str| match of {
            Scope::All => true,
            Scope::Pod(one) => one.as_str() == uid,
        };
        // Backwards: lists come in any order.
        let found = world.pods.iter().rev().filter(|(uid, _)| wanted(uid));
        Ok(found.map(|(uid, pod)| (uid.clone(), pod.clone())).collect())
    }
}

fn unsupported<T>() -> Result<T, RuntimeError> {
    Err(RuntimeError::unsupported("scripted"))
}

#[async_trait]
impl ContainerRuntime for Scripted {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        Ok(RuntimeInfo::new("scripted", "1"))
    }

    async fn list_sandboxes(&self, of: Scope<'_>) -> Result<Vec<SandboxRecord>, RuntimeError> {
        match of {
            Scope::All => self.world().lists.push(Instant::now()),
            Scope::Pod(uid) => self.world().pod_lists.push(uid.as_str().to_owned()),
        }
        let listed = self.listed(of);
        self.list_wait().await;
        let record = |(uid, pod): (String, Pod)| {
            let id = SandboxId::from(uid.as_str());
            SandboxRecord::new(id, PodUid::from(uid), 0, pod.sandbox, Timestamp::UNIX_EPOCH)
        };
        Ok(listed?.into_iter().map(record).collect())
    }

    async fn list_containers(&self, of: Scope<'_>) -> Result<Vec<ContainerRecord>, RuntimeError> {
        let listed = self.listed(of);
        self.list_wait().await;
        let mut records = Vec::new();
        for (uid, pod) in listed? {
            for (id, state) in pod.containers {
                records.push(ContainerRecord::new(
                    ContainerId::from(id),
                    SandboxId::from(uid.as_str()),
                    PodUid::from(uid.as_str()),
                    "app".to_owned(),
                    0,
                    state,
                    Timestamp::UNIX_EPOCH,
                ));
            }
        }
        Ok(records)
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError> {
        let uid = id.as_str();
        let takes = {
            let mut world = self.world();
            world.inspected.push(uid.to_owned());
            world.overlaps += usize::from(world.busy.iter().any(|other| other == uid));
            world.busy.push(uid.to_owned());
            world.most_busy = world.most_busy.max(world.busy.len());
            let takes = world.status_takes.get(uid).or_else(|| world.status_takes.get(""));
            takes.copied().unwrap_or_default()
        };
        // Answered late, with what was true when asked: the hard case.
        let sandbox = self.world().pods.get(uid).map(|pod| pod.sandbox);
        tokio::time::sleep(takes).await;
        {
            let mut world = self.world();
            world.busy.retain(|other| other != uid);
            if world.broken.contains(uid) {
                return Err(RuntimeError::unavailable("sandbox_status", "no answer"));
            }
        }
        let Some(sandbox) = sandbox else {
            return Err(RuntimeError::not_found(format!("sandbox {uid}")));
        };
        let key = PodKey::new("default", uid);
        let mut status = SandboxStatus::new(id.clone(), PodUid::from(uid), key, 0, sandbox, Timestamp::UNIX_EPOCH);
        status.ips = vec!["10.0.0.1".parse().unwrap()];
        Ok(status)
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError> {
        let (found, takes) = {
            let world = self.world();
            let gone = world.gone.contains(id.as_str());
            let mut containers = world.pods.values().flat_map(|pod| &pod.containers);
            let found = containers.find(|(other, _)| other.as_str() == id.as_str() && !gone);
            (
                found.map(|(_, state)| *state),
                world.status_takes.get(id.as_str()).copied(),
            )
        };
        if let Some(takes) = takes {
            tokio::time::sleep(takes).await;
        }
        let Some(state) = found else {
            return Err(RuntimeError::not_found(format!("container {id}")));
        };
        Ok(ContainerStatus::new(
            id.clone(),
            "app".to_owned(),
            0,
            state,
            Timestamp::UNIX_EPOCH,
        ))
    }

    async fn run_sandbox(&self, _: &SandboxConfig, _: &str) -> Result<SandboxId, RuntimeError> {
        unsupported()
    }
    async fn stop_sandbox(&self, _: &SandboxId) -> Result<(), RuntimeError> {
        unsupported()
    }
    async fn remove_sandbox(&self, _: &SandboxId) -> Result<(), RuntimeError> {
        unsupported()
    }
    async fn create_container(&self, _: CreateContainer<'_>) -> Result<ContainerId, RuntimeError> {
        unsupported()
    }
    async fn start_container(&self, _: &ContainerId) -> Result<(), RuntimeError> {
        unsupported()
    }
    async fn stop_container(&self, _: &ContainerId, _: Duration) -> Result<(), RuntimeError> {
        unsupported()
    }
    async fn remove_container(&self, _: &ContainerId) -> Result<(), RuntimeError> {
        unsupported()
    }
    async fn exec(&self, _: &ContainerId, _: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        unsupported()
    }

    fn events(&self) -> BoxStream<'static, HintResult> {
        let mut world = self.world();
        world.connections.push(Instant::now());
        match world.streams.pop_front() {
            Some(stream) => stream.boxed(),
            None => futures::stream::iter([unsupported()]).boxed(),
        }
    }
}
