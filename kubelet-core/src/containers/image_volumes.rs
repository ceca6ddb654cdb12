//! Volumes that are images: there before the containers that mount them are made, and mounted by the runtime.
//!
//! Source: kubelet 1.36, `kuberuntime_manager.go`, `kuberuntime_image.go`, `kubelet_pods.go`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ImageVolumeSource, VolumeMount};
use tokio::time::Instant;

use super::ContainerSyncer;
use super::ground::Ground;
use super::images::{Wanted, WantedBy};
use super::start_error::{CONFIG_ERROR, StartError};
use crate::actions::{PodActions, StartAction};
use crate::backoff::BackoffDecision;
use crate::env::Env;
use crate::error::error_chain;
use crate::observation::ObservedContainer;
use crate::pod::{ContainerView, PodRecord, image_volumes};
use crate::runtime::{ContainerState, ImageMount, ImageMounts, ImageRef, Mount};
use crate::syncer::{StepContext, SyncError};
use crate::volumes::volume_sub_path;

/// The image volumes that the containers of one sync mount, by volume.
#[derive(Debug, Default)]
pub(super) struct ImageVolumes(BTreeMap<String, Result<ImageMount, NotThere>>);

/// Why the image of a volume is not there: what the containers that mount it wait for.
#[derive(Clone, Debug)]
struct NotThere {
    reason: Cow<'static, str>,
    message: String,
    retry_at: Option<Instant>,
}

/// The image volumes that one container mounts, by volume.
#[derive(Debug, Default)]
pub(super) struct MountedImages(BTreeMap<String, ImageMount>);

impl NotThere {
    /// Other outcomes end the sync.
    fn of(error: StartError) -> Result<Self, SyncError> {
        match error {
            StartError::Failed {
                reason,
                message,
                retry_at,
            } => Ok(Self {
                reason,
                message,
                retry_at,
            }),
            StartError::Stopped => Err(SyncError::Stopped),
            StartError::Uncertain(error) => Err(SyncError::failed("cannot get an image volume", error)),
        }
    }

    fn into_start_error(self, volume: &str) -> StartError {
        StartError::Failed {
            reason: self.reason,
            message: format!("volume {volume:?}: {}", self.message),
            retry_at: self.retry_at,
        }
    }
}

impl ContainerSyncer {
    /// Sees to it that the image volumes of the containers that are made now are there. What fails is kept for the containers
    /// that need it.
    pub(super) async fn ensure_image_volumes(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        actions: &PodActions,
    ) -> Result<ImageVolumes, SyncError> {
        let pod = &*ground.work.pod;
        let mut volumes = ImageVolumes::default();
        if image_volumes(pod.spec()).next().is_none() {
            return Ok(volumes);
        }
        let made = actions.starts().filter(|start| self.is_made_now(ground, start));
        let made: Vec<_> = made.filter_map(|start| pod.container(&start.name)).collect();
        let mut handler = None;
        for (name, source) in image_volumes(pod.spec()) {
            let mounts_it = |view: &&ContainerView<'_>| view.volume_mounts().iter().any(|mount| mount.name == name);
            let containers: Vec<&str> = made.iter().filter(mounts_it).map(ContainerView::name).collect();
            if containers.is_empty() {
                continue;
            }
            let handler = match &handler {
                Some(known) => known,
                None => handler.insert(match self.handler_that_mounts(cx, pod).await {
                    Ok(found) => Ok(found),
                    Err(error) => Err(NotThere::of(error)?),
                }),
            };
            let handler = match handler {
                Ok(handler) => handler,
                Err(why) => {
                    volumes.0.insert(name.to_owned(), Err(why.clone()));
                    continue;
                }
            };
            let ensured = self
                .ensure_image_volume(cx, ground, (name, source), &containers, handler)
                .await;
            let found = match ensured {
                Ok(mount) => Ok(mount),
                Err(error) => Err(NotThere::of(error)?),
            };
            volumes.0.insert(name.to_owned(), found);
        }
        Ok(volumes)
    }

    /// The image volumes that a container mounts, if all of them are there; one that was not looked at in this sync is got now.
    pub(super) async fn mounted_images(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        view: &ContainerView<'_>,
    ) -> Result<MountedImages, StartError> {
        let mut mounted = MountedImages::default();
        let mut handler = None;
        for (name, source) in image_volumes(ground.work.pod.spec()) {
            if view.volume_mounts().iter().all(|mount| mount.name != name) {
                continue;
            }
            let found = match ground.image_volumes.0.get(name) {
                Some(found) => found.clone().map_err(|why| why.into_start_error(name)),
                // The container was held back when the volumes were looked at.
                None => {
                    let handler = match &handler {
                        Some(known) => known,
                        None => handler.insert(self.handler_that_mounts(cx, &ground.work.pod).await?),
                    };
                    self.ensure_image_volume(cx, ground, (name, source), &[view.name()], handler)
                        .await
                }
            };
            mounted.0.insert(name.to_owned(), found?);
        }
        Ok(mounted)
    }

    /// The handler that mounts the volumes of a pod.
    pub(super) async fn handler_that_mounts(&self, cx: &StepContext, pod: &PodRecord) -> Result<String, StartError> {
        self.runtime_handler(cx, pod).await.map_err(|error| match error {
            SyncError::Stopped => StartError::Stopped,
            error => StartError::failed(CONFIG_ERROR, error_chain(&error)),
        })
    }

    /// What the runtime mounts: the image by its id, for the pod's handler.
    async fn ensure_image_volume(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        (name, source): (&str, &ImageVolumeSource),
        containers: &[&str],
        handler: &str,
    ) -> Result<ImageMount, StartError> {
        let pod = &*ground.work.pod;
        let asked = source.reference.as_deref().unwrap_or_default();
        let by = WantedBy::Volume { name, containers };
        let wanted = Wanted::new(asked, pod, by);
        let policy = source.pull_policy.as_deref().unwrap_or("IfNotPresent");
        let present = self.ensure_wanted(cx, ground, &wanted, policy).await?;
        let mut mount = ImageMount::new(ImageRef::with_asked(present.id.as_str(), asked));
        handler.clone_into(&mut mount.handler);
        mount.annotations = pod.metadata().annotations.clone().unwrap_or_default();
        Ok(mount)
    }

    /// Whether this sync makes the container: it is not made yet, nor held back.
    fn is_made_now(&self, ground: &Ground<'_>, start: &StartAction) -> bool {
        let Some(view) = ground.work.pod.container(&start.name).filter(|_| start.adopt.is_none()) else {
            return false;
        };
        let is_unknown = |last: &ObservedContainer| last.state == ContainerState::Unknown;
        let last = ground.work.observed.newest(&start.name);
        let held_back = || {
            let decision = self.crash_backoff(ground, &view);
            matches!(decision, Some((_, BackoffDecision::Wait { .. })))
        };
        !last.is_some_and(is_unknown) && !held_back()
    }

    /// What a container mounts there, if it is an image.
    pub(super) fn image_mount(
        &self,
        spec: &VolumeMount,
        mounted: &MountedImages,
        env: &Env,
    ) -> Result<Option<Mount>, StartError> {
        let Some(image) = mounted.0.get(&spec.name) else {
            return Ok(None);
        };
        let failed = |why: String| StartError::failed(CONFIG_ERROR, format!("volume {:?}: {why}", spec.name));
        let handler = self.handler_features(&image.handler);
        let mut mount = Mount::of_volume(spec, "", &handler)
            .map_err(|error| StartError::failed(CONFIG_ERROR, error_chain(&error)))?;
        let mut image = image.clone();
        image.sub_path = volume_sub_path(spec, env).map_err(failed)?;
        mount.image = Some(image);
        mount.read_only = true;
        Ok(Some(mount))
    }
}

/// Why a runtime that can do so much cannot run a pod with such volumes, where it cannot.
pub(super) fn lack_of_image_mounts(pod: &PodRecord, can: ImageMounts) -> Option<String> {
    let mut whole = Vec::new();
    let mut parts = Vec::new();
    for (name, _) in image_volumes(pod.spec()) {
        let mut mounts = ContainerView::all(pod.spec()).flat_map(|view| view.volume_mounts());
        let is_part = |mount: &VolumeMount| {
            let paths = [&mount.sub_path, &mount.sub_path_expr];
            mount.name == name && paths.into_iter().flatten().any(|path| !path.is_empty())
        };
        let names = if mounts.any(is_part) { &mut parts } else { &mut whole };
        names.push(name);
    }
    let unmet = |need: &str, names: &[&str], can: &str| {
        let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
        format!(
            "pod needs {need} ({}), and this node has no runtime that {can}",
            names.join(", ")
        )
    };
    match can {
        ImageMounts::No if !whole.is_empty() || !parts.is_empty() => {
            whole.append(&mut parts);
            Some(unmet("image volumes", &whole, "mounts images"))
        }
        ImageMounts::Whole if !parts.is_empty() => {
            Some(unmet("parts of image volumes", &parts, "mounts a part of an image"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::lack_of_image_mounts;
    use crate::pod::testing::record;
    use crate::runtime::ImageMounts;

    #[test]
    fn what_a_runtime_cannot_mount_is_named() {
        let ask = |sub_path: Value, can| {
            let pod = record(json!({"spec": {
                "containers": [{"name": "app", "volumeMounts": [
                    {"name": "model", "mountPath": "/model"},
                    {"name": "texts", "mountPath": "/texts", "subPath": sub_path},
                    {"name": "other", "mountPath": "/other", "subPath": "a"},
                ]}],
                "volumes": [
                    {"name": "model", "image": {"reference": "model:1"}},
                    {"name": "texts", "image": {"reference": "texts:1"}},
                    {"name": "other", "emptyDir": {}},
                ],
            }}));
            lack_of_image_mounts(&pod, can).unwrap_or_default()
        };
        let whole = r#"pod needs image volumes ("model", "texts"), and this node has no runtime that mounts images"#;
        let part = r#"pod needs parts of image volumes ("texts"), and this node has no runtime that mounts a part of an image"#;
        assert_eq!(ask(json!("a"), ImageMounts::No), whole);
        assert_eq!(ask(json!(null), ImageMounts::No), whole);
        assert_eq!(ask(json!("a"), ImageMounts::Whole), part);
        assert_eq!(ask(json!(""), ImageMounts::Whole), "");
        assert_eq!(ask(json!("a"), ImageMounts::SubPaths), "");
    }
}
