//! The small parent of a container: starts it, writes its log, carries out what the agent asks, ends the whole tree and
//! records how the main process ended. Runs as a process of its own, or on a thread of an agent that cannot be
//! re-executed.

mod cgroup;
mod child;
mod log;
mod reaper;
mod rootfs;

use std::io::{self, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{self, Request, Response};
use crate::process;
use crate::record::{ContainerFile, Ended, ExitFile, Identity, ProcessFile};
use crate::state::ContainerDir;
use crate::sys;

use child::{Output, output_pipe, spawn};
use log::{LogWriter, Stream};
use reaper::Reaper;

/// Connections served at a time; more wait until one is closed.
const CONNECTIONS: usize = 64;
/// Between two passes over what is being killed: a process that forks while its children are listed can be missed.
const KILL_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// What a pipe can hold at most without privileges: more cannot have been written before its writer ended.
const PIPE_LIMIT_BYTES: usize = 1 << 20;

/// How a supervisor lives.
#[derive(Debug)]
pub(crate) enum Home {
    /// As a process that does nothing else.
    Process,
    /// On a thread of the agent. The pipe closes when the agent gives the runtime up.
    Thread {
        /// The other end is held by the runtime.
        agent: PipeReader,
    },
}

/// The life of a supervisor process: its folder is in its arguments, the lock is its standard input, and its standard
/// output is closed once the container runs or could not be started.
pub(crate) fn run_process(dir: PathBuf) -> io::Result<()> {
    rustix::process::setsid()?;
    let me = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(me))?;
    rustix::process::chdir("/")?;
    let dir = ContainerDir::new(dir);
    let pid = me.as_raw_nonzero().get();
    if let Some(who) = Identity::of(pid) {
        dir.write_supervisor(&who)?;
    }
    supervise(&dir, Home::Process, || {
        let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
        Ok(rustix::stdio::dup2_stdout(nowhere)?)
    })
}

/// Supervises one container until nothing of it is left. The caller holds the lock; `ready` is called once the start has
/// succeeded or failed.
pub(crate) fn supervise(dir: &ContainerDir, home: Home, ready: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let id = dir.id();
    let Some(config) = dir.config()? else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the container has no config"));
    };
    let started = match Supervisor::start(dir, &id, &config, home) {
        Ok(supervisor) => supervisor,
        Err(message) => {
            dir.write_exit(&ExitFile::not_started(message, SystemClock.now()))?;
            return ready();
        }
    };
    ready()?;
    started.run()
}

#[derive(Debug)]
struct Supervisor<'a> {
    dir: &'a ContainerDir,
    id: &'a str,
    config: &'a ContainerFile,
    home: Home,
    reaper: Reaper,
    listener: UnixListener,
    root: Option<OwnedFd>,
    log: LogWriter<SystemClock>,
    log_broken: bool,
    outputs: Vec<(Stream, PipeReader)>,
    closed: Vec<Stream>,
    main: Identity,
    ended: Option<(Ended, Timestamp)>,
    asked_to_stop: bool,
    killing: bool,
    /// How many processes the kernel had killed in its cgroup before.
    oom_kills: u64,
    execs: Vec<Exec>,
}

/// A running exec, and who waits for it.
#[derive(Debug)]
struct Exec {
    pid: i32,
    caller: Option<UnixStream>,
}

/// What a wake-up was about.
#[derive(Clone, Copy)]
enum Source {
    Wake,
    Agent,
    Listener,
    Output(usize),
    Caller(usize),
}

impl<'a> Supervisor<'a> {
    /// Starts the main process. The error is the text for the status.
    fn start(dir: &'a ContainerDir, id: &'a str, config: &'a ContainerFile, home: Home) -> Result<Self, String> {
        let spec = &config.process;
        let listener =
            control::listen(dir).map_err(|err| format!("cannot listen in {}: {err}", dir.path().display()))?;
        let mut reaper = match home {
            Home::Process => Reaper::all(),
            Home::Thread { .. } => Ok(Reaper::known()),
        }
        .map_err(|err| format!("cannot watch processes: {err}"))?;
        let log =
            LogWriter::open(config.log_path.clone(), SystemClock).map_err(|err| format!("cannot open log: {err}"))?;
        let root = match &spec.root {
            Some(root) => Some(rootfs::enter(root, spec).map_err(|err| err.to_string())?),
            None => None,
        };
        let pipes = || Ok::<_, io::Error>((output_pipe()?, output_pipe()?));
        let ((out, stdout), (err, stderr)) = pipes().map_err(|err| format!("cannot make pipes: {err}"))?;
        let output = Output {
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        let started_at = SystemClock.now();
        let oom_kills = cgroup::oom_kills(&spec.cgroup);
        let pid = spawn(id, spec, root.as_ref(), &spec.argv, output)?;
        // A child that was not reaped keeps its number, so that this is surely it, even if it has ended.
        let main = process::identity_of_child(pid);
        if let Err(err) = reaper.add(pid) {
            kill_tree(pid);
            return Err(format!("cannot watch the process: {err}"));
        }
        let mut supervisor = Self {
            dir,
            id,
            config,
            home,
            reaper,
            listener,
            root,
            log,
            log_broken: false,
            outputs: vec![(Stream::Stdout, out), (Stream::Stderr, err)],
            closed: Vec::new(),
            main,
            ended: None,
            asked_to_stop: false,
            killing: false,
            oom_kills,
            execs: Vec::new(),
        };
        let recorded = dir.write_process(&ProcessFile { main, started_at });
        if let Err(err) = recorded {
            // Nobody would find it later.
            supervisor.kill();
            // The start has failed already; what is left of the tree is found by its mark.
            let _ = supervisor.run_to_end();
            return Err(format!("cannot record the process: {err}"));
        }
        Ok(supervisor)
    }

    fn run(mut self) -> io::Result<()> {
        let (ended, at) = self.run_to_end()?;
        let message = if self.log_broken {
            "parts of the log could not be written".to_owned()
        } else {
            String::new()
        };
        let exit = ExitFile::ended(ended, at, message);
        self.dir.write_exit(&match self.is_out_of_memory(ended) {
            true => exit.out_of_memory(),
            false => exit,
        })
    }

    /// Whether the kernel has killed the main process for lack of memory: it was killed by nobody here, and the kernel has
    /// killed in its cgroup. If only a child was, the main process has ended in some other way.
    fn is_out_of_memory(&self, ended: Ended) -> bool {
        ended == Ended::Signal(libc::SIGKILL)
            && !self.killing
            && cgroup::oom_kills(&self.config.process.cgroup) > self.oom_kills
    }

    /// Works until the main process has ended and nothing of the container is left.
    fn run_to_end(&mut self) -> io::Result<(Ended, Timestamp)> {
        loop {
            let nobody_left = self.reap()?;
            if let Some(ended) = self.ended
                && self.finish_tree(nobody_left)?
            {
                self.finish_outputs();
                return Ok(ended);
            }
            for source in self.wait()? {
                self.serve(source)?;
            }
            self.outputs_closed();
        }
    }

    /// Waits for something to do. Nothing to do costs nothing.
    fn wait(&self) -> io::Result<Vec<Source>> {
        let mut sources = vec![Source::Listener];
        let listening = self.execs.len() < CONNECTIONS;
        let interest = if listening { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(&self.listener, interest)];
        for fd in self.reaper.fds() {
            sources.push(Source::Wake);
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        if let Home::Thread { agent } = &self.home
            && !self.killing
        {
            sources.push(Source::Agent);
            fds.push(PollFd::new(agent, PollFlags::IN));
        }
        for (index, (_, pipe)) in self.outputs.iter().enumerate() {
            sources.push(Source::Output(index));
            fds.push(PollFd::new(pipe, PollFlags::IN));
        }
        for (index, exec) in self.execs.iter().enumerate() {
            if let Some(caller) = &exec.caller {
                sources.push(Source::Caller(index));
                fds.push(PollFd::new(caller, PollFlags::IN | PollFlags::RDHUP));
            }
        }
        let timeout = self.ended.is_some().then_some(KILL_AGAIN);
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(err) => return Err(err.into()),
        }
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(sources
            .into_iter()
            .zip(ready)
            .filter_map(|(source, ready)| ready.then_some(source))
            .collect())
    }

    fn serve(&mut self, source: Source) -> io::Result<()> {
        match source {
            Source::Wake => {}
            Source::Agent => self.kill(),
            Source::Listener => match self.listener.accept() {
                Ok((caller, _)) => self.answer(caller),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            },
            Source::Output(index) => {
                self.copy_output(index);
            }
            Source::Caller(index) => {
                // Nothing more is sent on a connection: it was closed, by a timeout or the end of the agent.
                if let Some(exec) = self.execs.get_mut(index) {
                    exec.caller = None;
                    let pid = exec.pid;
                    kill_tree(pid);
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, caller: UnixStream) {
        let response = match control::receive(&caller) {
            Ok((Request::Stop, _)) => {
                self.stop();
                Response::Done
            }
            Ok((Request::Kill, _)) => {
                self.kill();
                Response::Done
            }
            Ok((Request::ReopenLog, _)) => match self.log.reopen() {
                Ok(()) => Response::Done,
                Err(err) => Response::Failed {
                    message: format!("cannot open log: {err}"),
                },
            },
            Ok((Request::Exec { argv }, pipes)) => match self.exec(&argv, pipes) {
                Ok(pid) => {
                    self.execs.push(Exec {
                        pid,
                        caller: Some(caller),
                    });
                    return;
                }
                Err(message) => Response::Failed { message },
            },
            Err(err) => Response::Failed {
                message: format!("cannot read the request: {err}"),
            },
        };
        control::answer(caller, &response);
    }

    fn exec(&mut self, argv: &[String], pipes: Vec<OwnedFd>) -> Result<i32, String> {
        if self.ended.is_some() || self.killing {
            return Err("the container is ending".to_owned());
        }
        let mut pipes = pipes.into_iter();
        let (Some(stdout), Some(stderr)) = (pipes.next(), pipes.next()) else {
            return Err("no pipes for the output".to_owned());
        };
        let output = Output {
            stdout: Stdio::from(stdout),
            stderr: Stdio::from(stderr),
        };
        let pid = spawn(self.id, &self.config.process, self.root.as_ref(), argv, output)?;
        match self.reaper.add(pid) {
            Ok(()) => Ok(pid),
            Err(err) => {
                kill_tree(pid);
                Err(format!("cannot watch the command: {err}"))
            }
        }
    }

    fn stop(&mut self) {
        // Once: a second signal means "at once" to many programs, and the agent repeats itself after a restart.
        if !std::mem::replace(&mut self.asked_to_stop, true) && self.ended.is_none() {
            // The main process leads its group and was not reaped, so that the number is its own. It may have ended.
            let _ = sys::kill_group(self.main.pid, self.config.stop_signal);
        }
    }

    /// Begins to kill everything; `finish_tree` sees it through once the main process was reaped.
    fn kill(&mut self) {
        self.killing = true;
        if self.ended.is_none() {
            let _ = sys::kill_group(self.main.pid, libc::SIGKILL);
        }
    }

    /// Takes in who has ended. Says whether no child is left at all.
    fn reap(&mut self) -> io::Result<bool> {
        let reaped = self.reaper.reap()?;
        for (pid, ended) in reaped.ended {
            if pid == self.main.pid {
                self.ended = Some((ended, SystemClock.now()));
            }
            for exec in self.execs.iter_mut().filter(|exec| exec.pid == pid) {
                exec.pid = 0;
                if let Some(caller) = exec.caller.take() {
                    let exit_code = ended.code();
                    control::answer(caller, &Response::Exited { exit_code });
                }
            }
        }
        self.execs.retain(|exec| exec.pid != 0);
        if reaped.nobody_left && self.ended.is_none() {
            // Nothing of ours reaps elsewhere. Better a wrong signal than a container that never ends.
            self.ended = Some((Ended::Signal(libc::SIGKILL), SystemClock.now()));
        }
        Ok(reaped.nobody_left)
    }

    /// Kills what is left after the main process. Says whether that is done.
    fn finish_tree(&mut self, nobody_left: bool) -> io::Result<bool> {
        match self.home {
            Home::Process => {
                if nobody_left {
                    return Ok(true);
                }
                let killed = process::kill_below(std::process::id().cast_signed());
                // Programs of another user cannot be killed without root, and are not waited for.
                Ok(killed.signalled == 0 && killed.refused > 0)
            }
            Home::Thread { .. } => {
                process::sweep(|| process::members(self.id, Some(&self.main)))?;
                self.reap()?;
                Ok(true)
            }
        }
    }

    /// Copies what can be read at once; returns how much that was.
    fn copy_output(&mut self, index: usize) -> usize {
        let mut chunk = [0; 16 << 10];
        let Some((stream, pipe)) = self.outputs.get_mut(index) else {
            return 0;
        };
        let stream = *stream;
        match pipe.read(&mut chunk) {
            Ok(got) if got > 0 => {
                let written = self.log.write(stream, chunk.get(..got).unwrap_or_default());
                // A full disk must neither stop the container nor end its supervisor.
                self.log_broken |= written.is_err();
                got
            }
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => 0,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => 0,
            // Closed by every writer.
            _ => {
                self.closed.push(stream);
                0
            }
        }
    }

    fn outputs_closed(&mut self) {
        let closed = std::mem::take(&mut self.closed);
        self.outputs.retain(|(stream, _)| !closed.contains(stream));
    }

    /// Takes what lies in the pipes. They may never close: a process outside the tree can have got hold of one.
    fn finish_outputs(&mut self) {
        for index in 0..self.outputs.len() {
            let mut taken = 0;
            while taken < PIPE_LIMIT_BYTES {
                match self.copy_output(index) {
                    0 => break,
                    got => taken += got,
                }
            }
        }
        self.log_broken |= self.log.finish().is_err();
    }
}

/// Kills a process that was not reaped yet, its group, and what is below it.
fn kill_tree(pid: i32) {
    process::kill_below(pid);
    // It led its group from the start; if it has ended the group is gone or its own still.
    let _ = sys::kill_group(pid, libc::SIGKILL);
}
