//! On the cgroups of this machine, below a root of each test's own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test: a panic is the failure")]

mod contract;
mod root;
mod stats;
mod values;
