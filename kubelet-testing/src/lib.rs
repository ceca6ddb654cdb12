#![doc = include_str!("../README.md")]

mod allocator;
mod cgroup_root;
mod cgroups;
#[cfg(feature = "containerd")]
mod containerd;
pub mod contract;
mod fake;
#[cfg(feature = "fake-cri")]
mod fake_cri;
mod pods;
mod provider;
mod simulator;
mod status_sink;
mod tokens;
mod volumes;

pub use allocator::FakeAllocator;
pub use cgroup_root::CgroupRoot;
pub use cgroups::{CgroupCall, CgroupOp, FakeCgroups};
#[cfg(feature = "containerd")]
pub use containerd::{
    BUSYBOX_IMAGE, ComponentError, Containerd, OciArchive, PAUSE_IMAGE, PrivateContainerd, PrivateRegistry,
    SECOND_HANDLER, remove_leftovers, write_base_images,
};
pub use fake::{
    Action, Call, ErrorKind, ExecAnswer, ExecCall, FakeImage, FakeRuntime, FakeRuntimeBuilder, FaultKind, Op, Outcome,
    Program, ProgramFor, Script, Subject,
};
#[cfg(feature = "fake-cri")]
pub use fake_cri::{CriFault, CriScript, FakeCri, FakeCriBuilder, Rpc};
pub use pods::{ContainerBuilder, PodBuilder, exec_probe};
pub use provider::{FakeProvider, ProviderCall, ProviderOp};
pub use simulator::{Invariant, Simulation, SimulationReport, SimulationSettings, Violation};
pub use status_sink::CheckedStatusSink;
pub use tokens::FakeTokens;
pub use volumes::{FakeVolumes, VolumeCall, VolumeOp};
