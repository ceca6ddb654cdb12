//! What an embedder chooses.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use kubelet_core::{BoxError, Clock, SystemClock};

/// Where the runtime keeps things, and what it says about the host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Where sandboxes and containers are recorded. Made if absent; readable by its owner only, since environments are kept
    /// there. One runtime at a time.
    pub state_dir: PathBuf,
    /// Where root file systems are. It may be absent.
    pub images_dir: PathBuf,
    /// The address that pods have; absent: the one that the host would reach the outside from, else the loopback one.
    pub node_ip: Option<IpAddr>,
    /// Tells the time for what the agent records. Supervisors use the machine's.
    pub clock: Arc<dyn Clock>,
}

impl Settings {
    /// Settings with these folders and defaults for the rest.
    pub fn new(state_dir: impl Into<PathBuf>, images_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            images_dir: images_dir.into(),
            node_ip: None,
            clock: Arc::new(SystemClock),
        }
    }
}

/// Why a runtime could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another runtime uses the folder. The embedder ends that one, or chooses another folder.
    #[error("state directory {} is in use by another runtime", path.display())]
    InUse {
        /// The state directory.
        path: PathBuf,
    },
    /// The folder cannot be used. The embedder repairs it, or chooses another one.
    #[error("cannot use state directory {}", path.display())]
    StateDir {
        /// The state directory.
        path: PathBuf,
        /// The cause.
        source: BoxError,
    },
}
