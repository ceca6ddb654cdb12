//! Each contract suite finds what is broken: implementations with one fault each, and the promise that catches it.
//!
//! Without their fault they pass, so that it is the fault which is found.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the failure")]

mod admission;
mod allocators;
mod cgroups;
mod credentials;
mod events;
mod generators;
mod http;
mod objects;
mod probers;
mod providers;
mod runnables;
mod sources;
mod stats;
mod status_sinks;
mod tokens;
mod volumes;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a check says of something that is broken.
#[track_caller]
fn caught(check: impl FnOnce()) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(check)) else {
        panic!("the suite finds nothing wrong");
    };
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&str>()
            .map(|text| (*text).to_owned())
            .unwrap_or_default(),
    }
}

/// Makes one `#[test]` of each fault: its name, what has it, the promise that is broken, and a word of what is said.
macro_rules! faults {
    ($suite:ident: $($faults:tt)*) => { $crate::faults! { $suite, check: $($faults)* } };
    ($suite:ident, $check:ident: $($name:ident: $make:expr, $promise:ident, $says:literal;)*) => { $(
        #[test]
        fn $name() {
            let said = $crate::caught(|| {
                kubelet_testing::contract::$check(stringify!($name), $make, async |checked, fixture| {
                    kubelet_testing::contract::$suite::$promise(checked, fixture).await;
                });
            });
            assert!(said.contains($says), "{said}");
        }
    )* };
}
use faults;

/// Makes one `#[test]` of each promise that is kept.
macro_rules! holds {
    ($suite:ident: $($make:expr => $promise:ident)*) => { $(
        #[test]
        fn $promise() {
            kubelet_testing::contract::check(stringify!($promise), $make, async |checked, fixture| {
                kubelet_testing::contract::$suite::$promise(checked, fixture).await;
            });
        }
    )* };
}
use holds;
