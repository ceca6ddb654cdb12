//! How long a restart or a pull is put off after a failure.

mod crash;
mod go_duration;
mod keyed;

pub use crash::{BackoffDecision, CrashBackoff, CrashBackoffSettings, CrashKey};
pub use go_duration::go_duration;
pub use keyed::KeyedBackoff;
