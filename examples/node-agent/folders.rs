//! Where things are, and what this node is called.

use std::env;
use std::path::{Path, PathBuf};

use crate::args::Args;

/// The folders of the agent, all absolute.
#[derive(Debug)]
pub(crate) struct Folders {
    pub(crate) manifests: PathBuf,
    pub(crate) root: PathBuf,
    pub(crate) images: PathBuf,
    pub(crate) objects: Option<PathBuf>,
}

impl Folders {
    pub(crate) fn of(args: &Args) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let root = match &args.root_dir {
            Some(root) => std::path::absolute(root)?,
            None => default_root()?,
        };
        let images = match &args.images_dir {
            Some(images) => std::path::absolute(images)?,
            None => root.join("images"),
        };
        Ok(Self {
            manifests: std::path::absolute(&args.manifests)?,
            objects: args.objects.as_deref().map(std::path::absolute).transpose()?,
            root,
            images,
        })
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn processes(&self) -> PathBuf {
        self.root.join("process")
    }
}

fn default_root() -> Result<PathBuf, Box<dyn std::error::Error + Send + Sync>> {
    const NAME: &str = "kubelet-agent";
    if rustix::process::geteuid().is_root() {
        return Ok(Path::new("/var/lib").join(NAME));
    }
    let absolute = |path: &PathBuf| path.is_absolute();
    if let Some(state) = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(absolute) {
        return Ok(state.join(NAME));
    }
    env::var_os("HOME")
        .map(PathBuf::from)
        .filter(absolute)
        .map(|home| home.join(".local/state").join(NAME))
        .ok_or_else(|| "neither XDG_STATE_HOME nor HOME is set: say where state goes with --root-dir".into())
}

/// The host's name as part of pod names: lower case letters, digits, dashes and dots.
pub(crate) fn default_node_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let name: String = host
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
        .collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() {
        "node".to_owned()
    } else {
        name.to_owned()
    }
}
