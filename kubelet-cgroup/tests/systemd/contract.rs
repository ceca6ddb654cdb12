//! The suite of `PodCgroups`, on cgroups of this machine that a systemd seems to make.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use kubelet_cgroup::{CgroupManager, CgroupSettings};
use kubelet_core::{CgroupDriver, PodCgroups, PodUid};
use kubelet_testing::CgroupRoot;
use kubelet_testing::contract::{CgroupFixture, now, skip};

use crate::bus::PrivateBus;
use crate::fake::FakeSystemd;
use crate::machine::{context, limits, pod};

/// What systemd has of v1: the others are for whoever needs them.
const OF_SYSTEMD: [&str; 7] = ["cgroup", "cpu,cpuacct", "cpu", "cpuacct", "memory", "pids", "systemd"];
/// What this crate has besides.
const USED: [&str; 3] = ["cpuset", "freezer", "hugetlb"];

/// A slice of the machine's root, and all that is in it.
struct Root {
    name: String,
    bus: PrivateBus,
    _systemd: FakeSystemd,
}

impl Root {
    async fn new_or_skip(test: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let bus = PrivateBus::new_or_skip(test)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kubelettest{}n{number}", std::process::id());
        let roots: Vec<PathBuf> = CgroupRoot::hierarchies();
        let slice = format!("{name}.slice");
        if roots.is_empty() || !roots.iter().all(|root| fs::create_dir(root.join(&slice)).is_ok()) {
            skip(test, "cgroups cannot be made here");
            return None;
        }
        let roots = roots.into_iter().filter(|root| is_one_of(root, &OF_SYSTEMD));
        let mut systemd = FakeSystemd::new(roots.collect());
        systemd.serve(&bus.address()).await;
        Some(Self {
            name,
            bus,
            _systemd: systemd,
        })
    }

    fn manager(&self) -> CgroupManager {
        let mut settings = CgroupSettings::default();
        settings.root = format!("/{}", self.name);
        settings.systemd.address = Some(self.bus.address());
        CgroupManager::new(settings)
    }

    fn pod_folders(&self, uid: &PodUid) -> Vec<PathBuf> {
        pod_folders(&CgroupRoot::hierarchies(), &self.name, uid)
    }
}

/// The folders of a pod in those hierarchies that are used.
pub(crate) fn pod_folders(hierarchies: &[PathBuf], root: &str, uid: &PodUid) -> Vec<PathBuf> {
    let pods = format!("{root}-kubepods");
    let pod = format!("pod{}.slice", uid.as_str().replace('-', "_"));
    let mut found = Vec::new();
    for hierarchy in hierarchies {
        let is_used = is_one_of(hierarchy, &OF_SYSTEMD[..6]) || is_one_of(hierarchy, &USED);
        let above = hierarchy.join(format!("{root}.slice/{pods}.slice"));
        for folder in [
            format!("{pods}-{pod}"),
            format!("{pods}-burstable.slice/{pods}-burstable-{pod}"),
            format!("{pods}-besteffort.slice/{pods}-besteffort-{pod}"),
        ] {
            found.extend(Some(above.join(folder)).filter(|folder| is_used && folder.exists()));
        }
    }
    found
}

fn is_one_of(root: &Path, names: &[&str]) -> bool {
    let name = root.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| names.contains(&name))
}

impl Drop for Root {
    fn drop(&mut self) {
        for root in CgroupRoot::hierarchies() {
            let folder = root.join(format!("{}.slice", self.name));
            for _ in 0..10_000 {
                clear(&folder);
                if !folder.exists() {
                    break;
                }
                std::thread::yield_now();
            }
        }
    }
}

/// Kills what is in a folder, and removes it.
fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            clear(&entry.path());
        }
    }
    let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines().filter(|process| *process != "0") {
        let _ = Command::new("kill").args(["-9", process]).status();
    }
    let _ = fs::remove_dir(folder);
}

/// A child of the test, in these folders.
pub(crate) struct Process(Mutex<Child>);

impl Process {
    pub(crate) fn new(folders: &[PathBuf]) -> Self {
        let joins: String = folders
            .iter()
            .map(|folder| format!("echo $$ > {}/cgroup.procs && ", folder.display()))
            .collect();
        let ready = tempfile::tempdir().unwrap();
        let told = ready.path().join("ready");
        let script = format!("{joins} echo > {} && {{ sleep 4711 & sleep 4711; }}", told.display());
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
        Self(Mutex::new(child))
    }

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

async fn cgroups() -> Option<(CgroupManager, CgroupFixture)> {
    let root = Arc::new(Root::new_or_skip("slices of this machine").await?);
    let (next, process, stranger, lost) = (root.clone(), root.clone(), root.clone(), root.clone());
    let fixture = CgroupFixture::new()
        .driver(CgroupDriver::Systemd)
        .next_life(move || now(|| Arc::new(next.manager()) as Arc<dyn PodCgroups>))
        .process(move |uid| {
            let child = Process::new(&process.pod_folders(&uid));
            now(move || move || child.is_alive())
        })
        .stranger(move || {
            let other = stranger.manager();
            async move {
                other.open(&context("another")).await.unwrap();
                let pod = pod("stranger", |c| c);
                other.apply(&pod, &limits(&pod)).await.unwrap();
                pod.uid().clone()
            }
        })
        .lost(move |uid| now(|| fs::remove_dir(lost.pod_folders(&uid).last().unwrap()).unwrap()));
    // The root goes with the fixture's hooks.
    Some((root.manager(), fixture))
}

kubelet_testing::cgroup_contract!(cgroups);
