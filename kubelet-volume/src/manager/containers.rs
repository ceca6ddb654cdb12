//! What single containers are given.

use std::path::{Path, PathBuf};

use kubelet_core::env::Env;
use kubelet_core::{ContainerVolumes, Device, PodRecord, VolumeError, VolumePlace, volume_sub_path};
use rustix::io::Errno;

use super::Shared;
use super::pods::Made;
use crate::ground::failure::errno;
use crate::ground::sub_path::{self, SubPath};
use crate::plugin::{VolumeMode, blocking};
use crate::turns::About;

impl Shared {
    pub(super) async fn container(
        &self,
        pod: &PodRecord,
        container: &str,
        env: &Env,
    ) -> Result<ContainerVolumes, VolumeError> {
        let mut given = ContainerVolumes::default();
        let Some(view) = pod.container(container) else {
            return Ok(given);
        };
        let is_image = |name: &str| {
            let mut volumes = pod.spec().volumes.iter().flatten();
            volumes.any(|volume| volume.name == name && volume.image.is_some())
        };
        // A label is given once for all mounts of one volume.
        let mut labelled = Vec::new();
        for (index, mount) in view.volume_mounts().iter().enumerate() {
            if is_image(&mount.name) {
                continue;
            }
            let made = self.made(pod, &mount.name, VolumeMode::Filesystem);
            let made = made.ok_or_else(|| missing(&mount.name, "mount", container))?;
            let path = volume_sub_path(mount, env)
                .map_err(|why| VolumeError::failed(format!("volume {:?}", mount.name), why))?;
            if mount.mount_propagation.as_deref().is_some_and(|mode| mode != "None") {
                self.share(pod, (&mount.name, &made)).await?;
            }
            let host_path = if path.is_empty() {
                made.placed.path.clone()
            } else {
                let is_secret = mount.sub_path_expr.as_deref().is_some_and(|text| !text.is_empty());
                self.part(pod, (&mount.name, &made), container, (index, path, is_secret))
                    .await?
            };
            let mut place = VolumePlace::new(index, host_path);
            place.read_only = made.read_only;
            place.selinux_relabel = made.placed.selinux_relabel && !labelled.contains(&mount.name.as_str());
            labelled.push(mount.name.as_str());
            given.places.push(place);
        }
        for device in view.volume_devices() {
            let made = self.made(pod, &device.name, VolumeMode::Block);
            let made = made.ok_or_else(|| missing(&device.name, "pass", container))?;
            let permissions = if made.read_only { "r" } else { "mrw" };
            given
                .devices
                .push(Device::new(&device.device_path, &made.placed.path, permissions));
        }
        Ok(given)
    }

    fn made(&self, pod: &PodRecord, volume: &str, mode: VolumeMode) -> Option<Made> {
        let known = self.pods.volume(pod.uid(), volume);
        known.made.filter(|made| made.mode == mode && !known.is_going)
    }

    /// Lets what is mounted in a volume be seen by all containers that ask for that. Only the volume's own folder is changed, and
    /// only if what it is on is not shared anyway: to mount the agent's whole folder anew would hide what is mounted in it for
    /// other pods, and keep that from ever being unmounted.
    async fn share(&self, pod: &PodRecord, (volume, made): (&str, &Made)) -> Result<(), VolumeError> {
        let node = self.node()?;
        let path = made.placed.path.clone();
        // Places of the host are as whoever made them wants them.
        if made.plugin.features().is_elsewhere || !path.starts_with(node.pod_dir(pod.uid())) {
            return Ok(());
        }
        let turn = self.turns.take(&About::volume(pod.uid(), &made.inner)).await;
        let mounts = node.mounts.clone();
        let shared = blocking(turn, move |_| match mounts.make_shared(&path) {
            // Who may not mount has no containers that mount for others.
            Err(error) if errno(&error) == Some(Errno::PERM) => Ok(()),
            shared => shared.map(drop),
        });
        shared
            .await
            .map_err(|fault| VolumeError::failed(format!("cannot share what is mounted in volume {volume:?}"), fault))
    }

    /// Has a part of a volume there by itself, for one mount of one container.
    async fn part(
        &self,
        pod: &PodRecord,
        (volume, made): (&str, &Made),
        container: &str,
        (index, path, is_secret): (usize, String, bool),
    ) -> Result<PathBuf, VolumeError> {
        let node = self.node()?;
        let turn = self.turns.take(&About::volume(pod.uid(), &made.inner)).await;
        let target = sub_path::target(&node.pod_dir(pod.uid()), &made.inner, container, index);
        let (root, mounts, at) = (made.placed.path.clone(), node.mounts.clone(), target.clone());
        let prepared = blocking(turn, move |_| {
            let wanted = SubPath {
                volume_root: &root,
                sub_path: Path::new(&path),
                target: &at,
                create_mode: Some(sub_path::mode_of(&root)?),
            };
            sub_path::prepare(&*mounts, &wanted)
        });
        prepared.await.map_err(|fault| {
            let what = format!("failed to prepare subPath for volumeMount {volume:?} of container {container:?}");
            if is_secret {
                // The path is made of variables, which may hold secrets.
                VolumeError::failed(what, "the path that its expression becomes cannot be mounted")
            } else {
                VolumeError::failed(what, fault)
            }
        })?;
        Ok(target)
    }
}

fn missing(volume: &str, what: &str, container: &str) -> VolumeError {
    VolumeError::failed(
        format!("cannot find volume {volume:?} to {what} into container {container:?}"),
        "it is not there",
    )
}
