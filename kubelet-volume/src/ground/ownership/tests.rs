use std::cell::Cell;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use super::{Applied, ChangePolicy, Group, Watch, apply};
use crate::ground::mounts::testing::Place;
use crate::ground::mounts::{MountOptions, Mounts as _, SystemMounts};

const GID: u32 = 4321;

const GROUP: Group = Group {
    gid: GID,
    read_only: false,
    policy: ChangePolicy::Always,
};

fn run(root: &Path, group: Group) -> io::Result<Applied> {
    let mut watch = Watch {
        cancelled: &AtomicBool::new(false),
        elapsed: &|| Duration::ZERO,
        progress: &mut |_, _| panic!("it takes no time"),
    };
    apply(root, group, &mut watch)
}

fn tree(test: &str) -> Option<(Place, PathBuf)> {
    if !rustix::process::getuid().is_root() {
        kubelet_testing::contract::skip(test, "only root gives files to any group");
        return None;
    }
    let place = Place::without_mounts();
    let root = place.dir("volume");
    place.dir("volume/dir/inner");
    for (name, mode) in [
        ("file", 0o604),
        ("dir/suid", 0o4711),
        ("dir/inner/none", 0o000),
        ("dir/all", 0o6770),
    ] {
        fs::write(root.join(name), "").unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(place.path("outside"), "").unwrap();
    fs::set_permissions(place.path("outside"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink(place.path("outside"), root.join("link")).unwrap();
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    for dir in ["dir", "dir/inner", ""] {
        fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o701)).unwrap();
    }
    Some((place, root))
}

fn of(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.gid(), found.mode() & 0o7777)
}

#[test]
fn all_gets_the_group_and_the_modes() {
    let Some((place, root)) = tree("fsGroup") else { return };
    assert_eq!(
        run(&root, GROUP).unwrap(),
        Applied {
            entries: 9,
            failures: 0
        }
    );
    for (path, mode) in [
        ("file", 0o664),
        ("dir/suid", 0o4771),
        ("dir/inner/none", 0o660),
        // A change of the group takes these bits away.
        ("dir/all", 0o6770),
        ("pipe", 0o660),
        ("dir", 0o2771),
        ("dir/inner", 0o2771),
        ("", 0o2771),
    ] {
        assert_eq!(of(&root.join(path)), (GID, mode), "{path}");
    }
    // Of a link nothing but itself.
    assert_eq!(of(&root.join("link")).0, GID);
    assert_eq!(of(&place.path("outside")), (0, 0o600));
}

#[test]
fn a_read_only_volume_gets_no_more_than_reading() {
    let Some((_place, root)) = tree("fsGroup, read-only") else {
        return;
    };
    run(
        &root,
        Group {
            read_only: true,
            ..GROUP
        },
    )
    .unwrap();
    assert_eq!(of(&root.join("file")), (GID, 0o644));
    assert_eq!(of(&root.join("dir/inner/none")), (GID, 0o440));
    assert_eq!(of(&root), (GID, 0o2751));
}

#[test]
fn a_root_that_has_it_all_spares_the_walk() {
    let Some((_place, root)) = tree("fsGroup, on root mismatch") else {
        return;
    };
    let group = Group {
        policy: ChangePolicy::OnRootMismatch,
        ..GROUP
    };
    assert_eq!(run(&root, group).unwrap().entries, 9);
    assert_eq!(run(&root, group).unwrap().entries, 0);
    for (gid, mode) in [(GID, 0o770), (GID, 0o2760), (1, 0o2770)] {
        chown(&root, None, Some(gid)).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(run(&root, group).unwrap().entries, 9, "{gid} {mode:o}");
    }
    assert_eq!(run(&root, GROUP).unwrap().entries, 9);
    assert!(run(&root.join("none"), group).is_err() && run(&root.join("link"), GROUP).is_err());
}

#[test]
fn a_change_that_was_cut_off_is_done_again() {
    let Some((_place, root)) = tree("fsGroup, cut off") else {
        return;
    };
    let group = Group {
        policy: ChangePolicy::OnRootMismatch,
        ..GROUP
    };
    let mut watch = Watch {
        cancelled: &AtomicBool::new(true),
        elapsed: &|| Duration::ZERO,
        progress: &mut |_, _| {},
    };
    let cut = apply(&root, group, &mut watch).unwrap_err();
    assert_eq!(cut.kind(), io::ErrorKind::Interrupted);
    assert_eq!(run(&root, group).unwrap().entries, 9);
}

#[test]
fn progress_is_told_after_half_a_minute_and_then_each_minute() {
    let place = Place::without_mounts();
    let root = place.dir("volume");
    for index in 0..256 * 10 {
        fs::write(root.join(index.to_string()), "").unwrap();
    }
    let clock = Cell::new(0);
    let elapsed = || {
        clock.set(clock.get() + 20);
        Duration::from_secs(clock.get())
    };
    let mut told = Vec::new();
    let mut watch = Watch {
        cancelled: &AtomicBool::new(false),
        elapsed: &elapsed,
        progress: &mut |entries, after| told.push((entries, after.as_secs())),
    };
    let group = Group {
        gid: rustix::process::getgid().as_raw(),
        ..GROUP
    };
    apply(&root, group, &mut watch).unwrap();
    assert_eq!(told, [(512, 40), (1280, 100), (2048, 160)]);
}

#[test]
fn other_mounts_are_left_alone() {
    let Some((place, root)) = tree("fsGroup and mounts") else {
        return;
    };
    let Some(_) = Place::new("fsGroup and mounts") else {
        return;
    };
    let elsewhere = place.dir("elsewhere/inner");
    fs::write(elsewhere.join("file"), "").unwrap();
    let mounts = SystemMounts::default();
    let bind = |from: &Path, to: &str| mounts.bind(from, &root.join(to), &MountOptions::default()).unwrap();
    bind(&place.path("elsewhere"), "dir/inner");
    bind(&place.path("outside"), "file");
    run(&root, GROUP).unwrap();
    assert_eq!(of(&place.path("outside")), (0, 0o600));
    assert_eq!(of(&elsewhere).0, 0);
    assert_eq!(of(&root.join("dir/suid")).0, GID);
}

#[test]
fn nobody_who_swaps_files_for_links_gets_others_files() {
    let Some((place, root)) = tree("fsGroup and swaps") else {
        return;
    };
    let outside = place.dir("secrets");
    fs::write(outside.join("x"), "").unwrap();
    for (target, name) in [(place.path("outside"), "other-file"), (outside.clone(), "other-dir")] {
        symlink(target, root.join(name)).unwrap();
    }
    let before = (of(&place.path("outside")), of(&outside), of(&outside.join("x")));
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (a, b) in [("file", "other-file"), ("dir", "other-dir")] {
                    renameat_with(CWD, root.join(a), CWD, root.join(b), RenameFlags::EXCHANGE).unwrap();
                }
            }
        });
        for gid in 1000..2000 {
            run(&root, Group { gid, ..GROUP }).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        (of(&place.path("outside")), of(&outside), of(&outside.join("x"))),
        before
    );
}
