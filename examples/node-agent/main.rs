//! An agent for a node: a folder of manifests becomes running, supervised and reported pods, as processes of this machine.
//!
//! Run: `cargo run --release -p kubelet-examples --bin node-agent -- examples/manifests`

mod agent;
mod args;
mod cgroups;
mod folders;
mod lines;
mod screen;
mod summary;
mod table;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // First of all: this program is also the parent of each container, and never returns from here then.
    let supervisor = kubelet_process::init();
    let args = args::Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(agent::run(args, supervisor)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", kubelet_core::error_chain(&*error));
            ExitCode::FAILURE
        }
    }
}
