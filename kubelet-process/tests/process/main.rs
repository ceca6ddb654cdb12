//! The runtime on real processes. Every test ends what it started.
#![expect(clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod cgroups;
mod contract;
mod exec;
mod harness;
mod hooks;
mod lifecycle;
mod logs;
mod probes;
mod restart;
mod users;
