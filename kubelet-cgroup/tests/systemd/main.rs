//! Slices, with a systemd that only looks like one, on a bus of each test's own; and with a real one where that can be.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test: a panic is the failure")]

mod bus;
mod contract;
mod fake;
mod machine;
mod nested;
mod real;
mod slices;
mod trouble;
