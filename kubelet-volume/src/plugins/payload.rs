//! Volumes that are made from objects: files that are replaced as a whole.
//!
//! Source: kubelet 1.36, `secret/secret.go`, `configmap/configmap.go`, `projected/projected.go`.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, Permissions};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{empty_dir, memory, nested};
use crate::ground::atomic_writer::{self, FileProjection, Payload};
use crate::ground::crash::step;
use crate::ground::failure::at;
use crate::ground::folders::{make_dirs_within, remove_hollow};
use crate::ground::mounts::Mounts;
use crate::ground::ownership::{self, ChangePolicy, Group};
use crate::plugin::{Measure, Placed, PluginFeatures, Refresh, SetUp, TearDown, VolumeFault};

/// The mode of files of which nothing is said. The API fills that in; manifests may have come another way.
pub(super) const DEFAULT_MODE: i32 = 0o644;

/// Where files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// In memory, so that they are on no disk after the pod.
    Memory,
    Disk,
}

/// What all volumes of files can do.
pub(super) fn features(is_ephemeral: bool) -> PluginFeatures {
    PluginFeatures {
        measure: Measure::Files,
        is_ephemeral,
        ..PluginFeatures::default()
    }
}

/// A file with a mode as the API has it.
pub(super) fn file(bytes: impl Into<Vec<u8>>, mode: i32) -> FileProjection {
    FileProjection {
        bytes: bytes.into(),
        mode: u32::try_from(mode).unwrap_or_default() & 0o7777,
        owner: None,
    }
}

/// What a volume of files is made of.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) files: Payload,
    pub(super) refresh: Refresh,
    pub(super) again_at: Option<Instant>,
}

/// When what was made of an object is made again.
pub(super) fn refresh(is_final: bool) -> Refresh {
    if is_final { Refresh::Never } else { Refresh::Objects }
}

/// Puts files in the volume, all at once. Where they could not be had, what an earlier life of the agent wrote stays.
pub(super) async fn put(
    cx: &SetUp<'_>,
    backing: Backing,
    parts: Result<Parts, VolumeFault>,
) -> Result<Placed, VolumeFault> {
    let parts = match parts {
        Ok(parts) => parts,
        Err(fault) => return Err(or_what_is_there(cx, backing, fault).await),
    };
    let mut placed = place(cx, parts.files, backing).await?;
    placed.refresh = parts.refresh;
    placed.again_at = parts.again_at;
    Ok(placed)
}

fn placed(cx: &SetUp<'_>) -> Placed {
    let mut placed = Placed::at(cx.dir);
    placed.read_only = true;
    placed.selinux_relabel = true;
    placed
}

async fn place(cx: &SetUp<'_>, payload: Payload, backing: Backing) -> Result<Placed, VolumeFault> {
    let fingerprint = fingerprint(&payload, cx);
    let mut placed = placed(cx);
    placed.fingerprint = Some(fingerprint);
    if cx.is_repeated && cx.fingerprint == Some(fingerprint) {
        return Ok(placed);
    }
    let work = Work {
        dir: cx.dir.to_owned(),
        scratch: wrapped(cx.scratch, cx.volume.name()),
        backing,
        size: memory::size_bytes(cx.pod, &cx.node.context.node.now(), None),
        may_be_on_disk: cx.node.secrets_on_disk,
        nested: nested::mount_points(cx.pod, cx.volume.name()).into_iter().collect(),
        group: cx.ownership.fs_group,
        now: wall_time(cx),
        payload,
    };
    let mounts = cx.node.mounts.clone();
    cx.blocking(move |given_up| work.carry_out(&*mounts, given_up)).await?;
    Ok(placed)
}

/// What fails before anything is written is no reason to take away what an earlier life of the agent wrote.
async fn or_what_is_there(cx: &SetUp<'_>, backing: Backing, fault: VolumeFault) -> VolumeFault {
    if cx.is_repeated {
        return fault;
    }
    let (dir, mounts, on_disk) = (cx.dir.to_owned(), cx.node.mounts.clone(), cx.node.secrets_on_disk);
    let is_there = cx
        .blocking(move |_| {
            let is_kept = backing == Backing::Disk || on_disk || mounts.is_mount_point(&dir)?;
            Ok(is_kept && dir.join("..data").is_dir())
        })
        .await;
    if !is_there.unwrap_or(false) {
        return fault;
    }
    let mut placed = placed(cx);
    placed.refresh = Refresh::Objects;
    fault.but_there(placed)
}

/// What folders are named for.
fn wall_time(cx: &SetUp<'_>) -> SystemTime {
    let millis = u64::try_from(cx.node.context.clock.now().as_millisecond()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// Has the files of a volume gone.
pub(super) async fn remove(cx: &TearDown<'_>) -> Result<(), VolumeFault> {
    empty_dir::remove(cx, wrapped(cx.scratch, cx.name)).await
}

/// What is kept beside a volume of files: upstream has it among the scratch folders of emptyDirs.
fn wrapped(scratch: &Path, name: &str) -> PathBuf {
    // `plugins/<own name>/<volume>` -> `plugins`
    let plugins = scratch.ancestors().nth(2).unwrap_or(scratch);
    plugins
        .join(empty_dir::NAME.replace('/', "~"))
        .join(format!("wrapped_{name}"))
}

fn fingerprint(payload: &Payload, cx: &SetUp<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (path, file) in payload {
        (path, &file.bytes, file.mode, file.owner).hash(&mut hasher);
    }
    cx.ownership.fs_group.hash(&mut hasher);
    hasher.finish()
}

/// All that is done on disk.
#[derive(Debug)]
struct Work {
    dir: PathBuf,
    scratch: PathBuf,
    backing: Backing,
    size: Option<u64>,
    may_be_on_disk: bool,
    /// The folders that other mounts come to lie on.
    nested: Vec<PathBuf>,
    group: Option<u32>,
    now: SystemTime,
    payload: Payload,
}

impl Work {
    fn carry_out(&self, mounts: &dyn Mounts, given_up: &AtomicBool) -> io::Result<()> {
        let was_ready = empty_dir::is_ready(&self.scratch);
        empty_dir::make_folder(mounts, &self.dir, was_ready)?;
        if self.backing == Backing::Memory
            && let Err(error) = memory::mount(mounts, &self.dir, self.size)
        {
            let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
            if !(is_denied && self.may_be_on_disk) {
                return Err(error);
            }
            // For their owner alone.
            let mode = Permissions::from_mode(0o700);
            fs::set_permissions(&self.dir, mode).map_err(|error| at("cannot set the mode of", &self.dir, error))?;
        }
        empty_dir::mark_ready(&self.scratch)?;
        for point in &self.nested {
            make_dirs_within(&self.dir, point, 0o755)?;
            step("a folder for another mount is made");
        }
        self.make_way(mounts)?;
        let group = self.group;
        let dir = self.dir.clone();
        atomic_writer::write(&self.dir, &self.payload, self.now, mounts, move |_| match group {
            // All of it: also links, and what was there before, which is read until it is replaced.
            Some(gid) => {
                let group = Group {
                    gid,
                    read_only: true,
                    policy: ChangePolicy::Always,
                };
                ownership::apply_to_small(&dir, group, given_up).map(drop)
            }
            None => Ok(()),
        })?;
        Ok(())
    }

    /// Removes the folders that are in the way of files: a container that mounts a file by its sub path and starts while that is not
    /// there is given a folder in its place, which would keep the file from ever being seen.
    fn make_way(&self, mounts: &dyn Mounts) -> io::Result<()> {
        let first = |path: &str| Path::new(path).iter().next().map(Path::new).map(Path::to_owned);
        let names: BTreeSet<PathBuf> = self.payload.keys().filter_map(|path| first(path)).collect();
        for name in names {
            let is_plain = matches!(name.components().next(), Some(Component::Normal(_)));
            if is_plain && !self.nested.iter().any(|point| point.starts_with(&name)) {
                remove_hollow(mounts, &self.dir.join(name))?;
            }
        }
        Ok(())
    }
}
