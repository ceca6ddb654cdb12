//! Mounts that are only written down, for tests of what uses [`Mounts`].

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{MountOptions, Mounts};
use crate::ground::failure::at;
use crate::ground::mount_table::{MountPoint, MountTable};

/// How long an unmount hangs that nobody forces: a test that fails is to come to an end.
const HANGS_FOR: Duration = Duration::from_secs(60);

/// Which of the calls of [`Mounts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountOp {
    /// [`Mounts::bind`] and [`Mounts::bind_fd`].
    Bind,
    /// [`Mounts::mount`].
    Mount,
    /// [`Mounts::unmount`], unless it is forced.
    Unmount,
    /// [`Mounts::table`] and [`Mounts::is_mount_point`].
    Table,
}

/// A call that was made, whether it failed or not; looks at the table are not written down.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountCall {
    /// A bind; of a descriptor, the path that it was opened by.
    Bind {
        /// What was to be mounted.
        source: PathBuf,
        /// Where.
        target: PathBuf,
        /// How.
        options: MountOptions,
    },
    /// A mount of a file system.
    Mount {
        /// The type of the file system.
        fs_type: String,
        /// What was to be mounted.
        source: String,
        /// Where.
        target: PathBuf,
        /// How.
        options: MountOptions,
        /// Options of the file system.
        data: String,
    },
    /// An unmount.
    Unmount {
        /// Where.
        target: PathBuf,
    },
    /// An unmount that waits for no server.
    UnmountForced {
        /// Where.
        target: PathBuf,
    },
}

/// Keeps a table of its own and touches nothing: what is "mounted" is in the table, its content is not to be seen.
#[derive(Debug)]
pub struct ScriptedMounts {
    state: Mutex<State>,
    /// A forced unmount happened.
    forced: Condvar,
}

#[derive(Debug)]
struct State {
    points: Vec<MountPoint>,
    calls: Vec<MountCall>,
    failures: VecDeque<(MountOp, i32)>,
    last_id: u64,
    /// The file systems whose server does not answer, by their types.
    hanging: BTreeSet<String>,
}

impl Default for ScriptedMounts {
    fn default() -> Self {
        let mut state = State {
            points: Vec::new(),
            calls: Vec::new(),
            failures: VecDeque::new(),
            last_id: 0,
            hanging: BTreeSet::new(),
        };
        state.add("rootfs", "root", Path::new("/"), ("rw".to_owned(), ""));
        Self {
            state: Mutex::new(state),
            forced: Condvar::new(),
        }
    }
}

impl ScriptedMounts {
    /// With nothing mounted but `/`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the next such call fail with that number of an error; called twice, the next two.
    pub fn fail_next(&self, op: MountOp, raw_os_error: i32) {
        self.state().failures.push_back((op, raw_os_error));
    }

    /// From now on unmounts of a type of file system wait until one of them is forced, a minute of real time at most.
    pub fn hang_unmounts_of(&self, fs_type: &str) {
        self.state().hanging.insert(fs_type.to_owned());
    }

    /// All calls so far, in their order.
    #[must_use]
    pub fn calls(&self) -> Vec<MountCall> {
        self.state().calls.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bind_path(&self, source: &Path, target: &Path, options: &MountOptions) -> io::Result<()> {
        let mut state = self.state();
        state.calls.push(MountCall::Bind {
            source: source.to_owned(),
            target: target.to_owned(),
            options: options.clone(),
        });
        state.fail(MountOp::Bind, target)?;
        state.add_bound(source, target, options.program_text(""));
        Ok(())
    }
}

impl State {
    fn fail(&mut self, op: MountOp, path: &Path) -> io::Result<()> {
        let Some(index) = self.failures.iter().position(|(of, _)| *of == op) else {
            return Ok(());
        };
        let (_, raw) = self.failures.remove(index).unwrap_or((op, 0));
        Err(at("scripted failure at", path, io::Error::from_raw_os_error(raw)))
    }

    fn add(&mut self, fs_type: &str, source: &str, target: &Path, (options, data): (String, &str)) {
        self.last_id += 1;
        let device = u32::try_from(self.last_id).unwrap_or(u32::MAX);
        self.points.push(MountPoint {
            id: self.last_id,
            parent: 1,
            device: (0, device),
            root: PathBuf::from("/"),
            target: target.to_owned(),
            options,
            peer_group: None,
            fs_type: fs_type.to_owned(),
            source: source.into(),
            super_options: data.to_owned(),
        });
    }

    fn hangs(&self, target: &Path) -> bool {
        let point = self.points.iter().rfind(|point| point.target == target);
        point.is_some_and(|point| self.hanging.contains(&point.fs_type))
    }

    fn remove(&mut self, target: &Path) {
        if let Some(index) = self.points.iter().rposition(|point| point.target == target) {
            self.points.remove(index);
        }
    }

    fn add_bound(&mut self, source: &Path, target: &Path, options: String) {
        let holder = self.points.iter().filter(|point| source.starts_with(&point.target));
        let Some(mut point) = holder.max_by_key(|point| point.target.components().count()).cloned() else {
            return;
        };
        if let Ok(inner) = source.strip_prefix(&point.target)
            && !inner.as_os_str().is_empty()
        {
            point.root = point.root.join(inner);
        }
        self.last_id += 1;
        point.id = self.last_id;
        point.target = target.to_owned();
        point.options = options;
        self.points.push(point);
    }
}

impl Mounts for ScriptedMounts {
    fn bind(&self, source: &Path, target: &Path, options: &MountOptions) -> io::Result<()> {
        self.bind_path(source, target, options)
    }

    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path, options: &MountOptions) -> io::Result<()> {
        let link = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
        let source = fs::read_link(&link).map_err(|error| at("cannot read", &link, error))?;
        self.bind_path(&source, target, options)
    }

    fn mount(&self, fs_type: &str, source: &str, target: &Path, options: &MountOptions, data: &str) -> io::Result<()> {
        let mut state = self.state();
        state.calls.push(MountCall::Mount {
            fs_type: fs_type.to_owned(),
            source: source.to_owned(),
            target: target.to_owned(),
            options: options.clone(),
            data: data.to_owned(),
        });
        state.fail(MountOp::Mount, target)?;
        state.add(fs_type, source, target, (options.program_text(data), data));
        Ok(())
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.calls.push(MountCall::Unmount {
            target: target.to_owned(),
        });
        state.fail(MountOp::Unmount, target)?;
        let is_below = |point: &MountPoint| point.target != target && point.target.starts_with(target);
        if state.points.iter().any(is_below) {
            let error = io::Error::new(io::ErrorKind::ResourceBusy, "busy: something is mounted below");
            return Err(at("cannot unmount", target, error));
        }
        let hangs = |state: &mut State| state.hangs(target);
        let waited = self.forced.wait_timeout_while(state, HANGS_FOR, hangs);
        let (mut state, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        if outcome.timed_out() {
            return Err(at("cannot unmount", target, io::Error::from(io::ErrorKind::TimedOut)));
        }
        state.remove(target);
        Ok(())
    }

    fn unmount_forced(&self, target: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.calls.push(MountCall::UnmountForced {
            target: target.to_owned(),
        });
        state.remove(target);
        self.forced.notify_all();
        Ok(())
    }

    fn table(&self) -> io::Result<MountTable> {
        let mut state = self.state();
        state.fail(MountOp::Table, Path::new("the table"))?;
        Ok(state.points.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use rustix::io::Errno;

    use super::{MountCall, MountOp, MountOptions, Mounts, ScriptedMounts};

    #[test]
    fn calls_and_the_table_are_kept_and_failures_come_once() {
        let mounts = ScriptedMounts::new();
        let (a, b) = (Path::new("/pods/a"), Path::new("/pods/b"));
        mounts.fail_next(MountOp::Mount, Errno::BUSY.raw_os_error());
        let options = MountOptions::default();
        let error = mounts.mount("tmpfs", "tmpfs", a, &options, "size=1").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(!mounts.is_mount_point(a).unwrap());
        mounts.mount("tmpfs", "tmpfs", a, &options, "size=1").unwrap();
        mounts.bind(&a.join("x"), b, &MountOptions::read_only()).unwrap();
        let table = mounts.table().unwrap();
        assert_eq!(table.refs(&a.join("x"))[0].target, b);
        assert_eq!(table.at(b).unwrap().options, "ro");
        mounts.unmount(b).unwrap();
        mounts.unmount(b).unwrap();
        assert!(!mounts.is_mount_point(b).unwrap());
        assert_eq!(mounts.calls().len(), 5);
        assert_eq!(mounts.calls()[4], MountCall::Unmount { target: b.to_owned() });
    }
}
