//! The folder that a pod sees a local volume at.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::super::group::Teller;
use super::disk::{SharedMount, is_protected};
use crate::ground::command::Tools;
use crate::ground::crash::step;
use crate::ground::failure::{at, refused};
use crate::ground::folders::{make_dir, remove_emptied, unmount_below};
use crate::ground::mounts::{MountOptions, Mounts, unmount_all};
use crate::ground::ownership::Group;
use crate::plugin::Ownership;

/// What is to be seen where.
pub(super) struct Place {
    pub(super) volume: String,
    pub(super) dir: PathBuf,
    /// A folder or a disk, links resolved.
    pub(super) source: PathBuf,
    pub(super) shared: SharedMount,
    pub(super) fs_type: String,
    pub(super) options: MountOptions,
    /// Whether this pod does not write it.
    pub(super) read_only: bool,
    pub(super) ownership: Ownership,
}

impl Place {
    /// Has it there. The last step is the one by which a later life of the agent sees that all was done.
    pub(super) fn make(
        &self,
        tools: &dyn Tools,
        mounts: &dyn Mounts,
        teller: &Teller,
        given_up: &AtomicBool,
    ) -> io::Result<()> {
        let found = fs::metadata(&self.source).map_err(|error| at("cannot look at", &self.source, error))?;
        let is_disk = found.file_type().is_block_device();
        if !found.is_dir() && !is_disk {
            let why = "is neither: only directories and block devices are supported as local volumes";
            return Err(refused(&self.source, why));
        }
        // First: by it a disk is known to be used.
        make_dir(&self.dir, 0o750)?;
        step("a pod has a folder");
        let source = if is_disk {
            self.mount_disk(tools, mounts)?
        } else {
            self.source.clone()
        };
        step("the source is there");
        self.give(mounts, &source, teller, given_up)?;
        step("the files have their group");
        let mut options = self.options.clone();
        options.read_only |= self.read_only;
        mounts.bind(&source, &self.dir, &options)
    }

    /// Mounts the disk for all its pods: what one of them may not do others may.
    fn mount_disk(&self, tools: &dyn Tools, mounts: &dyn Mounts) -> io::Result<PathBuf> {
        let mut options = self.options.clone();
        options.read_only |= self.read_only && is_protected(&self.source);
        let uid = self.uid();
        self.shared.make(
            (tools, mounts),
            (&self.source, &self.fs_type, &options, self.read_only),
            &uid,
        )
    }

    /// The pod that the folder is in.
    fn uid(&self) -> String {
        let inside = self.dir.strip_prefix(&self.shared.pods_dir).ok();
        let first = inside.and_then(|inside| inside.components().next());
        first
            .map(|uid| uid.as_os_str().to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    /// Gives the files to the pod's group, unless another pod has them as they are.
    fn give(&self, mounts: &dyn Mounts, source: &Path, teller: &Teller, given_up: &AtomicBool) -> io::Result<()> {
        let Some(gid) = self.ownership.fs_group else {
            return Ok(());
        };
        if self.is_elsewhere(mounts, source)? {
            let found = fs::metadata(source).map_err(|error| at("cannot look at", source, error))?;
            if found.gid() != gid {
                let message = format!(
                    "The requested fsGroup is {gid}, but the volume {} has GID {}. The volume may not be shareable.",
                    self.volume,
                    found.gid()
                );
                teller.warn("AlreadyMountedVolume", message);
            }
            return Ok(());
        }
        if self.read_only || self.options.read_only {
            return Ok(());
        }
        let group = Group {
            gid,
            read_only: false,
            policy: self.ownership.change,
        };
        teller.give(source, group, given_up)
    }

    /// Whether other pods have it.
    fn is_elsewhere(&self, mounts: &dyn Mounts, source: &Path) -> io::Result<bool> {
        let resolved = |path: &Path| path.canonicalize().map_err(|error| at("cannot resolve", path, error));
        let (pods, own) = (resolved(&self.shared.pods_dir)?, resolved(&self.dir)?);
        let table = mounts.table()?;
        let found = table.refs(source);
        Ok(found
            .iter()
            .any(|mount| mount.target.starts_with(&pods) && mount.target != own))
    }
}

/// Whether a pod's folder is mounted as it should be. The kernel binds first, and gives a mount its options then: a killed agent may
/// have left one that allows more than it should. That one is unmounted, unless something was mounted in it since.
pub(super) fn is_there(mounts: &dyn Mounts, dir: &Path, options: &MountOptions) -> io::Result<bool> {
    if !mounts.is_mount_point(dir)? {
        return Ok(false);
    }
    let real = dir.canonicalize().map_err(|error| at("cannot resolve", dir, error))?;
    let table = mounts.table()?;
    let Some(there) = table.at(&real) else {
        return Ok(true);
    };
    let has = |option: &str| there.options.split(',').any(|found| found == option);
    let is_less = |(wanted, option): (bool, &str)| wanted && !has(option);
    let limits = [
        (options.read_only, "ro"),
        (options.no_suid, "nosuid"),
        (options.no_dev, "nodev"),
        (options.no_exec, "noexec"),
    ];
    if !limits.into_iter().any(is_less) || !table.below(&real).is_empty() {
        return Ok(true);
    }
    unmount_all(mounts, dir)?;
    Ok(false)
}

/// Has the folder of a pod gone, and what is mounted for all pods if it was the last one.
pub(super) fn remove(mounts: &dyn Mounts, dir: &Path, shared: &SharedMount, uid: &str) -> io::Result<()> {
    unmount_below(mounts, dir)?;
    step("a pod's mount is gone");
    shared.remove_unused(mounts, Some(uid))?;
    step("the last mount is gone");
    // Last: as long as it is there all of this is done again.
    remove_emptied(dir)
}
