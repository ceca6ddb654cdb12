#![doc = include_str!("../README.md")]

mod ground;
mod manager;
mod plugin;
mod plugins;
mod seen;
pub mod testing;
mod turns;

pub use ground::mount_table::{MountPoint, MountTable};
pub use ground::mounts::{MountOptions, Mounts, SystemMounts};
pub use ground::ownership::ChangePolicy;
pub use manager::{VolumeSettings, Volumes};
pub use plugin::{
    Measure, Ownership, Placed, PluginFeatures, PluginNode, Refresh, SetUp, TearDown, VolumeFault, VolumeMode,
    VolumePlugin, VolumeSpec,
};
