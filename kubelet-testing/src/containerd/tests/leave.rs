//! What an instance has on the machine, looked for without the code that removes it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::containerd::instance::PrivateContainerd;
use crate::containerd::processes;

/// What an instance had at one moment.
#[derive(Debug)]
pub(super) struct Traces {
    folder: PathBuf,
    /// The bridge, by name and index: another instance may take the name at once.
    bridge: (PathBuf, String),
    /// Processes, by id and start.
    processes: Vec<(u32, u64)>,
    /// Ends of pods' networks.
    links: Vec<PathBuf>,
    /// Namespaces of networks: `net:[4026532179]`.
    namespaces: BTreeSet<String>,
    /// Sockets of shims.
    sockets: BTreeSet<String>,
    /// Containers, as their cgroups are called.
    containers: Vec<String>,
}

impl Traces {
    /// Notes all that an instance has, which must be something of each kind.
    pub(super) fn of(containerd: &PrivateContainerd) -> Self {
        let folder = containerd.folder().to_owned();
        Self::in_folder(&folder, &containerd.network())
    }

    /// The same, of an instance whose owner is another process, or dead.
    pub(super) fn in_folder(folder: &Path, network: &str) -> Self {
        let of_folder = processes::of(folder);
        let own = network_of("self");
        let namespaces: BTreeSet<String> = of_folder.iter().map(|pid| network_of(&pid.to_string())).collect();
        let bridge = Path::new("/sys/class/net").join(network);
        let links = entries(&bridge.join("brif"));
        let traces = Self {
            processes: of_folder
                .iter()
                .filter_map(|pid| Some((*pid, processes::start_time(*pid)?)))
                .collect(),
            links: links
                .iter()
                .map(|port| Path::new("/sys/class/net").join(port.file_name().unwrap()))
                .collect(),
            namespaces: namespaces.into_iter().filter(|namespace| *namespace != own).collect(),
            sockets: sockets(folder),
            containers: entries(&folder.join("runc/k8s.io"))
                .iter()
                .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
                .collect(),
            folder: folder.to_owned(),
            bridge: (bridge.clone(), index_of(&bridge)),
        };
        assert!(!traces.processes.is_empty(), "{traces:?}");
        assert!(!traces.links.is_empty(), "{traces:?}");
        assert!(!traces.namespaces.is_empty(), "{traces:?}");
        assert!(!traces.sockets.is_empty(), "{traces:?}");
        assert!(!traces.containers.is_empty(), "{traces:?}");
        assert!(mounts().contains(&traces.folder.display().to_string()));
        assert!(
            rules().contains(&format!(r#"\"{network}\""#)),
            "no host port: {}",
            rules()
        );
        traces
    }

    /// Fails if anything of it is there.
    pub(super) fn assert_gone(&self) {
        for (pid, start) in &self.processes {
            let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let is_zombie = state.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z"));
            let lives = processes::start_time(*pid) == Some(*start) && !is_zombie;
            assert!(!lives, "process {pid} lives: {state}");
        }
        assert_eq!(processes::of(&self.folder), [0_u32; 0]);
        let mounts = mounts();
        let folder = self.folder.display().to_string();
        assert!(!mounts.contains(&folder), "a mount is left of {folder}: {mounts}");
        // What other instances have may have the number of a namespace by now.
        let others = processes::of(self.folder.parent().unwrap());
        for namespace in &self.namespaces {
            let mut foreign = mounts.lines().filter(|line| !line.contains("/kubelet-test-"));
            assert!(
                !foreign.any(|line| line.contains(namespace)),
                "{namespace} is mounted: {mounts}"
            );
            let all = entries(Path::new("/proc"))
                .into_iter()
                .filter_map(|path| path.file_name()?.to_str()?.parse().ok());
            let users: Vec<u32> = all
                .filter(|pid: &u32| network_of(&pid.to_string()) == *namespace)
                .collect();
            assert!(
                users.iter().all(|pid| others.contains(pid)),
                "{namespace} has processes: {users:?}"
            );
        }
        for link in &self.links {
            assert!(!link.exists(), "{} is left", link.display());
        }
        let (bridge, index) = &self.bridge;
        assert_ne!(index_of(bridge), *index, "{} is left", bridge.display());
        let rules = rules();
        for container in &self.containers {
            assert!(!rules.contains(container), "rules are left: {rules}");
        }
        for result in entries(Path::new("/var/lib/cni/results")) {
            let name = result.file_name().unwrap().to_string_lossy().into_owned();
            let ours = self.containers.iter().any(|container| name.contains(container));
            assert!(!ours, "{name} is left");
        }
        for controller in entries(Path::new("/sys/fs/cgroup")) {
            for container in &self.containers {
                let cgroup = controller.join("k8s.io").join(container);
                assert!(!cgroup.exists(), "{} is left", cgroup.display());
            }
        }
        for socket in &self.sockets {
            assert!(!Path::new(socket).exists(), "{socket} is left");
        }
        assert!(!self.folder.exists(), "{folder} is left");
    }
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

fn rules() -> String {
    let output = Command::new("iptables-save").args(["-t", "nat"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The number of a link; none has an empty one.
fn index_of(link: &Path) -> String {
    fs::read_to_string(link.join("ifindex")).unwrap_or_default()
}

fn network_of(process: &str) -> String {
    let link = fs::read_link(format!("/proc/{process}/ns/net")).unwrap_or_default();
    link.display().to_string()
}

/// The sockets that the shims of a folder listen on.
fn sockets(folder: &Path) -> BTreeSet<String> {
    let tasks = folder.join("state/io.containerd.runtime.v2.task/k8s.io");
    let mut sockets = BTreeSet::new();
    for task in entries(&tasks) {
        let files = ["address", "bootstrap.json"].map(|file| fs::read_to_string(task.join(file)).unwrap_or_default());
        for text in files {
            if let Some(at) = text.find("/run/containerd/s/") {
                sockets.insert(text[at..].split('"').next().unwrap().to_owned());
            }
        }
    }
    sockets
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .collect()
}
