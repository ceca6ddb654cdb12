#![doc = include_str!("../README.md")]

mod enforcement;
mod files;
mod kill;
mod manager;
mod mark;
mod names;
mod stats;
#[cfg(feature = "systemd")]
mod systemd;
mod tree;
mod units;
mod usage;
mod values;

pub use enforcement::{Enforcement, EnforcementError, Reserved};
pub use manager::{CgroupManager, CgroupSettings};
pub use stats::CgroupStats;
#[cfg(feature = "systemd")]
pub use systemd::SystemdSettings;
