//! Folders that say whose they are, so that what a dead process left can be found and removed.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use crate::containerd::error::ComponentError;
use crate::containerd::processes::start_time;

/// Where all folders of this user are. It does not follow `TMPDIR`: what one run left must be found by the next one.
fn parent() -> PathBuf {
    PathBuf::from(format!("/tmp/kubelet-test-{}", geteuid().as_raw()))
}

/// Holds the lock over all folders until it is dropped, or its process has died.
#[derive(Debug)]
pub(crate) struct Lock {
    _parent: File,
}

impl Lock {
    /// Waits for the lock.
    pub(crate) fn take() -> Result<Self, ComponentError> {
        let path = parent();
        let attempt = || -> io::Result<Self> {
            match DirBuilder::new().mode(0o711).create(&path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let parent = File::open(&path)?;
            flock(&parent, FlockOperation::LockExclusive)?;
            Ok(Self { _parent: parent })
        };
        attempt().map_err(ComponentError::io(format!("lock {}", path.display())))
    }

    /// Makes a folder of this process.
    pub(crate) fn make(&self, kind: &str) -> Result<PathBuf, ComponentError> {
        let pid = process::id();
        let start = start_time(pid).unwrap_or_default();
        for number in 0_u32.. {
            let folder = parent().join(format!("{kind}-{pid}-{start}-{number}"));
            match DirBuilder::new().mode(0o711).create(&folder) {
                Ok(()) => return Ok(folder),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(ComponentError::failed(format!("make {}", folder.display()), error)),
            }
        }
        Err(ComponentError::failed("make a folder", "there are too many"))
    }

    /// All folders, whoever made them.
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(parent()).into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        folders.sort();
        folders
    }

    /// The folders of processes that live no more.
    pub(crate) fn abandoned(&self) -> Vec<PathBuf> {
        let mut folders = self.all();
        folders.retain(|folder| owner(folder).is_some_and(|(pid, start)| start_time(pid) != Some(start)));
        folders
    }
}

/// Who made a folder, and when that process was started; nothing for what is not one of these folders.
fn owner(folder: &Path) -> Option<(u32, u64)> {
    let mut parts = folder.file_name()?.to_str()?.rsplit('-').skip(1);
    let start = parts.next()?.parse().ok()?;
    Some((parts.next()?.parse().ok()?, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_tells_its_owner() {
        assert_eq!(owner(Path::new("/tmp/containerd-17-4242-0")), Some((17, 4242)));
        assert_eq!(owner(Path::new("/tmp/other")), None);
        assert_eq!(owner(Path::new("/tmp/not-a-number-0")), None);
    }

    #[test]
    fn a_folder_of_a_living_process_is_not_abandoned() {
        let lock = Lock::take().unwrap();
        let folder = lock.make("folder").unwrap();
        assert!(lock.all().contains(&folder));
        assert!(!lock.abandoned().contains(&folder));
        fs::remove_dir(&folder).unwrap();
    }
}
