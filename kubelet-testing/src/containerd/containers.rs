//! What containers of an instance have outside its folder, once all its processes are dead.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::containerd::archive::hex;
use crate::containerd::command::{find, run};
use crate::containerd::config::{NAMESPACE, RUNC, SOCKET, STATE};
use crate::containerd::error::ComponentError;
use crate::containerd::network::Network;

/// Where runc keeps what it knows of containers that were not given another place.
const SHARED_RUNC: &str = "/run/containerd/runc";

/// Where the shims of all instances listen.
const SHIMS: &str = "/run/containerd/s";

const CGROUPS: &str = "/sys/fs/cgroup";

/// A container as containerd names it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Container {
    namespace: String,
    id: String,
}

/// Removes cgroups of containers, sockets of their shims, and what runc knows of them.
pub(crate) fn remove_containers(folder: &Path) -> Result<(), ComponentError> {
    let mut first = Ok(());
    for container in containers(folder) {
        let forgotten = container.forget(folder);
        first = first.and(forgotten);
        container.remove_cgroups(folder);
        container.remove_socket(folder);
    }
    first
}

/// All that one of those who work with them knows of: which of them was killed in the middle is not known.
fn containers(folder: &Path) -> BTreeSet<Container> {
    let mut containers = BTreeSet::new();
    for place in [folder.join(RUNC), tasks(folder)] {
        for namespace in children(&place) {
            for container in children(&namespace) {
                let names = (name_of(&namespace), name_of(&container));
                if let (Some(namespace), Some(id)) = names {
                    containers.insert(Container { namespace, id });
                }
            }
        }
    }
    let pods = Network::of(folder).map(|network| network.pods(folder));
    containers.extend(pods.into_iter().flatten().map(|id| Container {
        namespace: NAMESPACE.to_owned(),
        id,
    }));
    containers
}

impl Container {
    /// Lets runc forget it, which removes its cgroups.
    fn forget(&self, folder: &Path) -> Result<(), ComponentError> {
        let roots = [folder.join(RUNC), PathBuf::from(SHARED_RUNC)].map(|root| root.join(&self.namespace));
        for root in roots {
            let state = fs::read_to_string(root.join(&self.id).join("state.json")).unwrap_or_default();
            // In the place that is shared, the same name may be another's.
            if state.contains(&format!("{}/", folder.display())) {
                let runc = find("runc", "runc")?;
                let words = ["delete", "--force", &self.id].map(AsRef::as_ref);
                run(&runc, ["--root".as_ref(), root.as_os_str()].into_iter().chain(words))?;
            }
        }
        Ok(())
    }

    /// Removes the cgroups that runc made, but was killed before it noted them.
    fn remove_cgroups(&self, folder: &Path) {
        let bundle = tasks(folder).join(&self.namespace).join(&self.id);
        let config = fs::read_to_string(bundle.join("config.json")).unwrap_or_default();
        let config: Value = serde_json::from_str(&config).unwrap_or_default();
        let path = match config["linux"]["cgroupsPath"].as_str() {
            Some(path) => path.trim_start_matches('/').to_owned(),
            // Where it is if nobody wishes otherwise.
            None => format!("{}/{}", self.namespace, self.id),
        };
        // A path with colons is for systemd, which removes such a cgroup by itself.
        if path.is_empty() || path.contains(':') {
            return;
        }
        for hierarchy in children(Path::new(CGROUPS)).into_iter().chain([PathBuf::from(CGROUPS)]) {
            // Only an empty cgroup can be removed, so that nothing of another's is lost. Mostly there is none.
            let _ = fs::remove_dir(hierarchy.join(&path));
        }
    }

    /// Removes the socket of its shim, which is named by a digest.
    fn remove_socket(&self, folder: &Path) {
        let name = folder.join(SOCKET).join(&self.namespace).join(&self.id);
        let digest = Sha256::digest(name.as_os_str().as_encoded_bytes());
        // Mostly there is none: a shim removes it itself, and a pod has one shim.
        let _ = fs::remove_file(Path::new(SHIMS).join(hex(&digest)));
    }
}

/// The folder of tasks, which are in one for each namespace.
fn tasks(folder: &Path) -> PathBuf {
    folder.join(STATE).join("io.containerd.runtime.v2.task")
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn name_of(path: &Path) -> Option<String> {
    path.file_name()?.to_str().map(str::to_owned)
}
