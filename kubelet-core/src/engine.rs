//! The engine of one running kubelet.

mod checkpoint;
mod gate;
mod names;
mod parts;
mod shared;
mod sync_loop;
mod worker;

pub(crate) use checkpoint::Checkpoints;
pub(crate) use gate::{Gate, GateKeeper, gate, watch_backend};
pub(crate) use names::NameLocks;
pub(crate) use parts::{PartHealth, PartsContext, run_parts};
pub(crate) use shared::{EngineMetrics, Shared};
pub(crate) use sync_loop::{Command, Feeds, SyncLoop};
pub(crate) use worker::WorkerEnd;

pub use shared::Stage;
