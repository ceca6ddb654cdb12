//! How much a volume holds, and how much it could.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use rustix::fs::{Statx, statvfs};
use rustix::io::Errno;

use super::failure::at;
use super::walk::{Left, Place, Visit, look, walk};

/// `st_blocks` counts these, whatever the blocks of the file system are.
const BLOCK: u64 = 512;

/// How many files with more names than one are remembered: some MiB. Beyond that each further name counts.
const LINKED: usize = 1 << 17;

/// What a tree takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// What is allocated, holes left out.
    pub(crate) bytes: u64,
    /// Folders, the root among them, files and all else; each once, however many names it has.
    pub(crate) inodes: u64,
}

/// Adds up what is below a folder, and the folder, without what is mounted there. `pause` is called after every
/// `pause_after` entries, so that a large tree does not take the disk for itself.
///
/// # Errors
/// If a folder cannot be read; [`io::ErrorKind::Interrupted`] once `cancelled` is set.
pub(crate) fn usage(
    root: &Path,
    cancelled: &AtomicBool,
    pause_after: u64,
    pause: &mut dyn FnMut(),
) -> io::Result<Usage> {
    let mut sum = Sum {
        usage: Usage::default(),
        linked: HashSet::new(),
        linked_at_most: LINKED,
        seen: 0,
        pause_after,
        pause,
    };
    walk(root, cancelled, &mut sum)?;
    Ok(sum.usage)
}

struct Sum<'a> {
    usage: Usage,
    /// Files of which further names are to come.
    linked: HashSet<(u32, u32, u64)>,
    linked_at_most: usize,
    seen: u64,
    pause_after: u64,
    pause: &'a mut dyn FnMut(),
}

impl Sum<'_> {
    fn add(&mut self, found: &Statx) {
        self.usage.bytes = self.usage.bytes.saturating_add(found.stx_blocks.saturating_mul(BLOCK));
        self.usage.inodes += 1;
    }

    fn tick(&mut self) {
        self.seen += 1;
        if self.pause_after > 0 && self.seen.is_multiple_of(self.pause_after) {
            (self.pause)();
        }
    }

    fn is_counted(&mut self, found: &Statx) -> bool {
        let key = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
        if found.stx_nlink < 2 {
            return false;
        }
        if self.linked.len() < self.linked_at_most {
            return !self.linked.insert(key);
        }
        self.linked.contains(&key)
    }
}

impl Visit for Sum<'_> {
    fn entry(&mut self, place: &Place<'_>, name: &CStr) -> io::Result<()> {
        self.tick();
        match look(place.dir, name) {
            Ok(found) if place.is_within(&found) && !self.is_counted(&found) => self.add(&found),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(at("cannot look at", &place.path(name), error)),
        }
        Ok(())
    }

    fn enter(&mut self, _dir: BorrowedFd<'_>, found: &Statx) -> io::Result<()> {
        self.tick();
        self.add(found);
        Ok(())
    }

    fn leave(&mut self, _dir: BorrowedFd<'_>, _above: Option<(&Place<'_>, &CStr)>) -> io::Result<Left> {
        Ok(Left::Done)
    }

    fn mounted(&mut self, _place: &Place<'_>, _name: &CStr) -> io::Result<()> {
        Ok(())
    }
}

/// What a file system holds and could hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FsInfo {
    pub(crate) capacity_bytes: u64,
    /// For others than root.
    pub(crate) available_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
    pub(crate) inodes_used: u64,
}

/// Asks the file system that `path` is on.
pub(crate) fn fs_info(path: &Path) -> io::Result<FsInfo> {
    let found = statvfs(path).map_err(|error| at("cannot ask the file system of", path, error))?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(FsInfo {
        capacity_bytes: bytes(found.f_blocks),
        available_bytes: bytes(found.f_bavail),
        used_bytes: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
        inodes: found.f_files,
        inodes_free: found.f_ffree,
        inodes_used: found.f_files.saturating_sub(found.f_ffree),
    })
}

/// The size of a block device.
pub(crate) fn device_bytes(device: &Path) -> io::Result<u64> {
    let end = File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0)));
    end.map_err(|error| at("cannot find the size of", device, error))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;
    use std::io;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::{Sum, Usage, device_bytes, fs_info, usage, walk};
    use crate::ground::mounts::testing::Place;
    use crate::ground::mounts::{MountOptions, Mounts as _, SystemMounts};

    static RUN: AtomicBool = AtomicBool::new(false);

    fn of(root: &Path) -> Usage {
        usage(root, &RUN, 0, &mut || {}).unwrap()
    }

    fn allocated(path: &Path) -> u64 {
        fs::symlink_metadata(path).unwrap().blocks() * 512
    }

    #[test]
    fn what_is_allocated_counts_once() {
        let place = Place::without_mounts();
        let root = place.dir("volume");
        let dir = place.dir("volume/dir");
        let (file, sparse) = (dir.join("file"), root.join("sparse"));
        fs::write(&file, vec![1; 100_000]).unwrap();
        fs::File::create(&sparse).unwrap().set_len(1 << 30).unwrap();
        fs::hard_link(&file, root.join("same")).unwrap();
        symlink("/usr", root.join("link")).unwrap();
        let bytes = [&root, &dir, &file, &sparse, &root.join("link")]
            .map(|path| allocated(path))
            .iter()
            .sum();
        assert_eq!(of(&root), Usage { bytes, inodes: 5 });
        assert!((100_000..1 << 20).contains(&bytes));
    }

    #[test]
    fn names_beyond_what_is_remembered_count_each() {
        let place = Place::without_mounts();
        let root = place.dir("volume");
        for name in ["a", "b", "c"] {
            fs::write(root.join(name), "").unwrap();
            fs::hard_link(root.join(name), root.join(format!("{name}-too"))).unwrap();
        }
        let mut sum = Sum {
            usage: Usage::default(),
            linked: HashSet::new(),
            linked_at_most: 0,
            seen: 0,
            pause_after: 0,
            pause: &mut || {},
        };
        walk(&root, &RUN, &mut sum).unwrap();
        assert_eq!((sum.usage.inodes, of(&root).inodes), (7, 4));
    }

    #[test]
    fn other_mounts_do_not_count() {
        let Some(place) = Place::new("usage and mounts") else {
            return;
        };
        let (root, inner) = (place.dir("volume"), place.dir("volume/inner"));
        let elsewhere = place.dir("elsewhere");
        fs::write(elsewhere.join("file"), vec![1; 100_000]).unwrap();
        fs::write(root.join("file"), "").unwrap();
        let before = of(&root);
        let mounts = SystemMounts::default();
        mounts.bind(&elsewhere, &inner, &MountOptions::default()).unwrap();
        mounts
            .bind(&elsewhere.join("file"), &root.join("file"), &MountOptions::default())
            .unwrap();
        assert_eq!(of(&root).inodes, before.inodes - 2);
        assert!(of(&root).bytes <= before.bytes);
        assert_eq!(of(&inner).inodes, 2);
    }

    #[test]
    fn it_pauses_and_can_be_stopped() {
        let place = Place::without_mounts();
        let root = place.dir("volume");
        for index in 0..99 {
            fs::write(root.join(index.to_string()), "").unwrap();
        }
        let mut pauses = 0;
        usage(&root, &RUN, 10, &mut || pauses += 1).unwrap();
        assert_eq!(pauses, 10);
        let stopped = usage(&root, &AtomicBool::new(true), 0, &mut || {}).unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
        assert!(usage(&root.join("none"), &RUN, 0, &mut || {}).is_err());
    }

    #[test]
    fn a_file_system_tells_its_size() {
        let Some(place) = Place::new("the size of a file system") else {
            return;
        };
        let dir = place.dir("volume");
        let mounts = SystemMounts::default();
        let options = MountOptions::default();
        mounts
            .mount("tmpfs", "tmpfs", &dir, &options, "size=1m,nr_inodes=100")
            .unwrap();
        fs::write(dir.join("file"), vec![1; 100 << 10]).unwrap();
        let found = fs_info(&dir).unwrap();
        assert_eq!((found.capacity_bytes, found.inodes), (1 << 20, 100));
        assert_eq!(found.used_bytes + found.available_bytes, found.capacity_bytes);
        assert!(found.used_bytes >= 100 << 10 && found.inodes_used >= 2);
        assert_eq!(found.inodes_free + found.inodes_used, 100);
        assert!(fs_info(&dir.join("none")).unwrap_err().to_string().contains("none"));
        assert_eq!(device_bytes(&dir.join("file")).unwrap(), 100 << 10);
    }
}
