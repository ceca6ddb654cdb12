//! Going through a tree that somebody else may be changing: by descriptors, without links, within one mount.
//!
//! Memory and descriptors stay bounded whatever is put there: a folder's entries are read in pieces, and of a tree that is
//! very deep only the lowest folders are held open.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags, openat, statx};
use rustix::io::Errno;

use super::failure::{at, refused};

/// How many folders are held open at once.
const OPEN: usize = 32;

/// How often a folder is gone through that never comes to its end.
const PASSES: u32 = 16;

/// What is done to the entries of a tree.
pub(crate) trait Visit {
    /// Anything but a folder.
    fn entry(&mut self, place: &Place<'_>, name: &CStr) -> io::Result<()>;

    /// A folder, before what is in it; the root too.
    fn enter(&mut self, _dir: BorrowedFd<'_>, _found: &Statx) -> io::Result<()> {
        Ok(())
    }

    /// A folder, after what is in it; the root too, which has no place.
    fn leave(&mut self, dir: BorrowedFd<'_>, above: Option<(&Place<'_>, &CStr)>) -> io::Result<Left>;

    /// Where another file system or another part of this one is mounted. It is not entered.
    fn mounted(&mut self, place: &Place<'_>, name: &CStr) -> io::Result<()>;
}

/// Whether a folder is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Done,
    /// Something came meanwhile: all of it once more.
    Again,
}

/// The folder that an entry is in.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) dir: BorrowedFd<'a>,
    root: &'a Path,
    levels: &'a [Level],
    origin: Origin,
}

impl Place<'_> {
    /// The path of an entry, for a message: it may be elsewhere by now.
    pub(crate) fn path(&self, name: &CStr) -> PathBuf {
        path_of(self.root, self.levels).join(OsStr::from_bytes(name.to_bytes()))
    }

    /// Whether that is in the mount that the tree is in.
    pub(crate) fn is_within(&self, found: &Statx) -> bool {
        self.origin.holds(found)
    }
}

/// The mount that a tree is in.
#[derive(Debug, Clone, Copy)]
struct Origin {
    mount: Option<u64>,
    device: (u32, u32),
}

impl Origin {
    fn of(found: &Statx) -> Self {
        let tells = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
        Self {
            mount: tells.then_some(found.stx_mnt_id),
            device: device(found),
        }
    }

    /// By the number of the mount where the kernel tells it (5.8): a device may differ within one mount (overlayfs, btrfs),
    /// and be the same in two (binds).
    fn holds(&self, found: &Statx) -> bool {
        match (self.mount, Self::of(found).mount) {
            (Some(own), Some(other)) => own == other,
            _ => self.device == device(found),
        }
    }
}

fn device(found: &Statx) -> (u32, u32) {
    (found.stx_dev_major, found.stx_dev_minor)
}

#[derive(Debug)]
struct Level {
    /// Nothing while too many are open.
    dir: Option<Dir>,
    name: CString,
    identity: ((u32, u32), u64),
    /// Where to go on reading.
    cookie: i64,
    passes: u32,
}

impl Level {
    fn new(fd: OwnedFd, name: CString, found: &Statx) -> rustix::io::Result<Self> {
        Ok(Self {
            dir: Some(Dir::new(fd)?),
            name,
            identity: (device(found), found.stx_ino),
            cookie: 0,
            passes: 0,
        })
    }
}

/// Looks at what is open, or at a name in an open folder, and never triggers an automount.
pub(crate) fn look(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

/// Goes through the tree at `root`, which is a folder and no link: the content of a folder before the folder itself.
/// Entries that vanish meanwhile are no error.
///
/// # Errors
/// The first of the visitor's, and of reading a folder; [`io::ErrorKind::Interrupted`] once `cancelled` is set.
pub(crate) fn walk(root: &Path, cancelled: &AtomicBool, visitor: &mut dyn Visit) -> io::Result<()> {
    let fail = |error: Errno| at("cannot read", root, error);
    let opened = open_dir(CWD, root).map_err(fail)?;
    let found = look(opened.as_fd(), c"").map_err(fail)?;
    visitor.enter(opened.as_fd(), &found)?;
    let mut walk = Walk {
        root,
        origin: Origin::of(&found),
        levels: vec![Level::new(opened, CString::default(), &found).map_err(fail)?],
    };
    while !walk.levels.is_empty() {
        if cancelled.load(Ordering::Relaxed) {
            return Err(io::Error::new(
                io::ErrorKind::Interrupted,
                format!("stopped in {}", root.display()),
            ));
        }
        walk.advance(visitor)?;
    }
    Ok(())
}

struct Walk<'a> {
    root: &'a Path,
    origin: Origin,
    levels: Vec<Level>,
}

impl Walk<'_> {
    /// The next entry of the lowest folder, or its end.
    fn advance(&mut self, visitor: &mut dyn Visit) -> io::Result<()> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(());
        };
        let Some(dir) = level.dir.as_mut() else {
            return Err(self.failure(Errno::BADF));
        };
        let entry = match dir.read() {
            None => return self.leave(visitor),
            // The folder itself was removed meanwhile.
            Some(Err(Errno::NOENT)) => return self.leave(visitor),
            Some(Err(error)) => return Err(self.failure(error)),
            Some(Ok(entry)) => entry,
        };
        level.cookie = entry.offset();
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            return Ok(());
        }
        if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
            return self.descend(name, visitor);
        }
        let place = self.place()?;
        visitor.entry(&place, name)
    }

    fn descend(&mut self, name: &CStr, visitor: &mut dyn Visit) -> io::Result<()> {
        let place = self.place()?;
        let fail = |error: Errno| at("cannot read", &place.path(name), error);
        let before = match look(place.dir, name) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(fail(error)),
        };
        let is_mount =
            |found: &Statx| !self.origin.holds(found) || found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        // What waits to be mounted at its first use is as good as mounted.
        if is_mount(&before) || before.stx_attributes.contains(StatxAttributes::AUTOMOUNT) {
            return visitor.mounted(&place, name);
        }
        let opened = match open_dir(place.dir, name) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => return visitor.entry(&place, name),
            Err(error) => return Err(fail(error)),
        };
        let found = look(opened.as_fd(), c"").map_err(fail)?;
        if is_mount(&found) {
            return visitor.mounted(&place, name);
        }
        visitor.enter(opened.as_fd(), &found)?;
        let level = Level::new(opened, name.to_owned(), &found).map_err(fail)?;
        self.levels.push(level);
        if let Some(upper) = self.levels.len().checked_sub(OPEN + 1) {
            self.levels[upper].dir = None;
        }
        Ok(())
    }

    /// The lowest folder is at its end.
    fn leave(&mut self, visitor: &mut dyn Visit) -> io::Result<()> {
        let Some(mut level) = self.levels.pop() else {
            return Ok(());
        };
        let Some(mut dir) = level.dir.take() else {
            return Err(self.failure(Errno::BADF));
        };
        let left = {
            let fd = dir.fd().map_err(|error| self.failure(error))?;
            if self.levels.is_empty() {
                visitor.leave(fd, None)?
            } else {
                self.reopen(fd)?;
                let place = self.place()?;
                visitor.leave(fd, Some((&place, level.name.as_c_str())))?
            }
        };
        if left == Left::Again {
            level.passes += 1;
            if level.passes > PASSES {
                self.levels.push(level);
                return Err(refused(
                    &path_of(self.root, &self.levels),
                    "is filled while it is gone through",
                ));
            }
            dir.rewind();
            level.dir = Some(dir);
            self.levels.push(level);
        }
        Ok(())
    }

    /// Opens the lowest folder again, from within one that is in it.
    fn reopen(&mut self, below: BorrowedFd<'_>) -> io::Result<()> {
        let path = path_of(self.root, &self.levels);
        let Some(level) = self.levels.last_mut().filter(|level| level.dir.is_none()) else {
            return Ok(());
        };
        let fail = |error: Errno| at("cannot read", &path, error);
        let opened = open_dir(below, c"..").map_err(fail)?;
        let found = look(opened.as_fd(), c"").map_err(fail)?;
        if (device(&found), found.stx_ino) != level.identity {
            return Err(refused(&path, "was moved while it was gone through"));
        }
        let mut dir = Dir::new(opened).map_err(fail)?;
        dir.seek(level.cookie).map_err(fail)?;
        level.dir = Some(dir);
        Ok(())
    }

    fn place(&self) -> io::Result<Place<'_>> {
        let dir = self.levels.last().and_then(|level| level.dir.as_ref());
        let fd = dir.ok_or(Errno::BADF).and_then(Dir::fd);
        Ok(Place {
            dir: fd.map_err(|error| self.failure(error))?,
            root: self.root,
            levels: &self.levels,
            origin: self.origin,
        })
    }

    fn failure(&self, error: Errno) -> io::Error {
        at("cannot read", &path_of(self.root, &self.levels), error)
    }
}

fn path_of(root: &Path, levels: &[Level]) -> PathBuf {
    let names = levels.iter().skip(1);
    let mut path = root.to_owned();
    path.extend(names.map(|level| OsStr::from_bytes(level.name.to_bytes())));
    path
}

pub(crate) fn open_dir(above: BorrowedFd<'_>, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(above, path, flags, Mode::empty())
}

#[cfg(test)]
mod tests;
