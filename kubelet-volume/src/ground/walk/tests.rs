use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rustix::fs::Statx;

use super::{Left, Place, Visit, look, walk};
use crate::ground::mounts::testing::Place as TestPlace;
use crate::ground::mounts::{MountOptions, Mounts as _, SystemMounts};

#[derive(Default)]
struct Log {
    entered: usize,
    seen: Vec<PathBuf>,
    mounted: Vec<PathBuf>,
    left: Vec<PathBuf>,
    again: u32,
}

impl Visit for Log {
    fn entry(&mut self, place: &Place<'_>, name: &CStr) -> io::Result<()> {
        assert!(place.is_within(&look(place.dir, name)?));
        self.seen.push(place.path(name));
        Ok(())
    }

    fn enter(&mut self, _dir: BorrowedFd<'_>, _found: &Statx) -> io::Result<()> {
        self.entered += 1;
        Ok(())
    }

    fn leave(&mut self, _dir: BorrowedFd<'_>, above: Option<(&Place<'_>, &CStr)>) -> io::Result<Left> {
        if let Some((place, name)) = above {
            self.left.push(place.path(name));
        }
        if self.again > 0 {
            self.again -= 1;
            return Ok(Left::Again);
        }
        Ok(Left::Done)
    }

    fn mounted(&mut self, place: &Place<'_>, name: &CStr) -> io::Result<()> {
        self.mounted.push(place.path(name));
        Ok(())
    }
}

fn logged(root: &Path, again: u32) -> io::Result<Log> {
    let mut log = Log {
        again,
        ..Log::default()
    };
    walk(root, &AtomicBool::new(false), &mut log)?;
    log.seen.sort();
    Ok(log)
}

#[test]
fn all_is_seen_once_and_no_link_is_followed() {
    let place = TestPlace::without_mounts();
    let root = place.dir("tree");
    place.dir("tree/a/b");
    for name in ["x", "a/y", "a/b/z"] {
        fs::write(root.join(name), "").unwrap();
    }
    symlink("/", root.join("out")).unwrap();
    let log = logged(&root, 0).unwrap();
    let seen = ["a/b/z", "a/y", "out", "x"].map(|name| root.join(name));
    assert_eq!(log.seen, seen);
    assert_eq!(log.left, [root.join("a/b"), root.join("a")]);
    assert_eq!(log.entered, 3);
    assert!(logged(&root.join("out"), 0).is_err() && logged(&root.join("x"), 0).is_err());
}

#[test]
fn a_folder_can_be_gone_through_again_but_not_for_ever() {
    let place = TestPlace::without_mounts();
    let root = place.dir("tree");
    fs::write(root.join("x"), "").unwrap();
    assert_eq!(logged(&root, 2).unwrap().seen.len(), 3);
    assert!(logged(&root, 1000).err().unwrap().to_string().contains("is filled"));
    let stopped = walk(&root, &AtomicBool::new(true), &mut Log::default());
    assert_eq!(stopped.unwrap_err().kind(), io::ErrorKind::Interrupted);
}

#[test]
fn a_tree_deeper_than_what_can_be_held_open_is_gone_through() {
    let place = TestPlace::without_mounts();
    let mut dir = place.dir("tree");
    for _ in 0..150 {
        dir.push("d");
        fs::create_dir(&dir).unwrap();
        for name in ["a", "e"] {
            fs::write(dir.join(name), "").unwrap();
        }
    }
    let log = logged(&place.path("tree"), 0).unwrap();
    assert_eq!((log.seen.len(), log.left.len()), (300, 150));
}

/// Moves a folder away once it is within it.
struct Mover(PathBuf, PathBuf);

impl Visit for Mover {
    fn entry(&mut self, _place: &Place<'_>, _name: &CStr) -> io::Result<()> {
        fs::rename(&self.0, &self.1)
    }

    fn leave(&mut self, _dir: BorrowedFd<'_>, _above: Option<(&Place<'_>, &CStr)>) -> io::Result<Left> {
        Ok(Left::Done)
    }

    fn mounted(&mut self, _place: &Place<'_>, _name: &CStr) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_folder_that_is_moved_away_does_not_lead_out() {
    let place = TestPlace::without_mounts();
    let (root, elsewhere) = (place.dir("tree"), place.dir("elsewhere"));
    // So deep that the upper folders are closed by then, and are opened from below.
    let deep: PathBuf = root.join("d/".repeat(60));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "").unwrap();
    let mut mover = Mover(root.join("d/d/d"), elsewhere.join("d"));
    let error = walk(&root, &AtomicBool::new(false), &mut mover).unwrap_err();
    assert!(error.to_string().contains("was moved"), "{error}");
}

#[test]
fn what_is_mounted_is_not_entered() {
    let Some(place) = TestPlace::new("a walk past mounts") else {
        return;
    };
    let (root, other, same) = (place.dir("tree"), place.dir("tree/other"), place.dir("tree/same"));
    let elsewhere = place.dir("elsewhere/inner");
    fs::write(elsewhere.join("x"), "").unwrap();
    let mounts = SystemMounts::default();
    mounts
        .mount("tmpfs", "tmpfs", &other, &MountOptions::default(), "")
        .unwrap();
    mounts.bind(&elsewhere, &same, &MountOptions::default()).unwrap();
    let mut log = logged(&root, 0).unwrap();
    log.mounted.sort();
    assert_eq!(log.mounted, [other, same.clone()]);
    assert!(log.seen.is_empty());
    // The root itself may be mounted.
    assert_eq!(logged(&same, 0).unwrap().seen.len(), 1);
}
