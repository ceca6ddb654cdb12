#![doc = include_str!("../README.md")]

mod evented;
mod fingerprint;
mod generic;
mod hints;
mod look;
mod metrics;
mod pace;
mod pods;
mod record;
mod relister;
mod settings;

pub use evented::EventedPleg;
pub use generic::GenericPleg;
pub use settings::{EventedPlegSettings, GenericPlegSettings};
