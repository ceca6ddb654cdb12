//! The generators on a scripted runtime, in simulated time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod evented;
mod faults;
mod hints;
mod looks;
mod node;
mod runtime;
mod workers;
