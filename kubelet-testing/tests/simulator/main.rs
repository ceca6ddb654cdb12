//! The whole engine in simulated time, by seed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod broken;
mod seeds;
