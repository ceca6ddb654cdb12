//! A containerd and a registry of a test's own, and the images for them.

mod archive;
mod command;
mod components;
mod config;
mod containers;
mod error;
mod folder;
mod images;
mod instance;
mod leftovers;
mod network;
mod processes;
mod registry;
#[cfg(test)]
mod tests;
mod unary;

pub use archive::OciArchive;
pub use components::Containerd;
pub use config::SECOND_HANDLER;
pub use error::ComponentError;
pub use images::{BUSYBOX_IMAGE, PAUSE_IMAGE, write_base_images};
pub use instance::PrivateContainerd;
pub use leftovers::remove_leftovers;
pub use registry::PrivateRegistry;
