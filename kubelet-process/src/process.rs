//! Processes as `/proc` shows them: who is who, who belongs to a container, and their certain end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::record::Identity;

/// In the environment of every process of a container: its id.
pub(crate) const MARKER: &str = "KUBELET_PROCESS_CONTAINER";

/// Passes over processes that show no environment, and the pause between: much longer than executing a program takes.
const UNDECIDED_PASSES: u32 = 5;
const UNDECIDED_PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};
/// Parent of all kernel threads, which have no environment either.
const KERNEL_THREADS: i32 = 2;

/// What is used of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: i32,
    session: i32,
    start_time: u64,
}

impl Stat {
    fn is_over(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

impl Identity {
    /// Who has this number now; nobody if it is only a zombie.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let stat = stat(pid).filter(|stat| !stat.is_over())?;
        Some(Self {
            pid,
            start_time: stat.start_time,
        })
    }

    /// A handle that stays with this process, unless it has ended.
    pub(crate) fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(None);
        };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            // EINVAL: the number is now that of a thread.
            Err(Errno::SRCH | Errno::INVAL) => return Ok(None),
            Err(err) => return Err(err.into()),
        };
        // Checked after opening: from here on the handle cannot come to mean another process.
        Ok(stat(self.pid)
            .is_some_and(|stat| stat.start_time == self.start_time)
            .then_some(handle))
    }
}

/// Who an own child is that was not reaped yet, be it a zombie.
pub(crate) fn identity_of_child(pid: i32) -> Identity {
    Identity {
        pid,
        // Without /proc there is no start time, and nobody will ever match: nothing is signalled then.
        start_time: stat(pid).map_or(0, |stat| stat.start_time),
    }
}

/// The running boot of the kernel.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The children of a process.
fn children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for task in tasks.flatten() {
        if let Ok(text) = fs::read_to_string(task.path().join("children")) {
            found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
    }
    found
}

/// Everything below a process, without it. May miss what is forked meanwhile: repeated by the caller.
fn descendants(of: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut left = vec![of];
    while let Some(pid) = left.pop() {
        left.extend(children(pid).into_iter().filter(|child| found.insert(*child)));
    }
    if found.is_empty() {
        // Kernels built without lists of children, and lists that were read while they changed.
        found = below(&all(), [of].into());
    }
    found
}

/// What one pass of killing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Killed {
    pub(crate) signalled: usize,
    /// For lack of permission, as with programs that run as another user.
    pub(crate) refused: usize,
}

/// Kills everything below a process, once. What is forked meanwhile may be missed.
pub(crate) fn kill_below(of: i32) -> Killed {
    let mut killed = Killed::default();
    let found = descendants(of);
    for pid in &found {
        let Some(number) = Pid::from_raw(*pid) else { continue };
        let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else {
            continue;
        };
        // Checked after opening: a number that was taken by a stranger meanwhile has a stranger's parent.
        if !stat(*pid).is_some_and(|stat| !stat.is_over() && (stat.parent == of || found.contains(&stat.parent))) {
            continue;
        }
        match pidfd_send_signal(&handle, Signal::KILL) {
            Ok(()) => killed.signalled += 1,
            Err(Errno::PERM) => killed.refused += 1,
            Err(_) => {}
        }
    }
    killed
}

/// The processes of a container, as far as they can be told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    pub(crate) found: Vec<Identity>,
    /// Began no earlier than the container, and show no environment: that is so for a moment while a program is
    /// executed, and for good where it was given none.
    undecided: usize,
}

/// Every running process that belongs to a container: marked in its environment, in the session of its main process, or
/// below such a one. Neither this process nor zombies.
pub(crate) fn members(container_id: &str, main: Option<&Identity>) -> Members {
    let all = all();
    let wanted = format!("{MARKER}={container_id}");
    // A session is only trusted while its leader lives: later its number may come up again.
    let session = main
        .filter(|main| {
            all.get(&main.pid)
                .is_some_and(|stat| stat.start_time == main.start_time)
        })
        .map(|main| main.pid);
    let since = main.map_or(u64::MAX, |main| main.start_time);
    let me = std::process::id().cast_signed();
    let mut members = Members::default();
    let mut direct = BTreeSet::new();
    for (pid, stat) in all.iter().filter(|(pid, stat)| **pid != me && !stat.is_over()) {
        let mark = mark(*pid, wanted.as_bytes());
        if session == Some(stat.session) || mark == Mark::Ours {
            direct.insert(*pid);
        } else if mark == Mark::Hidden && stat.start_time >= since && stat.parent != KERNEL_THREADS {
            members.undecided += 1;
        }
    }
    let mut found = below(&all, direct.clone());
    found.extend(direct);
    found.remove(&me);
    members.found = found
        .into_iter()
        .filter_map(|pid| {
            let stat = all.get(&pid).filter(|stat| !stat.is_over())?;
            Some(Identity {
                pid,
                start_time: stat.start_time,
            })
        })
        .collect();
    members
}

/// Kills until `find` finds nobody any more. Returns how many could not be killed for lack of permission.
pub(crate) fn sweep(mut find: impl FnMut() -> Members) -> io::Result<usize> {
    let mut patience = UNDECIDED_PASSES;
    loop {
        let mut dying = Vec::new();
        let mut refused = 0;
        let members = find();
        for found in &members.found {
            let Some(handle) = found.open()? else { continue };
            match pidfd_send_signal(&handle, Signal::KILL) {
                Ok(()) => dying.push(handle),
                Err(Errno::PERM) => refused += 1,
                // Ended by itself.
                Err(_) => {}
            }
        }
        for handle in &dying {
            wait_readable(handle)?;
        }
        if dying.is_empty() {
            if members.undecided == 0 || patience == 0 {
                return Ok(refused);
            }
            patience -= 1;
            poll(&mut [], Some(&UNDECIDED_PAUSE)).or_else(|err| if err == Errno::INTR { Ok(0) } else { Err(err) })?;
        }
    }
}

/// Waits until a descriptor can be read, or is closed on the other side.
fn wait_readable(fd: &OwnedFd) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}

fn below(all: &BTreeMap<i32, Stat>, of: BTreeSet<i32>) -> BTreeSet<i32> {
    let mut parents = of;
    let mut found = BTreeSet::new();
    while !parents.is_empty() {
        parents = all
            .iter()
            .filter(|(pid, stat)| parents.contains(&stat.parent) && !found.contains(*pid))
            .map(|(pid, _)| *pid)
            .collect();
        found.extend(parents.iter().copied());
    }
    found
}

fn all() -> BTreeMap<i32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, stat(pid)?))
        })
        .collect()
}

/// What a process's environment tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Ours,
    Foreign,
    Hidden,
}

fn mark(pid: i32, wanted: &[u8]) -> Mark {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if environment.is_empty() => Mark::Hidden,
        Ok(environment) if environment.split(|byte| *byte == 0).any(|entry| entry == wanted) => Mark::Ours,
        // Unreadable for processes of other users: those are not ours, unless the agent is root, who can read all.
        _ => Mark::Foreign,
    }
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &[u8]) -> Option<Stat> {
    // The name in parentheses may hold anything, parentheses included: the last one ends it.
    let after = text.iter().rposition(|byte| *byte == b')')? + 1;
    let fields: Vec<&str> = std::str::from_utf8(text.get(after..)?)
        .ok()?
        .split_ascii_whitespace()
        .collect();
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Stat, descendants, members, parse_stat, sweep};
    use crate::record::Identity;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = b"42 (a) b (c)) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 100 200";
        let expected = Stat {
            state: b'S',
            parent: 7,
            session: 41,
            start_time: 98765,
        };
        assert_eq!(parse_stat(text), Some(expected));
        assert_eq!(parse_stat(b"42 (a"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn a_number_that_went_to_another_process_is_not_the_same_process() {
        let me = Identity::of(std::process::id().cast_signed()).unwrap();
        assert!(me.open().unwrap().is_some());
        let earlier = Identity {
            start_time: me.start_time - 1,
            ..me
        };
        assert!(earlier.open().unwrap().is_none());
    }

    #[test]
    fn a_child_is_a_descendant_and_a_stranger_is_no_member() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let found = descendants(std::process::id().cast_signed());
        let strangers = members("an id that nobody has", None);
        let swept = sweep(|| members("an id that nobody has", Some(&Identity { pid, start_time: 0 })));
        let alive = child.try_wait().unwrap().is_none();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&pid));
        assert_eq!(strangers.found, []);
        assert_eq!((swept.unwrap(), alive), (0, true));
    }
}
