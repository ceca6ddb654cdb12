//! Sinks that need nothing but this crate.

mod json_lines;
mod watch;

pub use json_lines::JsonLinesSink;
pub use watch::WatchSink;
