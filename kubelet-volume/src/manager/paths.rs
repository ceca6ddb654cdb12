//! Where volumes are on disk: where the upstream kubelet has them, so that either finds what the other left.
//!
//! Source: kubelet 1.36, `kubelet_getters.go`.

use std::path::{Path, PathBuf};

use crate::plugin::VolumeMode;

/// A plugin's name as that of a folder.
pub(crate) fn escaped(plugin: &str) -> String {
    plugin.replace('/', "~")
}

/// The plugin that a folder is named for.
pub(crate) fn unescaped(folder: &str) -> String {
    folder.replace('~', "/")
}

/// The folder in a pod's for all its volumes of one mode.
pub(crate) fn folder(mode: VolumeMode) -> &'static str {
    match mode {
        VolumeMode::Filesystem => "volumes",
        VolumeMode::Block => "volumeDevices",
    }
}

pub(crate) fn volume(pod_dir: &Path, mode: VolumeMode, plugin: &str, name: &str) -> PathBuf {
    pod_dir.join(folder(mode)).join(escaped(plugin)).join(name)
}

pub(crate) fn scratch(pod_dir: &Path, plugin: &str, name: &str) -> PathBuf {
    pod_dir.join("plugins").join(escaped(plugin)).join(name)
}

/// Whether it can be the name of a volume's folder, and leads nowhere else.
pub(crate) fn is_folder_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains('/') && !name.contains('\0')
}
