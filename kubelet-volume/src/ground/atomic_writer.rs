//! Files of an API object in a volume, all of them changed at once. Source: `atomic_writer.go` of Kubernetes 1.36.
//!
//! The files are in `..<time>.<suffix>`; `..data` is a link to that folder, and each name a link to `..data/<name>`. An
//! update writes a folder beside it and renames a new link over `..data`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Uid, chownat, fchmod, fchown, fsync, mkdirat, openat, readlinkat, renameat,
    statat, symlinkat, syncfs, unlinkat,
};
use rustix::io::Errno;

use super::crash::step;
use super::failure::{at, ignore_missing, refused};
use super::mounts::Mounts;
use super::removal::remove_tree;
use super::safe_path::open_strictly;
use super::walk::open_dir;

mod payload;
mod stamp;

use payload::validated;
pub(crate) use payload::{FileProjection, Payload};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// How many folders this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// With more files than that the whole file system is synced once, and not each of them.
const SYNC_EACH: usize = 16;

/// Writes the files of a volume, and removes what was written before and is not among them. `dir` is there, and one call
/// at a time works on it. Tells whether anything had to be written; modes and owners are not looked at for that.
///
/// Whoever reads through the links sees all of the old files or all of the new. The same holds after a crash at any point
/// and after a failure, of a full disk for instance; the next call removes what was left behind. `prepare` is called with the
/// folder of the new files before they can be seen, to set its group; its failure is one of the call.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] names a path that cannot be, before anything is written.
pub(crate) fn write(
    dir: &Path,
    payload: &Payload,
    now: SystemTime,
    mounts: &dyn Mounts,
    prepare: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<bool> {
    let payload = validated(payload)?;
    let opened = open_dir(rustix::fs::CWD, dir).map_err(|error| at("cannot open", dir, error))?;
    let volume = Volume {
        dir,
        fd: opened.as_fd(),
        payload: &payload,
        mounts,
    };
    let current = volume.current()?;
    volume.remove_leftovers(current.as_deref())?;
    let changed = match current.as_deref() {
        // What cannot be read is written anew.
        Some(folder) => !volume.is_up_to_date(folder).unwrap_or(false),
        None => true,
    };
    if changed {
        let folder = volume.make_folder(now)?;
        let written = volume.fill(&folder).and_then(|()| {
            step("the new files are written");
            prepare(&dir.join(&folder))?;
            step("the new files have their group");
            volume.switch(&folder)
        });
        if let Err(error) = written {
            // What cannot be removed now is a leftover for the next call.
            let _ = volume.remove_folder(&folder);
            return Err(error);
        }
        step("the new files are seen");
    }
    volume.link()?;
    volume.unlink_stale()?;
    if let Some(old) = current.filter(|_| changed) {
        volume.remove_folder(&old)?;
    }
    Ok(changed)
}

struct Volume<'a> {
    dir: &'a Path,
    fd: BorrowedFd<'a>,
    payload: &'a BTreeMap<PathBuf, &'a FileProjection>,
    mounts: &'a dyn Mounts,
}

impl Volume<'_> {
    fn fail(&self, what: &str, name: impl AsRef<Path>) -> impl FnOnce(Errno) -> io::Error {
        let (what, path) = (what.to_owned(), self.dir.join(name));
        move |error| at(&what, &path, error)
    }

    /// The folder with the files that are seen, if there is one.
    fn current(&self) -> io::Result<Option<OsString>> {
        let Some(target) = self.read_link(DATA.as_ref())? else {
            return Ok(None);
        };
        // Whatever else it leads to is not ours to compare with, nor to remove.
        let is_ours = stamp::is_name(&target) && self.is_folder(&target)?;
        Ok(is_ours.then_some(target))
    }

    /// Nothing if it is not there or no link.
    fn read_link(&self, name: &OsStr) -> io::Result<Option<OsString>> {
        match readlinkat(self.fd, name, Vec::new()) {
            Ok(target) => Ok(Some(OsString::from_vec(target.into_bytes()))),
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(self.fail("cannot read link", name)(error)),
        }
    }

    fn is_folder(&self, name: &OsStr) -> io::Result<bool> {
        match statat(self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.fail("cannot look at", name)(error)),
        }
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        list(self.fd).map_err(self.fail("cannot read", ""))
    }

    /// What a call that did not come to its end has left.
    fn remove_leftovers(&self, current: Option<&OsStr>) -> io::Result<()> {
        for name in self.names()? {
            if name == NEW_DATA {
                self.unlink(&name)?;
            } else if stamp::is_name(&name) && current != Some(&*name) && self.is_folder(&name)? {
                self.remove_folder(&name)?;
            }
        }
        Ok(())
    }

    fn unlink(&self, name: &OsStr) -> io::Result<()> {
        let unlinked = unlinkat(self.fd, name, AtFlags::empty());
        ignore_missing(unlinked).map_err(self.fail("cannot remove", name))
    }

    fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        remove_tree(&self.dir.join(name), self.mounts, &AtomicBool::new(false))
    }

    /// Whether the folder has exactly the files that are wanted.
    fn is_up_to_date(&self, folder: &OsStr) -> io::Result<bool> {
        let opened = open_dir(self.fd, folder)?;
        for (path, file) in self.payload {
            if read_at_most(opened.as_fd(), path, file.bytes.len())?.as_ref() != Some(&file.bytes) {
                return Ok(false);
            }
        }
        let parts = |path: &'_ PathBuf| path.ancestors().map(Path::to_owned).collect::<Vec<_>>();
        let wanted: BTreeSet<PathBuf> = self.payload.keys().flat_map(parts).collect();
        Ok(self.has_only(opened, &wanted)?)
    }

    /// Whether all that is there is wanted. What is wanted is not deep, and nothing else is entered.
    fn has_only(&self, dir: OwnedFd, wanted: &BTreeSet<PathBuf>) -> rustix::io::Result<bool> {
        let mut left = vec![(dir, PathBuf::new())];
        while let Some((dir, path)) = left.pop() {
            for name in list(dir.as_fd())? {
                let inner = path.join(&name);
                if !wanted.contains(&inner) {
                    return Ok(false);
                }
                if !self.payload.contains_key(&inner) {
                    left.push((open_dir(dir.as_fd(), &*name)?, inner));
                }
            }
        }
        Ok(true)
    }

    fn make_folder(&self, now: SystemTime) -> io::Result<OsString> {
        for _ in 0..1000 {
            // Never one that was there before, even if the clock stands still: who has resolved the link to it would find
            // other files than it looks for.
            let name = OsString::from(stamp::name(now, MADE.fetch_add(1, Ordering::Relaxed)));
            match mkdirat(self.fd, &name, Mode::from_raw_mode(0o755)) {
                Ok(()) => {
                    step("the new folder is made");
                    return Ok(name);
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(self.fail("cannot make", &name)(error)),
            }
        }
        Err(self.fail("cannot make a folder in", "")(Errno::EXIST))
    }

    fn fill(&self, folder: &OsStr) -> io::Result<()> {
        let fail = self.fail("cannot write in", folder);
        let opened = open_dir(self.fd, folder).and_then(|opened| {
            fchmod(&opened, Mode::from_raw_mode(0o755))?;
            Ok(opened)
        });
        let opened = opened.map_err(fail)?;
        let sync_each = self.payload.len() <= SYNC_EACH;
        let mut folders: BTreeSet<&Path> = BTreeSet::from([Path::new("")]);
        for (path, file) in self.payload {
            let mut write = || -> io::Result<()> {
                let parents: Vec<&Path> = path.ancestors().skip(1).collect();
                for parent in parents.into_iter().rev() {
                    if folders.insert(parent) {
                        mkdirat(&opened, parent, Mode::from_raw_mode(0o777))?;
                    }
                }
                write_file(opened.as_fd(), path, file, sync_each)
            };
            write().map_err(|error| at("cannot write", &self.dir.join(folder).join(path), error))?;
            step("one of the new files is written");
        }
        // Whatever the link will lead to has to be on the disk before the link is.
        let synced = if sync_each {
            folders.iter().rev().try_for_each(|path| {
                let path = if path.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    path
                };
                match fsync(open_dir(opened.as_fd(), path)?) {
                    // Some file systems cannot do that with folders.
                    Err(Errno::INVAL) => Ok(()),
                    synced => synced,
                }
            })
        } else {
            syncfs(&opened)
        };
        synced.map_err(self.fail("cannot sync", folder))
    }

    /// From here on the new files are seen.
    fn switch(&self, folder: &OsStr) -> io::Result<()> {
        symlinkat(folder, self.fd, NEW_DATA).map_err(self.fail("cannot make", NEW_DATA))?;
        step("the new link is made");
        // A folder cannot be replaced by a link.
        let renamed = renameat(self.fd, NEW_DATA, self.fd, DATA);
        renamed.map_err(|error| {
            let _ = self.unlink(NEW_DATA.as_ref());
            self.fail("cannot replace", DATA)(error)
        })?;
        step("the new link is in its place");
        // Both sets are there, whichever the disk names after a crash.
        let _ = fsync(self.fd);
        Ok(())
    }

    /// Makes the links to names that have none.
    fn link(&self) -> io::Result<()> {
        let mut names: BTreeMap<&OsStr, Option<u32>> = BTreeMap::new();
        for (path, file) in self.payload {
            if let Some(first) = path.iter().next() {
                names.entry(first).or_insert(file.owner);
            }
        }
        for (name, owner) in names {
            let fail = || self.fail("cannot link", name);
            match symlinkat(Path::new(DATA).join(name), self.fd, name) {
                Ok(()) => {}
                Err(Errno::EXIST) => {
                    let ours = Path::new(DATA).join(name).into_os_string();
                    if self.read_link(name)? == Some(ours) {
                        continue;
                    }
                    // Such as a folder that another mount comes to lie on.
                    return Err(refused(&self.dir.join(name), "is in the way of a file of the volume"));
                }
                Err(error) => return Err(fail()(error)),
            }
            if let Some(uid) = owner {
                let uid = Some(Uid::from_raw(uid));
                chownat(self.fd, name, uid, None, AtFlags::SYMLINK_NOFOLLOW).map_err(fail())?;
            }
            step("a name is linked");
        }
        Ok(())
    }

    /// Removes links to names that are no more: all that were ever made here, so that none outlives a crash.
    fn unlink_stale(&self) -> io::Result<()> {
        let wanted: BTreeSet<&OsStr> = self.payload.keys().filter_map(|path| path.iter().next()).collect();
        for name in self.names()? {
            if wanted.contains(&*name) || name.as_bytes().starts_with(b"..") {
                continue;
            }
            let ours = Path::new(DATA).join(&name).into_os_string();
            if self.read_link(&name)?.is_some_and(|target| target == ours) {
                self.unlink(&name)?;
                step("a name is removed");
            }
        }
        Ok(())
    }
}

fn list(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// What a file has, up to one byte more than `length`; nothing if it is no file.
fn read_at_most(dir: BorrowedFd<'_>, path: &Path, length: usize) -> io::Result<Option<Vec<u8>>> {
    // A link among our files is none of ours.
    let found = open_strictly(dir, path)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(None);
    };
    let parent = open_strictly(dir, parent)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(parent, name, flags, Mode::empty())?);
    let mut bytes = Vec::with_capacity(length);
    let limit = u64::try_from(length).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn write_file(dir: BorrowedFd<'_>, path: &Path, file: &FileProjection, sync: bool) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Nobody else reads it before it has its mode.
    let mut opened = File::from(openat(dir, path, flags, Mode::from_raw_mode(0o600))?);
    opened.write_all(&file.bytes)?;
    if let Some(uid) = file.owner {
        fchown(&opened, Some(Uid::from_raw(uid)), None)?;
    }
    // After the owner: a change of that takes bits away.
    fchmod(&opened, Mode::from_raw_mode(file.mode & 0o7777))?;
    if sync {
        opened.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
