//! The whole engine in simulated time, by seed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![expect(clippy::print_stdout, reason = "a run says what it saw")]

mod broken;
mod broken_volumes;
mod seeds;
