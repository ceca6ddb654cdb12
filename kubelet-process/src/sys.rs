//! The few calls that there is no safe form of.
#![expect(unsafe_code, reason = "each function wraps one call")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Keeps the signals that would end or bother a supervisor from this process's only thread, and makes deaths of children
/// readable. Programs that it starts call [`default_signals`] first.
pub(crate) fn child_deaths() -> io::Result<OwnedFd> {
    // SAFETY: both sets live on this stack and are initialised by sigemptyset before anything reads them; the
    // descriptor is fresh, so that nobody else owns it.
    unsafe {
        // An agent that ignores deaths of children hands that down, and the kernel would forget how they ended.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut blocked);
        // A service manager that ends a whole group signals the container as well: its supervisor stays to see how
        // that ends.
        for signal in [
            libc::SIGCHLD,
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGQUIT,
            libc::SIGUSR1,
            libc::SIGUSR2,
        ] {
            libc::sigaddset(&raw mut blocked, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut deaths: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut deaths);
        libc::sigaddset(&raw mut deaths, libc::SIGCHLD);
        let fd = libc::signalfd(-1, &raw const deaths, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Blocks no signal and treats each as usual, as a program expects that was just started; both are inherited otherwise.
/// Safe to call between fork and exec.
pub(crate) fn default_signals() {
    // SAFETY: the set lives on this stack and is initialised before it is read. Resetting a handler touches no memory of
    // ours; numbers that cannot be reset are refused by the kernel.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Signals a process group by a number that may be a real-time signal, which rustix's safe type leaves out.
pub(crate) fn kill_group(group: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two numbers and touches no memory.
    match unsafe { libc::kill(-group, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes every descriptor from 3 on close at the next exec, so that a container inherits none of the agent's. Safe to
/// call between fork and exec. Kernels before 5.11 cannot, which is ignored: those that the agent's own libraries
/// opened close by themselves.
pub(crate) fn close_on_exec_from_3() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: the call only sets a flag on descriptors and touches no memory.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3 as libc::c_uint,
            libc::c_uint::MAX,
            CLOSE_RANGE_CLOEXEC,
        );
    }
}

/// Makes it possible to wait until a descriptor can be read.
///
/// # Panics
/// Outside a tokio runtime with its I/O driver enabled.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays the same one for as long as it lives, which is inside what is returned.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
