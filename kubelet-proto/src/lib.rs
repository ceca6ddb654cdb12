#![cfg_attr(feature = "cri", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "cri"),
    doc = "Bindings of the gRPC APIs of a Kubernetes node: a feature for each API."
)]

#[cfg(feature = "cri")]
pub mod cri;
pub mod unix;

pub use prost;
pub use tonic;
