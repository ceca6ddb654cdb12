//! Folders and disks of the node as persistent volumes.
//!
//! Source: kubelet 1.36, `local/local.go`.

mod device;
mod disk;
mod place;
#[cfg(test)]
mod tests;

use std::path::{Component, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use super::group::Teller;
use crate::ground::command::SystemTools;
use crate::ground::failure::at;
use crate::ground::folders::{remove_emptied, remove_link};
use crate::ground::mounts::MountOptions;
use crate::plugin::{
    Measure, Placed, PluginFeatures, PluginNode, SetUp, TearDown, VolumeFault, VolumeMode, VolumePlugin, VolumeSpec,
};
use crate::turns::About;
use disk::SharedMount;
use place::Place;

/// The name, as that of a plugin and as folders have it.
const NAME: &str = "kubernetes.io/local-volume";
const FOLDER: &str = "kubernetes.io~local-volume";

/// How long making or checking a file system may take. To stop that early does more harm than to wait.
const TOOLS: SystemTools = SystemTools {
    limit: Duration::from_secs(60 * 60),
};

/// Persistent volumes of type `local`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local;

/// What is to be given, as the persistent volume and the claim say.
struct Wanted {
    path: PathBuf,
    fs_type: String,
    /// As the volume says; the pod may want less.
    options: MountOptions,
    read_only: bool,
}

fn wanted(volume: &VolumeSpec<'_>) -> Result<Wanted, VolumeFault> {
    let no_local = || VolumeFault::new("it is no local volume");
    let VolumeSpec::Persistent {
        volume: found,
        read_only,
    } = *volume
    else {
        return Err(no_local());
    };
    let source = found.spec.as_ref().and_then(|spec| spec.local.as_ref());
    let source = source.ok_or_else(no_local)?;
    let path = PathBuf::from(&source.path);
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(VolumeFault::new(format!(
            "path {:?} must not contain \"..\"",
            source.path
        )));
    }
    Ok(Wanted {
        path,
        fs_type: source.fs_type.clone().unwrap_or_default(),
        options: MountOptions::parse(volume.mount_options()),
        read_only,
    })
}

#[async_trait]
impl VolumePlugin for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        matches!(volume, VolumeSpec::Persistent { volume, .. } if volume.spec.as_ref().is_some_and(|spec| spec.local.is_some()))
    }

    fn features(&self) -> PluginFeatures {
        PluginFeatures {
            mount_options: true,
            block: true,
            measure: Measure::FileSystem,
            ..PluginFeatures::default()
        }
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let wanted = wanted(&cx.volume)?;
        let mut placed = Placed::at(cx.dir);
        placed.read_only = wanted.read_only;
        if cx.mode == VolumeMode::Block {
            let link = cx.dir.to_owned();
            cx.blocking(move |_| device::link(&wanted.path, &link)).await?;
            return Ok(placed);
        }
        placed.selinux_relabel = true;
        set_up_files(cx, wanted).await?;
        sweep(cx.node).await;
        Ok(placed)
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        let (dir, scratch) = (cx.dir.to_owned(), cx.scratch.to_owned());
        if cx.mode == VolumeMode::Block {
            return cx
                .blocking(move |_| {
                    remove_link(&dir)?;
                    remove_emptied(&dir)?;
                    remove_emptied(&scratch)
                })
                .await;
        }
        let shared = SharedMount::new(cx.node, cx.name);
        let turn = cx.node.turns.take(&About::Mount(shared.path())).await;
        let (mounts, uid) = (cx.node.mounts.clone(), cx.uid.clone());
        cx.blocking(move |_| {
            let _turn = turn;
            place::remove(&*mounts, &dir, &shared, uid.as_str())?;
            remove_emptied(&scratch)
        })
        .await?;
        sweep(cx.node).await;
        Ok(())
    }
}

async fn set_up_files(cx: &SetUp<'_>, wanted: Wanted) -> Result<(), VolumeFault> {
    let (dir, mounts, path) = (cx.dir.to_owned(), cx.node.mounts.clone(), wanted.path.clone());
    let mut options = wanted.options.clone();
    options.read_only |= wanted.read_only;
    let real = cx.blocking(move |_| {
        // It is mounted last: all else is done then.
        if place::is_there(&*mounts, &dir, &options)? {
            return Ok(None);
        }
        path.canonicalize()
            .map(Some)
            .map_err(|error| at("cannot look at", &path, error))
    });
    let Some(source) = real.await? else { return Ok(()) };
    let shared = SharedMount::new(cx.node, cx.volume.name());
    let turns = (
        cx.node.turns.take(&About::Mount(shared.path())).await,
        cx.node.turns.take(&About::Source(source.clone())).await,
    );
    let teller = Teller::new(cx);
    let place = Place {
        volume: cx.volume.name().to_owned(),
        dir: cx.dir.to_owned(),
        source,
        shared,
        fs_type: wanted.fs_type,
        options: wanted.options,
        read_only: wanted.read_only,
        ownership: cx.ownership,
    };
    let mounts = cx.node.mounts.clone();
    cx.blocking(move |given_up| {
        let _turns = turns;
        place.make(&TOOLS, &*mounts, &teller, given_up)
    })
    .await
}

/// Unmounts disks that no pod has any more: an agent may have ended before it did. Nobody waits for that to succeed.
async fn sweep(node: &PluginNode) {
    let node = node.clone();
    let swept = tokio::task::spawn_blocking(move || disk::sweep(&node)).await;
    if let Ok(Err(error)) = swept {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "disks that no pod has are still mounted"
        );
    }
}
