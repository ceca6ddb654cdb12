//! The engine of one running kubelet.

mod checkpoint;
mod gate;
mod log_rotation;
mod names;
mod parts;
mod shared;
mod sync_loop;
mod worker;

pub(crate) use checkpoint::Checkpoints;
pub(crate) use gate::{Gate, GateKeeper, gate, watch_backend};
pub(crate) use log_rotation::LogRotator;
pub(crate) use names::NameLocks;
pub(crate) use parts::{PartHealth, PartsContext, run_parts};
pub(crate) use shared::{EngineMetrics, Shared};
pub(crate) use sync_loop::{Command, Feeds, SyncLoop};
pub(crate) use worker::WorkerEnd;

pub use shared::Stage;
