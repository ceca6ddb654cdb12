#![doc = include_str!("../README.md")]

mod control;
mod host;
mod image;
mod init;
mod process;
mod record;
mod runtime;
mod settings;
mod signal;
mod state;
mod supervisor;
mod sys;

pub use image::HOST_IMAGE;
pub use init::{Supervisor, init};
pub use runtime::ProcessRuntime;
pub use settings::{OpenError, Settings};
