//! Learns which children have ended, and takes them out of the process table.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitOptions, pidfd_open, wait, waitid};

use crate::record::Ended;
use crate::sys;

/// Who has ended.
#[derive(Debug, Default)]
pub(crate) struct Reaped {
    pub(crate) ended: Vec<(i32, Ended)>,
    /// Neither children nor anything below them is left. Only known where every child is reaped.
    pub(crate) nobody_left: bool,
}

/// Which children are reaped.
#[derive(Debug)]
pub(crate) enum Reaper {
    /// All of this process, those of others that were handed to it included.
    All {
        /// Readable when a child has ended.
        deaths: OwnedFd,
    },
    /// Those that were added: the process has children that are none of our business.
    Known {
        /// Readable when the child has ended.
        handles: Vec<(i32, OwnedFd)>,
    },
}

impl Reaper {
    pub(crate) fn all() -> io::Result<Self> {
        Ok(Self::All {
            deaths: sys::child_deaths()?,
        })
    }

    pub(crate) fn known() -> Self {
        Self::Known { handles: Vec::new() }
    }

    /// Adds a child that was just started.
    ///
    /// # Errors
    /// It could not be watched, for lack of descriptors: its end would never show.
    pub(crate) fn add(&mut self, child: i32) -> io::Result<()> {
        if let Self::Known { handles } = self
            && let Some(pid) = Pid::from_raw(child)
        {
            handles.push((child, pidfd_open(pid, PidfdFlags::empty())?));
        }
        Ok(())
    }

    /// What becomes readable when there is something to reap.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::All { deaths } => vec![deaths.as_fd()],
            Self::Known { handles } => handles.iter().map(|(_, handle)| handle.as_fd()).collect(),
        }
    }

    /// Takes in who has ended; never waits.
    pub(crate) fn reap(&mut self) -> io::Result<Reaped> {
        match self {
            Self::All { deaths } => {
                drain(deaths)?;
                reap_all()
            }
            Self::Known { handles } => Ok(reap_known(handles)),
        }
    }
}

fn drain(deaths: &OwnedFd) -> io::Result<()> {
    // Several deaths may show as one: what counts is asked for below.
    let mut infos = [0; 512];
    loop {
        match rustix::io::read(deaths, &mut infos) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(err) => return Err(err.into()),
        }
    }
}

fn reap_all() -> io::Result<Reaped> {
    let mut reaped = Reaped::default();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                let ended = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Ended::Code(code),
                    (None, Some(signal)) => Ended::Signal(signal),
                    (None, None) => continue,
                };
                reaped.ended.push((pid.as_raw_nonzero().get(), ended));
            }
            Ok(None) => return Ok(reaped),
            Err(Errno::CHILD) => {
                reaped.nobody_left = true;
                return Ok(reaped);
            }
            Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

fn reap_known(handles: &mut Vec<(i32, OwnedFd)>) -> Reaped {
    let mut reaped = Reaped::default();
    handles.retain(|(pid, handle)| {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(handle.as_fd()), options) {
            Ok(None) | Err(Errno::INTR) => true,
            Ok(Some(status)) => {
                let ended = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Ended::Code(code),
                    (None, signal) => Ended::Signal(signal.unwrap_or(libc::SIGKILL)),
                };
                reaped.ended.push((*pid, ended));
                false
            }
            // Somebody else in this process reaped it. How it ended is lost, that it did is not.
            Err(_) => {
                reaped.ended.push((*pid, Ended::Signal(libc::SIGKILL)));
                false
            }
        }
    });
    reaped
}
