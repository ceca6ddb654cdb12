//! For tests of volume plugins.

pub use crate::ground::mounts::scripted::{MountCall, MountOp, ScriptedMounts};
