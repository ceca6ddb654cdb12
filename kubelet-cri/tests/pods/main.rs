//! A whole kubelet on real containerds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test: a panic is the failure")]

mod cgroups;
mod garbage;
mod handlers;
mod hooks;
mod image_volumes;
mod images;
#[path = "../table/labels.rs"]
mod labels;
mod life;
mod logs;
mod marks;
mod node;
mod ports;
mod preemption;
mod probes;
mod resize;
mod resources;
mod restart;
mod security;
mod stats;
mod volumes;
