//! Over a fake runtime that speaks CRI: no root, no containers, every fault.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test: a panic is the failure")]

mod adoption;
mod bad_answers;
mod contract;
#[path = "../table/labels.rs"]
mod labels;
mod node;
mod restart;
mod updates;
#[path = "../table/usage.rs"]
mod usage;
