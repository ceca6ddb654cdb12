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
