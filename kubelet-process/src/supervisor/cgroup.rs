//! The cgroup of a container: joined before its program is executed, and asked why it ended.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

/// Opens what a process writes to join, once in each hierarchy.
pub(crate) fn doors(folders: &[PathBuf]) -> io::Result<Vec<File>> {
    folders
        .iter()
        .map(|folder| File::options().write(true).open(folder.join("cgroup.procs")))
        .collect()
}

/// How many processes in it the kernel has killed for lack of memory so far.
pub(crate) fn oom_kills(folders: &[PathBuf]) -> u64 {
    // The first is v2's, the second v1's.
    let files = ["memory.events", "memory.oom_control"];
    let all = folders.iter().flat_map(|folder| files.map(|file| folder.join(file)));
    let count = |text: String| {
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    };
    all.filter_map(|file| count(fs::read_to_string(file).ok()?))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{doors, oom_kills};

    #[test]
    fn kills_are_counted_in_the_files_of_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let folders = ["memory", "pids"].map(|name| dir.path().join(name));
        for folder in &folders {
            fs::create_dir(folder).unwrap();
        }
        assert_eq!(oom_kills(&folders), 0);
        fs::write(
            folders[0].join("memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        )
        .unwrap();
        assert_eq!(oom_kills(&folders), 3);
        fs::write(
            folders[1].join("memory.events"),
            "low 0\noom 7\noom_kill 5\noom_group_kill 1\n",
        )
        .unwrap();
        assert_eq!(oom_kills(&folders), 5);
    }

    #[test]
    fn a_cgroup_that_is_gone_cannot_be_joined() {
        let dir = tempfile::tempdir().unwrap();
        assert!(doors(&[dir.path().join("gone")]).is_err());
        assert!(doors(&[]).unwrap().is_empty());
    }
}
