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
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};

    use rustix::io::Errno;

    use super::{SubPath, clean_up, mode_of, prepare, target, volumes};
    use crate::ground::crash;
    use crate::ground::mounts::testing::Place;
    use crate::ground::mounts::{Mounts as _, SystemMounts};
    use crate::testing::{MountOp, ScriptedMounts};

    struct Pod {
        place: Place,
        volume: PathBuf,
        dir: PathBuf,
    }

    impl Pod {
        fn new(test: &str) -> Option<Self> {
            Place::new(test).map(Self::in_place)
        }

        fn in_place(place: Place) -> Self {
            let (volume, dir) = (place.dir("volume"), place.dir("pod"));
            Self { place, volume, dir }
        }

        fn target(&self) -> PathBuf {
            target(&self.dir, "vol", "app", 0)
        }

        fn prepare(&self, mounts: &dyn crate::Mounts, sub_path: &str, create: bool) -> std::io::Result<()> {
            let wanted = SubPath {
                volume_root: &self.volume,
                sub_path: Path::new(sub_path),
                target: &self.target(),
                create_mode: if create { Some(mode_of(&self.volume)?) } else { None },
            };
            prepare(mounts, &wanted)
        }
    }

    #[test]
    fn a_missing_folder_is_made_bound_and_cleaned_up() {
        let Some(pod) = Pod::new("a sub path") else { return };
        let mounts = SystemMounts::default();
        fs::set_permissions(&pod.volume, fs::Permissions::from_mode(0o2770)).unwrap();
        assert!(pod.prepare(&mounts, "a/b", false).is_err());
        pod.prepare(&mounts, "a/b", true).unwrap();
        assert_eq!(mode_of(&pod.volume.join("a/b")).unwrap(), 0o2770);
        fs::write(pod.target().join("file"), "x").unwrap();
        assert!(pod.volume.join("a/b/file").exists());
        // Done once more, nothing is mounted twice.
        pod.prepare(&mounts, "a/b", true).unwrap();
        assert_eq!(mounts.table().unwrap().at_or_below(&pod.target()).len(), 1);
        assert_eq!(volumes(&pod.dir).unwrap(), ["vol"]);
        clean_up(&pod.dir, "vol", &mounts).unwrap();
        assert!(!pod.dir.join("volume-subpaths").exists());
        assert!(pod.volume.join("a/b/file").exists());
        clean_up(&pod.dir, "vol", &mounts).unwrap();
        assert!(volumes(&pod.dir).unwrap().is_empty());
        for name in ["..", "", "a/b", "."] {
            assert!(clean_up(&pod.dir, name, &mounts).is_err(), "{name}");
        }
    }

    #[test]
    fn a_key_that_was_replaced_is_bound_anew() {
        let Some(pod) = Pod::new("a sub path of a key") else {
            return;
        };
        let mounts = SystemMounts::default();
        let data = pod.volume.join("..data");
        for (round, text) in ["old", "new"].into_iter().enumerate() {
            let dir = pod.volume.join(format!("..{round}"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("key"), text).unwrap();
            let _ = fs::remove_file(&data);
            symlink(format!("..{round}"), &data).unwrap();
        }
        symlink("..data/key", pod.volume.join("key")).unwrap();
        pod.prepare(&mounts, "key", false).unwrap();
        assert_eq!(fs::read_to_string(pod.target()).unwrap(), "new");
        fs::remove_file(&data).unwrap();
        symlink("..0", &data).unwrap();
        fs::remove_dir_all(pod.volume.join("..1")).unwrap();
        // What is bound stays until it is asked for anew.
        assert_eq!(fs::read_to_string(pod.target()).unwrap(), "new");
        pod.prepare(&mounts, "key", false).unwrap();
        assert_eq!(fs::read_to_string(pod.target()).unwrap(), "old");
        assert_eq!(mounts.table().unwrap().at_or_below(&pod.target()).len(), 1);
        assert_eq!(mode_of(&pod.target()).unwrap() & 0o600, 0o600);
        clean_up(&pod.dir, "vol", &mounts).unwrap();
    }

    #[test]
    fn a_folder_may_become_a_file() {
        let Some(pod) = Pod::new("another kind of sub path") else {
            return;
        };
        let mounts = SystemMounts::default();
        pod.prepare(&mounts, "x", true).unwrap();
        fs::remove_dir(pod.volume.join("x")).unwrap();
        fs::write(pod.volume.join("x"), "file").unwrap();
        pod.prepare(&mounts, "x", true).unwrap();
        assert_eq!(fs::read_to_string(pod.target()).unwrap(), "file");
        fs::remove_file(pod.volume.join("x")).unwrap();
        pod.prepare(&mounts, "x", true).unwrap();
        assert!(pod.target().is_dir());
    }

    #[test]
    fn what_leads_out_is_refused_and_leaves_nothing() {
        let Some(pod) = Pod::new("a sub path that leads out") else {
            return;
        };
        let mounts = SystemMounts::default();
        symlink("/etc", pod.volume.join("out")).unwrap();
        symlink("../pod", pod.volume.join("beside")).unwrap();
        for path in ["out", "out/passwd", "beside/x", "../pod", "/etc"] {
            assert!(pod.prepare(&mounts, path, true).is_err(), "{path}");
        }
        assert!(!pod.dir.join("volume-subpaths").exists() && !pod.dir.join("x").exists());
    }

    #[test]
    fn a_failed_attempt_removes_its_target() {
        let pod = Pod::in_place(Place::without_mounts());
        let mounts = ScriptedMounts::new();
        mounts.fail_next(MountOp::Bind, Errno::NOMEM.raw_os_error());
        assert!(pod.prepare(&mounts, "a", true).is_err());
        assert!(!pod.target().exists());
        pod.prepare(&mounts, "a", true).unwrap();
        assert!(pod.target().is_dir() && mounts.is_mount_point(&pod.target()).unwrap());
    }

    #[test]
    fn clean_up_goes_on_after_a_failure_and_tells_the_first() {
        let pod = Pod::in_place(Place::without_mounts());
        let mounts = ScriptedMounts::new();
        let binding = |container: &str| {
            let wanted = SubPath {
                volume_root: &pod.volume,
                sub_path: Path::new("a"),
                target: &target(&pod.dir, "vol", container, 7),
                create_mode: Some(0o755),
            };
            prepare(&mounts, &wanted).unwrap();
        };
        binding("first");
        binding("second");
        // Once by the table, and once at the target itself.
        mounts.fail_next(MountOp::Unmount, Errno::BUSY.raw_os_error());
        mounts.fail_next(MountOp::Unmount, Errno::BUSY.raw_os_error());
        mounts.fail_next(MountOp::Unmount, Errno::BUSY.raw_os_error());
        let error = clean_up(&pod.dir, "vol", &mounts).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
        assert_eq!(pod.dir.join("volume-subpaths/vol").read_dir().unwrap().count(), 1);
        clean_up(&pod.dir, "vol", &mounts).unwrap();
        assert!(!pod.dir.join("volume-subpaths").exists());
    }

    #[test]
    fn data_in_the_place_of_a_target_is_never_removed() {
        let pod = Pod::in_place(Place::without_mounts());
        let stray = target(&pod.dir, "vol", "app", 0);
        fs::create_dir_all(&stray).unwrap();
        fs::write(stray.join("data"), "x").unwrap();
        assert!(clean_up(&pod.dir, "vol", &ScriptedMounts::new()).is_err());
        assert!(stray.join("data").exists());
    }

    #[test]
    fn killed_at_any_step_the_next_attempt_gets_it_right() {
        let Some(pod) = Pod::new("a sub path and kill -9") else {
            return;
        };
        fs::write(pod.volume.join("one"), "one").unwrap();
        fs::write(pod.volume.join("two"), "two").unwrap();
        symlink("one", pod.volume.join("link")).unwrap();
        let mounts = SystemMounts::default();
        let point_to = |name: &str| {
            fs::remove_file(pod.volume.join("link")).unwrap();
            symlink(name, pod.volume.join("link")).unwrap();
        };
        let steps = crash::panic_at_each(
            || {
                point_to("one");
                pod.prepare(&mounts, "link", false).unwrap();
                point_to("two");
                pod.prepare(&mounts, "link", false).unwrap();
                clean_up(&pod.dir, "vol", &mounts).unwrap();
            },
            |step| {
                pod.prepare(&mounts, "link", false).unwrap();
                let wanted = fs::read_to_string(pod.volume.join("link")).unwrap();
                assert_eq!(fs::read_to_string(pod.target()).unwrap(), wanted, "{step}");
                assert_eq!(mounts.table().unwrap().at_or_below(&pod.target()).len(), 1, "{step}");
                clean_up(&pod.dir, "vol", &mounts).unwrap();
                assert!(!pod.dir.join("volume-subpaths").exists(), "{step}");
            },
        );
        assert!(steps.len() >= 7, "{steps:?}");
        assert!(mounts.table().unwrap().below(pod.place.root()).is_empty());
    }
}
