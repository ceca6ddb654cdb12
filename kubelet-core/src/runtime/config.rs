//! What sandboxes and containers are made from. Built by the engine; a runtime only converts it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use crate::cgroups::ContainerCgroup;
use crate::dns::DnsConfig;
use crate::ids::{ContainerId, PodKey, PodUid, SandboxId};
use crate::runtime::{Device, ImageRef, LinuxResources, Mount, UserNamespace};

/// Whose namespace a container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamespaceMode {
    /// The pod's.
    #[default]
    Pod,
    /// Its own.
    Container,
    /// The host's.
    Node,
    /// That of another container: [`LinuxSecurity::pid_target`]. Only for process ids.
    Target,
}

/// Namespaces of a sandbox or container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Namespaces {
    /// Network.
    pub network: NamespaceMode,
    /// Process ids.
    pub pid: NamespaceMode,
    /// Inter-process communication.
    pub ipc: NamespaceMode,
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PortProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// A port of the pod that the host forwards to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortMapping {
    /// The protocol.
    pub protocol: PortProtocol,
    /// In the pod.
    pub container_port: u16,
    /// On the host; 0 for none.
    pub host_port: u16,
    /// The host's address, or empty for all.
    pub host_ip: String,
}

impl PortMapping {
    /// A mapping of a host port (0 for none) on all addresses.
    #[must_use]
    pub fn new(protocol: PortProtocol, container_port: u16, host_port: u16) -> Self {
        Self {
            protocol,
            container_port,
            host_port,
            host_ip: String::new(),
        }
    }
}

/// A confinement of system calls (seccomp) or of files and capabilities (AppArmor).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecurityProfile {
    /// The runtime's own.
    RuntimeDefault,
    /// None.
    Unconfined,
    /// One of the host: a path for seccomp, a name for AppArmor.
    Localhost(String),
}

/// Labels of SELinux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SelinuxOptions {
    /// User.
    pub user: String,
    /// Role.
    pub role: String,
    /// Type.
    pub kind: String,
    /// Level.
    pub level: String,
}

impl SelinuxOptions {
    /// These four labels, each of which may be empty.
    pub fn new(
        user: impl Into<String>,
        role: impl Into<String>,
        kind: impl Into<String>,
        level: impl Into<String>,
    ) -> Self {
        Self {
            user: user.into(),
            role: role.into(),
            kind: kind.into(),
            level: level.into(),
        }
    }
}

/// Who a container's process is, and what it may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinuxSecurity {
    /// User id; absent: the image's, else root or the agent's own.
    pub run_as_user: Option<u32>,
    /// User name, where the image gives one and nobody gave an id; else empty.
    pub run_as_username: String,
    /// Group id; absent: the user's.
    pub run_as_group: Option<u32>,
    /// Further groups.
    pub supplemental_groups: Vec<u32>,
    /// Whether the groups that the image's user has are left out.
    pub only_given_groups: bool,
    /// Capabilities beside the runtime's own, as they were written.
    pub add_capabilities: Vec<String>,
    /// Capabilities that are taken away, as they were written.
    pub drop_capabilities: Vec<String>,
    /// Which system calls it may make; absent: the runtime decides.
    pub seccomp: Option<SecurityProfile>,
    /// AppArmor profile; absent: the runtime decides.
    pub apparmor: Option<SecurityProfile>,
    /// SELinux labels; absent: the runtime decides.
    pub selinux: Option<SelinuxOptions>,
    /// Paths in the container that are hidden.
    pub masked_paths: Vec<String>,
    /// Paths in the container that cannot be written.
    pub readonly_paths: Vec<String>,
    /// All privileges.
    pub privileged: bool,
    /// The root file system cannot be written.
    pub read_only_root: bool,
    /// The process cannot gain privileges.
    pub no_new_privileges: bool,
    /// Namespaces.
    pub namespaces: Namespaces,
    /// The container whose processes it sees, where [`Namespaces::pid`] says so.
    pub pid_target: Option<ContainerId>,
    /// The pod's own users and groups; absent: the host's.
    pub user_namespace: Option<UserNamespace>,
}

/// What a pod's sandbox is made from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxConfig {
    /// The pod.
    pub pod_uid: PodUid,
    /// Its namespace and name.
    pub key: PodKey,
    /// How many sandboxes of the pod came before.
    pub attempt: u32,
    /// Host name; empty on the host's network.
    pub hostname: String,
    /// Folder that the containers' log paths are relative to.
    pub log_directory: PathBuf,
    /// Ports.
    pub port_mappings: Vec<PortMapping>,
    /// Labels: those of the pod, and our mark.
    pub labels: BTreeMap<String, String>,
    /// Annotations: those of the pod.
    pub annotations: BTreeMap<String, String>,
    /// Parent cgroup in the form of the driver; empty where the runtime chooses.
    pub cgroup_parent: String,
    /// What its containers' resolver is told; empty: what the host's is.
    pub dns: DnsConfig,
    /// Kernel settings of its namespaces, with dots between the parts of their names.
    pub sysctls: BTreeMap<String, String>,
    /// Limits of all its containers together.
    pub resources: LinuxResources,
    /// What the pod costs beside its containers.
    pub overhead: Option<LinuxResources>,
    /// Security and namespaces.
    pub security: LinuxSecurity,
}

impl SandboxConfig {
    /// A config with the identity of a pod; everything else is empty.
    #[must_use]
    pub fn new(pod_uid: PodUid, key: PodKey, attempt: u32) -> Self {
        Self {
            pod_uid,
            key,
            attempt,
            hostname: String::new(),
            log_directory: PathBuf::new(),
            port_mappings: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            cgroup_parent: String::new(),
            dns: DnsConfig::default(),
            sysctls: BTreeMap::new(),
            resources: LinuxResources::default(),
            overhead: None,
            security: LinuxSecurity::default(),
        }
    }
}

/// What a container is made from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContainerConfig {
    /// Its name in the pod's spec.
    pub name: String,
    /// How many containers of this name came before in this pod.
    pub attempt: u32,
    /// The image.
    pub image: ImageRef,
    /// What runs; empty: the image's entry point.
    pub command: Vec<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Working directory; empty: the image's.
    pub working_dir: String,
    /// The environment, in order, each name once.
    pub env: Vec<(String, String)>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Devices.
    pub devices: Vec<Device>,
    /// Devices by their names in the Container Device Interface, such as `vendor.example/class=name`.
    pub cdi_devices: Vec<String>,
    /// Labels: our mark.
    pub labels: BTreeMap<String, String>,
    /// Annotations: what a restarted agent learns from.
    pub annotations: BTreeMap<String, String>,
    /// The log file, relative to the sandbox's log directory.
    pub log_path: PathBuf,
    /// Whether standard input is kept open.
    pub stdin: bool,
    /// Whether standard input is closed after the first attach ends.
    pub stdin_once: bool,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Signal that asks it to stop, such as `SIGTERM`; absent: the image's, else `SIGTERM`.
    pub stop_signal: Option<String>,
    /// Security and namespaces.
    pub security: LinuxSecurity,
    /// Limits.
    pub resources: LinuxResources,
    /// The cgroup that was made for it, with its limits, where the runtime makes none: it is to run in there.
    pub cgroup: Option<ContainerCgroup>,
}

impl ContainerConfig {
    /// A config with a name, an attempt and an image; everything else is empty.
    pub fn new(name: impl Into<String>, attempt: u32, image: ImageRef) -> Self {
        Self {
            name: name.into(),
            attempt,
            image,
            command: Vec::new(),
            args: Vec::new(),
            working_dir: String::new(),
            env: Vec::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
            cdi_devices: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            log_path: PathBuf::new(),
            stdin: false,
            stdin_once: false,
            tty: false,
            stop_signal: None,
            security: LinuxSecurity::default(),
            resources: LinuxResources::default(),
            cgroup: None,
        }
    }
}

/// A request to create a container.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CreateContainer<'a> {
    /// The sandbox to make it in.
    pub sandbox_id: &'a SandboxId,
    /// What that sandbox was made from.
    pub sandbox: &'a SandboxConfig,
    /// What the container is made from.
    pub container: &'a ContainerConfig,
}

impl<'a> CreateContainer<'a> {
    /// A request to create `container` in a sandbox.
    #[must_use]
    pub fn new(sandbox_id: &'a SandboxId, sandbox: &'a SandboxConfig, container: &'a ContainerConfig) -> Self {
        Self {
            sandbox_id,
            sandbox,
            container,
        }
    }
}

/// A command to run in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecRequest {
    /// The command and its arguments; no shell is added.
    pub command: Vec<String>,
    /// When it is killed; absent: never.
    pub timeout: Option<Duration>,
    /// How much of each output stream is kept, in bytes; the rest is read and dropped.
    pub output_limit_bytes: usize,
}

impl ExecRequest {
    /// A command without a timeout, of whose output 16 MiB are kept.
    pub fn new(command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            timeout: None,
            output_limit_bytes: 16 << 20,
        }
    }

    /// With a timeout.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecOutput {
    /// Its exit code; a signal shows as 128 plus its number.
    pub exit_code: i32,
    /// What it wrote to standard output.
    pub stdout: Bytes,
    /// What it wrote to standard error.
    pub stderr: Bytes,
    /// It was killed at the request's timeout; the exit code then means nothing.
    pub timed_out: bool,
}

impl ExecOutput {
    /// A command that ended with a code and wrote that.
    pub fn new(exit_code: i32, stdout: impl Into<Bytes>, stderr: impl Into<Bytes>) -> Self {
        Self {
            exit_code,
            stdout: stdout.into(),
            stderr: stderr.into(),
            timed_out: false,
        }
    }

    /// A command that was killed at its timeout.
    #[must_use]
    pub fn timed_out() -> Self {
        Self {
            timed_out: true,
            exit_code: -1,
            ..Self::default()
        }
    }
}
