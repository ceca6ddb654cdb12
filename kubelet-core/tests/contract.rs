//! The contract suites of `kubelet-testing` on what this crate has of each trait.

mod contract {
    mod admission;
    mod credentials;
    mod events;
    mod objects;
    mod sources;
    mod status_sinks;
}
