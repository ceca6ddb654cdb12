//! A root of cgroups of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::contract::skip;

const MOUNT: &str = "/sys/fs/cgroup";

/// A cgroup of this machine, in each of its hierarchies, for one test: whatever is made below it ends and goes with it.
///
/// ```no_run
/// use kubelet_testing::CgroupRoot;
///
/// if let Some(root) = CgroupRoot::new_or_skip("my_test") {
///     // With an agent whose cgroups are below `root.path()`.
///     assert_eq!(root.value("kubepods/besteffort", "cpu.shares").as_deref(), Some("2"));
/// }
/// ```
#[derive(Debug)]
#[must_use = "all below it goes when it is dropped"]
pub struct CgroupRoot {
    name: String,
}

impl CgroupRoot {
    /// Nothing, and a word on it, where no cgroups can be made.
    ///
    /// # Panics
    /// If nothing may be skipped.
    pub fn new_or_skip(test: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = Self {
            name: format!("kubelet-test-{}-{number}", std::process::id()),
        };
        let all = Self::hierarchies();
        let made = all
            .iter()
            .all(|hierarchy| fs::create_dir(hierarchy.join(&root.name)).is_ok());
        if all.is_empty() || !made {
            skip(test, "cgroups cannot be made here");
            return None;
        }
        Some(root)
    }

    /// The same where the machine has a hierarchy for each controller: cgroup v1.
    ///
    /// # Panics
    /// As [`new_or_skip`](Self::new_or_skip).
    pub fn v1_or_skip(test: &str) -> Option<Self> {
        if Path::new(MOUNT).join("cgroup.controllers").exists() {
            skip(test, "this machine has cgroup v2");
            return None;
        }
        Self::new_or_skip(test)
    }

    /// The folders of all hierarchies of this machine.
    #[must_use]
    pub fn hierarchies() -> Vec<PathBuf> {
        let mount = PathBuf::from(MOUNT);
        if mount.join("cgroup.controllers").exists() {
            return vec![mount];
        }
        let entries = fs::read_dir(mount).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| !path.is_symlink() && path.join("cgroup.procs").exists())
            .collect();
        found.sort();
        found
    }

    /// Its path from the root of each hierarchy on.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/{}", self.name)
    }

    /// The folder of a cgroup below it, in the hierarchy of a controller.
    #[must_use]
    pub fn folder(&self, controller: &str, path: &str) -> PathBuf {
        let all = Self::hierarchies();
        let has_it = |hierarchy: &&PathBuf| {
            let name = hierarchy
                .file_name()
                .map(|name| name.to_string_lossy())
                .unwrap_or_default();
            name.split(',').any(|one| one == controller)
        };
        let hierarchy = all.iter().find(has_it).or(all.first()).cloned().unwrap_or_default();
        hierarchy.join(&self.name).join(path)
    }

    /// What is in a file of a cgroup below it, without the end of its line. The file's name begins with that of its controller.
    #[must_use]
    pub fn value(&self, path: &str, file: &str) -> Option<String> {
        let controller = file.split('.').next().unwrap_or_default();
        let text = fs::read_to_string(self.folder(controller, path).join(file)).ok()?;
        Some(text.trim_end().to_owned())
    }
}

impl Drop for CgroupRoot {
    fn drop(&mut self) {
        for _ in 0..1000 {
            let mut is_left = false;
            for hierarchy in Self::hierarchies() {
                is_left |= clear(&hierarchy.join(&self.name));
            }
            if !is_left {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Kills what is in a folder, and removes it; says whether it is still there.
fn clear(folder: &Path) -> bool {
    // Of an agent that ended in the middle.
    let _ = fs::write(folder.join("freezer.state"), "THAWED");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            clear(&entry.path());
        }
    }
    let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines().filter(|process| *process != "0") {
        let _ = std::process::Command::new("kill").args(["-9", process]).status();
    }
    let _ = fs::remove_dir(folder);
    folder.exists()
}
