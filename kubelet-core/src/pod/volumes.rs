//! The volumes of a pod.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ImageVolumeSource, PodSpec, Volume};

use super::ContainerView;

/// The volumes that are images, by their names.
pub(crate) fn image_volumes(spec: &PodSpec) -> impl Iterator<Item = (&str, &ImageVolumeSource)> {
    let all = spec.volumes.iter().flatten();
    all.filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)))
}

/// The volumes that some container of the pod mounts or is given as a device, but for images: those that are made. Others are left
/// alone, as upstream leaves them.
pub fn made_volumes(spec: &PodSpec) -> impl Iterator<Item = &Volume> {
    let mut volumes = spec
        .volumes
        .iter()
        .flatten()
        .filter(|volume| volume.image.is_none())
        .peekable();
    let used: BTreeSet<&str> = if volumes.peek().is_some() {
        ContainerView::all(spec).flat_map(|view| view.volume_names()).collect()
    } else {
        BTreeSet::new()
    };
    volumes.filter(move |volume| used.contains(volume.name.as_str()))
}

/// Whether a pod has volumes that are made.
pub(crate) fn has_made_volumes(spec: &PodSpec) -> bool {
    made_volumes(spec).next().is_some()
}
