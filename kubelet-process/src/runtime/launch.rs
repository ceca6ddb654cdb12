//! Starts supervisors, finds those of an earlier agent, and waits for their end.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use crate::init::{SUPERVISOR_NAME, Supervisor};
use crate::process;
use crate::record::ExitFile;
use crate::state::{self, ContainerDir, OnDisk};
use crate::supervisor::{Home, supervise};
use crate::sys;

/// Between two looks at a supervisor that an earlier agent had only just started.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A supervisor that was started.
#[derive(Debug)]
pub(crate) struct Launched {
    /// Closed once the start has succeeded or failed.
    ready: OwnedFd,
    end: LaunchedEnd,
}

#[derive(Debug)]
enum LaunchedEnd {
    Process(OwnedFd),
    Thread(PipeReader, JoinHandle<()>),
}

/// The end of a supervisor, which can be waited for.
#[derive(Debug)]
pub(crate) enum End {
    /// Of a process.
    Process(AsyncFd<OwnedFd>),
    /// Of a thread, which holds the other end of the pipe.
    Thread(pipe::Receiver, JoinHandle<()>),
}

impl End {
    /// Waits for the end, and takes a process that is our child out of the process table.
    pub(crate) async fn wait(self) -> io::Result<()> {
        match self {
            Self::Process(handle) => {
                drop(handle.readable().await?);
                // One that an earlier agent started is not our child: then there is nothing to take out.
                let _ = waitid(
                    WaitId::PidFd(handle.as_fd()),
                    WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
                );
            }
            Self::Thread(pipe, thread) => {
                closed(&pipe).await?;
                // It has nothing left to do; if it panicked, the container is found to be lost.
                let _ = tokio::task::spawn_blocking(|| thread.join()).await;
            }
        }
        Ok(())
    }
}

impl Launched {
    /// Waits until the start has succeeded or failed, which the container's folder then tells.
    pub(crate) async fn started(self) -> io::Result<End> {
        let end = match self.end {
            LaunchedEnd::Process(handle) => End::Process(sys::watch(handle)?),
            LaunchedEnd::Thread(pipe, thread) => End::Thread(pipe::Receiver::from_owned_fd(pipe.into())?, thread),
        };
        closed(&pipe::Receiver::from_owned_fd(self.ready)?).await?;
        Ok(end)
    }
}

/// Starts a supervisor for a container that was never started. Blocks.
pub(crate) fn launch(dir: &ContainerDir, with: Option<&Supervisor>, agent: &PipeReader) -> io::Result<Launched> {
    let lock = dir.open_lock()?;
    // Locked before anything says that it starts, and handed on: at no time does a living supervisor lack it.
    if !state::try_lock(&lock)? {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    dir.mark_starting()?;
    let (ready, started) = io::pipe()?;
    let end = match with {
        Some(supervisor) => {
            let mut command = Command::new(&supervisor.program);
            command.arg0(SUPERVISOR_NAME).arg(dir.path()).env_clear();
            // Without it a binary that is linked to libraries in unusual places would not start.
            if let Some(libraries) = std::env::var_os("LD_LIBRARY_PATH") {
                command.env("LD_LIBRARY_PATH", libraries);
            }
            command.stdin(lock).stdout(started).stderr(dir.open_complaints()?);
            let mut child = command.spawn()?;
            let pid = Pid::from_child(&child);
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => LaunchedEnd::Process(handle),
                Err(err) => {
                    // Nobody could wait for it. What it may have started dies with it.
                    child.kill()?;
                    child.wait()?;
                    return Err(err.into());
                }
            }
        }
        None => {
            let (end, ended) = io::pipe()?;
            let (dir, agent) = (dir.clone(), agent.try_clone()?);
            let thread = std::thread::Builder::new()
                .name("container".to_owned())
                .spawn(move || {
                    let ready = move || {
                        drop(started);
                        Ok(())
                    };
                    if let Err(err) = supervise(&dir, Home::Thread { agent }, ready) {
                        tracing::warn!(error = &err as &dyn std::error::Error, "supervising a container failed");
                    }
                    // In this order: whoever learns of the end may lock.
                    drop(lock);
                    drop(ended);
                })?;
            LaunchedEnd::Thread(end, thread)
        }
    };
    Ok(Launched {
        ready: ready.into(),
        end,
    })
}

/// Waits until a supervisor that an earlier agent started has started its container or failed. Nothing if it is gone.
pub(crate) async fn attach(dir: &ContainerDir) -> io::Result<Option<End>> {
    loop {
        let look = {
            let dir = dir.clone();
            move || -> io::Result<_> {
                let started = !matches!(dir.read()?, OnDisk::Starting);
                let gone = state::try_lock(&dir.open_lock()?)?;
                let handle = match dir.supervisor()? {
                    Some(who) => who.open()?,
                    None => None,
                };
                Ok((started, gone, handle))
            }
        };
        match tokio::task::spawn_blocking(look).await? {
            Err(err) => return Err(err),
            Ok((_, true, _)) => return Ok(None),
            Ok((true, false, Some(handle))) => return Ok(Some(End::Process(sys::watch(handle)?))),
            // Only in the moment between its start and that of its container, or while it ends.
            Ok(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Brings a container whose supervisor has ended to its end: kills what is left of it, and makes sure that an exit is
/// recorded. Blocks.
pub(crate) fn settle(dir: &ContainerDir, now: Timestamp) -> io::Result<OnDisk> {
    let lock = dir.open_lock()?;
    state::wait_lock(&lock)?;
    settle_locked(dir, now)
}

/// As [`settle`], by somebody who holds the lock.
pub(crate) fn settle_locked(dir: &ContainerDir, now: Timestamp) -> io::Result<OnDisk> {
    if let exited @ OnDisk::Exited(..) = dir.read()? {
        return Ok(exited);
    }
    let main = dir.process()?.map(|process| process.main);
    let id = dir.id();
    let refused = process::sweep(|| process::members(&id, main.as_ref()))?;
    if refused > 0 {
        tracing::warn!(container = %id, refused, "processes of a lost container cannot be killed");
    }
    dir.write_exit(&ExitFile::lost("its supervisor ended before it", now))?;
    dir.read()
}

/// Waits until nobody holds the writing end any more.
async fn closed(pipe: &pipe::Receiver) -> io::Result<()> {
    let mut nothing = [0; 16];
    loop {
        pipe.readable().await?;
        match pipe.try_read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
            Err(err) => return Err(err),
        }
    }
}
