//! What a pod is, as files in it.

use std::collections::BTreeMap;

use async_trait::async_trait;
use kubelet_core::env::{PodFields, resource_value};
use kubelet_core::k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, DownwardAPIVolumeSource};

use super::payload::{self, Backing, DEFAULT_MODE, Parts};
use crate::ground::atomic_writer::Payload;
use crate::plugin::{Placed, PluginFeatures, Refresh, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec};

/// Volumes of type `downwardAPI`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DownwardApi;

fn source<'a>(volume: &VolumeSpec<'a>) -> Option<&'a DownwardAPIVolumeSource> {
    match volume {
        VolumeSpec::Inline(volume) => volume.downward_api.as_ref(),
        VolumeSpec::Persistent { .. } => None,
    }
}

#[async_trait]
impl VolumePlugin for DownwardApi {
    fn name(&self) -> &'static str {
        "kubernetes.io/downward-api"
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        source(volume).is_some()
    }

    fn features(&self) -> PluginFeatures {
        payload::features(false)
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let Some(of) = source(&cx.volume) else {
            return Err(VolumeFault::new("it is no downwardAPI"));
        };
        let mode = of.default_mode.unwrap_or(DEFAULT_MODE);
        let parts = parts(cx, of.items.as_deref().unwrap_or_default(), mode);
        payload::put(cx, Backing::Memory, parts).await
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        payload::remove(cx).await
    }
}

/// Whether anything of it can change while the pod is there.
fn refresh(items: &[DownwardAPIVolumeFile]) -> Refresh {
    let changes = |item: &DownwardAPIVolumeFile| {
        let path = item.field_ref.as_ref().map(|field| field.field_path.as_str());
        item.resource_field_ref.is_some()
            || path.is_some_and(|path| path.starts_with("metadata.labels") || path.starts_with("metadata.annotations"))
    };
    if items.iter().any(changes) {
        Refresh::Pod
    } else {
        Refresh::Never
    }
}

/// What a volume, or a part of one, tells of its pod.
pub(super) fn parts(cx: &SetUp<'_>, items: &[DownwardAPIVolumeFile], mode: i32) -> Result<Parts, VolumeFault> {
    Ok(Parts {
        files: files(cx, items, mode)?,
        refresh: refresh(items),
        again_at: None,
    })
}

fn files(cx: &SetUp<'_>, items: &[DownwardAPIVolumeFile], mode: i32) -> Result<Payload, VolumeFault> {
    let node = cx.node.context.node.now();
    let fields = PodFields::new(cx.pod.pod(), &node.name);
    let allocatable: BTreeMap<_, _> = node.api_allocatable();
    let mut files = Payload::new();
    let mut failed = Vec::new();
    for item in items {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => fields.value(field).map_err(|error| error.to_string()),
            (None, Some(resource)) => {
                resource_value(resource, cx.pod.pod(), None, &allocatable).map_err(|error| error.to_string())
            }
            (None, None) => Err(format!("{:?} names neither a field nor a resource", item.path)),
        };
        match value {
            Ok(value) => {
                files.insert(
                    item.path.clone(),
                    payload::file(value.into_bytes(), item.mode.unwrap_or(mode)),
                );
            }
            Err(why) => failed.push(why),
        }
    }
    if failed.is_empty() {
        Ok(files)
    } else {
        Err(VolumeFault::new(failed.join("; ")))
    }
}
