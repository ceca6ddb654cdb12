//! Supervises containers for an agent whose own `main` cannot call `kubelet_process::init`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Returns only if nobody asked for a supervisor.
    let _ = kubelet_process::init();
    ExitCode::FAILURE
}
