//! The contracts, on real containerds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test: a panic is the failure")]

mod images;
mod runtime;
mod stats;
#[path = "../table/usage.rs"]
mod usage;
