//! Volumes of pods on a real disk, with a real table of mounts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests: a panic is the failure")]

mod disks;
mod files;
mod full;
mod harness;
mod hostile;
mod late;
mod leftovers;
mod life_faults;
mod persistent;
mod recorded;
mod rest;
mod scratch;
mod shared;
mod update_faults;
mod waiting;
