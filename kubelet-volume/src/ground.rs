//! Files and mounts below a pod's folder: what is done to them, and how it is kept from touching anything else.
//!
//! Plain blocking code, called on threads that may block. Nothing here knows of pods, plugins or the API.

pub(crate) mod atomic_writer;
pub(crate) mod command;
pub(crate) mod crash;
pub(crate) mod failure;
pub(crate) mod folders;
pub(crate) mod format;
#[cfg(test)]
pub(crate) mod loop_device;
pub(crate) mod mount_table;
pub(crate) mod mounts;
pub(crate) mod ownership;
pub(crate) mod removal;
pub(crate) mod safe_path;
pub(crate) mod sub_path;
pub(crate) mod usage;
pub(crate) mod walk;
