//! Having the volumes of a pod gone: by what is found on disk, so that it does not matter which life of the agent made them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use futures::FutureExt as _;
use futures::future::join_all;
use kubelet_core::{PodUid, VolumeError, error_chain};

use super::Shared;
use super::paths;
use crate::ground::crash::step;
use crate::ground::failure::at;
use crate::ground::folders::{remove_emptied, remove_link, unmount_below};
use crate::ground::mounts::Mounts;
use crate::ground::sub_path;
use crate::plugin::{PluginNode, TearDown, VolumeFault, VolumeMode, blocking};
use crate::turns::About;

/// A volume of which something is left: its mode, the folder that is named for its plugin, and its own folder.
type Left = (VolumeMode, String, String);

/// All that is left of the volumes of a pod.
#[derive(Debug, Default)]
struct Leftovers {
    volumes: BTreeSet<Left>,
    /// The volumes, by the names of their folders, of which parts may be mounted.
    parts: Vec<String>,
}

impl Shared {
    pub(super) async fn unmount(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let node = self.node()?;
        if !paths::is_folder_name(uid.as_str()) {
            return Ok(());
        }
        self.pods.begin_to_go(uid);
        let failed =
            |fault: VolumeFault| VolumeError::failed(format!("cannot clear up after volumes of pod {uid}"), fault);
        // What an earlier call began, and nobody waits for, may make a folder yet.
        loop {
            let is_any_late = self.turns.is_any_of(uid);
            self.clear_up(node, uid).await.map_err(failed)?;
            if !is_any_late {
                break;
            }
            let ends = self.turns.none_of(uid).map(Ok);
            self.within_limit(ends).await.map_err(failed)?;
        }
        let known = self.pods.lock().remove(uid);
        for volume in known.into_iter().flat_map(|pod| pod.volumes.into_values()) {
            self.watches.follow(uid, &volume.objects, &BTreeMap::new());
        }
        Ok(())
    }

    /// Has all gone that is found on disk.
    async fn clear_up(&self, node: &PluginNode, uid: &PodUid) -> Result<(), VolumeFault> {
        let pod_dir = node.pod_dir(uid);
        let (at, mounts) = (pod_dir.clone(), node.mounts.clone());
        self.within_limit(on_disk(move || unmount_around(&*mounts, &at)))
            .await?;
        let at = pod_dir.clone();
        let left = on_disk(move || Leftovers::find(&at)).await?;
        let parts = left.parts.iter();
        let parts = parts.map(|name| self.within_limit(self.part_gone(node, uid, name)));
        fail_with(join_all(parts).await)?;
        step("no part of a volume is mounted any more");
        let volumes = left.volumes.iter();
        let volumes = volumes.map(|of| self.within_limit(self.tear_down(node, uid, of)));
        fail_with(join_all(volumes).await)?;
        step("the volumes are torn down");
        // What plugins keep beside goes with their volumes. Of a volume that was made or removed by half only that is left.
        let at = pod_dir.clone();
        let scratch = on_disk(move || scratch(&at)).await?;
        let volumes = scratch.iter();
        let volumes = volumes.map(|of| self.within_limit(self.tear_down(node, uid, of)));
        fail_with(join_all(volumes).await)?;
        on_disk(move || remove_folders(&pod_dir)).await
    }

    /// Fails what takes too long. A thread that hangs keeps the turn of its volume, and the next try waits for that.
    async fn within_limit(&self, work: impl Future<Output = Result<(), VolumeFault>>) -> Result<(), VolumeFault> {
        let limit = self.settings.patience;
        let late = |_| VolumeFault::new(format!("not done within {limit:?}"));
        tokio::time::timeout(limit, work).await.map_err(late)?
    }

    /// Has the mounted parts of a volume gone.
    async fn part_gone(&self, node: &PluginNode, uid: &PodUid, name: &str) -> Result<(), VolumeFault> {
        let turn = self.turns.take(&About::volume(uid, name)).await;
        let (pod_dir, mounts, name) = (node.pod_dir(uid), node.mounts.clone(), name.to_owned());
        blocking(turn, move |_| sub_path::clean_up(&pod_dir, &name, &*mounts)).await
    }

    async fn tear_down(&self, node: &PluginNode, uid: &PodUid, of: &Left) -> Result<(), VolumeFault> {
        let (mode, folder, name) = of;
        let plugin_name = paths::unescaped(folder);
        let pod_dir = node.pod_dir(uid);
        let dir = paths::volume(&pod_dir, *mode, &plugin_name, name);
        let scratch = paths::scratch(&pod_dir, &plugin_name, name);
        let turn = self.turns.take(&About::volume(uid, name)).await;
        let Some(plugin) = self.plugin_named(&plugin_name) else {
            let mounts = node.mounts.clone();
            let is_device = *mode == VolumeMode::Block;
            return blocking(turn, move |_| {
                if is_device {
                    // What it leads to is nobody's to touch.
                    remove_link(&dir)?;
                }
                foreign_gone(&*mounts, &dir, &scratch)
            })
            .await;
        };
        let cx = TearDown {
            node,
            uid,
            name,
            mode: *mode,
            dir: &dir,
            scratch: &scratch,
            turn: &turn,
        };
        let gone = plugin.tear_down(&cx).await;
        gone.map_err(|fault| VolumeFault::of(format!("cannot tear down volume {name:?} of {plugin_name}"), fault))
    }
}

/// All that failed, in one text.
fn fail_with(outcomes: Vec<Result<(), VolumeFault>>) -> Result<(), VolumeFault> {
    let failed: Vec<String> = outcomes
        .into_iter()
        .filter_map(|outcome| Some(error_chain(&outcome.err()?)))
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(VolumeFault::new(failed.join("; ")))
    }
}

pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, VolumeFault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| VolumeFault::new(error.to_string())),
        Err(error) => Err(VolumeFault::of("work on volumes ended early", error)),
    }
}

impl Leftovers {
    fn find(pod_dir: &Path) -> io::Result<Self> {
        let mut left = Self::default();
        for mode in [VolumeMode::Filesystem, VolumeMode::Block] {
            let of_mode = pod_dir.join(paths::folder(mode));
            for folder in names_in(&of_mode)? {
                let inside = names_in(&of_mode.join(&folder))?;
                left.volumes
                    .extend(inside.into_iter().map(|name| (mode, folder.clone(), name)));
            }
        }
        left.parts = sub_path::volumes(pod_dir)?;
        Ok(left)
    }
}

/// The folders around volumes: those for all of a pod's, and in them those of each plugin.
fn around(pod_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for name in [
        paths::folder(VolumeMode::Filesystem),
        paths::folder(VolumeMode::Block),
        "plugins",
    ] {
        let dir = pod_dir.join(name);
        all.extend(names_in(&dir)?.into_iter().map(|folder| dir.join(folder)));
        all.push(dir);
    }
    Ok(all)
}

/// Unmounts what is mounted at the folders around volumes: what is in that is none of the pod's.
fn unmount_around(mounts: &dyn Mounts, pod_dir: &Path) -> io::Result<()> {
    // Once more after the outer ones: others may come to light.
    for _ in 0..2 {
        for dir in around(pod_dir)? {
            if mounts.is_mount_point(&dir)? {
                unmount_below(mounts, &dir)?;
            }
        }
    }
    Ok(())
}

/// The volumes of which something is kept beside.
fn scratch(pod_dir: &Path) -> io::Result<Vec<Left>> {
    let plugins = pod_dir.join("plugins");
    let mut found = Vec::new();
    for folder in names_in(&plugins)? {
        let names = names_in(&plugins.join(&folder))?;
        found.extend(
            names
                .into_iter()
                .map(|name| (VolumeMode::Filesystem, folder.clone(), name)),
        );
    }
    Ok(found)
}

/// The names in a folder; none if it is not there, or is none. A link to a folder is none.
pub(super) fn names_in(dir: &Path) -> io::Result<Vec<String>> {
    let is_dir = match fs::symlink_metadata(dir) {
        Ok(found) => found.is_dir(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(at("cannot look at", dir, error)),
    };
    if !is_dir {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| at("cannot read", dir, error))? {
        let entry = entry.map_err(|error| at("cannot read", dir, error))?;
        match entry.file_name().into_string() {
            Ok(name) => names.push(name),
            Err(name) => {
                let path = dir.join(name);
                let why = io::Error::other("its name was not given by an agent");
                return Err(at("cannot clear up", &path, why));
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Has gone what no plugin of this agent made: what is mounted there is unmounted, empty folders go, and anything else stays.
fn foreign_gone(mounts: &dyn Mounts, dir: &Path, scratch: &Path) -> io::Result<()> {
    for path in [dir, scratch] {
        unmount_below(mounts, path)?;
        remove_emptied(path)?;
    }
    Ok(())
}

/// Removes the folders around volumes, which are empty now.
fn remove_folders(pod_dir: &Path) -> io::Result<()> {
    around(pod_dir)?.iter().try_for_each(|dir| remove_emptied(dir))
}
