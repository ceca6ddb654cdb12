//! Processes of containers, found by what each of them has in its environment.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Processes of containers below this root folder, supervisors left out.
pub(super) fn of_containers(root: &Path) -> BTreeSet<i32> {
    let below = format!("={}/", root.display());
    all()
        .filter(|pid| {
            let variables = environment(*pid);
            variables
                .iter()
                .any(|one| one.starts_with("KUBELET_PROCESS_CONTAINER="))
                && variables.iter().any(|one| one.contains(&below))
        })
        .collect()
}

pub(super) fn has_variable(pid: i32, variable: &str) -> bool {
    environment(pid).iter().any(|one| one == variable)
}

pub(super) fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    // The name, in parentheses, may hold anything: state and parent follow its end.
    let parent = stat
        .rsplit_once(')')
        .and_then(|(_, after)| after.split_whitespace().nth(1));
    parent.and_then(|pid| pid.parse().ok()).expect("the parent's id")
}

/// Waits for the end of a process that is not ours.
pub(crate) fn ended(pid: i32) {
    let Ok(process) = pidfd_open(id(pid), PidfdFlags::empty()) else {
        return; // there is no such process any more
    };
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    let seen = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)).expect("a process can be waited for");
    assert_eq!(seen, 1, "process {pid} goes on");
}

/// Kills whatever belongs to this root folder.
pub(super) fn kill_all(root: &Path) {
    // What is killed may just have started another one.
    for _ in 0..20 {
        let mut pids = supervisors(root);
        pids.extend(of_containers(root));
        if pids.is_empty() {
            return;
        }
        for pid in &pids {
            // One that has ended meanwhile is as good.
            let _ = kill_process(id(*pid), Signal::KILL);
        }
        pids.into_iter().for_each(ended);
    }
    if !std::thread::panicking() {
        panic!("processes of {} cannot be ended", root.display());
    }
}

fn id(pid: i32) -> Pid {
    Pid::from_raw(pid).expect("no process has the id 0")
}

fn supervisors(root: &Path) -> BTreeSet<i32> {
    let below = format!("{}/", root.display());
    all()
        .filter(|pid| {
            let arguments = strings(*pid, "cmdline");
            arguments.len() == 2 && arguments[1].starts_with(&below)
        })
        .collect()
}

fn all() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .expect("/proc is there")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn environment(pid: i32) -> Vec<String> {
    strings(pid, "environ")
}

/// Nothing for processes of others, and for those that have ended.
fn strings(pid: i32, file: &str) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect()
}
