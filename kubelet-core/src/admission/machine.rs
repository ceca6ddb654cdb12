//! What the machine has, read from its kernel.

#[cfg(target_os = "linux")]
mod linux;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What a node can offer, as the kernel tells it. By default nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineInfo {
    /// Processors that are online, each hardware thread counted.
    pub cpus: u64,
    /// Memory that the kernel manages.
    pub memory_bytes: u64,
    /// Pages that are set aside, by their size in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
    /// The size of the file system that holds the kubelet's root directory.
    pub storage_bytes: u64,
    /// How many processes and threads the kernel can have; 0 where it does not say.
    pub max_pids: u64,
}

/// Why a machine could not be read. Without it a node has no capacity, so its pods would all be refused: the caller
/// decides whether to give up or to name the capacity itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// A file or directory could not be read.
    #[error("read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has no such entry as is looked for.
    #[error("no {what} in {}", path.display())]
    Missing {
        /// Which file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// This system has no such files: name the capacity in the settings.
    #[error("the machine can be read on Linux only")]
    Unsupported,
}

impl MachineInfo {
    /// Reads the machine whose `/proc` and `/sys` lie below `root`, usually `/`, and the size of the file system that
    /// holds `root_dir`, which must exist.
    ///
    /// Blocks for a few file reads, and for as long as the file system of `root_dir` takes to answer.
    ///
    /// Source: kubelet 1.36, `nodestatus/setters.go`, which has the numbers from cAdvisor.
    ///
    /// # Errors
    /// [`MachineError::Read`] and [`MachineError::Missing`] name the file; [`MachineError::Unsupported`] on systems
    /// other than Linux. Huge pages are optional.
    #[cfg(target_os = "linux")]
    pub fn read(root: &Path, root_dir: &Path) -> Result<Self, MachineError> {
        linux::read_machine(root, root_dir)
    }

    /// Not supported on this system.
    ///
    /// # Errors
    /// Always [`MachineError::Unsupported`].
    #[cfg(not(target_os = "linux"))]
    pub fn read(_root: &Path, _root_dir: &Path) -> Result<Self, MachineError> {
        Err(MachineError::Unsupported)
    }
}

/// The operating system that this was built for, as Go and so Kubernetes names it.
pub(super) fn host_operating_system() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    }
}

/// The architecture that this was built for, as Go and so Kubernetes names it.
pub(super) fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        "loongarch64" => "loong64",
        other => other,
    }
}
