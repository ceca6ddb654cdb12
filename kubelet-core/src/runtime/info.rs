//! What a runtime says about itself.

/// The condition without which nothing is asked of the runtime.
pub const RUNTIME_READY: &str = "RuntimeReady";
/// The condition without which only pods on the host's network are started.
pub const NETWORK_READY: &str = "NetworkReady";

/// One condition of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeCondition {
    /// Such as [`RUNTIME_READY`].
    pub kind: String,
    /// Whether it holds.
    pub status: bool,
    /// One word on why not.
    pub reason: String,
    /// A sentence on why not.
    pub message: String,
}

impl RuntimeCondition {
    /// A condition that holds.
    pub fn met(kind: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            status: true,
            reason: String::new(),
            message: String::new(),
        }
    }

    /// A condition that does not hold.
    pub fn unmet(kind: impl Into<String>, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            status: false,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// A way of running pods that a RuntimeClass can name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeHandler {
    /// Its name; empty for the default one.
    pub name: String,
    /// Whether what is mounted below a read-only mount can be made read-only too.
    pub recursive_read_only_mounts: bool,
    /// Whether its pods can have users of their own.
    pub user_namespaces: bool,
}

impl RuntimeHandler {
    /// A handler of that name, which can do nothing special.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }
}

/// Whether a runtime mounts images into containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ImageMounts {
    /// It does not: pods with image volumes are refused.
    #[default]
    No,
    /// It does, but only whole images: pods that mount a part of one are refused.
    Whole,
    /// It does, and parts of images too.
    SubPaths,
}

/// Who makes cgroups, and how they are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CgroupDriver {
    /// Plain folders.
    Cgroupfs,
    /// Slices and scopes of systemd.
    Systemd,
}

/// Name, version, conditions and abilities of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeInfo {
    /// Its name, which container ids are prefixed with in statuses: `<name>://<id>`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its conditions. A missing one counts as not met.
    pub conditions: Vec<RuntimeCondition>,
    /// Its handlers. One that is not among them can do nothing special, but may exist.
    pub handlers: Vec<RuntimeHandler>,
    /// Whether it gives containers only the groups that it is told, where it is to.
    pub supplemental_groups_policy: bool,
    /// Whether it mounts images.
    pub image_mounts: ImageMounts,
    /// Its cgroup driver, where it says.
    pub cgroup_driver: Option<CgroupDriver>,
    /// Whether containers go on when the agent ends.
    pub survives_restart: bool,
    /// Whether it makes a cgroup for each container itself.
    pub makes_container_cgroups: bool,
    /// Whether it can change the resources of containers that run.
    pub updates_resources: bool,
}

impl RuntimeInfo {
    /// A runtime of that name and version, with both conditions met, whose containers outlive the agent.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            conditions: vec![
                RuntimeCondition::met(RUNTIME_READY),
                RuntimeCondition::met(NETWORK_READY),
            ],
            handlers: Vec::new(),
            supplemental_groups_policy: false,
            image_mounts: ImageMounts::No,
            cgroup_driver: None,
            survives_restart: true,
            makes_container_cgroups: true,
            updates_resources: true,
        }
    }

    /// Why the condition of that kind does not hold, or nothing if it does.
    #[must_use]
    pub fn unmet(&self, kind: &str) -> Option<String> {
        match self.conditions.iter().find(|c| c.kind == kind) {
            Some(c) if c.status => None,
            Some(c) => Some(format!("{kind}=false reason:{} message:{}", c.reason, c.message)),
            None => Some(format!("{kind} is not reported")),
        }
    }
}
