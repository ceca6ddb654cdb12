//! Disks of the node, each mounted once for all pods that have it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kubelet_core::error_chain;
use rustix::fs::{major, minor};

use super::{FOLDER, NAME};
use crate::ground::command::Tools;
use crate::ground::crash::step;
use crate::ground::failure::{at, refused};
use crate::ground::folders::{any_pod, is_there, make_dir, make_dirs, unmount_below};
use crate::ground::format::{Content, Disk, content, format_and_mount};
use crate::ground::mount_table::MountPoint;
use crate::ground::mounts::{MountOptions, Mounts, unmount_all};
use crate::ground::removal::remove_empty;
use crate::plugin::PluginNode;
use crate::turns::About;

const MODE: u32 = 0o750;

/// Where a persistent volume is mounted for all its pods. Which pods have it is told by their folders alone: each makes its own
/// before it mounts, and removes it after it unmounted, so that it does not matter where an agent is killed.
#[derive(Clone, Debug)]
pub(super) struct SharedMount {
    mounts_dir: PathBuf,
    pub(super) pods_dir: PathBuf,
    volume: String,
}

impl SharedMount {
    pub(super) fn new(node: &PluginNode, volume: &str) -> Self {
        Self::below(&node.context.root_dir, volume)
    }

    pub(super) fn below(root_dir: &Path, volume: &str) -> Self {
        Self {
            mounts_dir: root_dir.join("plugins").join(NAME).join("mounts"),
            pods_dir: root_dir.join("pods"),
            volume: volume.to_owned(),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.mounts_dir.join(&self.volume)
    }

    /// Whether a pod has it, one other than `but`. One that cannot be looked at has.
    pub(super) fn is_used(&self, but: Option<&str>) -> io::Result<bool> {
        any_pod(&self.pods_dir, but, |pod| {
            Ok(is_there(&pod.join("volumes").join(FOLDER).join(&self.volume)))
        })
    }

    /// Has a disk mounted. Tells where, links resolved.
    pub(super) fn make(
        &self,
        (tools, mounts): (&dyn Tools, &dyn Mounts),
        (device, fs_type, options, is_only_read): (&Path, &str, &MountOptions, bool),
        uid: &str,
    ) -> io::Result<PathBuf> {
        make_dirs(&self.mounts_dir, MODE)?;
        make_dir(&self.path(), MODE)?;
        step("a disk has a folder");
        // Not the folder itself: a file system that is broken would not let it be looked at.
        let above = self.mounts_dir.canonicalize();
        let real = above
            .map_err(|error| at("cannot resolve", &self.mounts_dir, error))?
            .join(&self.volume);
        if let Some(there) = mounts.table()?.at(&real) {
            if is_of(there, device) {
                return Ok(real);
            }
            // A volume of that name was made of another disk before.
            if self.is_used(Some(uid))? {
                let why = format!("is {}, which other pods use", there.source.display());
                return Err(refused(&real, why));
            }
            unmount_all(mounts, &real)?;
            step("a former disk is unmounted");
        }
        if is_only_read && matches!(content(tools, device), Ok(Content::Nothing)) {
            // Nobody can have meant that: it is empty, and this pod writes nothing to it.
            let _ = remove_empty(&real);
            return Err(refused(
                device,
                "is an unformatted disk, and cannot be mounted read-only",
            ));
        }
        let disk = Disk {
            device,
            target: &real,
            fs_type,
            options,
            format_options: &[],
        };
        match format_and_mount(tools, mounts, &disk) {
            Ok(()) => Ok(real),
            Err(error) => {
                let _ = remove_empty(&real);
                Err(io::Error::other(error_chain(&error)))
            }
        }
    }

    /// Has it unmounted, unless a pod other than `but` has it.
    pub(super) fn remove_unused(&self, mounts: &dyn Mounts, but: Option<&str>) -> io::Result<()> {
        if self.is_used(but)? {
            return Ok(());
        }
        let path = self.path();
        unmount_below(mounts, &path)?;
        step("a disk is unmounted");
        if !remove_empty(&path)? {
            tracing::warn!(path = %path.display(), "holds what no agent made, and stays");
        }
        Ok(())
    }
}

/// Unmounts all disks that no pod has, but those that somebody is about to mount or unmount.
pub(super) fn sweep(node: &PluginNode) -> io::Result<()> {
    let dir = SharedMount::new(node, "").mounts_dir;
    let fail = |error| at("cannot read", &dir, error);
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(fail)?,
    };
    let mut outcome = Ok(());
    for entry in entries {
        // What has no name that a volume can have was not made by an agent.
        let Ok(name) = entry.map_err(fail)?.file_name().into_string() else {
            continue;
        };
        let shared = SharedMount::new(node, &name);
        if let Some(_turn) = node.turns.try_take(&About::Mount(shared.path())) {
            outcome = outcome.and(shared.remove_unused(&*node.mounts, None));
        }
    }
    outcome
}

/// Whether a disk is what is mounted.
fn is_of(there: &MountPoint, device: &Path) -> bool {
    // Some file systems have a number of their own, and tell their device by its name.
    let source = Path::new(&there.source);
    numbers(device).is_some_and(|numbers| numbers == there.device)
        || source == device
        || source.is_absolute() && source.canonicalize().is_ok_and(|source| source == device)
}

fn numbers(device: &Path) -> Option<(u32, u32)> {
    let number = fs::metadata(device).ok()?.rdev();
    (number != 0).then(|| (major(number), minor(number)))
}

/// Whether nothing can be written to a device, whoever tries.
pub(super) fn is_protected(device: &Path) -> bool {
    let told = numbers(device).and_then(|(major, minor)| {
        // What cannot be told is found out by mounting it.
        fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro")).ok()
    });
    told.is_some_and(|text| text.trim() == "1")
}
