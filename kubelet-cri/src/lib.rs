#![doc = include_str!("../README.md")]

mod client;
mod connect;
mod convert;
mod error;
mod events;
mod features;
mod images;
mod lists;
mod runtime;
mod sandbox_image;
mod settings;
mod stats;

pub use connect::ConnectError;
pub use runtime::CriRuntime;
pub use settings::CriSettings;
