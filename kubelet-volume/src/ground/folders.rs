//! Making the folders of volumes, and unmounting what is in them.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::crash::step;
use super::failure::{at, refused};
use super::mount_table::MountTable;
use super::mounts::{Mounts, unmount_all};
use super::removal::remove_empty;
use super::safe_path::safe_make_dirs;

/// Makes a folder in one that is there, or takes the one that is there, with exactly `mode` whatever the umask is. What is
/// mounted there keeps its own.
pub(crate) fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(dir) {
        Ok(()) => step("a folder is made"),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(dir).map_err(|error| at("cannot look at", dir, error))?;
            if !found.is_dir() {
                return Err(refused(dir, "is no folder"));
            }
            return Ok(());
        }
        Err(error) => return Err(at("cannot make", dir, error)),
    }
    let set = fs::set_permissions(dir, Permissions::from_mode(mode));
    step("a folder has its mode");
    set.map_err(|error| at("cannot set the mode of", dir, error))
}

/// The same, where a folder that is there may have been left before it had its mode.
pub(crate) fn make_dir_again(dir: &Path, mode: u32) -> io::Result<()> {
    make_dir(dir, mode)?;
    let found = fs::symlink_metadata(dir).map_err(|error| at("cannot look at", dir, error))?;
    // What more it has, such as a group's bit, was given to it after its mode.
    if found.permissions().mode() & mode == mode {
        return Ok(());
    }
    fs::set_permissions(dir, Permissions::from_mode(mode)).map_err(|error| at("cannot set the mode of", dir, error))
}

/// Makes a folder and those above it, as far as they are not there.
pub(crate) fn make_dirs(dir: &Path, mode: u32) -> io::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(dir);
    made.map_err(|error| at("cannot make", dir, error))
}

/// Removes a folder that is empty; one that is not there is no error.
///
/// # Errors
/// If there is anything in it: nobody knows what, and it stays.
pub(crate) fn remove_emptied(dir: &Path) -> io::Result<()> {
    if remove_empty(dir)? {
        step("an empty folder is removed");
        return Ok(());
    }
    Err(refused(dir, "holds what no plugin made, and stays"))
}

/// Removes a link; anything else stays.
pub(crate) fn remove_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => fs::remove_file(path).map_err(|error| at("cannot remove", path, error)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("cannot look at", path, error)),
        _ => Ok(()),
    }
}

/// Whether any pod but one has something in its folder.
pub(crate) fn any_pod(pods_dir: &Path, but: Option<&str>, has: impl Fn(&Path) -> io::Result<bool>) -> io::Result<bool> {
    let fail = |error| at("cannot read", pods_dir, error);
    let pods = match fs::read_dir(pods_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        pods => pods.map_err(fail)?,
    };
    for pod in pods {
        let pod = pod.map_err(fail)?;
        // A stray file, or a link, is no pod's.
        let is_dir = match pod.file_type() {
            Ok(kind) => kind.is_dir(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(fail(error)),
        };
        if is_dir && but.is_none_or(|uid| pod.file_name() != *uid) && has(&pod.path())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether anything is there. What cannot be looked at is.
pub(crate) fn is_there(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// Makes folders in a volume, never out of it.
pub(crate) fn make_dirs_within(root: &Path, relative: &Path, mode: u32) -> io::Result<()> {
    safe_make_dirs(root, relative, mode).map(drop)
}

/// Removes folders in which there is nothing but such folders; whatever else there is stays, and so does what is mounted.
pub(crate) fn remove_hollow(mounts: &dyn Mounts, dir: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir()) || mounts.is_mount_point(dir)? {
        return Ok(());
    }
    for inner in fs::read_dir(dir).into_iter().flatten().flatten() {
        remove_hollow(mounts, &inner.path())?;
    }
    // What is in it keeps it.
    let _ = fs::remove_dir(dir);
    Ok(())
}

/// Unmounts what is mounted at a folder and below it, deepest first. What is in use is an error. Gives the table of mounts if it
/// had to be read, and showed nothing there.
pub(crate) fn unmount_below(mounts: &dyn Mounts, dir: &Path) -> io::Result<Option<MountTable>> {
    let (Some(above), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(refused(dir, "is no folder of a volume"));
    };
    // Of the path to the folder links are resolved; what is mounted there is not looked at, since its server may be gone. A link in
    // the folder's place is never mounted on.
    let real = match above.canonicalize() {
        Ok(above) => above.join(name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at("cannot resolve", above, error)),
    };
    if unmount_topmost(mounts, &real)? {
        return Ok(None);
    }
    let table = mounts.table()?;
    if table.at_or_below(&real).is_empty() {
        return Ok(Some(table));
    }
    if table.is_mount_point(&real) {
        // What the host mounts later in the folder that is bound here stays mounted in it.
        mounts.make_private(&real)?;
    }
    for mount in table.at_or_below(&real) {
        mounts.unmount(&mount.target)?;
        step("a mount of a volume is gone");
    }
    if !fs::symlink_metadata(dir).is_ok_and(|found| found.is_symlink()) {
        unmount_all(mounts, dir)?;
    }
    Ok(None)
}

/// Unmounts what is mounted at a folder, and tells whether that was all: whether the folder is empty then. Mostly it is, and the
/// table of mounts is not read, which is long on a node with many pods: in an empty folder nothing is mounted, and nothing is
/// unmounted that has mounts below.
fn unmount_topmost(mounts: &dyn Mounts, dir: &Path) -> io::Result<bool> {
    if mounts.is_mount_point(dir)? {
        // What the host mounts later in the folder that is bound here stays mounted in it.
        mounts.make_private(dir)?;
        match mounts.unmount(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(false),
            unmounted => unmounted?,
        }
        step("a mount of a volume is gone");
        if mounts.is_mount_point(dir)? {
            return Ok(false);
        }
    }
    let is_dir = fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir());
    Ok(is_dir && fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::make_dir;

    #[test]
    fn a_folder_has_its_mode_and_one_that_is_there_stays() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        let mode = || fs::metadata(&dir).unwrap().permissions().mode() & 0o7777;
        make_dir(&dir, 0o777).unwrap();
        assert_eq!(mode(), 0o777, "whatever the umask is");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o2770)).unwrap();
        make_dir(&dir, 0o777).unwrap();
        assert_eq!(mode(), 0o2770, "as it was given over to a group");
        symlink(&dir, root.path().join("link")).unwrap();
        assert!(make_dir(&root.path().join("link"), 0o777).is_err());
        assert!(make_dir(&root.path().join("b/c"), 0o777).is_err());
    }
}
