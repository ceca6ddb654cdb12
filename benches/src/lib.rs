//! What a kubelet of these crates costs, measured over [`FakeRuntime`](kubelet_testing::FakeRuntime).
//!
//! `cargo bench -p kubelet-benches` prints one row per measurement; words after `--` choose rows by their beginnings.
//! Numbers that include the fake say so: it runs in the same process. [`SideBySide`] measures a kubelet's process alone, over CRI.

mod alloc;
mod burst;
mod idle;
mod measure;
mod memory;
mod micro;
mod node;
mod pods;
mod probes;
mod reaction;
mod relist;
mod side_by_side;
mod sizes;
mod volumes;

pub use idle::{IdleHour, idle_hour};
pub use measure::Row;
pub use memory::resident_after;
pub use side_by_side::SideBySide;
pub use sizes::{Sizes, run};
