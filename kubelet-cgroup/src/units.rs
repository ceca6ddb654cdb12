//! Who is told of cgroups beside the kernel.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use kubelet_core::{CgroupDriver, CgroupError, CgroupLimits};

use crate::manager::CgroupSettings;
use crate::tree::Version;

/// A manager of units, which makes the folders of cgroups and takes them away, and has limits of its own for them: what it is not
/// told it may undo. All calls may be repeated. They wait for its answer, for a bounded time.
#[async_trait]
pub(crate) trait Units: fmt::Debug + Send + Sync {
    /// Starts the unit that a cgroup is, unless it runs, and gives it these limits. The one that it is in runs already.
    async fn start(&self, path: &Path, limits: &CgroupLimits) -> Result<(), CgroupError>;

    /// Gives a unit limits. A cgroup that is none has them in its files alone.
    async fn set(&self, path: &Path, limits: &CgroupLimits) -> Result<(), CgroupError>;

    /// Stops a unit, and with it those in it. One that is not there has stopped.
    async fn stop(&self, path: &Path) -> Result<(), CgroupError>;
}

/// The units of a driver; nothing for plain folders.
pub(crate) fn of(
    driver: CgroupDriver,
    settings: &CgroupSettings,
    version: Version,
) -> Result<Option<Arc<dyn Units>>, CgroupError> {
    match driver {
        #[cfg(feature = "systemd")]
        CgroupDriver::Systemd => Ok(Some(Arc::new(crate::systemd::Systemd::new(
            settings.systemd.clone(),
            version,
        )))),
        #[cfg(not(feature = "systemd"))]
        CgroupDriver::Systemd => {
            let _ = (settings, version);
            refuse(driver).map(|()| None)
        }
        _ => Ok(None),
    }
}

/// Fails if this build cannot make cgroups in the way of a driver.
pub(crate) fn refuse(driver: CgroupDriver) -> Result<(), CgroupError> {
    if driver == CgroupDriver::Systemd && !cfg!(feature = "systemd") {
        return Err(CgroupError::Unsupported {
            why: "the runtime has systemd make cgroups, which this build cannot ask: build kubelet-cgroup with its feature \
                  `systemd`, or have the runtime make plain folders"
                .to_owned(),
        });
    }
    Ok(())
}

/// A cgroup and those that it is in, from above.
pub(crate) fn chain(path: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = path
        .ancestors()
        .filter(|above| !above.as_os_str().is_empty())
        .map(Path::to_owned)
        .collect();
    all.reverse();
    all
}
