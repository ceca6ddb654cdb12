//! The hierarchies of a machine, as folders.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kubelet_core::CgroupError;

use crate::files::{self, failed, is_forbidden, is_gone};
use crate::values::Value;

/// What is made use of where the kernel has it.
const WANTED: [&str; 8] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb", "freezer", "io"];
/// Without these there are no limits worth the name.
const REQUIRED: [&str; 2] = ["cpu", "memory"];
/// The folder of a v2 hierarchy beside those of v1. It has no controllers.
const UNIFIED: &str = "unified";

/// The two kinds of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// A hierarchy for each controller, or for a few.
    V1,
    /// One hierarchy for all.
    V2,
}

/// One hierarchy.
#[derive(Clone, Debug)]
pub(crate) struct Hierarchy {
    pub(crate) controllers: BTreeSet<String>,
    pub(crate) root: PathBuf,
    /// Whether cgroups are made in it. In others they are only removed: runtimes make them there too.
    is_used: bool,
}

#[cfg(test)]
impl Hierarchy {
    /// One with these controllers.
    pub(crate) fn for_test(root: &Path, controllers: &[&str]) -> Self {
        Self {
            controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
            root: root.to_owned(),
            is_used: true,
        }
    }
}

/// All hierarchies. The first one is that in which marks are: made first, removed last.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) version: Version,
    pub(crate) hierarchies: Vec<Hierarchy>,
}

impl Tree {
    /// Those below a folder such as `/sys/fs/cgroup`.
    pub(crate) fn find(mount: &Path) -> Result<Self, CgroupError> {
        let of_v2 = mount.join("cgroup.controllers");
        let found = match files::read(&of_v2).map_err(|error| failed("read", &of_v2, error))? {
            Some(controllers) => Self {
                version: Version::V2,
                hierarchies: vec![Hierarchy {
                    controllers: controllers.split_whitespace().map(str::to_owned).collect(),
                    root: mount.to_owned(),
                    is_used: true,
                }],
            },
            None => Self::find_v1(mount).map_err(|error| failed("list", mount, error))?,
        };
        let missing: Vec<&str> = REQUIRED
            .into_iter()
            .filter(|name| found.controller(name).is_none())
            .collect();
        if missing.is_empty() {
            return Ok(found);
        }
        Err(CgroupError::Unsupported {
            why: format!("{} has no controller {}", mount.display(), missing.join(", ")),
        })
    }

    fn find_v1(mount: &Path) -> io::Result<Self> {
        let mut hierarchies = Vec::new();
        // Folders alone: links such as `cpu` to `cpu,cpuacct` lead to what is found anyway.
        for root in files::folders(mount)? {
            if !root.join("cgroup.procs").exists() {
                continue;
            }
            let name = root
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            let controllers: BTreeSet<String> = match name.as_str() {
                UNIFIED => BTreeSet::new(),
                names => names.split(',').map(str::to_owned).collect(),
            };
            hierarchies.push(Hierarchy {
                is_used: controllers.iter().any(|name| WANTED.contains(&name.as_str())),
                controllers,
                root,
            });
        }
        hierarchies.sort_by_key(|hierarchy| !hierarchy.controllers.contains("memory"));
        Ok(Self {
            version: Version::V1,
            hierarchies,
        })
    }

    /// The hierarchy that has a controller.
    pub(crate) fn controller(&self, name: &str) -> Option<&Hierarchy> {
        self.hierarchies
            .iter()
            .find(|hierarchy| hierarchy.controllers.contains(name))
    }

    fn used(&self) -> impl Iterator<Item = &Hierarchy> {
        self.hierarchies.iter().filter(|hierarchy| hierarchy.is_used)
    }

    /// The folders of a cgroup in which processes join it.
    pub(crate) fn folders(&self, path: &Path) -> Vec<PathBuf> {
        self.used().map(|hierarchy| hierarchy.root.join(path)).collect()
    }

    /// The folder that has the mark of a cgroup.
    pub(crate) fn marked(&self, path: &Path) -> Option<PathBuf> {
        self.hierarchies.first().map(|hierarchy| hierarchy.root.join(path))
    }

    /// Whether all of a cgroup is there.
    pub(crate) fn exists(&self, path: &Path) -> Result<bool, CgroupError> {
        for hierarchy in self.used() {
            let folder = hierarchy.root.join(path);
            match fs::symlink_metadata(&folder) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => return Ok(false),
                Err(error) if is_gone(&error) => return Ok(false),
                Err(error) => return Err(failed("look at", &folder, error)),
            }
            if self.version == Version::V2 {
                let file = folder.join("cgroup.controllers");
                let Some(has) = files::read(&file).map_err(|error| failed("read", &file, error))? else {
                    continue;
                };
                let has: BTreeSet<&str> = has.split_whitespace().collect();
                // Others may be kept from it by whoever has made those above.
                if REQUIRED.iter().any(|name| !has.contains(name)) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Makes a cgroup, and those that it is in, as far as they are not there.
    pub(crate) fn make(&self, path: &Path) -> Result<(), CgroupError> {
        self.used().try_for_each(|hierarchy| self.make_in(hierarchy, path))
    }

    /// Makes a cgroup in the hierarchy with the marks alone.
    pub(crate) fn make_marked(&self, path: &Path) -> Result<(), CgroupError> {
        self.hierarchies
            .first()
            .map_or(Ok(()), |hierarchy| self.make_in(hierarchy, path))
    }

    fn make_in(&self, hierarchy: &Hierarchy, path: &Path) -> Result<(), CgroupError> {
        let mut folder = hierarchy.root.clone();
        for element in path {
            if self.version == Version::V2 {
                hand_down(hierarchy, &folder)?;
            }
            let above = folder.clone();
            folder.push(element);
            match fs::create_dir(&folder) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if is_forbidden(&error) => {
                    return Err(CgroupError::Unsupported {
                        why: format!("{} cannot be made: {error}", folder.display()),
                    });
                }
                Err(error) => return Err(failed("make", &folder, error)),
            }
            if self.version == Version::V1 && hierarchy.controllers.contains("cpuset") {
                inherit_cpuset(&above, &folder)?;
            }
        }
        Ok(())
    }

    /// Writes limits into the files of a cgroup.
    pub(crate) fn set(&self, path: &Path, values: &[Value]) -> Result<(), CgroupError> {
        let mut quota_first = Vec::new();
        let mut lacks = None;
        for value in values {
            let Some(hierarchy) = self.controller(value.controller) else {
                // Who has no large pages to give out needs nobody to hold back.
                if value.controller == "hugetlb" {
                    continue;
                }
                // The others are set all the same.
                lacks.get_or_insert_with(|| CgroupError::Unsupported {
                    why: format!(
                        "{} cannot be set without the controller {}",
                        value.file, value.controller
                    ),
                });
                continue;
            };
            let file = hierarchy.root.join(path).join(&value.file);
            match files::set(&file, &value.text) {
                Ok(()) => {}
                // Beyond what is above it with the old quota: once more after the new one.
                Err(error) if value.file == "cpu.cfs_period_us" && is_invalid(&error) => quota_first.push(value),
                // A page size that the controller does not know.
                Err(error) if value.controller == "hugetlb" && (is_gone(&error) || is_forbidden(&error)) => {}
                Err(error) => return Err(failed("write", &file, error)),
            }
        }
        for value in quota_first {
            if let Some(hierarchy) = self.controller(value.controller) {
                let file = hierarchy.root.join(path).join(&value.file);
                files::set(&file, &value.text).map_err(|error| failed("write", &file, error))?;
            }
        }
        lacks.map_or(Ok(()), Err)
    }

    /// A file of a cgroup.
    pub(crate) fn read(&self, path: &Path, controller: &str, file: &str) -> Option<String> {
        let hierarchy = match self.version {
            Version::V1 => self.controller(controller),
            // Some files there need no controller.
            Version::V2 => self.hierarchies.first(),
        };
        let file = hierarchy?.root.join(path).join(file);
        files::read(&file).ok().flatten()
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error())
}

/// Those of the controllers that are of use with v2.
fn wanted(has: &BTreeSet<String>) -> impl Iterator<Item = &'static str> {
    WANTED.into_iter().filter(|name| has.contains(*name))
}

/// Lets the cgroups in a folder have the controllers that the folder has: without those that are not required it does if it must.
fn hand_down(hierarchy: &Hierarchy, folder: &Path) -> Result<(), CgroupError> {
    let file = folder.join("cgroup.subtree_control");
    let has = files::read(&file)
        .map_err(|error| failed("read", &file, error))?
        .unwrap_or_default();
    let has: BTreeSet<&str> = has
        .split_whitespace()
        .map(|name| name.trim_start_matches('+'))
        .collect();
    // Whoever made it may have kept some from it.
    let controllers = folder.join("cgroup.controllers");
    let own: BTreeSet<String> = match files::read(&controllers).map_err(|error| failed("read", &controllers, error))? {
        Some(own) => own.split_whitespace().map(str::to_owned).collect(),
        None => hierarchy.controllers.clone(),
    };
    let missing: Vec<&str> = wanted(&own).filter(|name| !has.contains(name)).collect();
    if missing.is_empty() || write_controllers(&file, &missing).is_ok() {
        return Ok(());
    }
    // One that cannot be had keeps back none of the others.
    let (required, others): (Vec<&str>, Vec<&str>) = missing.into_iter().partition(|name| REQUIRED.contains(name));
    for name in others {
        if let Err(error) = write_controllers(&file, &[name]) {
            tracing::debug!(error = &error as &dyn std::error::Error, controller = name, file = %file.display(), "not handed down");
        }
    }
    if required.is_empty() {
        return Ok(());
    }
    match write_controllers(&file, &required) {
        Ok(()) => Ok(()),
        Err(error) if is_forbidden(&error) => Err(CgroupError::Unsupported {
            why: format!("{} may not be written", file.display()),
        }),
        Err(error) => Err(failed("write", &file, error)),
    }
}

fn write_controllers(file: &Path, names: &[&str]) -> io::Result<()> {
    let text: Vec<String> = names.iter().map(|name| format!("+{name}")).collect();
    files::write(file, &text.join(" "))
}

/// A new cgroup of v1 may use no processor and no memory node until it is told which: those of the cgroup that it is in.
fn inherit_cpuset(above: &Path, folder: &Path) -> Result<(), CgroupError> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let file = folder.join(name);
        let own = files::read(&file).map_err(|error| failed("read", &file, error))?;
        if own.is_none_or(|own| !own.is_empty()) {
            continue;
        }
        let above = above.join(name);
        let from = files::read(&above).map_err(|error| failed("read", &above, error))?;
        if let Some(from) = from.filter(|from| !from.is_empty()) {
            files::write(&file, &from).map_err(|error| failed("write", &file, error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use kubelet_core::{CgroupError, CgroupLimits};
    use tempfile::TempDir;

    use super::{Tree, Version};
    use crate::values::values;

    fn v2(controllers: &str) -> (TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), controllers).unwrap();
        let tree = Tree::find(dir.path()).unwrap();
        (dir, tree)
    }

    #[test]
    fn cgroups_of_v2_get_what_the_root_has() {
        let (dir, tree) = v2("cpuset cpu io memory pids rdma misc\n");
        assert_eq!(tree.version, Version::V2);
        let path = Path::new("kubepods/burstable/podu1");
        tree.make(path).unwrap();
        for folder in ["", "kubepods", "kubepods/burstable"] {
            let text = fs::read_to_string(dir.path().join(folder).join("cgroup.subtree_control")).unwrap();
            assert_eq!(text, "+cpu +cpuset +memory +pids +io", "{folder:?}");
        }
        assert!(
            !dir.path().join(path).join("cgroup.subtree_control").exists(),
            "a pod hands on what is made in it"
        );
        let mut limits = CgroupLimits::default();
        limits.cpu_shares = Some(1024);
        limits.memory_bytes = Some(1 << 20);
        limits.pids = Some(7);
        limits.hugepages.insert("2MB".to_owned(), 0);
        tree.set(path, &values(&limits, tree.version)).unwrap();
        for (file, text) in [("cpu.weight", "39"), ("memory.max", "1048576"), ("pids.max", "7")] {
            assert_eq!(fs::read_to_string(dir.path().join(path).join(file)).unwrap(), text);
        }
        // A runtime makes containers in it.
        tree.make(&path.join("app")).unwrap();
        assert!(dir.path().join(path).join("cgroup.subtree_control").exists());
    }

    #[test]
    fn a_cgroup_without_its_controllers_is_not_there() {
        let (dir, tree) = v2("cpu memory pids");
        let path = Path::new("kubepods/podu1");
        assert!(!tree.exists(path).unwrap());
        tree.make(path).unwrap();
        fs::write(dir.path().join(path).join("cgroup.controllers"), "cpu pids").unwrap();
        assert!(!tree.exists(path).unwrap());
        fs::write(dir.path().join(path).join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert!(tree.exists(path).unwrap(), "pids may be kept from it");
    }

    #[test]
    fn a_cgroup_hands_down_what_it_has_and_not_more() {
        let (dir, tree) = v2("cpuset cpu memory pids");
        let edge = dir.path().join("edge");
        fs::create_dir(&edge).unwrap();
        fs::write(edge.join("cgroup.controllers"), "cpu memory\n").unwrap();
        tree.make(Path::new("edge/kubepods")).unwrap();
        let handed = |folder: &Path| fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap();
        assert_eq!(handed(&edge), "+cpu +memory");
        assert_eq!(handed(dir.path()), "+cpu +cpuset +memory +pids");
    }

    #[test]
    fn a_machine_without_the_controllers_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let unsupported = || match Tree::find(dir.path()) {
            Err(CgroupError::Unsupported { why }) => why,
            other => panic!("{other:?}"),
        };
        assert!(unsupported().contains("cpu, memory"), "{}", unsupported());
        fs::write(dir.path().join("cgroup.controllers"), "cpu").unwrap();
        assert!(unsupported().ends_with("memory"), "{}", unsupported());
        let (machine, tree) = v2("cpu memory hugetlb");
        let mut limits = CgroupLimits::default();
        limits.pids = Some(7);
        limits.hugepages.insert("2MB".to_owned(), 0);
        tree.make(Path::new("a")).unwrap();
        let error = tree.set(Path::new("a"), &values(&limits, tree.version)).unwrap_err();
        assert!(error.to_string().contains("pids"), "{error}");
        // What it has is set all the same.
        assert_eq!(
            fs::read_to_string(machine.path().join("a/hugetlb.2MB.max")).unwrap(),
            "0"
        );
    }

    #[test]
    fn hierarchies_of_v1_are_found_by_their_folders() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cpu,cpuacct", "cpuset", "memory", "unified", "systemd", "freezer"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("cgroup.procs"), "").unwrap();
        }
        fs::create_dir(dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink("cpu,cpuacct", dir.path().join("cpu")).unwrap();
        fs::write(dir.path().join("cpuset/cpuset.cpus"), "0-1\n").unwrap();
        fs::write(dir.path().join("cpuset/cpuset.mems"), "0\n").unwrap();
        let tree = Tree::find(dir.path()).unwrap();
        let all: BTreeSet<_> = tree
            .hierarchies
            .iter()
            .map(|h| h.root.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(all.len(), 6);
        assert!(tree.marked(Path::new("a")).unwrap().ends_with("memory/a"));
        let path = Path::new("a/b");
        // As the kernel would, of folders that are made in it.
        fs::create_dir_all(dir.path().join("cpuset/a/b")).unwrap();
        for file in ["a/cpuset.cpus", "a/cpuset.mems", "a/b/cpuset.cpus", "a/b/cpuset.mems"] {
            fs::write(dir.path().join("cpuset").join(file), "\n").unwrap();
        }
        tree.make(path).unwrap();
        assert_eq!(
            fs::read_to_string(dir.path().join("cpuset/a/b/cpuset.cpus")).unwrap(),
            "0-1"
        );
        assert!(tree.exists(path).unwrap());
        assert!(!dir.path().join("unified/a").exists() && !dir.path().join("systemd/a").exists());
        fs::remove_dir(dir.path().join("freezer/a/b")).unwrap();
        assert!(!tree.exists(path).unwrap(), "a part of it is lost");
    }
}
