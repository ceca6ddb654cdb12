//! Amounts, each with the time at which it was measured. What is not known is absent.

use std::path::PathBuf;

use k8s_openapi::jiff::Timestamp;

use crate::ids::{ContainerId, PodUid};

/// Processor time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuUsage {
    /// When it was measured.
    pub at: Timestamp,
    /// All time used since the start, in nanoseconds of one core.
    pub usage_core_nanoseconds: Option<u64>,
    /// The present rate, in billionths of a core.
    pub usage_nano_cores: Option<u64>,
}

/// Memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUsage {
    /// When it was measured.
    pub at: Timestamp,
    /// What cannot be given back without harm: usage without inactive files.
    pub working_set_bytes: Option<u64>,
    /// What is left until the limit; absent without a limit.
    pub available_bytes: Option<u64>,
    /// All of it, file caches too.
    pub usage_bytes: Option<u64>,
    /// Anonymous memory.
    pub rss_bytes: Option<u64>,
    /// Page faults so far.
    pub page_faults: Option<u64>,
    /// Page faults so far that needed the disk.
    pub major_page_faults: Option<u64>,
}

/// Swap, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwapUsage {
    /// When it was measured.
    pub at: Timestamp,
    /// What is in use.
    pub usage_bytes: Option<u64>,
    /// What is left until the limit.
    pub available_bytes: Option<u64>,
}

/// A share of time in which tasks waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PressureShare {
    /// All such time so far, in microseconds.
    pub total_micros: u64,
    /// The share of the last ten seconds, in hundredths of a percent.
    pub avg10_hundredths: u32,
    /// The share of the last minute, in hundredths of a percent.
    pub avg60_hundredths: u32,
    /// The share of the last five minutes, in hundredths of a percent.
    pub avg300_hundredths: u32,
}

/// Time in which tasks waited for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PressureStalls {
    /// In which some waited.
    pub some: PressureShare,
    /// In which all waited; older kernels do not tell it of processors.
    pub full: Option<PressureShare>,
}

/// Time that was lost in waiting, as the kernel's pressure stall information has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pressure {
    /// When it was measured.
    pub at: Timestamp,
    /// For processors.
    pub cpu: Option<PressureStalls>,
    /// For memory.
    pub memory: Option<PressureStalls>,
    /// For disks.
    pub io: Option<PressureStalls>,
}

impl Pressure {
    /// Of that time, with nothing known yet.
    #[must_use]
    pub fn new(at: Timestamp) -> Self {
        Self { at, ..Self::default() }
    }
}

/// A part of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilesystemUsage {
    /// When it was measured.
    pub at: Timestamp,
    /// A folder of the file system.
    pub mountpoint: PathBuf,
    /// Bytes in use.
    pub used_bytes: Option<u64>,
    /// Inodes in use.
    pub inodes_used: Option<u64>,
}

/// What went through one network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterfaceUsage {
    /// Its name.
    pub name: String,
    /// Bytes received.
    pub rx_bytes: Option<u64>,
    /// Faults while receiving.
    pub rx_errors: Option<u64>,
    /// Bytes sent.
    pub tx_bytes: Option<u64>,
    /// Faults while sending.
    pub tx_errors: Option<u64>,
}

/// What went through a pod's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkUsage {
    /// When it was measured.
    pub at: Timestamp,
    /// The pod's main interface.
    pub default_interface: Option<InterfaceUsage>,
    /// All of its interfaces.
    pub interfaces: Vec<InterfaceUsage>,
}

/// What a running container uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerUsage {
    /// Its id.
    pub id: ContainerId,
    /// Its pod.
    pub pod_uid: PodUid,
    /// Its name in the pod's spec.
    pub name: String,
    /// Processor time.
    pub cpu: Option<CpuUsage>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// Swap.
    pub swap: Option<SwapUsage>,
    /// What it wrote into its own file system.
    pub writable_layer: Option<FilesystemUsage>,
    /// Time that it lost in waiting.
    pub pressure: Option<Pressure>,
}

impl ContainerUsage {
    /// A container of which nothing is known yet.
    #[must_use]
    pub fn new(id: ContainerId, pod_uid: PodUid, name: impl Into<String>) -> Self {
        Self {
            id,
            pod_uid,
            name: name.into(),
            cpu: None,
            memory: None,
            swap: None,
            writable_layer: None,
            pressure: None,
        }
    }
}

/// What a pod uses as a whole, its sandbox included.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodUsage {
    /// The pod.
    pub uid: PodUid,
    /// Processor time.
    pub cpu: Option<CpuUsage>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// Network; absent for pods on the host's network.
    pub network: Option<NetworkUsage>,
    /// How many processes it has.
    pub process_count: Option<u64>,
    /// Time that it lost in waiting.
    pub pressure: Option<Pressure>,
}

impl PodUsage {
    /// A pod of which nothing is known yet.
    #[must_use]
    pub fn new(uid: PodUid) -> Self {
        Self {
            uid,
            cpu: None,
            memory: None,
            network: None,
            process_count: None,
            pressure: None,
        }
    }
}

/// What was measured in one go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsSnapshot {
    /// Running containers.
    pub containers: Vec<ContainerUsage>,
    /// Pods.
    pub pods: Vec<PodUsage>,
}
