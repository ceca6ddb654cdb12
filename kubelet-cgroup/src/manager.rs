//! The cgroups of one agent.

mod open;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use kubelet_core::{
    CgroupContext, CgroupDriver, CgroupError, ContainerCgroup, LinuxResources, NodeLimits, PodCgroups, PodLimits,
    PodRecord, PodUid, QosClass,
};

use crate::enforcement::Enforcement;
use crate::kill::Left;
use crate::names::Names;

pub(crate) use open::Open;

/// The pause after the first pass of a removal that has left something; it is doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// How often it is tried to end what does not: for about five seconds in all.
const PASSES: u32 = 25;
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Where cgroups are, and what of the node is enforced. By default those of this machine, below `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CgroupSettings {
    /// The folder of all cgroups: a v2 hierarchy, or one folder for each hierarchy of v1. `/sys/fs/cgroup`.
    pub mount: PathBuf,
    /// The cgroup that all others are made in, from the root of each hierarchy on. It is made if it is not there. `/`.
    pub root: String,
    /// What of the node is enforced.
    pub enforcement: Enforcement,
}

impl Default for CgroupSettings {
    fn default() -> Self {
        Self {
            mount: PathBuf::from("/sys/fs/cgroup"),
            root: "/".to_owned(),
            enforcement: Enforcement::default(),
        }
    }
}

/// What of pods is known beside what is in their cgroups.
#[derive(Debug, Default)]
struct Known {
    /// What Burstable pods request, in thousandths of a processor.
    burstable: BTreeMap<PodUid, u64>,
    /// Pods about which something is done.
    busy: BTreeSet<PodUid>,
}

#[derive(Debug)]
struct Shared {
    settings: CgroupSettings,
    open: Mutex<Option<Arc<Open>>>,
    known: Mutex<Known>,
    /// Told when something about a pod is done.
    done: tokio::sync::Notify,
    /// What the class of Burstable pods was given last; held while it is given.
    burstable_shares: Mutex<Option<u64>>,
}

/// Makes cgroups as folders, with cgroup v1 and v2. A clone is another handle to the same one.
///
/// Names and values are those of the upstream kubelet 1.36, so that tools which look for pods find them.
#[derive(Clone, Debug)]
pub struct CgroupManager {
    shared: Arc<Shared>,
}

impl Default for CgroupManager {
    fn default() -> Self {
        Self::new(CgroupSettings::default())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something is done about a pod. It is held by the thread that does it, also when nobody waits for it any more: a call that was
/// dropped ends before the next one begins.
struct Turn {
    shared: Arc<Shared>,
    uid: PodUid,
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.shared.known).busy.remove(&self.uid);
        self.shared.done.notify_waiters();
    }
}

impl CgroupManager {
    /// With these settings. Nothing is looked at before [`PodCgroups::open`].
    #[must_use]
    pub fn new(settings: CgroupSettings) -> Self {
        Self {
            shared: Arc::new(Shared {
                settings,
                open: Mutex::default(),
                known: Mutex::default(),
                done: tokio::sync::Notify::new(),
                burstable_shares: Mutex::default(),
            }),
        }
    }

    pub(crate) fn opened(&self) -> Result<Arc<Open>, CgroupError> {
        lock(&self.shared.open).clone().ok_or(CgroupError::NotOpen)
    }

    /// Waits until nothing is done about a pod.
    async fn turn(&self, uid: &PodUid) -> Turn {
        loop {
            let done = self.shared.done.notified();
            if lock(&self.shared.known).busy.insert(uid.clone()) {
                return Turn {
                    shared: self.shared.clone(),
                    uid: uid.clone(),
                };
            }
            done.await;
        }
    }

    /// Does something about a pod again and again until it has left nothing, for a bounded time.
    async fn until_gone(
        &self,
        uid: &PodUid,
        what: String,
        pass: impl Fn(&Shared) -> Result<Left, CgroupError> + Send + Sync + 'static,
    ) -> Result<(), CgroupError> {
        let pass = Arc::new(pass);
        let mut pause = FIRST_PAUSE;
        for _ in 0..PASSES {
            let pass = pass.clone();
            if self.about(uid, move |shared| pass(shared)).await? == Left::Nothing {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(CgroupError::Busy { what })
    }

    /// Does something about a pod, on a thread that may wait for the kernel.
    async fn about<T: Send + 'static>(
        &self,
        uid: &PodUid,
        act: impl FnOnce(&Shared) -> Result<T, CgroupError> + Send + 'static,
    ) -> Result<T, CgroupError> {
        let turn = self.turn(uid).await;
        blocking(move || act(&turn.shared)).await
    }
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, CgroupError> + Send + 'static,
) -> Result<T, CgroupError> {
    match tokio::task::spawn_blocking(act).await {
        Ok(outcome) => outcome,
        Err(error) => Err(CgroupError::failed("work on cgroups", error)),
    }
}

impl Shared {
    /// Gives the class of Burstable pods the share of what they request together.
    fn refresh_burstable(&self, open: &Open) -> Result<(), CgroupError> {
        // Held meanwhile, so that an older sum does not replace a newer one.
        let mut given = lock(&self.burstable_shares);
        let milli = lock(&self.known)
            .burstable
            .values()
            .fold(0_u64, |sum, milli| sum.saturating_add(*milli));
        let shares = kubelet_core::cpu_shares(i64::try_from(milli).unwrap_or(i64::MAX));
        if *given != Some(shares) {
            open.set_class_shares(QosClass::Burstable, shares)?;
            *given = Some(shares);
        }
        Ok(())
    }
}

#[async_trait]
impl PodCgroups for CgroupManager {
    async fn open(&self, context: &CgroupContext) -> Result<(), CgroupError> {
        if context.driver == CgroupDriver::Systemd {
            return Err(CgroupError::Unsupported {
                why: "the runtime has systemd make cgroups, which this build cannot ask: have it make plain folders"
                    .to_owned(),
            });
        }
        let (shared, context) = (self.shared.clone(), context.clone());
        blocking(move || {
            let names =
                Names::new(&shared.settings.root, context.driver).map_err(|why| CgroupError::Unsupported { why })?;
            let open = Open::new(&shared.settings.mount, names, &context.owner)?;
            // What runs keeps its share while its pod is not known again.
            let left = open.burstable_requests();
            {
                let mut known = lock(&shared.known);
                for (uid, milli) in left {
                    known.burstable.entry(uid).or_insert(milli);
                }
            }
            *lock(&shared.open) = Some(Arc::new(open));
            Ok(())
        })
        .await
    }

    async fn enforce(&self, node: &NodeLimits) -> Result<(), CgroupError> {
        let open = self.opened()?;
        let (shared, node) = (self.shared.clone(), node.clone());
        blocking(move || {
            // Somebody may have changed it.
            *lock(&shared.burstable_shares) = None;
            open.make_classes()?;
            // Each is tried, whatever becomes of the others.
            open.set_class_shares(QosClass::BestEffort, kubelet_core::cpu_shares(0))
                .and(shared.refresh_burstable(&open))
                .and(open.enforce(&shared.settings.enforcement, &node))
        })
        .await
    }

    fn parent(&self, pod: &PodRecord) -> String {
        match self.opened() {
            Ok(open) => open.names.parent(&open.names.pod(pod.facts().qos, pod.uid())),
            Err(_) => String::new(),
        }
    }

    async fn exists(&self, pod: &PodRecord) -> Result<bool, CgroupError> {
        let open = self.opened()?;
        let (uid, class) = (pod.uid().clone(), pod.facts().qos);
        self.about(pod.uid(), move |_| open.tree.exists(&open.path(class, &uid)))
            .await
    }

    async fn apply(&self, pod: &PodRecord, limits: &PodLimits) -> Result<(), CgroupError> {
        let open = self.opened()?;
        let (uid, class, limits) = (pod.uid().clone(), pod.facts().qos, limits.clone());
        self.about(pod.uid(), move |shared| {
            // First: that makes the folder of its class too.
            open.make_pod(class, &uid)?;
            if class == QosClass::Burstable {
                lock(&shared.known)
                    .burstable
                    .insert(uid.clone(), limits.cpu_request_milli);
                shared.refresh_burstable(&open)?;
            }
            open.set(&open.path(class, &uid), &limits.cgroup)
        })
        .await
    }

    async fn container(
        &self,
        pod: &PodRecord,
        container: &str,
        limits: &LinuxResources,
    ) -> Result<ContainerCgroup, CgroupError> {
        let open = self.opened()?;
        let (uid, class, limits) = (pod.uid().clone(), pod.facts().qos, limits.clone());
        // Names of containers are single elements of a path; what is not would lead elsewhere.
        if container.is_empty() || container.contains('/') || container.starts_with('.') {
            return Err(CgroupError::Unsupported {
                why: format!("{container:?} is no name of a container"),
            });
        }
        let path = open.path(class, &uid).join(container);
        // What is left of the one before, its counters among it.
        let (of, tree) = (path.clone(), open.clone());
        let this = uid.clone();
        self.until_gone(&uid, format!("a process in {}", path.display()), move |_| {
            tree.refuse_foreign(class, &this)?;
            crate::kill::pass(&tree.tree, &of)
        })
        .await?;
        self.about(pod.uid(), move |_| {
            open.make_pod(class, &uid)?;
            open.make_container(&path, &limits)
        })
        .await
    }

    async fn list(&self) -> Result<Vec<PodUid>, CgroupError> {
        let open = self.opened()?;
        blocking(move || open.list()).await
    }

    async fn destroy(&self, uid: &PodUid) -> Result<(), CgroupError> {
        let open = self.opened()?;
        let this = uid.clone();
        self.until_gone(uid, format!("a process in the cgroup of pod {uid}"), move |shared| {
            let left = open.clear_pod(&this)?;
            if left == Left::Nothing && lock(&shared.known).burstable.remove(&this).is_some() {
                shared.refresh_burstable(&open)?;
            }
            Ok(left)
        })
        .await
    }
}
