//! Cgroups that exist in memory alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubelet_core::{
    CgroupContext, CgroupError, ContainerCgroup, LinuxResources, NodeLimits, PodCgroups, PodLimits, PodRecord, PodUid,
    async_trait,
};

/// A call of [`PodCgroups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CgroupOp {
    /// `open`.
    Open,
    /// `enforce`.
    Enforce,
    /// `exists`.
    Exists,
    /// `apply`.
    Apply,
    /// `container`.
    Container,
    /// `list`.
    List,
    /// `destroy`.
    Destroy,
}

/// What was asked of [`FakeCgroups`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CgroupCall {
    /// The call.
    pub op: CgroupOp,
    /// The pod that it was about.
    pub pod: Option<PodUid>,
    /// The limits that were to be applied.
    pub limits: Option<PodLimits>,
}

#[derive(Debug, Default)]
struct PodCgroup {
    owner: String,
    limits: Option<PodLimits>,
    containers: BTreeMap<String, LinuxResources>,
    processes: BTreeSet<String>,
}

/// What outlives an agent.
#[derive(Debug, Default)]
struct World {
    pods: BTreeMap<PodUid, PodCgroup>,
    node: Option<NodeLimits>,
    calls: Vec<CgroupCall>,
    /// How often calls are yet to fail.
    faults: BTreeMap<CgroupOp, u32>,
    immortal: BTreeSet<PodUid>,
}

/// An in-memory [`PodCgroups`]. A clone is another handle to the same one; [`next_life`](Self::next_life) is one that has not been
/// opened yet, over the same cgroups.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use kubelet_core::{CgroupContext, CgroupDriver, PodCgroups, PodUid};
/// use kubelet_testing::{CgroupOp, FakeCgroups};
///
/// let cgroups = FakeCgroups::new();
/// cgroups.add_orphan(&PodUid::from("u1"), "me");
/// cgroups.fail(CgroupOp::Open, 1);
/// let context = CgroupContext::new(CgroupDriver::Cgroupfs, "me");
/// assert!(cgroups.open(&context).await.is_err());
/// cgroups.open(&context).await.unwrap();
/// assert_eq!(cgroups.list().await.unwrap(), [PodUid::from("u1")]);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct FakeCgroups {
    world: Arc<Mutex<World>>,
    context: Arc<Mutex<Option<CgroupContext>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeCgroups {
    /// A machine without any.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the next life of the agent finds.
    #[must_use]
    pub fn next_life(&self) -> Self {
        Self {
            world: self.world.clone(),
            context: Arc::default(),
        }
    }

    /// Lets the next calls of that kind fail.
    pub fn fail(&self, op: CgroupOp, times: u32) {
        lock(&self.world).faults.insert(op, times);
    }

    /// The cgroup of a pod that nobody knows, with a process in it.
    pub fn add_orphan(&self, uid: &PodUid, owner: &str) {
        let cgroup = PodCgroup {
            owner: owner.to_owned(),
            processes: BTreeSet::from(["orphan".to_owned()]),
            ..PodCgroup::default()
        };
        lock(&self.world).pods.insert(uid.clone(), cgroup);
    }

    /// Puts a process into the cgroup of a pod, if it is there.
    pub fn add_process(&self, uid: &PodUid, name: impl Into<String>) {
        if let Some(cgroup) = lock(&self.world).pods.get_mut(uid) {
            cgroup.processes.insert(name.into());
        }
    }

    /// The processes in the cgroup of a pod.
    #[must_use]
    pub fn processes(&self, uid: &PodUid) -> Vec<String> {
        let world = lock(&self.world);
        let processes = world.pods.get(uid).map(|cgroup| &cgroup.processes);
        processes.into_iter().flatten().cloned().collect()
    }

    /// From now on nothing in the cgroup of that pod ends, until [`let_end`](Self::let_end).
    pub fn hold(&self, uid: &PodUid) {
        lock(&self.world).immortal.insert(uid.clone());
    }

    /// Takes back [`hold`](Self::hold).
    pub fn let_end(&self, uid: &PodUid) {
        lock(&self.world).immortal.remove(uid);
    }

    /// Removes the cgroup of a pod behind everybody's back.
    pub fn remove(&self, uid: &PodUid) {
        lock(&self.world).pods.remove(uid);
    }

    /// Whether there is a cgroup of that pod.
    #[must_use]
    pub fn has(&self, uid: &PodUid) -> bool {
        lock(&self.world).pods.contains_key(uid)
    }

    /// The limits that a pod was given last.
    #[must_use]
    pub fn limits(&self, uid: &PodUid) -> Option<PodLimits> {
        lock(&self.world).pods.get(uid)?.limits.clone()
    }

    /// The limits that a container was given last.
    #[must_use]
    pub fn container_limits(&self, uid: &PodUid, container: &str) -> Option<LinuxResources> {
        lock(&self.world).pods.get(uid)?.containers.get(container).cloned()
    }

    /// The limits of the node that are enforced.
    #[must_use]
    pub fn node_limits(&self) -> Option<NodeLimits> {
        lock(&self.world).node.clone()
    }

    /// With what it was opened in this life.
    #[must_use]
    pub fn context(&self) -> Option<CgroupContext> {
        lock(&self.context).clone()
    }

    /// All calls so far, of all lives.
    #[must_use]
    pub fn calls(&self) -> Vec<CgroupCall> {
        lock(&self.world).calls.clone()
    }

    /// How often that was asked so far.
    #[must_use]
    pub fn count(&self, op: CgroupOp) -> usize {
        lock(&self.world).calls.iter().filter(|call| call.op == op).count()
    }

    /// The owner, if it is open.
    fn owner(&self) -> Result<String, CgroupError> {
        let context = lock(&self.context);
        context
            .as_ref()
            .map(|open| open.owner.clone())
            .ok_or(CgroupError::NotOpen)
    }

    async fn call(&self, op: CgroupOp, pod: Option<&PodUid>) -> Result<(), CgroupError> {
        self.call_with(op, pod, None).await
    }

    async fn call_with(
        &self,
        op: CgroupOp,
        pod: Option<&PodUid>,
        limits: Option<&PodLimits>,
    ) -> Result<(), CgroupError> {
        // A call that is dropped here has done nothing.
        tokio::task::yield_now().await;
        let mut world = lock(&self.world);
        world.calls.push(CgroupCall {
            op,
            pod: pod.cloned(),
            limits: limits.cloned(),
        });
        match world.faults.get_mut(&op).filter(|left| **left > 0) {
            None => Ok(()),
            Some(left) => {
                *left -= 1;
                Err(CgroupError::failed(
                    format!("{op:?} of cgroups"),
                    "scripted by the test",
                ))
            }
        }
    }
}

#[async_trait]
impl PodCgroups for FakeCgroups {
    async fn open(&self, context: &CgroupContext) -> Result<(), CgroupError> {
        self.call(CgroupOp::Open, None).await?;
        *lock(&self.context) = Some(context.clone());
        Ok(())
    }

    async fn enforce(&self, node: &NodeLimits) -> Result<(), CgroupError> {
        self.owner()?;
        self.call(CgroupOp::Enforce, None).await?;
        lock(&self.world).node = Some(node.clone());
        Ok(())
    }

    fn parent(&self, pod: &PodRecord) -> String {
        format!("/fake/{}/pod{}", pod.facts().qos, pod.uid())
    }

    async fn exists(&self, pod: &PodRecord) -> Result<bool, CgroupError> {
        self.owner()?;
        self.call(CgroupOp::Exists, Some(pod.uid())).await?;
        Ok(self.has(pod.uid()))
    }

    async fn apply(&self, pod: &PodRecord, limits: &PodLimits) -> Result<(), CgroupError> {
        let owner = self.owner()?;
        self.call_with(CgroupOp::Apply, Some(pod.uid()), Some(limits)).await?;
        let mut world = lock(&self.world);
        let cgroup = world.pods.entry(pod.uid().clone()).or_default();
        (cgroup.owner, cgroup.limits) = (owner, Some(limits.clone()));
        Ok(())
    }

    async fn container(
        &self,
        pod: &PodRecord,
        container: &str,
        limits: &LinuxResources,
    ) -> Result<ContainerCgroup, CgroupError> {
        let owner = self.owner()?;
        self.call(CgroupOp::Container, Some(pod.uid())).await?;
        let folder = PathBuf::from(self.parent(pod)).join(container);
        let mut world = lock(&self.world);
        let cgroup = world.pods.entry(pod.uid().clone()).or_default();
        cgroup.owner = owner;
        cgroup.containers.insert(container.to_owned(), limits.clone());
        Ok(ContainerCgroup::new([folder]))
    }

    async fn list(&self) -> Result<Vec<PodUid>, CgroupError> {
        let owner = self.owner()?;
        self.call(CgroupOp::List, None).await?;
        let world = lock(&self.world);
        let own = world.pods.iter().filter(|(_, cgroup)| cgroup.owner == owner);
        Ok(own.map(|(uid, _)| uid.clone()).collect())
    }

    async fn destroy(&self, uid: &PodUid) -> Result<(), CgroupError> {
        self.owner()?;
        self.call(CgroupOp::Destroy, Some(uid)).await?;
        let mut world = lock(&self.world);
        if world.immortal.contains(uid) {
            let what = format!("a process in the cgroup of pod {uid}");
            return Err(CgroupError::Busy { what });
        }
        world.pods.remove(uid);
        Ok(())
    }
}
