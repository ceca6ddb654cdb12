//! Contract suites: one function per promise of a trait's `# Contract` list, to run on any implementation.
//!
//! A promise that is broken panics with a text that says what was seen. For each trait a macro makes one `#[test]` of each
//! promise; it takes an async function that answers the implementation to check and a fixture, which tells the suite how
//! to use it.
//!
//! The suites run in real time, on a tokio runtime of one thread each, and wait for what they expect for as long as the
//! fixture's patience says; none measures how long something took. What they wait for in vain, to see that it does not
//! happen, they make sure of by something that must happen later.

pub mod admission;
pub mod allocators;
pub mod cgroups;
mod check;
pub mod credentials;
pub mod events;
mod fixture;
pub mod generators;
mod hook;
pub mod http;
pub mod images;
pub mod objects;
pub mod probers;
pub mod providers;
mod proxy;
pub mod runnables;
pub mod runtime;
mod server;
pub mod sources;
pub mod stats;
pub mod status_sinks;
mod thread;
pub mod tokens;
pub mod volumes;

pub use admission::AdmitFixture;
pub use allocators::AllocatorFixture;
pub use cgroups::CgroupFixture;
pub use check::{
    REQUIRE, check, check_admission, check_allocator, check_events, check_images, check_provider, check_runnable,
    check_runtime, skip,
};
pub use credentials::CredentialFixture;
pub use events::EventFixture;
pub use fixture::{ExecCommands, ImageFixture, RuntimeFixture, TestPod, Workload};
pub use generators::GeneratorFixture;
pub use hook::now;
pub use http::HttpFixture;
pub use objects::ObjectFixture;
pub use probers::ProberFixture;
pub use providers::ProviderFixture;
pub use proxy::check_without_proxy;
pub use runnables::RunnableFixture;
pub use sources::SourceFixture;
pub use stats::StatsFixture;
pub use status_sinks::StatusSinkFixture;
pub use tokens::TokenFixture;
pub use volumes::{Unmakeable, VolumeFixture};
