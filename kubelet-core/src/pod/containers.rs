//! One view of the three kinds of containers in a pod's spec.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerRestartRule, EnvFromSource, EnvVar, EphemeralContainer, Lifecycle, PodSpec,
    Probe, ResourceRequirements, SecurityContext, VolumeDevice, VolumeMount,
};

use crate::probes::ProbeKind;

/// What part a container plays in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ContainerKind {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: started in its turn, then kept running.
    Sidecar,
    /// The pod's work.
    Regular,
    /// Added to a running pod; never restarted.
    Ephemeral,
}

impl ContainerKind {
    /// Whether it is listed under `initContainers`.
    #[must_use]
    pub fn is_init(self) -> bool {
        matches!(self, Self::Init | Self::Sidecar)
    }
}

#[derive(Clone, Copy, Debug)]
enum Spec<'a> {
    Plain(&'a Container),
    Ephemeral(&'a EphemeralContainer),
}

/// A container of a pod's spec, of whatever kind.
#[derive(Clone, Copy, Debug)]
pub struct ContainerView<'a> {
    kind: ContainerKind,
    spec: Spec<'a>,
}

macro_rules! field {
    ($self:ident, $field:ident) => {
        match $self.spec {
            Spec::Plain(c) => &c.$field,
            Spec::Ephemeral(c) => &c.$field,
        }
    };
}

impl<'a> ContainerView<'a> {
    /// All containers of a spec: init (sidecars among them), regular, ephemeral, each in order.
    pub fn all(spec: &'a PodSpec) -> impl Iterator<Item = Self> {
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| Self {
            kind: ContainerKind::Ephemeral,
            spec: Spec::Ephemeral(c),
        });
        Self::init(spec).chain(Self::regular(spec)).chain(ephemeral)
    }

    /// The init containers of a spec, sidecars among them, in order.
    pub fn init(spec: &'a PodSpec) -> impl DoubleEndedIterator<Item = Self> {
        spec.init_containers.iter().flatten().map(|c| Self {
            kind: if c.restart_policy.as_deref() == Some("Always") {
                ContainerKind::Sidecar
            } else {
                ContainerKind::Init
            },
            spec: Spec::Plain(c),
        })
    }

    /// The regular containers of a spec, in order.
    pub fn regular(spec: &'a PodSpec) -> impl DoubleEndedIterator<Item = Self> {
        spec.containers.iter().map(|c| Self {
            kind: ContainerKind::Regular,
            spec: Spec::Plain(c),
        })
    }

    /// Its part in the pod.
    #[must_use]
    pub fn kind(&self) -> ContainerKind {
        self.kind
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        field!(self, name)
    }

    /// The image it asks for; empty where none is given.
    #[must_use]
    pub fn image(&self) -> &'a str {
        field!(self, image).as_deref().unwrap_or_default()
    }

    /// `Always`, `IfNotPresent` or `Never`.
    #[must_use]
    pub fn image_pull_policy(&self) -> Option<&'a str> {
        field!(self, image_pull_policy).as_deref()
    }

    /// What it runs; empty for the image's entry point.
    #[must_use]
    pub fn command(&self) -> &'a [String] {
        field!(self, command).as_deref().unwrap_or_default()
    }

    /// The arguments.
    #[must_use]
    pub fn args(&self) -> &'a [String] {
        field!(self, args).as_deref().unwrap_or_default()
    }

    /// The working directory; empty for the image's.
    #[must_use]
    pub fn working_dir(&self) -> &'a str {
        field!(self, working_dir).as_deref().unwrap_or_default()
    }

    /// Environment variables.
    #[must_use]
    pub fn env(&self) -> &'a [EnvVar] {
        field!(self, env).as_deref().unwrap_or_default()
    }

    /// Sources of whole sets of environment variables.
    #[must_use]
    pub fn env_from(&self) -> &'a [EnvFromSource] {
        field!(self, env_from).as_deref().unwrap_or_default()
    }

    /// Ports.
    #[must_use]
    pub fn ports(&self) -> &'a [ContainerPort] {
        field!(self, ports).as_deref().unwrap_or_default()
    }

    /// Resources.
    #[must_use]
    pub fn resources(&self) -> Option<&'a ResourceRequirements> {
        field!(self, resources).as_ref()
    }

    /// Whether a change of a resource, such as `cpu`, needs the container to be started anew.
    #[must_use]
    pub fn restarts_for(&self, resource: &str) -> bool {
        let policies = field!(self, resize_policy).iter().flatten();
        let mut of_resource = policies.filter(|policy| policy.resource_name == resource);
        of_resource.any(|policy| policy.restart_policy == "RestartContainer")
    }

    /// Volume mounts.
    #[must_use]
    pub fn volume_mounts(&self) -> &'a [VolumeMount] {
        field!(self, volume_mounts).as_deref().unwrap_or_default()
    }

    /// The volumes that it is given as devices.
    #[must_use]
    pub fn volume_devices(&self) -> &'a [VolumeDevice] {
        field!(self, volume_devices).as_deref().unwrap_or_default()
    }

    /// The names of the volumes that it mounts or is given as devices.
    pub fn volume_names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mounts = self.volume_mounts().iter().map(|mount| mount.name.as_str());
        mounts.chain(self.volume_devices().iter().map(|device| device.name.as_str()))
    }

    /// Hooks.
    #[must_use]
    pub fn lifecycle(&self) -> Option<&'a Lifecycle> {
        field!(self, lifecycle).as_ref()
    }

    /// Security context.
    #[must_use]
    pub fn security_context(&self) -> Option<&'a SecurityContext> {
        field!(self, security_context).as_ref()
    }

    /// Its probes: liveness, readiness, startup.
    #[must_use]
    pub fn probes(&self) -> [Option<&'a Probe>; 3] {
        [
            field!(self, liveness_probe).as_ref(),
            field!(self, readiness_probe).as_ref(),
            field!(self, startup_probe).as_ref(),
        ]
    }

    /// Its probe of a kind.
    #[must_use]
    pub fn probe(&self, kind: ProbeKind) -> Option<&'a Probe> {
        let [liveness, readiness, startup] = self.probes();
        match kind {
            ProbeKind::Startup => startup,
            ProbeKind::Readiness => readiness,
            ProbeKind::Liveness => liveness,
        }
    }

    /// Where in the container its termination message is.
    #[must_use]
    pub fn termination_message_path(&self) -> &'a str {
        field!(self, termination_message_path)
            .as_deref()
            .unwrap_or("/dev/termination-log")
    }

    /// `File` or `FallbackToLogsOnError`.
    #[must_use]
    pub fn termination_message_policy(&self) -> &'a str {
        field!(self, termination_message_policy).as_deref().unwrap_or("File")
    }

    /// Whether standard input is kept open.
    #[must_use]
    pub fn stdin(&self) -> bool {
        field!(self, stdin).unwrap_or(false)
    }

    /// Whether standard input is closed after the first attach.
    #[must_use]
    pub fn stdin_once(&self) -> bool {
        field!(self, stdin_once).unwrap_or(false)
    }

    /// Whether it has a terminal.
    #[must_use]
    pub fn tty(&self) -> bool {
        field!(self, tty).unwrap_or(false)
    }

    /// Its own restart policy, which overrides the pod's.
    #[must_use]
    pub fn restart_policy(&self) -> Option<&'a str> {
        match self.spec {
            Spec::Plain(c) => c.restart_policy.as_deref(),
            Spec::Ephemeral(_) => None,
        }
    }

    /// Its restart rules, which apply only beside a restart policy of its own.
    #[must_use]
    pub fn restart_rules(&self) -> &'a [ContainerRestartRule] {
        match self.spec {
            Spec::Plain(c) => c.restart_policy_rules.as_deref().unwrap_or_default(),
            Spec::Ephemeral(_) => &[],
        }
    }

    /// The container whose processes an ephemeral one shares.
    #[must_use]
    pub fn target_container(&self) -> Option<&'a str> {
        match self.spec {
            Spec::Plain(_) => None,
            Spec::Ephemeral(c) => c.target_container_name.as_deref(),
        }
    }

    /// The plain container, unless it is an ephemeral one.
    #[must_use]
    pub fn as_container(&self) -> Option<&'a Container> {
        match self.spec {
            Spec::Plain(c) => Some(c),
            Spec::Ephemeral(_) => None,
        }
    }

    /// How events point to it, such as `spec.containers{app}`.
    #[must_use]
    pub fn field_path(&self) -> String {
        let list = match self.kind {
            ContainerKind::Init | ContainerKind::Sidecar => "initContainers",
            ContainerKind::Regular => "containers",
            ContainerKind::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{}}}", self.name())
    }
}
