#![doc = include_str!("../README.md")]

mod fingerprint;
mod generic;
mod hints;
mod look;
mod metrics;
mod pods;
mod record;
mod settings;

pub use generic::GenericPleg;
pub use settings::GenericPlegSettings;
