//! Cgroups that are open: what is done to them, on the caller's thread.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use kubelet_core::{CgroupError, CgroupLimits, ContainerCgroup, LinuxResources, NodeLimits, PodUid, QosClass};

use crate::enforcement::{Enforcement, Reserved};
use crate::files::{self, failed};
use crate::kill::{self, Left};
use crate::mark::{self, Whose};
use crate::names::Names;
use crate::tree::{Tree, Version};
use crate::values::{container_values, milli_of_shares, shares_of_weight, values};

const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) tree: Tree,
    pub(super) names: Names,
    owner: String,
    /// Whether it was told that no marks can be set.
    told: AtomicBool,
}

impl Open {
    /// Finds the hierarchies, and makes the cgroups of classes.
    pub(super) fn new(mount: &Path, names: Names, owner: &str) -> Result<Self, CgroupError> {
        let open = Self {
            tree: Tree::find(mount)?,
            names,
            owner: owner.to_owned(),
            told: AtomicBool::new(false),
        };
        open.make_classes()?;
        Ok(open)
    }

    pub(super) fn make_classes(&self) -> Result<(), CgroupError> {
        for class in CLASSES {
            self.tree.make(&self.class(class))?;
        }
        Ok(())
    }

    fn class(&self, class: QosClass) -> PathBuf {
        self.names.path(&self.names.class(class))
    }

    /// Where the cgroup of a pod is.
    pub(super) fn path(&self, class: QosClass, uid: &PodUid) -> PathBuf {
        self.names.path(&self.names.pod(class, uid))
    }

    pub(super) fn set(&self, path: &Path, limits: &CgroupLimits) -> Result<(), CgroupError> {
        self.tree.set(path, &values(limits, self.tree.version))
    }

    pub(super) fn set_class_shares(&self, class: QosClass, shares: u64) -> Result<(), CgroupError> {
        let mut limits = CgroupLimits::default();
        limits.cpu_shares = Some(shares);
        self.set(&self.class(class), &limits)
    }

    /// Makes the cgroup of a pod, marked before anything else of it is made.
    pub(super) fn make_pod(&self, class: QosClass, uid: &PodUid) -> Result<(), CgroupError> {
        let path = self.path(class, uid);
        self.tree.make_marked(&path)?;
        if let Some(folder) = self.tree.marked(&path) {
            match mark::write(&folder, &self.owner, uid) {
                Ok(Whose::Foreign(whose)) => return Err(belongs_to(&folder, &whose)),
                Ok(Whose::Own(_) | Whose::Nobody) => {}
                Err(error) if !self.told.swap(true, Ordering::Relaxed) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    folder = %folder.display(),
                    "cgroups cannot be marked: those that a crash leaves behind will stay"
                ),
                Err(_) => {}
            }
        }
        self.tree.make(&path)
    }

    /// The folder of a pod and its owner, if that is another one.
    fn foreign(&self, path: &Path) -> Option<(PathBuf, String)> {
        let folder = self.tree.marked(path)?;
        match mark::whose(&folder, &self.owner) {
            Whose::Foreign(whose) => Some((folder, whose)),
            Whose::Own(_) | Whose::Nobody => None,
        }
    }

    /// Fails if the cgroup of a pod is there, and another agent's.
    pub(super) fn refuse_foreign(&self, class: QosClass, uid: &PodUid) -> Result<(), CgroupError> {
        self.foreign(&self.path(class, uid))
            .map_or(Ok(()), |(folder, whose)| Err(belongs_to(&folder, &whose)))
    }

    /// Makes the cgroup of a container, without anything in it.
    pub(super) fn make_container(&self, path: &Path, limits: &LinuxResources) -> Result<ContainerCgroup, CgroupError> {
        self.tree.make(path)?;
        self.tree.set(path, &container_values(limits, self.tree.version))?;
        Ok(ContainerCgroup::new(self.tree.folders(path)))
    }

    /// What the Burstable pods that are there were given, in thousandths of a processor.
    pub(super) fn burstable_requests(&self) -> Vec<(PodUid, u64)> {
        let class = self.class(QosClass::Burstable);
        let own = self.own_pods(&class).unwrap_or_default();
        let request = |(uid, path): (PodUid, PathBuf)| {
            let shares = match self.tree.version {
                Version::V1 => self.tree.read(&path, "cpu", "cpu.shares")?.parse().ok()?,
                Version::V2 => shares_of_weight(self.tree.read(&path, "cpu", "cpu.weight")?.parse().ok()?),
            };
            Some((uid, milli_of_shares(shares)))
        };
        own.into_iter().filter_map(request).collect()
    }

    /// The pods of this owner in the cgroup of a class, with where theirs are.
    fn own_pods(&self, class: &Path) -> Result<Vec<(PodUid, PathBuf)>, CgroupError> {
        let Some(folder) = self.tree.marked(class) else {
            return Ok(Vec::new());
        };
        let found = files::folders(&folder).map_err(|error| failed("list", &folder, error))?;
        let own = found.into_iter().filter_map(|folder| {
            let name = folder
                .file_name()?
                .to_str()
                .filter(|name| self.names.may_be_pod(name))?;
            Some((mark::read(&folder, &self.owner)?, class.join(name)))
        });
        Ok(own.collect())
    }

    /// The pods of this owner, or one of them, with where theirs are.
    pub(crate) fn pods(&self, only: Option<&PodUid>) -> Result<Vec<(PodUid, PathBuf)>, CgroupError> {
        let mut all = Vec::new();
        for class in CLASSES {
            all.extend(self.own_pods(&self.class(class))?);
        }
        all.retain(|(uid, _)| only.is_none_or(|only| only == uid));
        Ok(all)
    }

    /// The pods of this owner.
    pub(super) fn list(&self) -> Result<Vec<PodUid>, CgroupError> {
        Ok(self.pods(None)?.into_iter().map(|(uid, _)| uid).collect())
    }

    /// Kills what is in a pod's cgroup, and removes it, as far as that goes. What another agent has marked stays; what nobody
    /// has goes: there are kernels that know no marks.
    pub(super) fn clear_pod(&self, uid: &PodUid) -> Result<Left, CgroupError> {
        let mut left = Left::Nothing;
        for class in CLASSES {
            if let Some((folder, whose)) = self.foreign(&self.path(class, uid)) {
                tracing::warn!(folder = %folder.display(), whose, "a cgroup belongs to another agent, and stays");
                continue;
            }
            if kill::pass(&self.tree, &self.path(class, uid))? == Left::Something {
                left = Left::Something;
            }
        }
        Ok(left)
    }

    /// Sets the limits of the node, as far as they are enforced.
    pub(super) fn enforce(&self, what: &Enforcement, node: &NodeLimits) -> Result<(), CgroupError> {
        let pods = match what.pods {
            true => &node.allocatable,
            false => &node.capacity,
        };
        // Each is tried, whatever becomes of the others.
        let mut outcome = self.set(&self.class(QosClass::Guaranteed), pods);
        if let Some(reserved) = &what.system_reserved {
            outcome = outcome.and(self.reserve(reserved, &node.system_reserved));
        }
        if let Some(reserved) = &what.kube_reserved {
            outcome = outcome.and(self.reserve(reserved, &node.kube_reserved));
        }
        outcome
    }

    fn reserve(&self, reserved: &Reserved, limits: &CgroupLimits) -> Result<(), CgroupError> {
        let path: PathBuf = Path::new(&reserved.cgroup)
            .components()
            .filter_map(|element| match element {
                std::path::Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        if path.as_os_str().is_empty() || !self.tree.exists(&path)? {
            return Err(CgroupError::Unsupported {
                why: format!(
                    "the cgroup {:?}, for which something is kept, is not there",
                    reserved.cgroup
                ),
            });
        }
        let mut own = CgroupLimits::default();
        own.cpu_shares = limits.cpu_shares;
        match reserved.only_compressible {
            true => self.set(&path, &own),
            false => self.set(&path, limits),
        }
    }
}

fn belongs_to(folder: &Path, whose: &str) -> CgroupError {
    CgroupError::Unsupported {
        why: format!("{} belongs to another agent, {whose:?}", folder.display()),
    }
}
