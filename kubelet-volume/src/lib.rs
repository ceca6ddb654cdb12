#![doc = include_str!("../README.md")]

#[allow(
    dead_code,
    reason = "the volume manager and its plugins take these up one after the other"
)]
mod ground;
pub mod testing;

pub use ground::mount_table::{MountPoint, MountTable};
pub use ground::mounts::{MountOptions, Mounts, SystemMounts};
