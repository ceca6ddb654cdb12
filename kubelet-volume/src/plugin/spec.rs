//! What a volume is to be.

use kubelet_core::k8s_openapi::api::core::v1::{PersistentVolume, Volume};

/// How containers are given a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeMode {
    /// As files.
    #[default]
    Filesystem,
    /// As a device.
    Block,
}

/// What a volume is to be: as its pod says, or as the persistent volume says that its claim is bound to.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum VolumeSpec<'a> {
    /// As the pod says.
    Inline(&'a Volume),
    /// A persistent volume.
    Persistent {
        /// The volume.
        volume: &'a PersistentVolume,
        /// Whether the pod says that it is not written.
        read_only: bool,
    },
}

impl VolumeSpec<'_> {
    /// The name that its folder has: that of the persistent volume, else that in the pod.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Inline(volume) => &volume.name,
            Self::Persistent { volume, .. } => volume.metadata.name.as_deref().unwrap_or_default(),
        }
    }

    /// The options that it is to be mounted with. The old annotation stands instead of the field.
    ///
    /// Source: kubelet 1.36, `volume/util/util.go`.
    #[must_use]
    pub fn mount_options(&self) -> Vec<String> {
        let Self::Persistent { volume, .. } = self else {
            return Vec::new();
        };
        let annotation = volume
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get("volume.beta.kubernetes.io/mount-options"));
        let given: Vec<String> = match annotation {
            Some(text) => text.split(',').map(|option| option.trim().to_owned()).collect(),
            None => volume
                .spec
                .as_ref()
                .and_then(|spec| spec.mount_options.clone())
                .unwrap_or_default(),
        };
        let mut options: Vec<String> = Vec::new();
        for option in given {
            if !option.is_empty() && !options.contains(&option) {
                options.push(option);
            }
        }
        options
    }
}
