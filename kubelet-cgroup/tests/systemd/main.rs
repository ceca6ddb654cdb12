//! Slices, with a systemd that only looks like one, on a bus of each test's own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test: a panic is the failure")]

mod bus;
mod contract;
mod fake;
mod machine;
mod slices;
mod trouble;
