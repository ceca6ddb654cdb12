//! Programs that are run to their end.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tokio::task::spawn_blocking;

use crate::containerd::error::ComponentError;

/// Where programs of the administrator are, which an ordinary `PATH` may lack.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/sbin"];

/// How much of a log is shown.
const TAIL: usize = 4096;

/// Finds a program in `PATH`; `package` is what brings it.
pub(crate) fn find(program: &str, package: &str) -> Result<PathBuf, ComponentError> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM.iter().map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| ComponentError::missing(format!("{program} is not installed (Debian: {package})")))
}

/// Finds a program in one folder.
pub(crate) fn find_in(folder: &Path, program: &str) -> Result<PathBuf, ComponentError> {
    let file = folder.join(program);
    if file.is_file() {
        return Ok(file);
    }
    Err(ComponentError::missing(format!(
        "{} has no {program}",
        folder.display()
    )))
}

/// A `PATH` with a folder first, then what this process has, then where programs of the administrator are.
pub(crate) fn path_with(first: &Path) -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [first.to_owned()]
        .into_iter()
        .chain(env::split_paths(&path))
        .chain(SYSTEM.map(PathBuf::from));
    // Fails for a folder with a colon in its name only; without that folder the programs' absence is told.
    env::join_paths(folders).unwrap_or(path)
}

/// Runs a program and answers what it printed.
pub(crate) fn run<A: AsRef<OsStr>>(
    program: &Path,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String, ComponentError> {
    output(Command::new(program).args(arguments).stdin(Stdio::null()))
}

/// Runs a program that reads `input`, and answers what it printed.
pub(crate) fn run_with_input<A: AsRef<OsStr>>(
    program: &Path,
    arguments: impl IntoIterator<Item = A>,
    input: &str,
) -> Result<String, ComponentError> {
    output_with_input(Command::new(program).args(arguments), input)
}

/// Runs a command and answers what it printed; an error has what it complained of.
pub(crate) fn output(command: &mut Command) -> Result<String, ComponentError> {
    let output = command.output().map_err(ComponentError::io(line(command)))?;
    judge(command, &output)
}

/// The same, with something to read.
pub(crate) fn output_with_input(command: &mut Command, input: &str) -> Result<String, ComponentError> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(ComponentError::io(line(command)))?;
    // What is written here fits into a pipe, so that nobody waits for the other. Who does not read it says why.
    let written = child
        .stdin
        .take()
        .map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(ComponentError::io(line(command)))?;
    let printed = judge(command, &output)?;
    written.map_err(ComponentError::io(line(command)))?;
    Ok(printed)
}

fn judge(command: &Command, output: &Output) -> Result<String, ComponentError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(ComponentError::failed(
        line(command),
        format!("{}: {}", output.status, complaint.trim()),
    ))
}

/// Waits for work that blocks, on a thread where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ComponentError> + Send + 'static,
) -> Result<T, ComponentError> {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ComponentError::failed("wait for a thread", error)),
    }
}

/// The end of a log; nothing of one that cannot be read.
pub(crate) fn tail(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&log[log.len().saturating_sub(TAIL)..]).into_owned()
}

/// A command as it would be typed; none of them has a secret in its arguments that is one outside a test.
fn line(command: &Command) -> String {
    let mut line = format!("run {}", command.get_program().display());
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
