//! Removing what a volume holds, and nothing else: no link is followed, and where anything is mounted nothing is removed
//! at all.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::crash::step;
use super::failure::{at, refused};
use super::mount_table::MountTable;
use super::mounts::Mounts;
use super::walk::{Left, Place, Visit, walk};

/// How often a folder is emptied that somebody else fills.
const ATTEMPTS: usize = 8;

/// Removes a folder with all that is in it. One that is not there is no error.
///
/// # Errors
/// If it is no folder, or anything is mounted at it or below: then nothing is removed. Should something be mounted while
/// it is removed, what is mounted stays whole.
pub(crate) fn remove_tree(dir: &Path, mounts: &dyn Mounts, cancelled: &AtomicBool) -> io::Result<()> {
    remove_tree_of(None, dir, mounts, cancelled)
}

/// The same, by a table of mounts that was read just now.
pub(crate) fn remove_tree_of(
    table: Option<MountTable>,
    dir: &Path,
    mounts: &dyn Mounts,
    cancelled: &AtomicBool,
) -> io::Result<()> {
    // Most are empty by now, and the kernel removes none that is a link or a mount: the table of mounts, which is long on a node
    // with many pods, is not read for them. Whatever else is in the way is told below.
    if fs::remove_dir(dir).is_ok() {
        step("an empty folder is removed");
        return Ok(());
    }
    let Some(real) = check(table, dir, mounts)? else {
        return Ok(());
    };
    if mounts.is_mount_point(&real)? {
        return Err(refused(dir, "is mounted, and is not removed"));
    }
    for _ in 0..ATTEMPTS {
        walk(&real, cancelled, &mut Removal)?;
        step("a folder is emptied");
        match fs::remove_dir(&real) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => return removed.map_err(|error| at("cannot remove", dir, error)),
        }
    }
    Err(refused(dir, "is filled while it is removed"))
}

/// The folder with links above it resolved, and nothing mounted below; nothing if it is not there.
fn check(table: Option<MountTable>, dir: &Path, mounts: &dyn Mounts) -> io::Result<Option<PathBuf>> {
    match fs::symlink_metadata(dir) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(refused(dir, "is no folder, and is not removed")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at("cannot look at", dir, error)),
    }
    let real = dir.canonicalize().map_err(|error| at("cannot resolve", dir, error))?;
    let table = table.map_or_else(|| mounts.table(), Ok)?;
    nothing_below(&real, &table)?;
    Ok(Some(real))
}

fn nothing_below(dir: &Path, table: &MountTable) -> io::Result<()> {
    match table.below(dir).first() {
        Some(point) => Err(refused(
            &point.target,
            format!("is mounted: {} is not removed", dir.display()),
        )),
        None => Ok(()),
    }
}

#[derive(Debug)]
struct Removal;

impl Visit for Removal {
    fn entry(&mut self, place: &Place<'_>, name: &CStr) -> io::Result<()> {
        // A file that something is mounted on is busy to the kernel.
        match unlinkat(place.dir, name, AtFlags::empty()) {
            // It became a folder: the next pass finds it.
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => Ok(()),
            Err(Errno::BUSY) => self.mounted(place, name),
            Err(error) => Err(at("cannot remove", &place.path(name), error)),
        }
    }

    fn leave(&mut self, _dir: BorrowedFd<'_>, above: Option<(&Place<'_>, &CStr)>) -> io::Result<Left> {
        let Some((place, name)) = above else {
            return Ok(Left::Done);
        };
        match unlinkat(place.dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(Left::Done),
            // Some file systems leave out entries while others are removed.
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Left::Again),
            Err(Errno::BUSY) => self.mounted(place, name).map(|()| Left::Done),
            Err(error) => Err(at("cannot remove", &place.path(name), error)),
        }
    }

    fn mounted(&mut self, place: &Place<'_>, name: &CStr) -> io::Result<()> {
        Err(refused(&place.path(name), "is mounted, and is not removed"))
    }
}

/// Removes a folder that is empty; one that is not there is no error. Of a volume that nobody knows, so much and no more is
/// removed. Tells whether it is gone; one that is not empty stays.
pub(crate) fn remove_empty(dir: &Path) -> io::Result<bool> {
    match fs::remove_dir(dir) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(true),
            io::ErrorKind::DirectoryNotEmpty => Ok(false),
            _ => Err(at("cannot remove", dir, error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::{remove_empty, remove_tree};
    use crate::ground::mounts::testing::Place;
    use crate::ground::mounts::{MountOptions, Mounts as _, SystemMounts};

    static RUN: AtomicBool = AtomicBool::new(false);

    fn remove(dir: &Path) -> io::Result<()> {
        remove_tree(dir, &SystemMounts::default(), &RUN)
    }

    #[test]
    fn a_tree_goes_and_what_its_links_lead_to_stays() {
        let place = Place::without_mounts();
        let (tree, precious) = (place.dir("tree"), place.dir("precious"));
        place.dir("tree/a/b/c");
        fs::write(precious.join("file"), "x").unwrap();
        for (name, to) in [
            ("link", precious.as_path()),
            ("a/root", Path::new("/")),
            ("a/b/file", &precious.join("file")),
        ] {
            symlink(to, tree.join(name)).unwrap();
        }
        fs::hard_link(precious.join("file"), tree.join("hard")).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists() && precious.join("file").exists());
        remove(&tree).unwrap();
        symlink(&precious, &tree).unwrap();
        assert!(remove(&tree).unwrap_err().to_string().contains("no folder"));
        assert!(precious.join("file").exists());
    }

    #[test]
    fn more_entries_than_are_read_at_once_go() {
        let place = Place::without_mounts();
        let tree = place.dir("tree");
        for index in 0..3000 {
            fs::write(tree.join(format!("a-file-with-a-rather-long-name-{index}")), "").unwrap();
        }
        let mut deep = tree.join("deep");
        for _ in 0..120 {
            fs::create_dir_all(&deep).unwrap();
            fs::write(deep.join("file"), "").unwrap();
            deep.push("d");
        }
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn nothing_is_removed_while_anything_is_mounted_below() {
        let Some(place) = Place::new("removal and mounts") else {
            return;
        };
        let (tree, inner, file) = (place.dir("tree"), place.dir("tree/z/inner"), place.path("tree/z/file"));
        let elsewhere = place.dir("elsewhere");
        for path in [&tree.join("a"), &file, &elsewhere.join("precious")] {
            fs::write(path, "x").unwrap();
        }
        let mounts = SystemMounts::default();
        let bind = |from: &Path, to: &Path| mounts.bind(from, to, &MountOptions::default()).unwrap();
        for (from, to) in [(&elsewhere, &inner), (&elsewhere.join("precious"), &file)] {
            bind(from, to);
            let error = remove(&tree).unwrap_err().to_string();
            assert!(
                error.contains(to.to_str().unwrap()) && error.contains("is mounted"),
                "{error}"
            );
            assert!(tree.join("a").exists() && elsewhere.join("precious").exists());
            mounts.unmount(to).unwrap();
        }
        bind(&elsewhere, &tree);
        assert!(remove(&tree).unwrap_err().to_string().contains("is mounted"));
        mounts.unmount(&tree).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn what_is_mounted_after_the_first_look_stays_as_well() {
        let Some(place) = Place::new("removal and late mounts") else {
            return;
        };
        let (tree, inner, file) = (place.dir("tree"), place.dir("tree/inner"), place.path("tree/file"));
        let elsewhere = place.dir("elsewhere");
        let precious = elsewhere.join("precious");
        for path in [&file, &precious] {
            fs::write(path, "x").unwrap();
        }
        let mounts = SystemMounts::default();
        for (from, to) in [(&elsewhere, &inner), (&precious, &file)] {
            mounts.bind(from, to, &MountOptions::default()).unwrap();
            let error = super::walk(&tree, &RUN, &mut super::Removal).unwrap_err();
            assert!(error.to_string().contains("is mounted"), "{error}");
            assert!(precious.exists());
            mounts.unmount(to).unwrap();
            fs::create_dir_all(&inner).unwrap();
            fs::write(&file, "x").unwrap();
        }
    }

    #[test]
    fn a_tree_that_somebody_changes_leads_nowhere_else() {
        let place = Place::without_mounts();
        let (tree, precious) = (place.dir("tree"), place.dir("precious"));
        for index in 0..50 {
            fs::write(precious.join(index.to_string()), "x").unwrap();
        }
        let stop = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Whatever fails because it was removed is what this is for.
                    let _ = fs::create_dir_all(tree.join("a/b"));
                    let _ = fs::remove_dir(tree.join("a/b"));
                    let _ = symlink(&precious, tree.join("a/b"));
                    let _ = fs::write(tree.join("a/c"), "x");
                }
            });
            for _ in 0..300 {
                let _ = remove(&tree);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(precious.read_dir().unwrap().count(), 50);
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn only_an_empty_folder_is_removed_where_no_more_is_asked() {
        let place = Place::without_mounts();
        let dir = place.dir("dir");
        fs::write(dir.join("data"), "x").unwrap();
        assert!(!remove_empty(&dir).unwrap() && dir.join("data").exists());
        assert!(
            remove_empty(&dir.join("data"))
                .unwrap_err()
                .to_string()
                .contains("data")
        );
        fs::remove_file(dir.join("data")).unwrap();
        assert!(remove_empty(&dir).unwrap() && !dir.exists());
        assert!(remove_empty(&dir).unwrap());
        let stopped = AtomicBool::new(true);
        let dir = place.dir("dir/inner");
        let error = remove_tree(&place.path("dir"), &SystemMounts::default(), &stopped).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        assert!(dir.exists());
    }
}
