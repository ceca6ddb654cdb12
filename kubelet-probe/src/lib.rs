#![doc = include_str!("../README.md")]

mod client;
mod dial;
mod prober;
#[cfg(test)]
mod server;

pub use client::HyperClient;
pub use prober::NetworkProber;
