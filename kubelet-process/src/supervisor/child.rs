//! Starts processes of a container: its main one, and those of exec.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use rustix::{process::Gid, process::Uid};

use crate::process::MARKER;
use crate::record::ProcessSpec;
use crate::supervisor::cgroup::doors;
use crate::sys;

/// Where the output of a process goes.
pub(crate) struct Output {
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
}

/// Starts a process as the container's spec says, in a session of its own, and returns its number.
///
/// It dies with the thread that calls this. The error is the text for a status.
pub(crate) fn spawn(
    container_id: &str,
    spec: &ProcessSpec,
    root: Option<&OwnedFd>,
    argv: &[String],
    output: Output,
) -> Result<i32, String> {
    let Some((program, args)) = argv.split_first() else {
        return Err("no command".to_owned());
    };
    let failed = |err: &dyn std::fmt::Display| format!("cannot start {program:?}: {err}");
    let (mut failed_step, telling) = io::pipe().map_err(|err| failed(&err))?;
    let steps = Steps::new(spec, root, telling).map_err(|err| failed(&err))?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .env(MARKER, container_id)
        .stdin(Stdio::null())
        .stdout(output.stdout)
        .stderr(output.stderr);
    run_before_exec(&mut command, steps);
    match command.spawn() {
        // Dropping a `Child` neither waits nor kills: whoever asked reaps it.
        Ok(child) => Ok(child.id().cast_signed()),
        Err(err) => {
            drop(command);
            let mut step = [0];
            let step = match failed_step.read(&mut step) {
                Ok(1) => Step::from_byte(step[0]),
                _ => None,
            };
            Err(describe(program, spec, step, &err))
        }
    }
}

fn describe(program: &str, spec: &ProcessSpec, step: Option<Step>, err: &io::Error) -> String {
    match step {
        Some(Step::WorkingDir) => format!("chdir to cwd ({:?}): {err}", spec.working_dir),
        Some(step) => format!("cannot start {program:?}: {}: {err}", step.text()),
        None if err.kind() == io::ErrorKind::NotFound && !program.contains('/') => {
            format!("exec: {program:?}: executable file not found in $PATH")
        }
        None => format!("exec: {program:?}: {err}"),
    }
}

/// What is done between fork and exec, so that a failure can say where.
#[derive(Clone, Copy)]
enum Step {
    Session = 1,
    Cgroup,
    Parent,
    Root,
    Groups,
    Group,
    User,
    WorkingDir,
    NoNewPrivileges,
    DeathSignal,
}

impl Step {
    fn from_byte(byte: u8) -> Option<Self> {
        [
            Self::Session,
            Self::Cgroup,
            Self::Parent,
            Self::Root,
            Self::Groups,
            Self::Group,
            Self::User,
            Self::WorkingDir,
            Self::NoNewPrivileges,
            Self::DeathSignal,
        ]
        .into_iter()
        .find(|step| *step as u8 == byte)
    }

    fn text(self) -> &'static str {
        match self {
            Self::Session => "new session",
            Self::Cgroup => "join its cgroup",
            Self::Parent => "its supervisor ended",
            Self::Root => "change root",
            Self::Groups => "set supplemental groups",
            Self::Group => "set group",
            Self::User => "set user",
            Self::WorkingDir => "change working directory",
            Self::NoNewPrivileges => "forbid new privileges",
            Self::DeathSignal => "tie to supervisor",
        }
    }
}

/// Everything that is needed between fork and exec, made before: there, nothing may be allocated.
struct Steps {
    telling: PipeWriter,
    parent: Pid,
    cgroup: Vec<File>,
    root: Option<OwnedFd>,
    groups: Option<Vec<Gid>>,
    gid: Option<Gid>,
    uid: Option<Uid>,
    working_dir: CString,
    no_new_privileges: bool,
    oom_score_adj: Option<String>,
}

impl Steps {
    fn new(spec: &ProcessSpec, root: Option<&OwnedFd>, telling: PipeWriter) -> io::Result<Self> {
        let user = spec.user.as_ref();
        Ok(Self {
            telling,
            parent: rustix::process::getpid(),
            cgroup: doors(&spec.cgroup)
                .map_err(|err| io::Error::new(err.kind(), format!("cannot open its cgroup: {err}")))?,
            root: root.map(OwnedFd::try_clone).transpose()?,
            groups: user.map(|user| user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect()),
            gid: user.map(|user| Gid::from_raw(user.gid)),
            uid: user.map(|user| Uid::from_raw(user.uid)),
            working_dir: CString::new(spec.working_dir.as_str())?,
            no_new_privileges: spec.no_new_privileges,
            oom_score_adj: (spec.oom_score_adj != 0).then(|| spec.oom_score_adj.to_string()),
        })
    }

    /// Runs in the child. Only system calls, no allocation, no lock.
    fn run(&self) -> Result<(), (Step, rustix::io::Errno)> {
        let at = |step| move |errno| (step, errno);
        sys::default_signals();
        rustix::process::umask(Mode::from(0o022));
        rustix::process::setsid().map_err(at(Step::Session))?;
        // First of all, so that whatever follows counts; zero stands for whoever writes it.
        for door in &self.cgroup {
            rustix::io::write(door, b"0").map_err(at(Step::Cgroup))?;
        }
        // Best effort: less than the agent has needs a privilege.
        if let Some(value) = &self.oom_score_adj {
            let _ = rustix::fs::open(
                c"/proc/self/oom_score_adj",
                OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .and_then(|file| rustix::io::write(file, value.as_bytes()));
        }
        if let Some(root) = &self.root {
            rustix::process::fchdir(root)
                .and_then(|()| rustix::process::chroot(c"."))
                .map_err(at(Step::Root))?;
        }
        if let Some(groups) = &self.groups {
            set_thread_groups(groups).map_err(at(Step::Groups))?;
        }
        // After the fork this thread is the whole process.
        if let Some(gid) = self.gid {
            set_thread_res_gid(gid, gid, gid).map_err(at(Step::Group))?;
        }
        if let Some(uid) = self.uid {
            set_thread_res_uid(uid, uid, uid).map_err(at(Step::User))?;
        }
        // As the container's user: it must not get where that user could not.
        rustix::process::chdir(self.working_dir.as_c_str()).map_err(at(Step::WorkingDir))?;
        if self.no_new_privileges {
            set_no_new_privs(true).map_err(at(Step::NoNewPrivileges))?;
        }
        // After the change of user, which clears it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(Step::DeathSignal))?;
        // A supervisor that ended before that line sends nothing.
        if rustix::process::getppid() != Some(self.parent) {
            return Err((Step::Parent, rustix::io::Errno::SRCH));
        }
        sys::close_on_exec_from_3();
        Ok(())
    }
}

#[expect(
    unsafe_code,
    reason = "sessions, roots and groups are only changed between fork and exec"
)]
fn run_before_exec(command: &mut Command, steps: Steps) {
    let step = move || {
        steps.run().map_err(|(step, errno)| {
            // Fits a pipe that nothing was written to.
            let _ = rustix::io::write(&steps.telling, &[step as u8]);
            io::Error::from(errno)
        })
    };
    // SAFETY: `Steps::run` makes system calls only and allocates nothing, and an error made from an errno holds a
    // number; so this is safe in the child of a process with several threads.
    unsafe {
        command.pre_exec(step);
    }
}

/// A pipe whose reading end never blocks.
pub(crate) fn output_pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    set_nonblocking(reader.as_fd())?;
    Ok((reader, writer))
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}
