//! The volumes of a pod.

use k8s_openapi::api::core::v1::{ImageVolumeSource, PodSpec};

/// The volumes that are images, by their names.
pub(crate) fn image_volumes(spec: &PodSpec) -> impl Iterator<Item = (&str, &ImageVolumeSource)> {
    let all = spec.volumes.iter().flatten();
    all.filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)))
}
