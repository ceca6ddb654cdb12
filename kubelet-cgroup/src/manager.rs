//! The cgroups of one agent.

mod open;
mod steps;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use kubelet_core::{
    CgroupContext, CgroupError, CgroupLimits, ContainerCgroup, LinuxResources, NodeLimits, PodCgroups, PodLimits,
    PodRecord, PodUid, QosClass,
};

use crate::enforcement::Enforcement;
use crate::kill::Upto;
use crate::units;
use steps::{Refresh, Which};
use turn::{Subject, blocking};

pub(crate) use open::Open;

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
    /// How systemd is asked (feature `systemd`), where the runtime has it make cgroups.
    #[cfg(feature = "systemd")]
    pub systemd: crate::systemd::SystemdSettings,
}

impl Default for CgroupSettings {
    fn default() -> Self {
        Self {
            mount: PathBuf::from("/sys/fs/cgroup"),
            root: "/".to_owned(),
            enforcement: Enforcement::default(),
            #[cfg(feature = "systemd")]
            systemd: crate::systemd::SystemdSettings::default(),
        }
    }
}

/// What of pods is known beside what is in their cgroups.
#[derive(Debug, Default)]
struct Known {
    /// What Burstable pods request, in thousandths of a processor.
    burstable: BTreeMap<PodUid, u64>,
    /// That about which something is done.
    busy: BTreeSet<Subject>,
}

#[derive(Debug)]
struct Shared {
    settings: CgroupSettings,
    open: Mutex<Option<Arc<Open>>>,
    known: Mutex<Known>,
    /// Told when something is done.
    done: tokio::sync::Notify,
    /// What the class of Burstable pods was given last.
    burstable_shares: Mutex<Option<u64>>,
}

/// Makes cgroups with cgroup v1 and v2, as folders or, with feature `systemd`, as slices. A clone is another handle to the same one.
///
/// With slices, zbus drives the connection to the bus by tasks of its own on the runtime of whoever called. They end with the
/// connection, which is closed when the last clone is dropped.
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
}

#[async_trait]
impl PodCgroups for CgroupManager {
    async fn open(&self, context: &CgroupContext) -> Result<(), CgroupError> {
        units::refuse(context.driver)?;
        let (shared, context) = (self.shared.clone(), context.clone());
        let open = Arc::new(blocking(move || Open::new(&shared.settings, &context)).await?);
        self.make_classes(&open, Which::All).await?;
        let shared = self.shared.clone();
        blocking(move || {
            // What runs keeps its share while its pod is not known again.
            let left = open.burstable_requests();
            {
                let mut known = lock(&shared.known);
                for (uid, milli) in left {
                    known.burstable.entry(uid).or_insert(milli);
                }
            }
            *lock(&shared.open) = Some(open);
            Ok(())
        })
        .await
    }

    async fn enforce(&self, node: &NodeLimits) -> Result<(), CgroupError> {
        let open = self.opened()?;
        self.make_classes(&open, Which::Missing).await?;
        // Each is tried, whatever becomes of the others.
        let mut least = CgroupLimits::default();
        least.cpu_shares = Some(kubelet_core::cpu_shares(0));
        let mut outcome = self.give(&open, open.class(QosClass::BestEffort), &least).await;
        outcome = outcome.and(self.refresh_burstable(&open, Refresh::Always).await);
        let what = &self.shared.settings.enforcement;
        let pods = match what.pods {
            true => &node.allocatable,
            false => &node.capacity,
        };
        outcome = outcome.and(self.give(&open, open.class(QosClass::Guaranteed), pods).await);
        for (reserved, limits) in [
            (&what.system_reserved, &node.system_reserved),
            (&what.kube_reserved, &node.kube_reserved),
        ] {
            if let Some(reserved) = reserved {
                outcome = outcome.and(self.reserve(&open, reserved, limits).await);
            }
        }
        outcome
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
        let turn = self.turn(Subject::Pod(uid.clone())).await;
        turn.blocking(move |_| open.tree.exists(&open.path(class, &uid))).await
    }

    async fn apply(&self, pod: &PodRecord, limits: &PodLimits) -> Result<(), CgroupError> {
        let open = self.opened()?;
        let (uid, class, limits) = (pod.uid().clone(), pod.facts().qos, limits.clone());
        let turn = self.turn(Subject::Pod(uid.clone())).await;
        // First: that makes the folder of its class too.
        self.make_pod(&turn, &open, (class, &uid), &limits.cgroup).await?;
        if class == QosClass::Burstable {
            lock(&self.shared.known)
                .burstable
                .insert(uid.clone(), limits.cpu_request_milli);
            self.refresh_burstable(&open, Refresh::Changed).await?;
        }
        turn.blocking(move |_| open.set(&open.path(class, &uid), &limits.cgroup))
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
        let what = format!("a process in {}", path.display());
        let pass = self.until_gone(&uid, what, move |_| {
            tree.refuse_foreign(class, &this)?;
            crate::kill::pass(&tree.tree, &of, Upto::All)
        });
        let turn = pass.await?;
        self.make_pod(&turn, &open, (class, &uid), &CgroupLimits::default())
            .await?;
        turn.blocking(move |_| open.make_container(&path, &limits)).await
    }

    async fn list(&self) -> Result<Vec<PodUid>, CgroupError> {
        let open = self.opened()?;
        blocking(move || open.list()).await
    }

    async fn destroy(&self, uid: &PodUid) -> Result<(), CgroupError> {
        let open = self.opened()?;
        self.stop_units(&open, uid).await?;
        let (cleared, this) = (open.clone(), uid.clone());
        let pass = self.until_gone(uid, in_pod(uid), move |_| cleared.clear_pod(&this, Upto::All));
        let _turn = pass.await?;
        let was_known = lock(&self.shared.known).burstable.remove(uid).is_some();
        match was_known {
            true => self.refresh_burstable(&open, Refresh::Changed).await,
            false => Ok(()),
        }
    }
}

/// What does not end if something in the cgroup of a pod does not.
fn in_pod(uid: &PodUid) -> String {
    format!("a process in the cgroup of pod {uid}")
}
