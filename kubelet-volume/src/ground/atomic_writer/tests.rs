use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{FileProjection, Payload, write};
use crate::ground::crash;
use crate::ground::mounts::testing::Place;
use crate::ground::mounts::{MountOptions, Mounts as _, SystemMounts};

fn payload(files: &[(&str, &str)]) -> Payload {
    let file = |text: &str| FileProjection {
        bytes: text.as_bytes().to_vec(),
        mode: 0o644,
        owner: None,
    };
    files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), file(text)))
        .collect()
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_796_076_407)
}

fn put(dir: &Path, files: &[(&str, &str)]) -> io::Result<bool> {
    write(dir, &payload(files), now(), &SystemMounts::default(), |_| Ok(()))
}

/// All that can be read through the links of a volume, sorted.
fn read(dir: &Path) -> Vec<(String, String)> {
    fn add(dir: &Path, prefix: &str, files: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(dir).unwrap() {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
            let name = name.into_string().unwrap();
            if prefix.is_empty() && name.starts_with("..") {
                continue;
            }
            if path.is_dir() {
                add(&path, &format!("{prefix}{name}/"), files);
            } else {
                files.push((format!("{prefix}{name}"), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut files = Vec::new();
    add(dir, "", &mut files);
    files.sort();
    files
}

fn hidden(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.starts_with("..") && name != "..data")
        .collect()
}

fn text(files: &[(&str, &str)]) -> Vec<(String, String)> {
    files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect()
}

#[test]
fn files_are_written_changed_and_removed() {
    let place = Place::without_mounts();
    let dir = place.dir("volume");
    let first = [
        ("a", "1"),
        ("dir/b", "2"),
        ("dir/deep/c", "3"),
        ("gone", "4"),
        ("old/x", "5"),
    ];
    assert!(put(&dir, &first).unwrap());
    assert_eq!(read(&dir), text(&first));
    let folder = fs::read_link(dir.join("..data")).unwrap();
    assert!(folder.to_str().unwrap().starts_with("..2026_11_30_22_06_47."));
    assert_eq!(fs::read_link(dir.join("dir")).unwrap(), Path::new("..data/dir"));
    assert!(!put(&dir, &first).unwrap());
    assert_eq!(fs::read_link(dir.join("..data")).unwrap(), folder);

    let second = [("a", "1"), ("dir/deep/c", "3"), ("new", "6")];
    assert!(put(&dir, &second).unwrap());
    assert_eq!(read(&dir), text(&second));
    assert_eq!(hidden(&dir).len(), 1);
    assert!(dir.join("old").symlink_metadata().is_err());
    // Fewer files alone are a change, also below a folder.
    assert!(put(&dir, &second[..2]).unwrap());
    assert!(put(&dir, &[]).unwrap());
    assert!(read(&dir).is_empty() && !put(&dir, &[]).unwrap());
}

#[test]
fn modes_and_owners_are_exact() {
    let place = Place::without_mounts();
    let dir = place.dir("volume");
    let own = rustix::process::getuid().as_raw();
    let owner = if own == 0 { 1234 } else { own };
    let mut files = payload(&[("a", "1"), ("dir/b", "2")]);
    for (mode, file) in [0o4466, 0o400].into_iter().zip(files.values_mut()) {
        (file.mode, file.owner) = (mode, Some(owner));
    }
    let mut prepared = PathBuf::new();
    let hook = |folder: &Path| {
        assert!(folder.join("dir/b").exists() && !dir.join("..data").exists());
        folder.clone_into(&mut prepared);
        Ok(())
    };
    write(&dir, &files, now(), &SystemMounts::default(), hook).unwrap();
    assert_eq!(prepared.parent(), Some(&*dir));
    for (path, mode) in [("a", 0o4466), ("dir/b", 0o400), ("..data/", 0o755)] {
        let found = fs::metadata(dir.join(path)).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, mode, "{path}");
        assert!(path == "..data/" || found.uid() == owner);
    }
    assert_eq!(fs::symlink_metadata(dir.join("dir")).unwrap().uid(), owner);
    // A change of a mode alone is none.
    files.values_mut().for_each(|file| file.mode = 0o644);
    assert!(!write(&dir, &files, now(), &SystemMounts::default(), |_| Ok(())).unwrap());
}

#[test]
fn paths_that_cannot_be_are_named_and_nothing_is_written() {
    let place = Place::without_mounts();
    let dir = place.dir("volume");
    let (long_name, long_path) = ("n".repeat(256), "d/".repeat(2048) + "f");
    for path in [
        "", ".", "/etc/x", "a/../b", "..", "..data", "..a/b", "./..x", "a\0b", &long_name, &long_path,
    ] {
        let error = put(&dir, &[("fine", "x"), (path, "x")]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        assert!(error.to_string().contains(&format!("{path:?}")), "{error}");
    }
    let error = put(&dir, &[("a/b", "x"), ("a/b/c/d", "x")]).unwrap_err();
    assert!(
        error.to_string().contains("\"a/b/c/d\"") && error.to_string().contains("\"a/b\""),
        "{error}"
    );
    assert_eq!(dir.read_dir().unwrap().count(), 0);
    put(&dir, &[("./a//b/", "x"), ("x/..y", "z")]).unwrap();
    assert_eq!(read(&dir), text(&[("a/b", "x"), ("x/..y", "z")]));
}

#[test]
fn a_failure_leaves_the_old_files_and_nothing_else() {
    let place = Place::without_mounts();
    let dir = place.dir("volume");
    put(&dir, &[("a", "old")]).unwrap();
    let refuse = |_: &Path| Err(io::Error::other("no group"));
    let failed = write(&dir, &payload(&[("b", "new")]), now(), &SystemMounts::default(), refuse);
    assert_eq!(failed.unwrap_err().to_string(), "no group");
    assert_eq!((read(&dir), hidden(&dir).len()), (text(&[("a", "old")]), 1));
    assert!(put(&dir.join("none"), &[]).unwrap_err().to_string().contains("none"));
}

#[test]
fn a_full_disk_leaves_the_old_files_and_nothing_else() {
    let Some(place) = Place::new("a full disk") else { return };
    let dir = place.dir("volume");
    let mounts = SystemMounts::default();
    mounts
        .mount("tmpfs", "tmpfs", &dir, &MountOptions::default(), "size=64k")
        .unwrap();
    put(&dir, &[("a", "old"), ("b", "old")]).unwrap();
    let big = "x".repeat(100_000);
    let error = put(&dir, &[("a", "new"), ("b", &big)]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(error.to_string().contains("/b: "), "{error}");
    assert_eq!(
        (read(&dir), hidden(&dir).len()),
        (text(&[("a", "old"), ("b", "old")]), 1)
    );
    assert!(put(&dir, &[("a", "new"), ("b", "new")]).unwrap());
}

#[test]
fn what_is_not_ours_is_left_alone_and_what_was_damaged_is_written_anew() {
    let place = Place::without_mounts();
    let dir = place.dir("volume");
    let elsewhere = place.dir("elsewhere");
    fs::write(elsewhere.join("a"), "1").unwrap();
    put(&dir, &[("a", "1"), ("b", "2")]).unwrap();
    let folder = dir.join(fs::read_link(dir.join("..data")).unwrap());
    // A link in the place of a file, though to the same content.
    fs::remove_file(folder.join("a")).unwrap();
    symlink(elsewhere.join("a"), folder.join("a")).unwrap();
    assert!(put(&dir, &[("a", "1"), ("b", "2")]).unwrap());
    // A folder in the place of a file.
    let folder = dir.join(fs::read_link(dir.join("..data")).unwrap());
    fs::remove_file(folder.join("a")).unwrap();
    fs::create_dir(folder.join("a")).unwrap();
    assert!(put(&dir, &[("a", "1"), ("b", "2")]).unwrap());
    assert_eq!(read(&dir), text(&[("a", "1"), ("b", "2")]));
    // And the other way round.
    put(&dir, &[("a/c", "1")]).unwrap();
    let folder = dir.join(fs::read_link(dir.join("..data")).unwrap());
    fs::remove_dir_all(folder.join("a")).unwrap();
    fs::write(folder.join("a"), "1").unwrap();
    assert!(put(&dir, &[("a/c", "1")]).unwrap());
    assert_eq!(read(&dir), text(&[("a/c", "1")]));
    // A link that leads elsewhere: neither compared with nor removed.
    fs::remove_file(dir.join("..data")).unwrap();
    symlink("../elsewhere", dir.join("..data")).unwrap();
    fs::write(dir.join("strange"), "x").unwrap();
    symlink("strange", dir.join("link")).unwrap();
    assert!(put(&dir, &[("a", "1")]).unwrap());
    assert!(elsewhere.join("a").exists() && dir.join("link").exists());
    assert_eq!(hidden(&dir).len(), 1);
}

#[test]
fn more_files_than_are_synced_one_by_one() {
    let place = Place::without_mounts();
    let dir = place.dir("volume");
    let names: Vec<String> = (0..100).map(|index| format!("d{}/{index}", index % 3)).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    put(&dir, &files).unwrap();
    assert_eq!(read(&dir).len(), 100);
    assert!(!put(&dir, &files).unwrap());
}

/// Two sets, of which no mixture may ever be read.
const OLD: [(&str, &str); 3] = [("a", "old"), ("dir/b", "old"), ("only-old", "old")];
const NEW: [(&str, &str); 3] = [("a", "new"), ("dir/b", "new"), ("only-new", "new")];

/// What is read through `..data` is one set whole; tells which.
fn one_set(dir: &Path) -> Vec<(String, String)> {
    let found = read(&dir.join("..data/"));
    assert!(found == text(&OLD) || found == text(&NEW), "{found:?}");
    found
}

#[test]
fn stopped_at_each_step_all_is_old_or_all_is_new() {
    let place = Place::without_mounts();
    let dir = place.dir("volume");
    put(&dir, &OLD).unwrap();
    let mut seen = Vec::new();
    let steps = crash::panic_at_each(
        || {
            put(&dir, &NEW).unwrap();
        },
        |step| {
            seen.push(one_set(&dir));
            // The next one heals it, back to the old files as well as on to the new.
            put(&dir, &OLD).unwrap();
            assert_eq!((read(&dir), hidden(&dir).len()), (text(&OLD), 1), "{step}");
            assert!(!put(&dir, &OLD).unwrap());
        },
    );
    assert_eq!((read(&dir), hidden(&dir).len()), (text(&NEW), 1));
    assert!(steps.len() >= 10, "{steps:?}");
    assert!(seen.contains(&text(&OLD)) && seen.contains(&text(&NEW)));
}

#[test]
fn killed_at_each_step_all_is_old_or_all_is_new() {
    let place = Place::without_mounts();
    let dir = place.dir("volume");
    put(&dir, &OLD).unwrap();
    let work = |dir: &Path| {
        put(dir, &NEW).unwrap();
    };
    let test = "ground::atomic_writer::tests::killed_at_each_step_all_is_old_or_all_is_new";
    let steps = crash::kill_at_each(test, &dir, work, |_| {
        one_set(&dir);
        put(&dir, &OLD).unwrap();
        assert_eq!((read(&dir), hidden(&dir).len()), (text(&OLD), 1));
    });
    if let Some(steps) = steps {
        assert!(steps >= 10, "{steps}");
        assert_eq!((read(&dir), hidden(&dir).len()), (text(&NEW), 1));
    }
}

#[test]
fn a_reader_never_sees_a_mixture() {
    let place = Place::without_mounts();
    let dir = place.dir("volume");
    put(&dir, &OLD).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        let reader = threads.spawn(|| {
            let mut reads = 0_u32;
            while !stop.load(Ordering::Relaxed) || reads == 0 {
                // Who holds the folder that the link leads to reads one set.
                let Ok(folder) = fs::canonicalize(dir.join("..data")) else {
                    continue; // Removed between the link and what it led to.
                };
                let texts = ["a", "dir/b"].map(|name| fs::read_to_string(folder.join(name)));
                if let [Ok(a), Ok(b)] = texts {
                    assert_eq!(a, b);
                    reads += 1;
                }
                // And the names are there all the time.
                let text = fs::read_to_string(dir.join("a"));
                assert!(
                    text.as_deref()
                        .map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |text| !text.is_empty())
                );
            }
            reads
        });
        for round in 0..100 {
            put(&dir, if round % 2 == 0 { &NEW } else { &OLD }).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}
