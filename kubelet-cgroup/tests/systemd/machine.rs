//! A tree of files that looks like cgroup v2, and the systemd whose it is.

use std::fs;
use std::time::Duration;

use kubelet_cgroup::{CgroupManager, CgroupSettings};
use kubelet_core::{
    CgroupContext, CgroupDriver, NodeView, PodCgroups, PodLimits, PodRecord, ResourceSettings, SourceKind, SourceName,
};
use kubelet_testing::{ContainerBuilder, PodBuilder};
use tempfile::TempDir;

use crate::bus::PrivateBus;
use crate::fake::FakeSystemd;

pub(crate) struct Machine {
    pub(crate) bus: PrivateBus,
    pub(crate) systemd: FakeSystemd,
    pub(crate) dir: TempDir,
}

impl Machine {
    pub(crate) async fn new_or_skip(test: &str) -> Option<Self> {
        let bus = PrivateBus::new_or_skip(test)?;
        let dir = tempfile::tempdir().unwrap();
        let controllers = "cpuset cpu io memory hugetlb pids\n";
        fs::write(dir.path().join("cgroup.controllers"), controllers).unwrap();
        let mut systemd = FakeSystemd::new(vec![dir.path().to_owned()]);
        systemd.serve(&bus.address()).await;
        Some(Self { bus, systemd, dir })
    }

    pub(crate) fn settings(&self) -> CgroupSettings {
        let mut settings = CgroupSettings::default();
        settings.mount = self.dir.path().to_owned();
        settings.root = "/edge".to_owned();
        settings.systemd.address = Some(self.bus.address());
        settings
    }

    pub(crate) fn manager(&self) -> CgroupManager {
        CgroupManager::new(self.settings())
    }

    /// One that is open.
    pub(crate) async fn opened(&self) -> CgroupManager {
        let manager = self.manager();
        manager.open(&context("me")).await.unwrap();
        manager
    }

    /// One that waits no longer than it must.
    pub(crate) fn hasty(&self) -> CgroupManager {
        let mut settings = self.settings();
        settings.systemd.reply_timeout = Duration::from_millis(200);
        settings.systemd.job_timeout = Duration::from_millis(200);
        CgroupManager::new(settings)
    }

    /// What is in a file below the slice of all pods.
    pub(crate) fn value(&self, path: &str) -> String {
        fs::read_to_string(self.dir.path().join("edge.slice/edge-kubepods.slice").join(path)).unwrap_or_default()
    }

    /// A property of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        let state = self.systemd.state();
        let unit = state.units.get(unit).unwrap_or_else(|| panic!("there is no {unit}"));
        unit.property(name).to_owned()
    }

    /// The calls since the last look.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.systemd.state().calls)
    }

    pub(crate) fn has_unit(&self, unit: &str) -> bool {
        self.systemd.state().units.contains_key(unit)
    }
}

pub(crate) fn context(owner: &str) -> CgroupContext {
    CgroupContext::new(CgroupDriver::Systemd, owner)
}

pub(crate) fn pod(name: &str, shape: impl FnOnce(ContainerBuilder) -> ContainerBuilder) -> PodRecord {
    let pod = PodBuilder::new(name)
        .uid(format!("uid-{name}"))
        .container("app", shape)
        .build();
    PodRecord::new(&pod, SourceName::from("api"), SourceKind::Managed).unwrap()
}

pub(crate) fn guaranteed() -> PodRecord {
    pod("g", |c| {
        let c = c.request("cpu", "250m").limit("cpu", "250m");
        c.request("memory", "64Mi").limit("memory", "64Mi")
    })
}

pub(crate) fn burstable() -> PodRecord {
    pod("b", |c| c.request("cpu", "500m"))
}

pub(crate) fn limits(pod: &PodRecord) -> PodLimits {
    let mut settings = ResourceSettings::default();
    settings.pod_pids_limit = Some(100);
    PodLimits::of(pod.spec(), pod.facts().qos, &settings, &NodeView::new("node-1"))
}
