//! Gives a volume to the group of a pod (`fsGroup`). Source: `volume_linux.go` of Kubernetes 1.36.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Statx, chmod, chownat, openat};
use rustix::io::Errno;
use tracing::warn;

use super::failure::at;
use super::walk::{Left, Place, Visit, look, walk};

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const ENTER: u32 = 0o110;
const SETGID: u32 = 0o2000;
const SETUID_OR_SETGID: u32 = 0o6000;

/// When progress is told first, and how long after that again.
const FIRST_PROGRESS: Duration = Duration::from_secs(30);
const NEXT_PROGRESS: Duration = Duration::from_secs(60);

/// After how many entries the time is looked at.
const TICK: u64 = 256;

/// When all of a volume is gone through (`fsGroupChangePolicy`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangePolicy {
    /// Each time.
    #[default]
    Always,
    /// Only if its root has not got the group and the mode yet. It gets them last, so that a change that was cut off is
    /// done again.
    OnRootMismatch,
}

/// The group that a volume is given to, and what it may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) gid: u32,
    pub(crate) read_only: bool,
    pub(crate) policy: ChangePolicy,
}

impl Group {
    fn mask(self, is_dir: bool) -> u32 {
        let mask = if self.read_only { READ_ONLY } else { READ_WRITE };
        if is_dir { mask | ENTER | SETGID } else { mask }
    }

    fn has(self, found: &Statx, is_dir: bool) -> bool {
        let mask = self.mask(is_dir);
        found.stx_gid == self.gid && mode(found) & mask == mask
    }
}

/// Who looks on while a large volume is gone through.
pub(crate) struct Watch<'a> {
    /// Once set, it ends with [`io::ErrorKind::Interrupted`].
    pub(crate) cancelled: &'a AtomicBool,
    /// The time since the start.
    pub(crate) elapsed: &'a dyn Fn() -> Duration,
    /// Told of how many entries are done after how long: after half a minute, and then each minute.
    pub(crate) progress: &'a mut dyn FnMut(u64, Duration),
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// How many entries were gone through, the root among them; none where the root told that it is not needed.
    pub(crate) entries: u64,
    /// How many of these could not be changed.
    pub(crate) failures: u64,
}

/// The same as [`apply`] for volumes that are never large: nobody looks on.
pub(crate) fn apply_to_small(root: &Path, group: Group, cancelled: &AtomicBool) -> io::Result<Applied> {
    let mut watch = Watch {
        cancelled,
        elapsed: &|| Duration::ZERO,
        progress: &mut |_, _| {},
    };
    apply(root, group, &mut watch)
}

/// Gives the folder `root` and all in it to the group: what is in a folder before the folder, `root` last. Of links the
/// link itself gets the group; where something else is mounted, nothing is changed.
///
/// # Errors
/// If a folder cannot be read. What cannot be changed is logged, and counted.
pub(crate) fn apply(root: &Path, group: Group, watch: &mut Watch<'_>) -> io::Result<Applied> {
    if group.policy == ChangePolicy::OnRootMismatch {
        let found = rustix::fs::open(root, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .and_then(|opened| look(opened.as_fd(), c""))
            .map_err(|error| at("cannot look at", root, error))?;
        if kind(&found) == FileType::Directory && group.has(&found, true) {
            return Ok(Applied::default());
        }
    }
    let cancelled = watch.cancelled;
    let mut change = Change {
        group,
        watch,
        applied: Applied::default(),
        next: FIRST_PROGRESS,
    };
    walk(root, cancelled, &mut change)?;
    let applied = change.applied;
    if applied.failures > 0 {
        warn!(volume = %root.display(), failures = applied.failures, "files of a volume were not given to its group");
    }
    Ok(applied)
}

struct Change<'a, 'b> {
    group: Group,
    watch: &'a mut Watch<'b>,
    applied: Applied,
    next: Duration,
}

impl Change<'_, '_> {
    fn done(&mut self, result: rustix::io::Result<()>, path: impl FnOnce() -> PathBuf) {
        self.applied.entries += 1;
        if let Err(error) = result {
            // One is enough to tell why: there may be very many.
            if self.applied.failures == 0 {
                warn!(path = %path().display(), %error, "a file of a volume cannot be given to its group");
            }
            self.applied.failures += 1;
        }
        if self.applied.entries.is_multiple_of(TICK) {
            let elapsed = (self.watch.elapsed)();
            if elapsed >= self.next {
                (self.watch.progress)(self.applied.entries, elapsed);
                self.next = elapsed + NEXT_PROGRESS;
            }
        }
    }

    /// Changes what is open. A change of the group takes bits away that the mode has to give back.
    fn change(&self, fd: BorrowedFd<'_>, found: &Statx) -> rustix::io::Result<()> {
        let (is_dir, before) = (kind(found) == FileType::Directory, mode(found));
        let other_group = found.stx_gid != self.group.gid;
        if other_group {
            let gid = Some(Gid::from_raw(self.group.gid));
            chownat(fd, c"", None, gid, AtFlags::EMPTY_PATH)?;
        }
        if kind(found) == FileType::Symlink {
            return Ok(());
        }
        let wanted = before | self.group.mask(is_dir);
        if wanted != before || (other_group && before & SETUID_OR_SETGID != 0) {
            // By a path that leads to what is open and nothing else: a descriptor that only stands for a file cannot be
            // given a mode itself.
            chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), Mode::from_raw_mode(wanted))?;
        }
        Ok(())
    }

    fn change_entry(&self, place: &Place<'_>, name: &CStr) -> rustix::io::Result<()> {
        let found = look(place.dir, name)?;
        let has_it = match kind(&found) {
            FileType::Symlink => found.stx_gid == self.group.gid,
            _ => self.group.has(&found, false),
        };
        if has_it || !place.is_within(&found) {
            return Ok(());
        }
        // Not opened for reading: it may be a pipe or a device.
        let opened = openat(
            place.dir,
            name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // And it may be another one by now.
        let found = look(opened.as_fd(), c"")?;
        if !place.is_within(&found) || kind(&found) == FileType::Directory {
            return Ok(());
        }
        self.change(opened.as_fd(), &found)
    }
}

impl Visit for Change<'_, '_> {
    fn entry(&mut self, place: &Place<'_>, name: &CStr) -> io::Result<()> {
        match self.change_entry(place, name) {
            Err(Errno::NOENT) => {}
            result => self.done(result, || place.path(name)),
        }
        Ok(())
    }

    fn leave(&mut self, dir: BorrowedFd<'_>, above: Option<(&Place<'_>, &CStr)>) -> io::Result<Left> {
        let result = look(dir, c"").and_then(|found| self.change(dir, &found));
        self.done(result, || {
            above.map_or_else(Default::default, |(place, name)| place.path(name))
        });
        Ok(Left::Done)
    }

    fn mounted(&mut self, _place: &Place<'_>, _name: &CStr) -> io::Result<()> {
        Ok(())
    }
}

fn kind(found: &Statx) -> FileType {
    FileType::from_raw_mode(found.stx_mode.into())
}

fn mode(found: &Statx) -> u32 {
    u32::from(found.stx_mode) & 0o7777
}

#[cfg(test)]
mod tests;
