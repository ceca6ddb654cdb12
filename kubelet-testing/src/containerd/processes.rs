//! Processes that belong to a folder: found by what they are, ended by their id.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::containerd::error::ComponentError;

/// The programs that are started for a folder, and so may be ended for it. A test's own process may name it too.
const OURS: [&str; 6] = [
    "containerd",
    "containerd-shim",
    "containerd-shim-runc-v2",
    "ctr",
    "docker-registry",
    "runc",
];

/// How often it is looked for others. More than a few rounds mean that something cannot be killed.
const ROUNDS: usize = 20;

/// How long a killed process may take to be gone.
const GONE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// When a process was started, in ticks since boot; with its id it names it for good.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name, in parentheses, with whatever in it.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = str::from_utf8(stat.get(end + 2..)?).ok()?;
    fields.split(' ').nth(19)?.parse().ok()
}

/// Kills all that serves a folder and all that runs in a container of its.
///
/// What is killed may have been about to start another, so it is repeated until nothing is found.
pub(crate) fn kill_all_of(folder: &Path) -> Result<(), ComponentError> {
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        found = of(folder);
        if found.is_empty() {
            return Ok(());
        }
        for pid in &found {
            kill(*pid, folder);
        }
    }
    Err(ComponentError::failed(
        format!("end the processes of {}", folder.display()),
        format!("these live on: {found:?}"),
    ))
}

/// The processes that serve a folder, or run in a container of its.
pub(crate) fn of(folder: &Path) -> Vec<u32> {
    all().filter(|pid| belongs(*pid, folder)).collect()
}

fn belongs(pid: u32, folder: &Path) -> bool {
    serves(pid, folder) || is_rooted_in(pid, folder) || is_plugin_for(pid, folder)
}

/// The processes of this machine.
fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Kills a process that still belongs to a folder, and waits until it is gone.
fn kill(pid: u32, folder: &Path) {
    let Some(handle) = open(pid) else { return };
    // Looked at again once the handle is open: from here on the id cannot be another's.
    if belongs(pid, folder) && pidfd_send_signal(&handle, Signal::KILL).is_ok() {
        wait(&handle);
    }
}

fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn wait(handle: &OwnedFd) {
    loop {
        match poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&GONE)) {
            Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Whether a process is one of ours that was told a path in `folder`.
fn serves(pid: u32, folder: &Path) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else {
        return false;
    };
    let mut arguments = line
        .split(|byte| *byte == 0)
        .map(|argument| Path::new(OsStr::from_bytes(argument)));
    let program = arguments.next().and_then(Path::file_name).and_then(OsStr::to_str);
    program.is_some_and(|program| OURS.contains(&program)) && arguments.any(|argument| argument.starts_with(folder))
}

/// Whether a process has a file system of `folder` as its root, as one in a container has.
fn is_rooted_in(pid: u32, folder: &Path) -> bool {
    let Ok(mounts) = fs::read_to_string(format!("/proc/{pid}/mountinfo")) else {
        return false;
    };
    let within = format!("{}/", folder.display());
    // An overlay says where its layers are; a bind mount says what is bound.
    mounts
        .lines()
        .any(|line| line.split(' ').nth(4) == Some("/") && line.contains(&within))
}

/// Whether a process is a network plugin that works for a pod of `folder`: they are told so by their environment.
fn is_plugin_for(pid: u32, folder: &Path) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else {
        return false;
    };
    let namespace = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(b"CNI_NETNS="));
    namespace.is_some_and(|path| Path::new(OsStr::from_bytes(path)).starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_id_and_its_start() {
        let own = std::process::id();
        assert_eq!(start_time(own), start_time(own));
        assert!(start_time(own).is_some());
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn a_program_that_is_not_ours_is_spared_although_it_names_the_folder() {
        let folder = Path::new("/tmp/kubelet-test-of-processes");
        let path = folder.join("x");
        let mut other = std::process::Command::new("/bin/sh")
            .args(["-c", "read line"])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(of(folder), [0_u32; 0]);
        kill_all_of(folder).unwrap();
        assert_eq!(other.try_wait().unwrap(), None);
        drop(other.stdin.take());
        other.wait().unwrap();
    }
}
