//! What a kubelet of these crates costs, measured over [`FakeRuntime`](kubelet_testing::FakeRuntime).
//!
//! `cargo bench -p kubelet-benches` prints one row per measurement; words after `--` choose rows by their beginnings.
//! Numbers that include the fake say so: it runs in the same process. Those over CRI are of the kubelet's process alone.

mod alloc;
mod burst;
mod cri;
mod idle;
mod measure;
mod memory;
mod micro;
mod node;
mod pods;
mod reaction;
mod relist;
mod sizes;

pub use cri::serve_cri;
pub use idle::{IdleHour, idle_hour};
pub use measure::Row;
pub use memory::resident_after;
pub use sizes::{Sizes, run};
