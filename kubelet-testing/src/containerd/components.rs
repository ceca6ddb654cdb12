//! What is needed of the machine, and where it is.

use std::env;
use std::path::{Path, PathBuf};

use crate::containerd::command::{find, find_in, run};
use crate::containerd::error::ComponentError;

/// Where the CNI plugins of Debian are.
pub(crate) const CNI_PLUGINS: &str = "/usr/lib/cni";

/// Names the folder that containerd 2.x was unpacked into.
const CONTAINERD_2: &str = "KUBELET_CONTAINERD_2";

/// Names the folder with the images.
const IMAGES: &str = "KUBELET_TEST_IMAGES";

/// A line of containerd releases; they differ in what a kubelet may ask of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Containerd {
    /// 1.6, which has no events over CRI; from `PATH`.
    V1_6,
    /// 2.x, with events, pod statistics and `RuntimeConfig`; from `components/containerd-2` beside the build, or from
    /// the folder that `KUBELET_CONTAINERD_2` names.
    V2,
}

impl Containerd {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::V1_6, Self::V2];
}

/// Programs and images, all of them there.
#[derive(Debug)]
pub(crate) struct Components {
    /// The folder with containerd, its shim and `ctr`.
    pub(crate) programs: PathBuf,
    /// A newer runc than the machine's, where there is one.
    pub(crate) newer_runc: Option<PathBuf>,
    /// The archives of the base images.
    pub(crate) images: Vec<PathBuf>,
    /// What containerd says of itself.
    pub(crate) reported: String,
}

impl Components {
    /// Looks for what an instance needs.
    pub(crate) fn find(version: Containerd) -> Result<Self, ComponentError> {
        if !rustix::process::geteuid().is_root() {
            return Err(ComponentError::missing("a private containerd needs root"));
        }
        let programs = match version {
            Containerd::V1_6 => folder_of(find("containerd", "containerd")?),
            Containerd::V2 => unpacked()?,
        };
        for program in ["containerd", "ctr", "containerd-shim-runc-v2"] {
            find_in(&programs, program)?;
        }
        let reported = run(&programs.join("containerd"), ["--version"])?;
        let reported = reported.split_whitespace().nth(2).unwrap_or_default().to_owned();
        let expected = match version {
            Containerd::V1_6 => "1.6.",
            Containerd::V2 => "2.",
        };
        if !reported.trim_start_matches('v').starts_with(expected) {
            let found = programs.display();
            let what = format!("the containerd in {found} is {reported}, and {expected}x is needed");
            return Err(ComponentError::missing(what));
        }
        for plugin in ["bridge", "host-local", "loopback", "portmap"] {
            if !Path::new(CNI_PLUGINS).join(plugin).exists() {
                let what = format!("{CNI_PLUGINS} has no {plugin} (Debian: containernetworking-plugins)");
                return Err(ComponentError::missing(what));
            }
        }
        find("runc", "runc")?;
        find("ip", "iproute2")?;
        find("iptables", "iptables")?;
        // It is of no use where the folder was moved, or on a machine of another kind.
        let newer_runc = programs
            .ancestors()
            .nth(2)
            .map(|home| home.join("runc/runc"))
            .filter(|runc| version == Containerd::V2 && run(runc, ["--version"]).is_ok());
        Ok(Self {
            programs,
            newer_runc,
            images: base_images()?,
            reported,
        })
    }
}

/// The archives of the base images.
fn base_images() -> Result<Vec<PathBuf>, ComponentError> {
    let folder = match env::var_os(IMAGES) {
        Some(folder) => Some(PathBuf::from(folder)),
        None => beside_the_build("images"),
    };
    let images: Option<Vec<PathBuf>> = folder.map(|folder| {
        let paths = ["pause.tar", "busybox.tar"].map(|file| folder.join(file));
        paths.into_iter().filter(|path| path.exists()).collect()
    });
    images
        .filter(|images| images.len() == 2)
        .ok_or_else(|| ComponentError::missing("the images are not built: scripts/components/images does it"))
}

/// The programs of the unpacked containerd 2.x.
fn unpacked() -> Result<PathBuf, ComponentError> {
    let folder = match env::var_os(CONTAINERD_2) {
        Some(folder) => Some(PathBuf::from(folder)),
        None => beside_the_build("containerd-2"),
    };
    folder
        .map(|folder| folder.join("usr/bin"))
        .filter(|programs| programs.is_dir())
        .ok_or_else(|| {
            ComponentError::missing("containerd 2.x is not unpacked: scripts/components/containerd-2 does it")
        })
}

/// A folder of components: they are in the target directory, which this program runs from, wherever it is.
fn beside_the_build(name: &str) -> Option<PathBuf> {
    let own = env::current_exe().ok()?;
    own.ancestors()
        .map(|folder| folder.join("components").join(name))
        .find(|folder| folder.is_dir())
}

/// The folder of a program, links followed, so that its shim is found beside it.
fn folder_of(program: PathBuf) -> PathBuf {
    let program = program.canonicalize().unwrap_or(program);
    program.parent().map_or_else(PathBuf::new, Path::to_owned)
}
