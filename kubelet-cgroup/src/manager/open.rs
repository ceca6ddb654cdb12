//! Cgroups that are open: what is done to them, on the caller's thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kubelet_core::{CgroupContext, CgroupError, CgroupLimits, ContainerCgroup, LinuxResources, PodUid, QosClass};

use super::CgroupSettings;
use crate::enforcement::Reserved;
use crate::files::{self, failed};
use crate::kill::{self, Left, Upto};
use crate::mark::{self, Whose};
use crate::names::Names;
use crate::tree::{Tree, Version};
use crate::units::{self, Units};
use crate::values::{container_values, milli_of_shares, shares_of_weight, values};

const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) tree: Tree,
    pub(super) names: Names,
    /// Who is told of them too.
    pub(super) units: Option<Arc<dyn Units>>,
    owner: String,
    /// Whether it was told that no marks can be set.
    told: AtomicBool,
}

impl Open {
    /// Finds the hierarchies.
    pub(super) fn new(settings: &CgroupSettings, context: &CgroupContext) -> Result<Self, CgroupError> {
        let names = Names::new(&settings.root, context.driver).map_err(|why| CgroupError::Unsupported { why })?;
        let tree = Tree::find(&settings.mount)?;
        Ok(Self {
            units: units::of(context.driver, settings, tree.version)?,
            tree,
            names,
            owner: context.owner.clone(),
            told: AtomicBool::new(false),
        })
    }

    /// The cgroups of classes, each after that which it is in.
    pub(super) fn classes(&self) -> Vec<PathBuf> {
        let mut all = units::chain(&self.class(QosClass::Guaranteed));
        all.extend([QosClass::Burstable, QosClass::BestEffort].map(|class| self.class(class)));
        all
    }

    /// Those of them of which something is not there.
    pub(super) fn missing_classes(&self) -> Result<Vec<PathBuf>, CgroupError> {
        let mut missing = Vec::new();
        for path in self.classes() {
            if !self.tree.exists(&path)? {
                missing.push(path);
            }
        }
        Ok(missing)
    }

    pub(super) fn make_classes(&self) -> Result<(), CgroupError> {
        for class in CLASSES {
            self.tree.make(&self.class(class))?;
        }
        Ok(())
    }

    /// Where the cgroup of a class is.
    pub(super) fn class(&self, class: QosClass) -> PathBuf {
        self.names.path(&self.names.class(class))
    }

    /// Where the cgroup of a pod is.
    pub(super) fn path(&self, class: QosClass, uid: &PodUid) -> PathBuf {
        self.names.path(&self.names.pod(class, uid))
    }

    pub(super) fn set(&self, path: &Path, limits: &CgroupLimits) -> Result<(), CgroupError> {
        self.tree.set(path, &values(limits, self.tree.version))
    }

    /// Makes the cgroup of a pod, marked before anything else of it is made.
    pub(super) fn make_pod(&self, class: QosClass, uid: &PodUid) -> Result<(), CgroupError> {
        self.mark_pod(class, uid)?;
        self.tree.make(&self.path(class, uid))
    }

    /// Makes the folder with the mark of a pod.
    pub(super) fn mark_pod(&self, class: QosClass, uid: &PodUid) -> Result<(), CgroupError> {
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
        Ok(())
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

    /// Where the cgroup of a pod may be that this one removes. What another agent has marked stays; what nobody has goes: there are
    /// kernels that know no marks.
    pub(super) fn removable(&self, uid: &PodUid) -> Vec<PathBuf> {
        let mut paths = CLASSES.map(|class| self.path(class, uid)).to_vec();
        paths.retain(|path| match self.foreign(path) {
            Some((folder, whose)) => {
                tracing::warn!(folder = %folder.display(), whose, "a cgroup belongs to another agent, and stays");
                false
            }
            None => true,
        });
        paths
    }

    /// Kills what is in a pod's cgroup, and removes it, as far as that goes.
    pub(super) fn clear_pod(&self, uid: &PodUid, upto: Upto) -> Result<Left, CgroupError> {
        let mut left = Left::Nothing;
        for path in self.removable(uid) {
            if kill::pass(&self.tree, &path, upto)? == Left::Something {
                left = Left::Something;
            }
        }
        Ok(left)
    }

    /// The cgroup for which something is kept, and what of its limits it is bound to.
    pub(super) fn reserved(
        &self,
        reserved: &Reserved,
        limits: &CgroupLimits,
    ) -> Result<(PathBuf, CgroupLimits), CgroupError> {
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
        if !reserved.only_compressible {
            return Ok((path, limits.clone()));
        }
        let mut own = CgroupLimits::default();
        own.cpu_shares = limits.cpu_shares;
        Ok((path, own))
    }
}

fn belongs_to(folder: &Path, whose: &str) -> CgroupError {
    CgroupError::Unsupported {
        why: format!("{} belongs to another agent, {whose:?}", folder.display()),
    }
}
