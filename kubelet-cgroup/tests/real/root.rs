//! A root of cgroups that goes with its test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use kubelet_cgroup::{CgroupManager, CgroupSettings};
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    CgroupContext, CgroupDriver, NodeLimits, NodeSettings, NodeView, PodCgroups, PodLimits, PodRecord, PodUid,
    ResourceSettings, SourceKind, SourceName,
};
use kubelet_testing::contract::skip;

pub(crate) const MOUNT: &str = "/sys/fs/cgroup";
/// The hierarchies of v1 in which the agent makes cgroups, as far as a machine has them.
const USED: [&str; 6] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "freezer"];

/// The folders of all hierarchies.
pub(crate) fn hierarchies() -> Vec<PathBuf> {
    if Path::new(MOUNT).join("cgroup.controllers").exists() {
        return vec![PathBuf::from(MOUNT)];
    }
    let entries = fs::read_dir(MOUNT)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    entries
        .filter(|path| !path.is_symlink() && path.join("cgroup.procs").exists())
        .collect()
}

/// A root, and what is in it.
#[derive(Debug)]
pub(crate) struct Root {
    name: String,
}

impl Root {
    /// Nothing, and a word on it, where no cgroups can be made.
    pub(crate) fn new(test: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = Self {
            name: format!("kubelet-test-{}-{number}", std::process::id()),
        };
        let all = hierarchies();
        let may = !all.is_empty()
            && all
                .iter()
                .all(|hierarchy| fs::create_dir(hierarchy.join(&root.name)).is_ok());
        if !may {
            skip(test, "cgroups cannot be made here");
            return None;
        }
        Some(root)
    }

    /// The same where hierarchies are those of v1.
    pub(crate) fn v1(test: &str) -> Option<Self> {
        if Path::new(MOUNT).join("cgroup.controllers").exists() {
            skip(test, "this machine has cgroup v2");
            return None;
        }
        Self::new(test)
    }

    pub(crate) fn settings(&self) -> CgroupSettings {
        let mut settings = CgroupSettings::default();
        settings.root = format!("/{}", self.name);
        settings
    }

    pub(crate) fn manager(&self) -> CgroupManager {
        CgroupManager::new(self.settings())
    }

    /// One that is open.
    pub(crate) async fn opened(&self) -> CgroupManager {
        let manager = self.manager();
        manager.open(&context("me")).await.unwrap();
        manager
    }

    /// A cgroup in the hierarchy of a controller, or in the only one.
    pub(crate) fn folder(&self, controller: &str, path: &str) -> PathBuf {
        let all = hierarchies();
        let of_controller = all.iter().find(|hierarchy| {
            let name = hierarchy.file_name().unwrap().to_string_lossy();
            name.split(',').any(|one| one == controller)
        });
        of_controller.unwrap_or(&all[0]).join(&self.name).join(path)
    }

    /// What is in a file of a cgroup: the file's name begins with that of the controller.
    pub(crate) fn value(&self, path: &str, file: &str) -> String {
        let controller = file.split('.').next().unwrap();
        let file = self.folder(controller, path).join(file);
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.trim().to_owned()
    }

    /// The folders of a pod in the hierarchies that are used.
    pub(crate) fn pod_folders(&self, uid: &PodUid) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for hierarchy in hierarchies() {
            let name = hierarchy.file_name().unwrap().to_string_lossy().into_owned();
            let is_used = hierarchy == Path::new(MOUNT) || name.split(',').any(|one| USED.contains(&one));
            for class in ["", "burstable", "besteffort"] {
                let folder = hierarchy
                    .join(&self.name)
                    .join("kubepods")
                    .join(class)
                    .join(format!("pod{uid}"));
                found.extend(Some(folder).filter(|folder| is_used && folder.exists()));
            }
        }
        found
    }

    /// Starts a process in folders of cgroups.
    pub(crate) fn process(folders: &[PathBuf], script: &str) -> Process {
        let joins: String = folders
            .iter()
            .map(|f| format!("echo $$ > {}/cgroup.procs && ", f.display()))
            .collect();
        let ready = tempfile::tempdir().unwrap();
        let told = ready.path().join("ready");
        let script = format!("{joins} echo > {} && {{ {script}; }}", told.display());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !told.exists() {
            assert!(child.try_wait().unwrap().is_none(), "a process cannot join its cgroup");
            std::thread::yield_now();
        }
        Process(Mutex::new(child))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for _ in 0..200 {
            let mut is_left = false;
            for hierarchy in hierarchies() {
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
    let _ = fs::write(folder.join("freezer.state"), "THAWED");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            clear(&entry.path());
        }
    }
    let procs = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in procs.lines().filter(|pid| *pid != "0") {
        let _ = Command::new("kill").args(["-9", pid]).status();
    }
    let _ = fs::remove_dir(folder);
    folder.exists()
}

/// A child of the test.
#[derive(Debug)]
pub(crate) struct Process(Mutex<Child>);

impl Process {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.lock().unwrap().try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = self.0.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

pub(crate) fn context(owner: &str) -> CgroupContext {
    CgroupContext::new(CgroupDriver::Cgroupfs, owner)
}

pub(crate) fn record(pod: &Pod) -> PodRecord {
    PodRecord::new(pod, SourceName::from("api"), SourceKind::Managed).unwrap()
}

pub(crate) fn limits(pod: &PodRecord) -> PodLimits {
    let mut settings = ResourceSettings::default();
    settings.pod_pids_limit = Some(100);
    PodLimits::of(pod.spec(), pod.facts().qos, &settings, &NodeView::new("node-1"))
}

/// The limits of a node with 4 processors, 8 GiB and 30,000 processes, of which it keeps some.
pub(crate) fn node() -> NodeLimits {
    let mut node = NodeView::new("node-1");
    for (name, amount) in [("cpu", "4"), ("memory", "8Gi")] {
        node.capacity.insert(name.to_owned(), amount.parse().unwrap());
    }
    node.max_pids = Some(30_000);
    let mut settings = NodeSettings::default();
    for (name, amount) in [("cpu", "1"), ("memory", "1Gi"), ("pid", "1k")] {
        settings
            .system_reserved
            .insert(name.to_owned(), amount.parse().unwrap());
    }
    NodeLimits::of(&settings, &node)
}

/// All processes in a folder and those inside of it.
pub(crate) fn members(folder: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let mut found: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    for entry in fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.path().is_dir())
    {
        found.extend(members(&entry.path()));
    }
    found
}
