//! How this program, or another one, becomes a supervisor.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::supervisor;

/// Zeroth argument of a supervisor, which is also what `ps` shows.
pub(crate) const SUPERVISOR_NAME: &str = "kubelet-process-supervisor";

/// The program that is executed as the small parent of each container.
#[derive(Clone, Debug)]
#[must_use = "without it, containers end with the agent"]
pub struct Supervisor {
    pub(crate) program: PathBuf,
}

impl Supervisor {
    /// Another program, whose `main` calls [`init`] first: for agents whose own `main` cannot.
    /// `kubelet-process-supervisor`, which comes with this crate, is one.
    pub fn at(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
        }
    }
}

/// Makes this program able to supervise containers. Call it first in `main`, before anything opens a file or starts a thread.
///
/// If the program was executed as a supervisor this does that work and ends the process; otherwise it does nothing and
/// returns at once, with what [`ProcessRuntime::open`](crate::ProcessRuntime::open) takes. The running binary is
/// executed, also after its file was replaced.
pub fn init() -> Supervisor {
    let mut args = std::env::args_os();
    if args.next().as_deref() == Some(OsStr::new(SUPERVISOR_NAME))
        && let Some(dir) = args.next()
    {
        supervise_and_exit(dir.into());
    }
    Supervisor::at("/proc/self/exe")
}

#[expect(
    clippy::exit,
    reason = "this process was started to supervise: nothing of the host program may run in it"
)]
#[expect(
    clippy::print_stderr,
    reason = "its standard error is a file in the container's folder"
)]
fn supervise_and_exit(dir: PathBuf) -> ! {
    match supervisor::run_process(dir) {
        Ok(()) => std::process::exit(0),
        Err(err) => {
            eprintln!("supervisor failed: {err}");
            std::process::exit(1)
        }
    }
}
