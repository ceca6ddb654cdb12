//! A root of cgroups that goes with its test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use kubelet_cgroup::{CgroupManager, CgroupSettings};
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    CgroupContext, CgroupDriver, NodeLimits, NodeSettings, NodeView, PodCgroups, PodLimits, PodRecord, PodUid,
    ResourceSettings, SourceKind, SourceName,
};
use kubelet_testing::CgroupRoot;

/// The hierarchies of v1 in which the agent makes cgroups, as far as a machine has them.
const USED: [&str; 6] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "freezer"];

/// A root, and what is in it.
#[derive(Debug)]
pub(crate) struct Root(CgroupRoot);

impl Root {
    /// Nothing, and a word on it, where no cgroups can be made.
    pub(crate) fn new(test: &str) -> Option<Self> {
        CgroupRoot::new_or_skip(test).map(Self)
    }

    /// The same where hierarchies are those of v1.
    pub(crate) fn v1(test: &str) -> Option<Self> {
        CgroupRoot::v1_or_skip(test).map(Self)
    }

    pub(crate) fn settings(&self) -> CgroupSettings {
        let mut settings = CgroupSettings::default();
        settings.root = self.0.path();
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
        self.0.folder(controller, path)
    }

    /// What is in a file of a cgroup: the file's name begins with that of the controller.
    pub(crate) fn value(&self, path: &str, file: &str) -> String {
        let value = self.0.value(path, file);
        value.unwrap_or_else(|| panic!("there is no {file} of {path:?}"))
    }

    /// The folders of a pod in the hierarchies that are used.
    pub(crate) fn pod_folders(&self, uid: &PodUid) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for hierarchy in CgroupRoot::hierarchies() {
            let name = hierarchy.file_name().unwrap().to_string_lossy().into_owned();
            let is_used = name == "cgroup" || name.split(',').any(|one| USED.contains(&one));
            for class in ["", "burstable", "besteffort"] {
                let pods = hierarchy.join(&self.0.path()[1..]).join("kubepods");
                let folder = pods.join(class).join(format!("pod{uid}"));
                found.extend(Some(folder).filter(|folder| is_used && folder.exists()));
            }
        }
        found
    }

    /// The folders of a class that are there.
    pub(crate) fn class_folders(&self, class: &str) -> Vec<PathBuf> {
        let below = format!("{}/kubepods/{class}", &self.0.path()[1..]);
        let all = CgroupRoot::hierarchies().into_iter();
        all.map(|hierarchy| hierarchy.join(&below))
            .filter(|folder| folder.exists())
            .collect()
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
