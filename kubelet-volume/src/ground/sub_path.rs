//! Parts of volumes for containers: bound beside the volume by descriptor, so that nothing the volume's writers do
//! afterwards leads a container elsewhere. Source: `subpath_linux.go` of Kubernetes 1.36.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, fstat};

use super::crash::step;
use super::failure::{at, refused};
use super::mounts::{MountOptions, Mounts, unmount_all};
use super::safe_path::{open_within, safe_make_dirs};

const FOLDER: &str = "volume-subpaths";

/// What of a volume is to be where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubPath<'a> {
    /// The volume's folder. Links in the path to it are followed.
    pub(crate) volume_root: &'a Path,
    /// Relative, without `..`.
    pub(crate) sub_path: &'a Path,
    /// Where it is bound, see [`target`].
    pub(crate) target: &'a Path,
    /// The mode of the folders that are made where the path is missing ([`mode_of`] the volume's folder); nothing, and a
    /// missing one is an error.
    pub(crate) create_mode: Option<u32>,
}

/// Where a container's mount of a sub path is bound.
pub(crate) fn target(pod_dir: &Path, volume: &str, container: &str, mount_index: usize) -> PathBuf {
    pod_dir
        .join(FOLDER)
        .join(volume)
        .join(container)
        .join(mount_index.to_string())
}

/// The mode of a folder, with the bits for special treatment.
pub(crate) fn mode_of(folder: &Path) -> io::Result<u32> {
    let found = fs::metadata(folder).map_err(|error| at("cannot look at", folder, error))?;
    Ok(found.permissions().mode() & 0o7777)
}

/// Binds a part of a volume at its target. What is bound there already stays if it is the same file or folder; if the
/// path leads to another one by now (an update of a ConfigMap), that takes its place.
pub(crate) fn prepare(mounts: &dyn Mounts, wanted: &SubPath<'_>) -> io::Result<()> {
    let SubPath {
        volume_root,
        sub_path,
        target,
        create_mode,
    } = *wanted;
    let source = match (open_within(volume_root, sub_path), create_mode) {
        (Err(error), Some(mode)) if error.kind() == io::ErrorKind::NotFound => {
            safe_make_dirs(volume_root, sub_path, mode)
        }
        (opened, _) => opened,
    }?;
    if mounts.is_mount_point(target)? {
        if is_same(source.as_fd(), target)? {
            return Ok(());
        }
        unmount_all(mounts, target)?;
        step("the former sub path is unmounted");
    }
    make_target(source.as_fd(), target)?;
    step("the target of the sub path is made");
    let bound = mounts.bind_fd(source.as_fd(), target, &MountOptions::default());
    step("the sub path is bound");
    bound.inspect_err(|_| {
        // It is ours and empty; if it cannot be removed, the next attempt takes it as it is.
        let _ = remove_leaf(target);
    })
}

/// Whether what is mounted there is that very file. What cannot be looked at (its server is gone) is not.
fn is_same(source: BorrowedFd<'_>, target: &Path) -> io::Result<bool> {
    let source = fstat(source).map_err(|error| at("cannot look at what is bound at", target, error))?;
    let same = |found: fs::Metadata| (found.dev(), found.ino()) == (source.st_dev, source.st_ino);
    Ok(fs::symlink_metadata(target).is_ok_and(same))
}

/// Makes what a mount needs to be mounted on: of the kind of its source.
fn make_target(source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let fail = |error: io::Error| at("cannot make", target, error);
    let source = fstat(source).map_err(|error| fail(error.into()))?;
    let is_dir = FileType::from_raw_mode(source.st_mode) == FileType::Directory;
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() == is_dir && !found.is_symlink() => return Ok(()),
        // A folder took the place of a file, or the other way round.
        Ok(_) => remove_leaf(target)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
    }
    let mut folders = DirBuilder::new();
    folders.mode(0o750).recursive(true);
    if let Some(parent) = target.parent() {
        folders.create(parent).map_err(fail)?;
    }
    if is_dir {
        return DirBuilder::new().mode(0o750).create(target).map_err(fail);
    }
    let mut file = OpenOptions::new();
    file.write(true)
        .create_new(true)
        .mode(0o640)
        .open(target)
        .map(drop)
        .map_err(fail)
}

/// Unmounts and removes all sub paths of a volume of a pod. Those that are gone are no error; nor are files in them ever
/// removed: they would be the volume's.
pub(crate) fn clean_up(pod_dir: &Path, volume: &str, mounts: &dyn Mounts) -> io::Result<()> {
    let mut name = Path::new(volume).components();
    if !matches!((name.next(), name.next()), (Some(Component::Normal(_)), None)) {
        return Err(refused(Path::new(volume), "is no name of a volume"));
    }
    let parent = pod_dir.join(FOLDER);
    let base = parent.join(volume);
    let mut first_failure = Ok(());
    if is_folder(&base)? {
        // Whatever is mounted, at whatever depth.
        let real = base
            .canonicalize()
            .map_err(|error| at("cannot resolve", &base, error))?;
        let table = mounts.table()?;
        for point in table.at_or_below(&real) {
            if is_target(&real, &point.target) {
                // What the host mounts later in the folder that is bound there stays mounted in it.
                keep_first(&mut first_failure, mounts.make_private(&point.target));
            }
        }
        first_failure?;
        first_failure = Ok(());
        for point in table.at_or_below(&real) {
            keep_first(&mut first_failure, mounts.unmount(&point.target));
        }
        step("the sub paths are unmounted");
        for container in entries(&base)? {
            if !is_folder(&container)? {
                keep_first(&mut first_failure, remove_leaf(&container));
                continue;
            }
            for target in entries(&container)? {
                let removed = unmount_all(mounts, &target).and_then(|()| remove_leaf(&target));
                keep_first(&mut first_failure, removed);
                step("a target of a sub path is removed");
            }
            keep_first(&mut first_failure, remove_leaf(&container));
        }
        first_failure?;
        remove_leaf(&base)?;
    }
    match fs::remove_dir(&parent) {
        // There may be other volumes.
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
            Err(at("cannot remove", &parent, error))
        }
        _ => Ok(()),
    }
}

/// Whether it is where a sub path is bound: `<base>/<container>/<index>`.
fn is_target(base: &Path, path: &Path) -> bool {
    path.strip_prefix(base)
        .is_ok_and(|below| below.components().count() == 2)
}

/// The names below which a pod has sub paths.
pub(crate) fn volumes(pod_dir: &Path) -> io::Result<Vec<String>> {
    let folder = pod_dir.join(FOLDER);
    if !is_folder(&folder)? {
        return Ok(Vec::new());
    }
    let named = |path: PathBuf| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    Ok(entries(&folder)?.into_iter().filter_map(named).collect())
}

fn keep_first(first: &mut io::Result<()>, result: io::Result<()>) {
    if first.is_ok() {
        *first = result;
    }
}

fn is_folder(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(found.is_dir()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(at("cannot look at", path, error)),
    }
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let fail = |error| at("cannot read", folder, error);
    let listed = fs::read_dir(folder).map_err(fail)?;
    let mut paths = listed
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(fail)?;
    paths.sort();
    Ok(paths)
}

/// Removes an empty folder, or a file or a link that is no folder.
fn remove_leaf(path: &Path) -> io::Result<()> {
    let removed = if is_folder(path)? {
        fs::remove_dir(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("cannot remove", path, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
