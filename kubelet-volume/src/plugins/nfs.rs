//! Folders of an NFS server.
//!
//! Source: kubelet 1.36, `nfs/nfs.go`.

use std::time::Duration;

use async_trait::async_trait;
use kubelet_core::k8s_openapi::api::core::v1::NFSVolumeSource;

use crate::ground::folders::{make_dir, remove_emptied, unmount_below};
use crate::ground::mounts::MountOptions;
use crate::ground::removal::remove_empty;
use crate::plugin::{Measure, Placed, PluginFeatures, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec};

/// Volumes of type `nfs`, of pods and of persistent volumes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nfs;

fn source<'a>(volume: &VolumeSpec<'a>) -> Option<(&'a NFSVolumeSource, bool)> {
    match volume {
        VolumeSpec::Inline(volume) => Some((volume.nfs.as_ref()?, false)),
        VolumeSpec::Persistent { volume, read_only } => Some((volume.spec.as_ref()?.nfs.as_ref()?, *read_only)),
    }
}

#[async_trait]
impl VolumePlugin for Nfs {
    fn name(&self) -> &'static str {
        "kubernetes.io/nfs"
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        source(volume).is_some()
    }

    fn features(&self) -> PluginFeatures {
        PluginFeatures {
            mount_options: true,
            measure: Measure::FileSystem,
            ..PluginFeatures::default()
        }
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let Some((source, is_claim_read_only)) = source(&cx.volume) else {
            return Err(VolumeFault::new("it is no NFS volume"));
        };
        let read_only = is_claim_read_only || source.read_only.unwrap_or(false);
        let mut options = MountOptions::parse(cx.volume.mount_options());
        options.read_only |= read_only;
        let export = export(&source.server, &source.path);
        let (dir, mounts) = (cx.dir.to_owned(), cx.node.mounts.clone());
        cx.blocking(move |_| {
            if mounts.is_mount_point(&dir)? {
                return Ok(());
            }
            make_dir(&dir, 0o750)?;
            let mounted = mounts.mount("nfs", &export, &dir, &options, "");
            if mounted.is_err() {
                // What is there after all is undone, so that the next try begins anew.
                let undone = unmount_below(&*mounts, &dir).and_then(|_| remove_empty(&dir));
                if let Err(error) = undone {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "a mount that failed is not undone yet"
                    );
                }
            }
            mounted
        })
        .await?;
        let mut placed = Placed::at(cx.dir);
        placed.read_only = read_only;
        Ok(placed)
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        if let Ok(done) = tokio::time::timeout(FORCED_AFTER, unmount_and_remove(cx)).await {
            return done;
        }
        let (dir, mounts) = (cx.dir.to_owned(), cx.node.mounts.clone());
        cx.blocking(move |_| mounts.unmount_forced(&dir)).await?;
        unmount_and_remove(cx).await
    }
}

/// How long a server may keep an unmount waiting.
const FORCED_AFTER: Duration = Duration::from_secs(60);

/// Unmounts what is at a volume's folder, and removes the folder, which is empty then.
pub(super) async fn unmount_and_remove(cx: &TearDown<'_>) -> Result<(), VolumeFault> {
    let (dir, scratch, mounts) = (cx.dir.to_owned(), cx.scratch.to_owned(), cx.node.mounts.clone());
    cx.blocking(move |_| {
        unmount_below(&*mounts, &dir)?;
        remove_emptied(&dir)?;
        remove_emptied(&scratch)
    })
    .await
}

/// What is mounted: an IPv6 address is in brackets.
fn export(server: &str, path: &str) -> String {
    if server.contains(':') && !server.starts_with('[') {
        format!("[{server}]:{path}")
    } else {
        format!("{server}:{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::export;

    #[test]
    fn an_address_with_colons_is_in_brackets() {
        assert_eq!(export("nfs.example", "/a"), "nfs.example:/a");
        assert_eq!(export("2001:db8::1", "/a"), "[2001:db8::1]:/a");
        assert_eq!(export("[2001:db8::1]", "/a"), "[2001:db8::1]:/a");
    }
}
