use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{MountOptions, Mounts, SystemMounts, attach_by_path, open_target};
use crate::ground::mounts::testing::Place;
use crate::ground::mounts::unmount_all;

#[test]
fn a_folder_is_bound_and_unmounted() {
    let Some(place) = Place::new("binding a folder") else {
        return;
    };
    let (source, target) = (place.dir("source"), place.dir("target"));
    fs::write(source.join("file"), "x").unwrap();
    let mounts = SystemMounts::default();
    assert!(!mounts.is_mount_point(&target).unwrap());
    mounts.unmount(&target).unwrap();
    mounts.bind(&source, &target, &MountOptions::default()).unwrap();
    assert!(target.join("file").exists() && mounts.is_mount_point(&target).unwrap());
    let table = mounts.table().unwrap();
    assert!(table.is_mount_point(&target));
    assert_eq!(table.refs(&source)[0].target, target);
    mounts.unmount(&target).unwrap();
    assert!(!mounts.is_mount_point(&target).unwrap());
    mounts.unmount(&target).unwrap();
    mounts.unmount(&place.path("none")).unwrap();
    assert!(!mounts.is_mount_point(&place.path("none")).unwrap());
}

#[test]
fn a_bind_keeps_the_options_of_its_source() {
    let Some(place) = Place::new("options of a bind") else {
        return;
    };
    let (source, target) = (place.dir("source"), place.dir("target"));
    let mounts = SystemMounts::default();
    let strict = MountOptions::parse(["nosuid", "nodev", "noexec", "noatime"]);
    mounts
        .mount("tmpfs", "tmpfs", &source, &strict, "size=64k,mode=0700")
        .unwrap();
    mounts.bind(&source, &target, &MountOptions::read_only()).unwrap();
    let table = mounts.table().unwrap();
    let of = |path: &Path| table.at(path).unwrap().options.clone();
    assert_eq!(of(&target), "ro,nosuid,nodev,noexec,noatime");
    assert_eq!(of(&source), "rw,nosuid,nodev,noexec,noatime");
    assert!(table.at(&source).unwrap().super_options.contains("size=64k"));
    assert_eq!(
        fs::write(target.join("x"), "x").unwrap_err().kind(),
        io::ErrorKind::ReadOnlyFilesystem
    );
    fs::write(source.join("x"), "x").unwrap();
}

#[test]
fn a_file_is_bound_by_its_descriptor_though_its_name_is_gone() {
    let Some(place) = Place::new("binding a file") else {
        return;
    };
    let (source, target) = (place.path("source"), place.path("target"));
    fs::write(&source, "first").unwrap();
    fs::write(&target, "").unwrap();
    let opened = open_target(&source).unwrap();
    fs::rename(&source, place.path("moved")).unwrap();
    symlink("/etc/passwd", &source).unwrap();
    let mounts = SystemMounts::default();
    mounts
        .bind_fd(opened.as_fd(), &target, &MountOptions::read_only())
        .unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "first");
    assert!(fs::write(&target, "no").is_err());
    // The descriptor is of the original: it holds nothing.
    mounts.unmount(&target).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "");
}

#[test]
fn links_and_other_kinds_are_no_targets() {
    let Some(place) = Place::new("targets of mounts") else {
        return;
    };
    let (source, target) = (place.dir("source"), place.dir("target"));
    symlink(&target, place.path("link")).unwrap();
    fs::write(place.path("file"), "").unwrap();
    let mounts = SystemMounts::default();
    for name in ["link", "file", "none"] {
        let error = mounts
            .bind(&source, &place.path(name), &MountOptions::default())
            .unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
    let link = place.path("link");
    let error = mounts.mount("tmpfs", "tmpfs", &link, &MountOptions::default(), "");
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is a link"), "{error}");
    let error = mounts.mount("tmpfs", "tmpfs", &target, &MountOptions::default(), "nonsense=1");
    assert!(error.unwrap_err().to_string().contains("cannot mount tmpfs at"));
    // Through a link nothing is unmounted either.
    mounts.bind(&source, &target, &MountOptions::default()).unwrap();
    mounts.unmount(&link).unwrap();
    assert!(mounts.is_mount_point(&target).unwrap() && !mounts.is_mount_point(&link).unwrap());
}

#[test]
fn what_is_in_use_stays_mounted_and_says_so() {
    let Some(place) = Place::new("a mount in use") else {
        return;
    };
    let (source, target) = (place.dir("source"), place.dir("target"));
    let mounts = SystemMounts::default();
    mounts.bind(&source, &target, &MountOptions::default()).unwrap();
    let user = fs::File::create(target.join("file")).unwrap();
    let error = mounts.unmount(&target).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("target: busy"), "{error}");
    drop(user);
    mounts.unmount(&target).unwrap();
}

#[test]
fn mounts_below_come_along_only_if_asked() {
    let Some(place) = Place::new("a recursive bind") else {
        return;
    };
    let (source, plain, deep) = (place.dir("source"), place.dir("plain"), place.dir("deep"));
    let inner = place.dir("source/inner");
    let mounts = SystemMounts::default();
    mounts
        .mount("tmpfs", "tmpfs", &inner, &MountOptions::default(), "")
        .unwrap();
    fs::write(inner.join("file"), "").unwrap();
    mounts.bind(&source, &plain, &MountOptions::default()).unwrap();
    mounts.bind(&source, &deep, &MountOptions::parse(["rbind"])).unwrap();
    assert!(!plain.join("inner/file").exists() && deep.join("inner/file").exists());
    mounts.bind(&source, &deep, &MountOptions::default()).unwrap();
    let below: Vec<_> = mounts
        .table()
        .unwrap()
        .at_or_below(&deep)
        .into_iter()
        .cloned()
        .collect();
    assert_eq!(below.len(), 3);
    mounts.unmount(&deep).unwrap();
    mounts.unmount(&deep.join("inner")).unwrap();
    unmount_all(&mounts, &deep).unwrap();
}

#[test]
fn a_folder_is_shared_once() {
    let Some(place) = Place::new("a shared folder") else {
        return;
    };
    let (root, other) = (place.dir("root/pods"), place.dir("other"));
    let mounts = SystemMounts::default();
    // On machines where all is shared there is nothing to do.
    let was_shared = mounts
        .table()
        .unwrap()
        .holder(place.root())
        .unwrap()
        .peer_group
        .is_some();
    let root = root.parent().unwrap();
    assert_eq!(mounts.make_shared(root).unwrap(), !was_shared);
    assert!(!mounts.make_shared(root).unwrap());
    mounts.bind(root, &other, &MountOptions::default()).unwrap();
    mounts
        .mount("tmpfs", "tmpfs", &root.join("pods"), &MountOptions::default(), "")
        .unwrap();
    assert!(mounts.is_mount_point(&other.join("pods")).unwrap());
}

#[test]
fn the_old_call_binds_as_well() {
    let Some(place) = Place::new("the old call to mount") else {
        return;
    };
    let (source, target) = (place.dir("source"), place.dir("target"));
    let (from, to) = (open_target(&source).unwrap(), open_target(&target).unwrap());
    attach_by_path(from.as_fd(), &to, false).unwrap();
    let root = super::open_mount_root(&target).unwrap();
    super::adapt(&root, &MountOptions::read_only()).unwrap();
    assert!(fs::write(target.join("x"), "").is_err());
    assert!(super::open_mount_root(&source).is_err());
}

#[test]
fn file_systems_with_a_program_are_mounted_by_it() {
    let mounts = SystemMounts {
        systemd: false,
        ..SystemMounts::default()
    };
    assert!(mounts.needs_program("nfs4") && mounts.needs_program("fuse.sshfs"));
    assert!(!mounts.needs_program("tmpfs") && !mounts.needs_program("ext4"));
    let options = MountOptions::parse(["ro", "nfsvers=4.1"]);
    let (program, args) = mounts.program("nfs", "server:/x", "/pods/v", &options.program_text(""));
    assert_eq!(program, "mount");
    assert_eq!(
        args,
        ["-t", "nfs", "-o", "ro,nfsvers=4.1", "--", "server:/x", "/pods/v"]
    );
    let (program, args) = SystemMounts {
        systemd: true,
        ..mounts
    }
    .program("nfs", "s:/x", "/pods/v", "");
    assert_eq!(program, "systemd-run");
    assert_eq!(
        args[1..],
        ["--scope", "--", "mount", "-t", "nfs", "--", "s:/x", "/pods/v"]
    );
}

#[test]
fn the_program_of_a_file_system_says_why_it_fails() {
    let Some(place) = Place::new("the program of a file system") else {
        return;
    };
    let target = place.dir("target");
    let mounts = SystemMounts::default();
    let error = mounts
        .mount("fuse.nothing", "nothing", &target, &MountOptions::default(), "")
        .unwrap_err();
    assert!(error.to_string().contains("target: ended with code"), "{error}");
    assert!(!mounts.is_mount_point(&target).unwrap());
}
