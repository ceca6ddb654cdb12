//! Folders of the node as persistent volumes.
//!
//! Source: kubelet 1.36, `local/local.go`.

use std::fs;
use std::io;
use std::path::{Component, Path};
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;

use super::group::Teller;
use crate::ground::failure::at;
use crate::ground::folders::{make_dir, remove_emptied, unmount_below};
use crate::ground::mounts::{MountOptions, Mounts};
use crate::ground::ownership::Group;
use crate::plugin::{
    Measure, Ownership, Placed, PluginFeatures, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec,
};

/// Persistent volumes of type `local`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local;

#[async_trait]
impl VolumePlugin for Local {
    fn name(&self) -> &'static str {
        "kubernetes.io/local-volume"
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        matches!(volume, VolumeSpec::Persistent { volume, .. } if volume.spec.as_ref().is_some_and(|spec| spec.local.is_some()))
    }

    fn features(&self) -> PluginFeatures {
        PluginFeatures {
            mount_options: true,
            measure: Measure::FileSystem,
            ..PluginFeatures::default()
        }
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let VolumeSpec::Persistent { volume, read_only } = cx.volume else {
            return Err(VolumeFault::new("it is no local volume"));
        };
        let Some(source) = volume.spec.as_ref().and_then(|spec| spec.local.as_ref()) else {
            return Err(VolumeFault::new("it is no local volume"));
        };
        let path = Path::new(&source.path).to_owned();
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(VolumeFault::new(format!(
                "path {:?} must not contain \"..\"",
                source.path
            )));
        }
        let mut options = MountOptions::parse(cx.volume.mount_options());
        options.read_only |= read_only;
        let (dir, mounts, ownership) = (cx.dir.to_owned(), cx.node.mounts.clone(), cx.ownership);
        let teller = Teller::new(cx);
        cx.blocking(move |given_up| bind(&*mounts, (&path, &dir), &options, (ownership, &teller, given_up)))
            .await?;
        let mut placed = Placed::at(cx.dir);
        placed.selinux_relabel = true;
        placed.read_only = read_only;
        Ok(placed)
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        unmount(cx).await
    }
}

fn bind(
    mounts: &dyn Mounts,
    (path, dir): (&Path, &Path),
    options: &MountOptions,
    (ownership, teller, given_up): (Ownership, &Teller, &AtomicBool),
) -> io::Result<()> {
    let found = fs::metadata(path).map_err(|error| at("cannot look at", path, error))?;
    if !found.is_dir() {
        return Err(io::Error::other(format!(
            "{} is no directory: only directories are supported as local volumes",
            path.display()
        )));
    }
    if mounts.is_mount_point(dir)? {
        return Ok(());
    }
    make_dir(dir, 0o750)?;
    let is_elsewhere = !mounts.table()?.refs(path).is_empty();
    mounts.bind(path, dir, options)?;
    if let Some(gid) = ownership.fs_group.filter(|_| !options.read_only) {
        // Another pod uses it as it is.
        if is_elsewhere {
            tracing::warn!(path = %path.display(), "a local volume is mounted elsewhere too: its files stay whose they are");
        } else {
            let group = Group {
                gid,
                read_only: false,
                policy: ownership.change,
            };
            teller.give(dir, group, given_up)?;
        }
    }
    Ok(())
}

/// Unmounts what is at a volume's folder, and removes the folder, which is empty then.
pub(super) async fn unmount(cx: &TearDown<'_>) -> Result<(), VolumeFault> {
    let (dir, scratch, mounts) = (cx.dir.to_owned(), cx.scratch.to_owned(), cx.node.mounts.clone());
    cx.blocking(move |_| {
        unmount_below(&*mounts, &dir)?;
        remove_emptied(&dir)?;
        remove_emptied(&scratch)
    })
    .await
}
