//! A whole kubelet on real containerds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test: a panic is the failure")]

mod handlers;
mod life;
mod node;
mod resources;
mod restart;
mod security;
