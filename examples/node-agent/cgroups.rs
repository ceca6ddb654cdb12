//! Cgroups of pods, as the command line wants them.

use kubelet_cgroup::{CgroupManager, CgroupSettings, Enforcement};
use kubelet_core::{CgroupContext, CgroupDriver, PodCgroups, RuntimeParts, error_chain};

use crate::args::Args;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What pods have, and what there is to say of it.
pub(crate) struct Cgroups {
    /// Nothing where pods have none.
    pub(crate) manager: Option<CgroupManager>,
    /// Why they have none, if nobody said that they should not.
    pub(crate) line: Option<String>,
}

/// Pods have cgroups where they can be made, and what runs without them is told why. Who asks for them gets no pods without.
pub(crate) async fn of(args: &Args, runtime: &RuntimeParts) -> Outcome<Cgroups> {
    let mut settings = CgroupSettings::default();
    settings.root.clone_from(&args.cgroup_root);
    settings.enforcement = Enforcement::parse(
        args.enforce_node_allocatable.iter().map(String::as_str),
        args.system_reserved_cgroup.as_deref(),
        args.kube_reserved_cgroup.as_deref(),
    )?;
    let manager = CgroupManager::new(settings);
    let without = |line| Cgroups { manager: None, line };
    if args.cgroups_per_qos == Some(false) {
        return Ok(without(None));
    }
    let driver = runtime
        .runtime
        .info()
        .await?
        .cgroup_driver
        .unwrap_or(CgroupDriver::Cgroupfs);
    // Opened for a look: the kubelet opens them again, for its own.
    match manager.open(&CgroupContext::new(driver, "a look")).await {
        Ok(()) => Ok(Cgroups {
            manager: Some(manager),
            line: None,
        }),
        Err(error) if args.cgroups_per_qos == Some(true) => Err(error.into()),
        Err(error) => {
            let why = error_chain(&error);
            Ok(without(Some(format!("pods have no cgroups of their own: {why}"))))
        }
    }
}
