//! Contract suites: one function per promise of a trait's `# Contract` list, to run on any implementation.
//!
//! A promise that is broken panics with a text that says what was seen. [`runtime_contract!`](crate::runtime_contract)
//! and [`image_contract!`](crate::image_contract) make one `#[test]` of each promise.

mod check;
mod fixture;
pub mod images;
pub mod runtime;

pub use check::{REQUIRE, check_images, check_runtime};
pub use fixture::{ExecCommands, ImageFixture, RuntimeFixture, TestPod, Workload};
