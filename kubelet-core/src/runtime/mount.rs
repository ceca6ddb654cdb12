//! What of the host a container is shown: files, devices, users.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::VolumeMount;

use crate::runtime::{ImageRef, RuntimeHandler};

/// A block of user or group ids in a container, and the ids of the host that they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdMapping {
    /// The first one on the host.
    pub host_id: u32,
    /// The first one in the container.
    pub container_id: u32,
    /// How many.
    pub length: u32,
}

impl IdMapping {
    /// A block of `length` ids.
    #[must_use]
    pub fn new(host_id: u32, container_id: u32, length: u32) -> Self {
        Self {
            host_id,
            container_id,
            length,
        }
    }
}

/// The users and groups of a pod that has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserNamespace {
    /// Users.
    pub uids: Vec<IdMapping>,
    /// Groups.
    pub gids: Vec<IdMapping>,
}

impl UserNamespace {
    /// The same block for users and groups.
    #[must_use]
    pub fn of_block(block: IdMapping) -> Self {
        Self {
            uids: vec![block],
            gids: vec![block],
        }
    }
}

/// Which later mounts below a mount pass between the container and the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountPropagation {
    /// None.
    #[default]
    Private,
    /// Those of the host show in the container.
    HostToContainer,
    /// Those of either show in the other.
    Bidirectional,
}

/// The content of an image that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageMount {
    /// The image: named by its id, asked for as the pod's spec says.
    pub image: ImageRef,
    /// The runtime handler that it is for; empty: the default one.
    pub handler: String,
    /// Annotations of the pod, which belong to the image too.
    pub annotations: BTreeMap<String, String>,
    /// The part of it that is shown, as a relative path; empty: all of it.
    pub sub_path: String,
}

impl ImageMount {
    /// All of an image, for the default handler.
    #[must_use]
    pub fn new(image: ImageRef) -> Self {
        Self {
            image,
            handler: String::new(),
            annotations: BTreeMap::new(),
            sub_path: String::new(),
        }
    }
}

/// A host path, or an image, shown in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mount {
    /// In the container.
    pub container_path: String,
    /// On the host; empty where it is an image.
    pub host_path: PathBuf,
    /// The image that is shown instead of a path of the host. Only runtimes whose [`RuntimeInfo`](crate::RuntimeInfo) says that they can
    /// are given any.
    pub image: Option<ImageMount>,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// Whether what is mounted below it cannot be written either.
    pub recursive_read_only: bool,
    /// Which later mounts below it pass.
    pub propagation: MountPropagation,
    /// Whether the runtime gives it the container's SELinux label, where there is SELinux.
    pub selinux_relabel: bool,
    /// The users that its files show as, where the pod has users of its own.
    pub id_mappings: Option<UserNamespace>,
}

impl Mount {
    /// A writable mount.
    pub fn new(container_path: impl Into<String>, host_path: impl Into<PathBuf>) -> Self {
        Self {
            container_path: container_path.into(),
            host_path: host_path.into(),
            image: None,
            read_only: false,
            recursive_read_only: false,
            propagation: MountPropagation::Private,
            selinux_relabel: false,
            id_mappings: None,
        }
    }

    /// The mount of a volume that is found at `host_path`, as a container's spec asks for it, on a handler that can do so
    /// much. Sub-paths are not looked at: `host_path` is what they lead to.
    ///
    /// Source: kubelet 1.36, `kubelet_pods.go`.
    ///
    /// # Errors
    /// [`MountError`] if it cannot be made so: the container is not created.
    pub fn of_volume(
        spec: &VolumeMount,
        host_path: impl Into<PathBuf>,
        handler: &RuntimeHandler,
    ) -> Result<Self, MountError> {
        let container_path = if spec.mount_path.starts_with('/') {
            spec.mount_path.clone()
        } else {
            format!("/{}", spec.mount_path)
        };
        let mut mount = Self::new(container_path, host_path);
        mount.read_only = spec.read_only.unwrap_or(false);
        mount.propagation = propagation(spec)?;
        mount.recursive_read_only = recursive_read_only(spec, handler)?;
        Ok(mount)
    }

    /// With the container's SELinux label.
    #[must_use]
    pub fn relabelled(mut self) -> Self {
        self.selinux_relabel = true;
        self
    }
}

/// Why a volume cannot be mounted as a container's spec asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The spec contradicts itself, or says what nobody knows.
    #[error("volume {volume:?}: {why}")]
    Invalid {
        /// The volume.
        volume: String,
        /// What is wrong.
        why: String,
    },
    /// The runtime cannot do it.
    #[error("volume {volume:?}: runtime handler {handler:?} cannot make mounts recursively read-only")]
    Unsupported {
        /// The volume.
        volume: String,
        /// The handler.
        handler: String,
    },
}

impl MountError {
    fn invalid(spec: &VolumeMount, why: impl Into<String>) -> Self {
        Self::Invalid {
            volume: spec.name.clone(),
            why: why.into(),
        }
    }
}

fn propagation(spec: &VolumeMount) -> Result<MountPropagation, MountError> {
    match spec.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::Private),
        Some("HostToContainer") => Ok(MountPropagation::HostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::Bidirectional),
        Some(other) => Err(MountError::invalid(
            spec,
            format!("unknown mount propagation {other:?}"),
        )),
    }
}

fn recursive_read_only(spec: &VolumeMount, handler: &RuntimeHandler) -> Result<bool, MountError> {
    let must = match spec.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some("IfPossible") => false,
        Some("Enabled") => true,
        Some(other) => {
            let why = format!("unknown recursive read-only mode {other:?}");
            return Err(MountError::invalid(spec, why));
        }
    };
    if !spec.read_only.unwrap_or(false) {
        return Err(MountError::invalid(
            spec,
            "recursively read-only, and not read-only itself",
        ));
    }
    if let Some(other) = spec.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        let why = format!("recursively read-only, and with mount propagation {other:?}");
        return Err(MountError::invalid(spec, why));
    }
    if must && !handler.recursive_read_only_mounts {
        return Err(MountError::Unsupported {
            volume: spec.name.clone(),
            handler: handler.name.clone(),
        });
    }
    Ok(handler.recursive_read_only_mounts)
}

/// A device of the host in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// In the container.
    pub container_path: String,
    /// On the host.
    pub host_path: PathBuf,
    /// What the container may do with it: some of `r` to read, `w` to write, `m` to make its file.
    pub permissions: String,
}

impl Device {
    /// A device, and what the container may do with it.
    pub fn new(
        container_path: impl Into<String>,
        host_path: impl Into<PathBuf>,
        permissions: impl Into<String>,
    ) -> Self {
        Self {
            container_path: container_path.into(),
            host_path: host_path.into(),
            permissions: permissions.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Mount, MountPropagation};
    use crate::runtime::RuntimeHandler;

    fn mount(more: Value, capable: bool) -> Result<Mount, String> {
        let mut spec = json!({"name": "data", "mountPath": "/data"});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let mut handler = RuntimeHandler::new("runc");
        handler.recursive_read_only_mounts = capable;
        let spec = serde_json::from_value(spec).unwrap();
        Mount::of_volume(&spec, "/host", &handler).map_err(|error| error.to_string())
    }

    #[test]
    fn propagation_has_three_modes() {
        use MountPropagation::{Bidirectional, HostToContainer, Private};
        assert_eq!(mount(json!({}), false).unwrap().propagation, Private);
        for (mode, expected) in [
            ("None", Private),
            ("HostToContainer", HostToContainer),
            ("Bidirectional", Bidirectional),
        ] {
            let made = mount(json!({"mountPropagation": mode}), false).unwrap();
            assert_eq!(made.propagation, expected);
        }
        let error = mount(json!({"mountPropagation": "Sideways"}), true).unwrap_err();
        assert_eq!(error, r#"volume "data": unknown mount propagation "Sideways""#);
    }

    #[test]
    fn recursive_read_only_follows_the_table() {
        let ask = |mode: Option<&str>, read_only: bool, propagation: Option<&str>, capable: bool| {
            let spec = json!({"recursiveReadOnly": mode, "readOnly": read_only, "mountPropagation": propagation});
            mount(spec, capable).map(|mount| (mount.read_only, mount.recursive_read_only))
        };
        for capable in [false, true] {
            // Not asked for.
            assert_eq!(ask(None, true, None, capable), Ok((true, false)));
            assert_eq!(ask(None, false, Some("Bidirectional"), capable), Ok((false, false)));
            assert_eq!(ask(Some("Disabled"), false, None, capable), Ok((false, false)));
            // Asked for where it may be had.
            for propagation in [None, Some("None")] {
                assert_eq!(ask(Some("IfPossible"), true, propagation, capable), Ok((true, capable)));
            }
            // Asked for in contradiction to something else.
            for mode in ["IfPossible", "Enabled"] {
                let error = ask(Some(mode), false, None, capable).unwrap_err();
                assert!(error.contains("not read-only itself"), "{error}");
                for propagation in ["HostToContainer", "Bidirectional"] {
                    let error = ask(Some(mode), true, Some(propagation), capable).unwrap_err();
                    assert!(error.contains(propagation), "{error}");
                }
            }
            assert!(ask(Some("Perhaps"), true, None, capable).is_err());
        }
        assert_eq!(ask(Some("Enabled"), true, Some("None"), true), Ok((true, true)));
        let error = ask(Some("Enabled"), true, None, false).unwrap_err();
        assert_eq!(
            error,
            r#"volume "data": runtime handler "runc" cannot make mounts recursively read-only"#
        );
    }

    #[test]
    fn a_relative_path_is_one_below_the_root() {
        let made = mount(json!({"mountPath": "data/x"}), false).unwrap();
        assert_eq!(made.container_path, "/data/x");
        assert_eq!(made.host_path, std::path::Path::new("/host"));
    }
}
