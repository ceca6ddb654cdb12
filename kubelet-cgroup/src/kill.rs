//! Ending what is in a cgroup, and removing it: one pass, which whoever calls repeats.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_core::CgroupError;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use tokio::time::Instant;

use crate::files::{self, failed, is_gone};
use crate::tree::{Tree, Version};

/// How often in one pass it is looked for processes that were started meanwhile.
const LOOKS: usize = 4;
/// How long one pass kills processes one by one.
const LONGEST: Duration = Duration::from_secs(1);

/// What one pass has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// Processes, or a cgroup that the kernel does not let go yet.
    Something,
}

/// How much of a cgroup is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upto {
    /// All but the folder with its mark: somebody else has to let go of it first.
    Mark,
    /// All.
    All,
}

/// Kills what is in a cgroup and in those inside of it, and removes them, in all hierarchies. The first one comes last, so that
/// the mark is there for as long as anything is.
pub(crate) fn pass(tree: &Tree, path: &Path, upto: Upto) -> Result<Left, CgroupError> {
    let all: Vec<PathBuf> = tree
        .hierarchies
        .iter()
        .map(|hierarchy| hierarchy.root.join(path))
        .collect();
    let mut inside = Vec::new();
    for folder in &all {
        inside.push(subtree(folder)?);
    }
    kill(tree, path, &inside)?;
    let stays = match upto {
        Upto::Mark => tree.marked(path),
        Upto::All => None,
    };
    let mut left = Left::Nothing;
    for folders in inside.iter().rev() {
        // Each after those inside of it.
        for folder in folders.iter().rev().filter(|folder| stays.as_ref() != Some(*folder)) {
            match fs::remove_dir(folder) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) if is_in_use(&error) => left = Left::Something,
                Err(error) => return Err(failed("remove", folder, error)),
            }
        }
        if left == Left::Something {
            return Ok(left);
        }
    }
    Ok(left)
}

fn is_in_use(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty
    )
}

/// A folder and all inside of it, each before what is in it; nothing if it is not there.
fn subtree(folder: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    match fs::symlink_metadata(folder) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Ok(Vec::new()),
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed("look at", folder, error)),
    }
    let mut all = vec![folder.to_owned()];
    let mut next = 0;
    while let Some(folder) = all.get(next).cloned() {
        all.extend(files::folders(&folder).map_err(|error| failed("list", &folder, error))?);
        next += 1;
    }
    Ok(all)
}

/// What is in folders.
#[derive(Debug, Default)]
struct Members {
    pids: BTreeSet<i32>,
    /// Whether there are processes that this one cannot see, and cannot kill one by one: those outside of its PID namespace.
    unseen: bool,
}

impl Members {
    fn is_empty(&self) -> bool {
        self.pids.is_empty() && !self.unseen
    }
}

fn kill(tree: &Tree, path: &Path, inside: &[Vec<PathBuf>]) -> Result<(), CgroupError> {
    let found = members(inside);
    if found.pids.contains(&getpid().as_raw_pid()) {
        // Whoever put it there: it cannot clear up after itself.
        return Err(CgroupError::Busy {
            what: format!(
                "this process, {}, which is in {}",
                getpid().as_raw_pid(),
                path.display()
            ),
        });
    }
    if !found.is_empty() && !kill_at_once(inside)? {
        kill_each(tree, path, inside)?;
    }
    thaw(tree, inside)
}

/// Has the kernel kill all that is in these folders, where it can: nothing escapes by being started meanwhile. Says whether it has.
fn kill_at_once(inside: &[Vec<PathBuf>]) -> Result<bool, CgroupError> {
    let mut all = true;
    for folder in inside.iter().filter_map(|folders| folders.first()) {
        let file = folder.join("cgroup.kill");
        if !file.exists() {
            all = false;
            continue;
        }
        match files::write(&file, "1") {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(failed("write", &file, error)),
        }
    }
    Ok(all)
}

/// Kills one process after the other, for a bounded time: whoever calls comes again.
fn kill_each(tree: &Tree, path: &Path, inside: &[Vec<PathBuf>]) -> Result<(), CgroupError> {
    let until = Instant::now() + LONGEST;
    // What is frozen starts nothing.
    let looks = if freeze(tree, inside) { 1 } else { LOOKS };
    for _ in 0..looks {
        let found = members(inside);
        if found.pids.is_empty() {
            break;
        }
        for pid in found.pids {
            if Instant::now() >= until {
                return Ok(());
            }
            kill_one(pid, path, inside);
        }
    }
    Ok(())
}

/// The file that freezes a cgroup, and what is written into it.
fn freezer(tree: &Tree) -> (&'static str, &'static str, &'static str) {
    match tree.version {
        Version::V1 => ("freezer.state", "FROZEN", "THAWED"),
        Version::V2 => ("cgroup.freeze", "1", "0"),
    }
}

/// Freezes the first of the folders of a hierarchy where that can be done.
fn freeze(tree: &Tree, inside: &[Vec<PathBuf>]) -> bool {
    let (name, frozen, _) = freezer(tree);
    let mut files = inside
        .iter()
        .filter_map(|folders| folders.first())
        .map(|folder| folder.join(name));
    files.any(|file| file.exists() && files::write(&file, frozen).is_ok())
}

/// Thaws all: those inside too, which somebody else may have frozen. With v1 what is frozen does not die before.
fn thaw(tree: &Tree, inside: &[Vec<PathBuf>]) -> Result<(), CgroupError> {
    let (name, _, thawed) = freezer(tree);
    for file in inside.iter().flatten().map(|folder| folder.join(name)) {
        let state = files::read(&file).map_err(|error| failed("read", &file, error))?;
        // Also what is only about to freeze.
        if state.is_none_or(|state| state == thawed) {
            continue;
        }
        match files::write(&file, thawed) {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(failed("write", &file, error)),
        }
    }
    Ok(())
}

/// The processes in these folders.
fn members(inside: &[Vec<PathBuf>]) -> Members {
    let mut found = Members::default();
    for folder in inside.iter().flatten() {
        // What cannot be read shows when the folder cannot be removed.
        let text = files::read(&folder.join("cgroup.procs"))
            .ok()
            .flatten()
            .unwrap_or_default();
        found
            .pids
            .extend(text.lines().filter_map(|line| line.trim().parse::<i32>().ok()));
    }
    found.unseen = found.pids.remove(&0);
    found
}

/// Kills a process if it still is in these folders: meanwhile its number may have become that of another one.
fn kill_one(pid: i32, path: &Path, inside: &[Vec<PathBuf>]) {
    let Some(number) = Pid::from_raw(pid) else { return };
    let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else {
        return;
    };
    // Its own file: to list all others once more for each would take hours where there are many.
    let is_inside = match files::read(Path::new(&format!("/proc/{pid}/cgroup"))) {
        Ok(Some(text)) => is_in(&text, path),
        Ok(None) => false,
        // Where others' files are hidden.
        Err(_) => members(inside).pids.contains(&pid),
    };
    if is_inside {
        // If it has ended there is nothing to do.
        let _ = pidfd_send_signal(&handle, Signal::KILL);
    }
}

/// Whether a process of which the kernel tells these cgroups is in that one, or inside of it. It may tell them from further above
/// than what is mounted here.
fn is_in(told: &str, path: &Path) -> bool {
    told.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|cgroup| Path::new(cgroup).ancestors().any(|above| above.ends_with(path)))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::{fs, thread};

    use kubelet_core::CgroupError;

    use super::{Left, Upto};
    use crate::files;
    use crate::tree::{Hierarchy, Tree, Version};

    fn pass(tree: &Tree, path: &Path) -> Result<Left, CgroupError> {
        super::pass(tree, path, Upto::All)
    }

    /// A cgroup of one of the real hierarchies of this machine, for as long as the test runs.
    struct Real {
        tree: Tree,
        path: PathBuf,
    }

    impl Real {
        /// A v2 hierarchy beside those of v1: it has no controllers, but its processes are real.
        fn unified(name: &str) -> Option<Self> {
            let root = [Path::new("/sys/fs/cgroup/unified"), Path::new("/sys/fs/cgroup")]
                .into_iter()
                .find(|root| root.join("cgroup.controllers").exists())?;
            Self::of(root, Version::V2, name)
        }

        fn v1(name: &str) -> Option<Self> {
            Self::of(Path::new("/sys/fs/cgroup/pids"), Version::V1, name)
        }

        fn freezer(name: &str) -> Option<Self> {
            Self::of(Path::new("/sys/fs/cgroup/freezer"), Version::V1, name)
        }

        fn of(root: &Path, version: Version, name: &str) -> Option<Self> {
            let path = PathBuf::from(format!("kubelet-test-kill-{name}-{}", std::process::id()));
            let made = root.join("cgroup.procs").exists() && fs::create_dir(root.join(&path)).is_ok();
            if !made {
                kubelet_testing::contract::skip(name, "cgroups cannot be made here");
                return None;
            }
            let hierarchy = Hierarchy::for_test(root, &[]);
            Some(Self {
                tree: Tree {
                    version,
                    hierarchies: vec![hierarchy],
                },
                path,
            })
        }

        fn folder(&self) -> PathBuf {
            self.tree.hierarchies[0].root.join(&self.path)
        }

        /// A shell in the cgroup, or in one inside of it.
        fn shell(&self, inside: &str, script: &str) -> Child {
            let folder = self.folder().join(inside);
            fs::create_dir_all(&folder).unwrap();
            let procs = folder.join("cgroup.procs");
            let script = format!("echo $$ > {} && {{ {script}; }}", procs.display());
            let child = Command::new("sh")
                .args(["-c", &script])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            while files::read(&procs).unwrap().unwrap_or_default().is_empty() {
                thread::yield_now();
            }
            child
        }

        /// Passes until nothing is left.
        fn clear(&self) -> usize {
            for count in 1..20_000 {
                if pass(&self.tree, &self.path).unwrap() == Left::Nothing {
                    return count;
                }
                thread::yield_now();
            }
            panic!("something is left in {}", self.folder().display());
        }
    }

    impl Drop for Real {
        fn drop(&mut self) {
            let _ = pass(&self.tree, &self.path);
        }
    }

    fn ends_what_runs(real: &Real) {
        let mut children = [
            real.shell("", "exec sleep 4711"),
            real.shell("app", "exec sleep 4712"),
            real.shell("app/inner", "trap '' TERM; sleep 4713 & sleep 4714; sleep 4715"),
        ];
        real.clear();
        assert!(!real.folder().exists());
        for child in &mut children {
            assert!(!child.wait().unwrap().success());
        }
        assert_eq!(
            pass(&real.tree, &real.path).unwrap(),
            Left::Nothing,
            "it is gone already"
        );
    }

    fn ends_what_forks_all_the_time(real: &Real) {
        // Each is gone before it can be found, and has left another one.
        let mut child = real.shell(
            "app",
            "f() { sleep 0.001; f & }; for i in 1 2 3 4; do f & done; wait; sleep 4716",
        );
        real.clear();
        assert!(!real.folder().exists());
        child.wait().unwrap();
    }

    #[test]
    fn all_that_is_in_a_cgroup_of_v2_ends_and_it_goes() {
        if let Some(real) = Real::unified("all_v2") {
            ends_what_runs(&real);
        }
    }

    #[test]
    fn all_that_is_in_a_cgroup_ends_while_its_mark_stays() {
        if let Some(real) = Real::unified("upto_mark") {
            let mut child = real.shell("app", "exec sleep 4718");
            let left = (1..20_000).find(|_| {
                thread::yield_now();
                super::pass(&real.tree, &real.path, Upto::Mark).unwrap() == Left::Nothing
            });
            assert!(left.is_some() && !child.wait().unwrap().success());
            assert!(real.folder().exists() && !real.folder().join("app").exists());
        }
    }

    #[test]
    fn all_that_is_in_a_cgroup_of_v1_ends_and_it_goes() {
        if let Some(real) = Real::v1("all_v1") {
            ends_what_runs(&real);
        }
    }

    #[test]
    fn what_forks_all_the_time_does_not_get_away_with_v2() {
        if let Some(real) = Real::unified("forks_v2") {
            ends_what_forks_all_the_time(&real);
        }
    }

    #[test]
    fn what_forks_all_the_time_does_not_get_away_with_v1() {
        if let Some(real) = Real::v1("forks_v1") {
            ends_what_forks_all_the_time(&real);
        }
    }

    #[test]
    fn what_is_frozen_inside_ends_too_with_v1() {
        if let Some(real) = Real::freezer("frozen_v1") {
            let mut child = real.shell("app", "exec sleep 4717");
            fs::write(real.folder().join("app/freezer.state"), "FROZEN").unwrap();
            real.clear();
            assert!(!real.folder().exists());
            assert!(!child.wait().unwrap().success());
        }
    }

    /// A tree that only looks like cgroups of v2: one with these files, and what a pass makes of them.
    fn looks_like(files: &[(&str, &str)]) -> impl Fn(&str) -> String + use<> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("podu1")).unwrap();
        for (name, text) in files {
            fs::write(dir.path().join("podu1").join(name), text).unwrap();
        }
        let tree = Tree {
            version: Version::V2,
            hierarchies: vec![Hierarchy::for_test(dir.path(), &[])],
        };
        assert_eq!(pass(&tree, Path::new("podu1")).unwrap(), Left::Something);
        move |name| fs::read_to_string(dir.path().join("podu1").join(name)).unwrap()
    }

    #[test]
    fn processes_of_another_pid_namespace_are_left_to_the_kernel() {
        let value = looks_like(&[("cgroup.procs", "0\n0\n"), ("cgroup.kill", "")]);
        assert_eq!(value("cgroup.kill"), "1");
    }

    #[test]
    fn a_kernel_that_cannot_kill_all_at_once_freezes_them() {
        // This process's parent is no member of that cgroup, and lives on.
        let parent = std::os::unix::process::parent_id();
        let value = looks_like(&[("cgroup.procs", &format!("{parent}\n")), ("cgroup.freeze", "was")]);
        assert_eq!(value("cgroup.freeze"), "0");
    }

    #[test]
    fn a_process_is_where_the_kernel_says() {
        let path = Path::new("edge/kubepods/podu1");
        for (told, expected) in [
            ("0::/edge/kubepods/podu1", true),
            ("4:memory:/\n3:pids:/edge/kubepods/podu1/app/inner", true),
            ("4:name=a:b:/edge/kubepods", false),
            ("0::/../../edge/kubepods/podu1", true),
            ("0::/docker/x/edge/kubepods/podu1/app", true),
            ("0::/edge/kubepods/podu11", false),
            ("0::/edge/kubepods", false),
            ("0::/other-edge/kubepods/podu1", false),
            ("", false),
        ] {
            assert_eq!(super::is_in(told, path), expected, "{told:?}");
        }
    }

    #[test]
    fn nobody_kills_itself() {
        // Of a tree that only looks like cgroups.
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("podu1")).unwrap();
        fs::write(
            dir.path().join("podu1/cgroup.procs"),
            format!("{}\n", std::process::id()),
        )
        .unwrap();
        let tree = Tree {
            version: Version::V2,
            hierarchies: vec![Hierarchy::for_test(dir.path(), &[])],
        };
        let error = pass(&tree, Path::new("podu1")).unwrap_err();
        assert!(matches!(error, CgroupError::Busy { .. }), "{error}");
    }
}
