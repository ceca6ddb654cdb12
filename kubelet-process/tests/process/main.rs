//! The runtime on real processes. Every test ends what it started.
#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, and say what they skip"
)]

mod contract;
mod exec;
mod harness;
mod lifecycle;
mod logs;
mod restart;
mod users;
