//! Runs the same scenarios against any kubelet: see `scripts/side-by-side`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use kubelet_benches::SideBySide;

/// Measures a kubelet from outside, on an in-memory runtime: starts it with a folder of manifests, and tells its CPU time, its
/// memory and how fast it answers.
///
/// The kubelet's command comes after `--`. In it `{endpoint}` stands for the runtime's socket (`unix://…`), `{manifests}` for the
/// folder of manifests and `{dir}` for an empty folder of its own. It has to admit `--pods` and a few more, and to end when it
/// is killed: a shell has to `exec` it.
#[derive(Debug, Parser)]
struct Args {
    /// Pods of two containers in the burst.
    #[arg(long, default_value_t = 1_000)]
    pods: usize,
    /// Samples of each reaction.
    #[arg(long, default_value_t = 100)]
    samples: usize,
    /// Seconds for which a kubelet at rest is watched.
    #[arg(long, default_value_t = 60)]
    rest: u64,
    /// The runtime sends no events.
    #[arg(long)]
    without_events: bool,
    /// The kubelet's program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut settings = SideBySide::of(args.command);
    settings.pods = args.pods;
    settings.samples = args.samples.max(1);
    settings.rest = Duration::from_secs(args.rest.max(1));
    settings.events = !args.without_events;
    match settings.run(|row| println!("{row}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
