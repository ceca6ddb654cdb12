//! A place for tests that really mount.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Mounts as _, SystemMounts};

/// A folder in which all that is mounted is unmounted at the end, whether the test passed or not.
#[derive(Debug)]
pub(crate) struct Place {
    dir: tempfile::TempDir,
    root: PathBuf,
}

impl Place {
    /// Nothing, with the reason printed, where nothing can be mounted.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let place = Self::without_mounts();
        let probe = place.dir("probe");
        let mounts = SystemMounts::default();
        let tried = mounts.bind(&probe, &probe, &super::MountOptions::default());
        let unmounted = tried.and_then(|()| mounts.unmount(&probe));
        if let Err(error) = unmounted.and_then(|()| fs::remove_dir(&probe)) {
            kubelet_testing::contract::skip(test, &format!("nothing can be mounted here: {error}"));
            return None;
        }
        Some(place)
    }

    /// For tests that need no mount.
    pub(crate) fn without_mounts() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        Self { dir, root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Makes a folder, and those above it.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mounts = SystemMounts::default();
        let unmounted = mounts.table().and_then(|table| {
            let points = table.at_or_below(&self.root).into_iter();
            points
                .map(|point| mounts.unmount(&point.target))
                .fold(Ok(()), std::io::Result::and)
        });
        if let Err(error) = unmounted {
            // What is below a mount is not this test's: it stays.
            self.dir.disable_cleanup(true);
            eprintln!("{error}");
        }
    }
}
