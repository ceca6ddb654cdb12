//! Volumes that exist in memory alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubelet_core::env::Env;
use kubelet_core::k8s_openapi::api::core::v1::Volume;
use kubelet_core::{
    BoxError, CancellationToken, ContainerVolumes, Device, PodRecord, PodSignals, PodUid, PodVolumes, VolumeContext,
    VolumeError, VolumeManager, VolumePlace, VolumeUsage, Wake, async_trait, made_volumes, volume_sub_path,
};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A call of [`VolumeManager`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum VolumeOp {
    /// `open`.
    Open,
    /// `lacks`.
    Lacks,
    /// `mount`.
    Mount,
    /// `container`.
    Container,
    /// `unmount`.
    Unmount,
    /// `run`.
    Run,
}

/// What was asked of [`FakeVolumes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeCall {
    /// The call.
    pub op: VolumeOp,
    /// The pod that it was about.
    pub pod: Option<PodUid>,
    /// The container that it was about.
    pub container: Option<String>,
    /// When it began.
    pub at: Instant,
}

/// What a pod's volumes are to be like.
#[derive(Debug, Default)]
struct Wanted {
    groups: Vec<u32>,
    again_at: Option<Instant>,
    lack: Option<String>,
    rejection: Option<(&'static str, String)>,
    containers: BTreeMap<String, ContainerVolumes>,
    usage: Vec<VolumeUsage>,
}

/// What outlives an agent.
#[derive(Debug, Default)]
struct World {
    /// The folders of the volumes that are there, by pod and name.
    made: BTreeMap<PodUid, BTreeMap<String, PathBuf>>,
    files: BTreeMap<PathBuf, String>,
    wanted: BTreeMap<PodUid, Wanted>,
    /// The volumes that are not to be had, with what they wait for and for how long.
    held: BTreeMap<String, Option<Duration>>,
    hanging: BTreeSet<VolumeOp>,
    /// How often calls are yet to fail.
    faults: BTreeMap<VolumeOp, u32>,
    calls: Vec<VolumeCall>,
}

/// What one life of the agent knows.
#[derive(Debug, Default)]
struct Life {
    context: Option<VolumeContext>,
    wake: Option<PodSignals>,
}

/// An in-memory [`VolumeManager`]. A clone is another handle to the same one; [`next_life`](Self::next_life) is one that has not
/// been opened yet, over the same volumes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::sync::Arc;
///
/// use kubelet_core::k8s_openapi::api::core::v1::{Volume, VolumeMount};
/// use kubelet_core::{CancellationToken, PodRecord, SourceKind, SourceName, VolumeContext, VolumeManager};
/// use kubelet_testing::{FakeVolumes, PodBuilder};
///
/// let mount = VolumeMount { name: "data".to_owned(), mount_path: "/data".to_owned(), ..VolumeMount::default() };
/// let pod = PodBuilder::new("web")
///     .container("app", |c| c.with(|c| c.volume_mounts = Some(vec![mount])))
///     .spec(|spec| spec.volumes = Some(vec![Volume { name: "data".to_owned(), ..Volume::default() }]))
///     .build();
/// let pod = Arc::new(PodRecord::new(&pod, SourceName::from("api"), SourceKind::Managed).unwrap());
///
/// let volumes = FakeVolumes::new();
/// volumes.open(VolumeContext::new("node-1", "/var/lib/kubelet"));
/// volumes.hold("data", None);
/// let stop = CancellationToken::new();
/// assert!(volumes.mount(&pod, &stop).await.is_err());
/// volumes.release("data");
/// volumes.mount(&pod, &stop).await.unwrap();
/// assert!(volumes.next_life().has(pod.uid(), "data"));
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct FakeVolumes {
    world: Arc<Mutex<World>>,
    life: Arc<Mutex<Life>>,
    freed: Arc<Notify>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeVolumes {
    /// A node without any.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the next life of the agent finds.
    #[must_use]
    pub fn next_life(&self) -> Self {
        Self {
            world: self.world.clone(),
            life: Arc::default(),
            freed: self.freed.clone(),
        }
    }

    /// Lets the next calls of that kind fail.
    pub fn fail(&self, op: VolumeOp, times: u32) {
        lock(&self.world).faults.insert(op, times);
    }

    /// Volumes of that name are not to be had from now on, and are tried again after that time, if it is known. Those that are there
    /// stay, and cannot be brought up to date.
    pub fn hold(&self, volume: &str, retry_after: Option<Duration>) {
        lock(&self.world).held.insert(volume.to_owned(), retry_after);
    }

    /// Takes back [`hold`](Self::hold). Wakes nobody.
    pub fn release(&self, volume: &str) {
        lock(&self.world).held.remove(volume);
    }

    /// Lets `mount` or `unmount` hang until it is told to stop, or until [`let_go`](Self::let_go).
    pub fn hang(&self, op: VolumeOp) {
        lock(&self.world).hanging.insert(op);
    }

    /// Takes back [`hang`](Self::hang); what hangs goes on.
    pub fn let_go(&self, op: VolumeOp) {
        lock(&self.world).hanging.remove(&op);
        self.freed.notify_waiters();
    }

    /// Wakes a pod, if this life runs.
    pub fn wake(&self, uid: &PodUid) {
        if let Some(signals) = &lock(&self.life).wake {
            signals.wake(uid, Wake::Object);
        }
    }

    fn want(&self, uid: &PodUid, change: impl FnOnce(&mut Wanted)) {
        change(lock(&self.world).wanted.entry(uid.clone()).or_default());
    }

    /// The groups that the pod's containers have to be in.
    pub fn set_groups(&self, uid: &PodUid, groups: impl IntoIterator<Item = u32>) {
        self.want(uid, |wanted| wanted.groups = groups.into_iter().collect());
    }

    /// When the pod's volumes are to be looked at again. Told until then.
    pub fn set_again_at(&self, uid: &PodUid, at: Instant) {
        self.want(uid, |wanted| wanted.again_at = Some(at));
    }

    /// What the pod can never have here.
    pub fn set_lack(&self, uid: &PodUid, lack: impl Into<String>) {
        self.want(uid, |wanted| wanted.lack = Some(lack.into()));
    }

    /// Lets the pod never have its volumes.
    pub fn reject(&self, uid: &PodUid, reason: &'static str, message: impl Into<String>) {
        self.want(uid, |wanted| wanted.rejection = Some((reason, message.into())));
    }

    /// What a container of the pod is given, in place of what follows from its spec.
    pub fn give(&self, uid: &PodUid, container: &str, volumes: ContainerVolumes) {
        self.want(uid, |wanted| {
            wanted.containers.insert(container.to_owned(), volumes);
        });
    }

    /// What the pod's volumes use.
    pub fn set_usage(&self, uid: &PodUid, usage: impl IntoIterator<Item = VolumeUsage>) {
        self.want(uid, |wanted| wanted.usage = usage.into_iter().collect());
    }

    /// A volume of a pod that nobody knows.
    pub fn add_orphan(&self, uid: &PodUid, volume: &str) {
        let mut world = lock(&self.world);
        let of_pod = world.made.entry(uid.clone()).or_default();
        of_pod.insert(volume.to_owned(), PathBuf::from("/orphans").join(uid.as_str()));
    }

    /// Whether a pod has a volume of that name.
    #[must_use]
    pub fn has(&self, uid: &PodUid, volume: &str) -> bool {
        let world = lock(&self.world);
        world.made.get(uid).is_some_and(|made| made.contains_key(volume))
    }

    /// The names of the volumes of a pod that are there.
    #[must_use]
    pub fn of_pod(&self, uid: &PodUid) -> Vec<String> {
        let world = lock(&self.world);
        world
            .made
            .get(uid)
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The pods that have volumes.
    #[must_use]
    pub fn pods(&self) -> Vec<PodUid> {
        lock(&self.world).made.keys().cloned().collect()
    }

    /// Whether a path leads into a volume that is there.
    #[must_use]
    pub fn exists(&self, path: &Path) -> bool {
        let world = lock(&self.world);
        world
            .made
            .values()
            .flat_map(BTreeMap::values)
            .any(|made| path.starts_with(made))
    }

    /// Writes a file, if its path leads into a volume that is there. Says whether it does.
    pub fn write(&self, path: &Path, text: &str) -> bool {
        let there = self.exists(path);
        if there {
            lock(&self.world).files.insert(path.to_owned(), text.to_owned());
        }
        there
    }

    /// What was written into a file.
    #[must_use]
    pub fn read(&self, path: &Path) -> Option<String> {
        lock(&self.world).files.get(path).cloned()
    }

    /// Removes volumes behind everybody's back, with all that was written into them.
    pub fn lose(&self, uid: &PodUid) {
        let mut world = lock(&self.world);
        for folder in world.made.remove(uid).unwrap_or_default().into_values() {
            world.files.retain(|path, _| !path.starts_with(&folder));
        }
    }

    /// With what it was opened in this life.
    #[must_use]
    pub fn context(&self) -> Option<VolumeContext> {
        lock(&self.life).context.clone()
    }

    /// All calls so far, of all lives.
    #[must_use]
    pub fn calls(&self) -> Vec<VolumeCall> {
        lock(&self.world).calls.clone()
    }

    /// How often that was asked so far.
    #[must_use]
    pub fn count(&self, op: VolumeOp) -> usize {
        lock(&self.world).calls.iter().filter(|call| call.op == op).count()
    }

    /// How often that was asked of one pod so far.
    #[must_use]
    pub fn count_of(&self, op: VolumeOp, uid: &PodUid) -> usize {
        let world = lock(&self.world);
        let of_pod = world.calls.iter().filter(|call| call.pod.as_ref() == Some(uid));
        of_pod.filter(|call| call.op == op).count()
    }

    /// Notes a call, and says whether it is to fail.
    fn call(&self, op: VolumeOp, pod: Option<&PodUid>, container: Option<&str>) -> Result<(), &'static str> {
        let mut world = lock(&self.world);
        world.calls.push(VolumeCall {
            op,
            pod: pod.cloned(),
            container: container.map(ToOwned::to_owned),
            at: Instant::now(),
        });
        match world.faults.get_mut(&op).filter(|left| **left > 0) {
            None => Ok(()),
            Some(left) => {
                *left -= 1;
                Err("scripted by the test")
            }
        }
    }

    fn root_dir(&self) -> Result<PathBuf, VolumeError> {
        let context = self.context();
        let context = context.ok_or_else(|| VolumeError::failed("use volumes", "they were not opened"));
        Ok(context?.root_dir)
    }

    /// A call that may hang.
    async fn slow_call(&self, op: VolumeOp, uid: &PodUid, stop: &CancellationToken) -> Result<(), VolumeError> {
        // A call that is dropped here has done nothing.
        tokio::task::yield_now().await;
        let noted = self.call(op, Some(uid), None);
        noted.map_err(|why| VolumeError::failed(format!("{op:?} of volumes"), why))?;
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if stop.is_cancelled() {
                return Err(VolumeError::Stopped);
            }
            if !lock(&self.world).hanging.contains(&op) {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = freed => {}
            }
        }
    }
}

/// Where a volume is.
fn folder(root_dir: &Path, uid: &PodUid, volume: &Volume) -> PathBuf {
    match &volume.host_path {
        Some(host) => PathBuf::from(&host.path),
        None => root_dir
            .join("pods")
            .join(uid.as_str())
            .join("volumes/fake")
            .join(&volume.name),
    }
}

#[async_trait]
impl VolumeManager for FakeVolumes {
    fn open(&self, context: VolumeContext) {
        let _ = self.call(VolumeOp::Open, None, None);
        lock(&self.life).context = Some(context);
    }

    fn lacks(&self, pod: &PodRecord) -> Option<String> {
        let _ = self.call(VolumeOp::Lacks, Some(pod.uid()), None);
        lock(&self.world).wanted.get(pod.uid())?.lack.clone()
    }

    async fn mount(&self, pod: &Arc<PodRecord>, stop: &CancellationToken) -> Result<PodVolumes, VolumeError> {
        let (uid, root_dir) = (pod.uid(), self.root_dir()?);
        self.slow_call(VolumeOp::Mount, uid, stop).await?;
        let rejection = lock(&self.world)
            .wanted
            .get(uid)
            .and_then(|wanted| wanted.rejection.clone());
        if let Some((reason, message)) = rejection {
            return Err(VolumeError::RejectPod { reason, message });
        }
        let (mut unmounted, mut retry_after) = (BTreeSet::new(), None::<Duration>);
        for volume in made_volumes(pod.spec()) {
            {
                let mut world = lock(&self.world);
                if let Some(pause) = world.held.get(&volume.name) {
                    retry_after = retry_after.max(*pause);
                    unmounted.insert(volume.name.clone());
                    continue;
                }
                let folder = folder(&root_dir, uid, volume);
                let made = world.made.entry(uid.clone()).or_default();
                made.insert(volume.name.clone(), folder);
            }
            // One that is dropped here has done a part of it.
            tokio::task::yield_now().await;
        }
        if !unmounted.is_empty() {
            return Err(VolumeError::Waiting {
                unmounted: unmounted.into_iter().collect(),
                unattached: Vec::new(),
                unprocessed: Vec::new(),
                detail: "held back by the test".to_owned(),
                retry_at: retry_after.map(|pause| Instant::now() + pause),
            });
        }
        let mut volumes = PodVolumes::default();
        if let Some(wanted) = lock(&self.world).wanted.get(uid) {
            volumes.groups = wanted.groups.clone();
            volumes.again_at = wanted.again_at.filter(|at| *at > Instant::now());
        }
        Ok(volumes)
    }

    async fn container(&self, pod: &PodRecord, container: &str, env: &Env) -> Result<ContainerVolumes, VolumeError> {
        tokio::task::yield_now().await;
        let noted = self.call(VolumeOp::Container, Some(pod.uid()), Some(container));
        noted.map_err(|why| VolumeError::failed(format!("find the volumes of container {container:?}"), why))?;
        let world = lock(&self.world);
        let wanted = world.wanted.get(pod.uid());
        if let Some(given) = wanted.and_then(|wanted| wanted.containers.get(container)) {
            return Ok(given.clone());
        }
        let mut found = ContainerVolumes::default();
        let (Some(view), Some(made)) = (pod.container(container), world.made.get(pod.uid())) else {
            return Ok(found);
        };
        for (index, mount) in view.volume_mounts().iter().enumerate() {
            if let Some(folder) = made.get(&mount.name) {
                let part = volume_sub_path(mount, env);
                let part = part.map_err(|why| VolumeError::failed(format!("mount volume {:?}", mount.name), why))?;
                let place = folder
                    .components()
                    .chain(Path::new(&part).components())
                    .collect::<PathBuf>();
                let mut place = VolumePlace::new(index, place);
                place.read_only = is_read_only(pod, &mount.name);
                found.places.push(place);
            }
        }
        for device in view.volume_devices() {
            if let Some(folder) = made.get(&device.name) {
                let device = Device::new(device.device_path.clone(), folder.clone(), "mrw");
                found.devices.push(device);
            }
        }
        Ok(found)
    }

    async fn unmount(&self, uid: &PodUid, stop: &CancellationToken) -> Result<(), VolumeError> {
        let root_dir = self.root_dir()?;
        self.slow_call(VolumeOp::Unmount, uid, stop).await?;
        let names = self.of_pod(uid);
        for name in names {
            {
                let mut world = lock(&self.world);
                let folder = world.made.get_mut(uid).and_then(|made| made.remove(&name));
                // What is in a folder of the host is the host's.
                if let Some(folder) = folder.filter(|folder| folder.starts_with(&root_dir)) {
                    world.files.retain(|path, _| !path.starts_with(&folder));
                }
            }
            tokio::task::yield_now().await;
        }
        lock(&self.world).made.remove(uid);
        Ok(())
    }

    fn usage(&self, uid: &PodUid) -> Arc<[VolumeUsage]> {
        let world = lock(&self.world);
        let usage = world.wanted.get(uid).map(|wanted| wanted.usage.clone());
        usage.unwrap_or_default().into()
    }

    async fn run(&self, wake: PodSignals, stop: CancellationToken) -> Result<(), BoxError> {
        self.call(VolumeOp::Run, None, None)?;
        lock(&self.life).wake = Some(wake);
        stop.cancelled().await;
        lock(&self.life).wake = None;
        Ok(())
    }
}

/// Whether a volume cannot be written: those that are made from objects.
fn is_read_only(pod: &PodRecord, volume: &str) -> bool {
    let found = made_volumes(pod.spec()).find(|made| made.name == volume);
    found.is_some_and(|volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.projected.is_some()
            || volume.downward_api.is_some()
    })
}
