//! The program `node-agent` as a user runs it: real manifests, real processes, real signals.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

mod node_agent {
    mod agent;
    mod changes;
    mod restarts;
    mod samples;
}
