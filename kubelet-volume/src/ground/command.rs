//! Programs of the system that do what no system call does alone: run without a shell, and not for ever.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::failure::at;

/// As much of a program's output as is kept.
const OUTPUT: u64 = 16 << 10;

/// How often a kernel without file descriptors of processes (before 5.3) is asked.
const TICK: Duration = Duration::from_millis(50);

/// How long a killed program may take to end: one that waits for a device or a server ends when that answers.
const TO_DIE: Duration = Duration::from_secs(5);

/// How a program ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    /// The exit code; nothing if a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it wrote to its output and its error output.
    pub(crate) output: String,
}

impl Ended {
    pub(crate) fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// What it says about a failure, on one line.
    pub(crate) fn why(&self) -> String {
        let said: Vec<&str> = self
            .output
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let code = self.code.map_or("a signal".to_owned(), |code| format!("code {code}"));
        format!("ended with {code}: {}", said.join("; "))
    }
}

/// Programs that do what no system call does, by their names: tests script them.
pub(crate) trait Tools {
    /// Runs one to its end.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is none of that name; if it does not end in time.
    fn run(&self, program: &str, args: &[&str]) -> io::Result<Ended>;
}

/// Those of the system, each with that much time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SystemTools {
    pub(crate) limit: Duration,
}

impl Tools for SystemTools {
    fn run(&self, program: &str, args: &[&str]) -> io::Result<Ended> {
        run(Path::new(program), args, self.limit)
    }
}

/// Tools that answer as a test says, and write down what they were asked.
#[cfg(test)]
pub(crate) mod scripted {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::io;

    use super::{Ended, Tools};

    /// Answers in the order of the script, whoever asks; without one, success.
    #[derive(Debug, Default)]
    pub(crate) struct ScriptedTools {
        pub(crate) answers: RefCell<VecDeque<io::Result<Ended>>>,
        pub(crate) calls: RefCell<Vec<String>>,
    }

    impl ScriptedTools {
        pub(crate) fn answer(self, code: i32, output: &str) -> Self {
            self.answers.borrow_mut().push_back(Ok(Ended {
                code: Some(code),
                output: output.to_owned(),
            }));
            self
        }

        pub(crate) fn missing(self) -> Self {
            self.answers.borrow_mut().push_back(Err(io::ErrorKind::NotFound.into()));
            self
        }
    }

    impl Tools for ScriptedTools {
        fn run(&self, program: &str, args: &[&str]) -> io::Result<Ended> {
            self.calls.borrow_mut().push(format!("{program} {}", args.join(" ")));
            let answer = self.answers.borrow_mut().pop_front();
            answer.unwrap_or(Ok(Ended {
                code: Some(0),
                output: String::new(),
            }))
        }
    }
}

/// Runs a program to its end.
///
/// # Errors
/// If it cannot be started, or runs longer than `limit`: it and what it started are killed then.
pub(crate) fn run(program: &Path, args: &[&str], limit: Duration) -> io::Result<Ended> {
    let fail = |error: io::Error| at("cannot run", program, error);
    // Not a pipe: a daemon that the program leaves behind would hold it open, and nobody would see its end.
    let output = File::from(memfd_create("output", MemfdFlags::CLOEXEC).map_err(|error| fail(error.into()))?);
    let writer = || output.try_clone().map(|file| Stdio::from(OwnedFd::from(file)));
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").stdin(Stdio::null());
    command.stdout(writer().map_err(fail)?).stderr(writer().map_err(fail)?);
    let child = command.process_group(0).spawn().map_err(fail)?;
    let Some(status) = wait(child, limit).map_err(fail)? else {
        let late = io::Error::new(io::ErrorKind::TimedOut, format!("not done after {limit:?}"));
        return Err(fail(late));
    };
    Ok(Ended {
        code: status.code(),
        output: text(output).map_err(fail)?,
    })
}

fn text(mut output: File) -> io::Result<String> {
    output.rewind()?;
    let mut bytes = Vec::new();
    output.take(OUTPUT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits until it ended; nothing if it had to be killed.
fn wait(mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    if let Some(status) = wait_at_most(&mut child, limit)? {
        return Ok(Some(status));
    }
    if let Some(group) = pid(&child) {
        // It may have ended by itself just now.
        let _ = kill_process_group(group, Signal::KILL);
    }
    if wait_at_most(&mut child, TO_DIE)?.is_none() {
        // Still within the kernel. Whenever it comes out of there, it is not to stay a zombie.
        thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(move || child.wait())?;
    }
    Ok(None)
}

fn wait_at_most(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let ends = pid(child).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if waited >= limit {
            return Ok(None);
        }
        let nap = TICK.min(limit - waited);
        let nap_spec = Timespec {
            tv_sec: 0,
            tv_nsec: nap.subsec_nanos().into(),
        };
        let mut fds: Vec<PollFd<'_>> = ends.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&nap_spec)) {
            Ok(0) => waited += nap,
            // Ended. Should a signal wake it again and again, the limit still comes.
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => waited += Duration::from_millis(1),
            Err(error) => return Err(error.into()),
        }
    }
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    use super::run;

    const SHELL: &str = "/bin/sh";
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_end_of_a_program_and_what_it_wrote_are_told() {
        let ended = run(Path::new(SHELL), &["-c", "echo out; echo err >&2; exit 3"], LONG).unwrap();
        assert_eq!(ended.code, Some(3));
        assert_eq!(ended.why(), "ended with code 3: out; err");
        assert!(run(Path::new("/bin/true"), &[], LONG).unwrap().is_success());
        assert!(
            run(Path::new("/no/such"), &[], LONG)
                .unwrap_err()
                .to_string()
                .contains("/no/such")
        );
    }

    #[test]
    fn one_that_leaves_a_daemon_behind_has_ended() {
        let ended = run(Path::new(SHELL), &["-c", "sleep 20 & echo $!"], LONG).unwrap();
        assert!(ended.is_success());
        let _ = run(
            Path::new(SHELL),
            &["-c", &format!("kill {}", ended.output.trim())],
            LONG,
        );
    }

    #[test]
    fn one_that_does_not_end_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("echo $$ > {}; sleep 600; true", file.display());
        let error = run(Path::new(SHELL), &["-c", &script], Duration::from_millis(500)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // On a machine that busy it may not even have begun.
        let pid = std::fs::read_to_string(&file)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            assert_eq!(test_kill_process(pid), Err(Errno::SRCH));
        }
    }
}
