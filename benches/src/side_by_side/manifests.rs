//! The folder of manifests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

/// A folder that a kubelet reads, and one beside it in which files are written before they appear there as a whole.
#[derive(Debug)]
pub(super) struct Manifests {
    folder: PathBuf,
    draft: PathBuf,
}

impl Manifests {
    pub(super) fn new(dir: &Path) -> io::Result<Self> {
        // In a folder of their own, since kubelets watch the one above as well.
        let above = dir.join("static");
        let folder = above.join("manifests");
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            draft: above.join("draft.json"),
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Puts a pod of so many containers there, which run for ever.
    pub(super) fn put(&self, name: &str, containers: usize) -> io::Result<()> {
        let containers: Vec<_> = (0..containers)
            .map(|number| {
                json!({
                    "name": format!("app-{number}"),
                    "image": "registry.example.com/team/web:1.2.3",
                    "imagePullPolicy": "IfNotPresent",
                    "args": ["--listen=:8080", "--log-format=json"],
                    "env": [{"name": "SETTING", "value": "http://service.default.svc:8080/path"}],
                })
            })
            .collect();
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
            "spec": {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false, "containers": containers},
        });
        fs::write(&self.draft, pod.to_string())?;
        fs::rename(&self.draft, self.path(name))
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }
}
