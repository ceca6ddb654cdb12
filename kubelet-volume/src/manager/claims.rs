//! From a claim to the persistent volume that it is bound to.
//!
//! Source: kubelet 1.36, `desired_state_of_world_populator.go`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use kubelet_core::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Volume};
use kubelet_core::{Freshness, Object, ObjectKey, ObjectKind, PodRecord, error_chain, node_selector_matches};

use super::unmount::{names_in, on_disk};
use super::{Shared, paths};
use crate::ground::folders::any_pod;
use crate::plugin::{PluginNode, VolumeFault, VolumeMode, VolumeSpec};
use crate::seen::Reads;

/// What a volume of a pod comes to.
#[derive(Debug)]
pub(super) enum Resolved {
    /// What the pod says.
    Inline,
    /// What its claim is bound to.
    Claim {
        claim: String,
        volume: Arc<PersistentVolume>,
        read_only: bool,
    },
}

impl Resolved {
    pub(super) fn spec<'a>(&'a self, volume: &'a Volume) -> VolumeSpec<'a> {
        match self {
            Self::Inline => VolumeSpec::Inline(volume),
            Self::Claim { volume, read_only, .. } => VolumeSpec::Persistent {
                volume,
                read_only: *read_only,
            },
        }
    }

    /// What it is called in manifests.
    pub(super) fn kind(&self, volume: &Volume) -> String {
        let value = match self {
            Self::Inline => serde_json::to_value(volume),
            Self::Claim { volume, .. } => serde_json::to_value(&volume.spec),
        };
        let known = [
            "name",
            "accessModes",
            "capacity",
            "claimRef",
            "mountOptions",
            "nodeAffinity",
            "persistentVolumeReclaimPolicy",
            "storageClassName",
            "volumeAttributesClassName",
            "volumeMode",
        ];
        let fields = value
            .ok()
            .and_then(|value| value.as_object().cloned())
            .unwrap_or_default();
        let kind = fields.keys().find(|field| !known.contains(&field.as_str()));
        kind.cloned().unwrap_or_default()
    }

    pub(super) fn read_only(&self) -> bool {
        matches!(self, Self::Claim { read_only: true, .. })
    }

    pub(super) fn claim(&self) -> Option<&str> {
        match self {
            Self::Inline => None,
            Self::Claim { claim, .. } => Some(claim),
        }
    }

    /// The group that an annotation of the persistent volume names.
    pub(super) fn groups(&self) -> Vec<u32> {
        let Self::Claim { volume, .. } = self else {
            return Vec::new();
        };
        let annotations = volume.metadata.annotations.as_ref();
        let group = annotations.and_then(|all| all.get("pv.beta.kubernetes.io/gid")?.parse().ok());
        group.into_iter().collect()
    }

    /// As what containers are given it. They have to ask for it as what it is.
    pub(super) fn mode(&self, pod: &PodRecord, volume: &Volume) -> Result<VolumeMode, VolumeFault> {
        let Self::Claim { volume: found, .. } = self else {
            return Ok(VolumeMode::Filesystem);
        };
        let given = found.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
        // What the API adds where nothing is said.
        let given = given.unwrap_or("Filesystem");
        let name = &volume.name;
        let is_mounted = pod
            .containers()
            .any(|view| view.volume_mounts().iter().any(|mount| mount.name == *name));
        let is_device = pod
            .containers()
            .any(|view| view.volume_devices().iter().any(|device| device.name == *name));
        match given {
            "Filesystem" if !is_device => Ok(VolumeMode::Filesystem),
            "Block" if !is_mounted => Ok(VolumeMode::Block),
            "Filesystem" | "Block" => {
                let asked = if is_device && given == "Filesystem" {
                    "volumeDevices"
                } else {
                    "volumeMounts"
                };
                Err(VolumeFault::new(format!(
                    "volume {name} has volumeMode {given}, but is specified in {asked}"
                )))
            }
            other => Err(VolumeFault::new(format!(
                "volume {name} has the unknown volumeMode {other}"
            ))),
        }
    }
}

impl Shared {
    /// Looks up what a volume of a pod comes to.
    pub(super) async fn resolve(
        &self,
        node: &PluginNode,
        pod: &PodRecord,
        volume: &Volume,
        reads: &Reads,
    ) -> Result<Resolved, VolumeFault> {
        let (name, read_only) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => (source.claim_name.clone(), source.read_only.unwrap_or(false)),
            (None, Some(_)) => (format!("{}-{}", pod.key().name, volume.name), false),
            (None, None) => return Ok(Resolved::Inline),
        };
        let namespace = &*pod.key().namespace;
        let failed = |why: String| VolumeFault::new(format!("error processing PVC {namespace}/{name}: {why}"));
        let key = ObjectKey::new(ObjectKind::PersistentVolumeClaim, namespace, &*name);
        let claim = match node.read(key, Freshness::Live, reads).await {
            Ok(Object::PersistentVolumeClaim(claim)) => claim,
            Ok(other) => return Err(failed(format!("{other:?} was given for a claim"))),
            Err(error) => {
                return Err(failed(format!(
                    "failed to fetch PVC from API server: {}",
                    error_chain(&error)
                )));
            }
        };
        if volume.ephemeral.is_some() && !is_of_pod(&claim, pod) {
            return Err(failed(format!(
                "PVC {namespace}/{name} was not created for pod {} (pod is not owner)",
                pod.key()
            )));
        }
        let protected = claim
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|f| f == "kubernetes.io/pvc-protection");
        if claim.metadata.deletion_timestamp.is_some() && !protected {
            return Err(failed("PVC is being deleted".to_owned()));
        }
        let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let named = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.as_deref())
            .unwrap_or_default();
        if !bound {
            return Err(failed("PVC is not bound".to_owned()));
        }
        if named.is_empty() {
            return Err(failed("PVC has empty volume name".to_owned()));
        }
        let key = ObjectKey::new(ObjectKind::PersistentVolume, "", named);
        let found = match node.read(key, Freshness::Live, reads).await {
            Ok(Object::PersistentVolume(found)) => found,
            Ok(other) => return Err(failed(format!("{other:?} was given for a volume"))),
            Err(error) => {
                return Err(failed(format!(
                    "failed to fetch PV {named} from API server: {}",
                    error_chain(&error)
                )));
            }
        };
        let spec = found.spec.as_ref();
        let reference = spec.and_then(|spec| spec.claim_ref.as_ref());
        let Some(reference) = reference else {
            return Err(failed(format!("PV {named} has no claim reference")));
        };
        if reference.uid != claim.metadata.uid {
            return Err(failed(format!(
                "PV {named} is bound to another claim: its claimRef has UID {:?}, the claim has {:?}",
                reference.uid.as_deref().unwrap_or_default(),
                claim.metadata.uid.as_deref().unwrap_or_default()
            )));
        }
        Ok(Resolved::Claim {
            claim: name,
            volume: found,
            read_only,
        })
    }

    /// Refuses a volume for one pod alone that another pod has: as far as is known, or by its folder, which an earlier life of the
    /// agent may have made.
    pub(super) async fn check_once_pod(
        &self,
        node: &PluginNode,
        pod: &PodRecord,
        name: &str,
        resolved: &Resolved,
    ) -> Result<(), VolumeFault> {
        let Resolved::Claim { volume, .. } = resolved else {
            return Ok(());
        };
        let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
        if modes != Some(&["ReadWriteOncePod".to_owned()]) {
            return Ok(());
        }
        let inner = volume.metadata.name.clone().unwrap_or_default();
        let mut is_taken = !self.pods.reserve(pod.uid(), name, &inner);
        if !is_taken {
            let (pods_dir, but) = (node.context.root_dir.join("pods"), pod.uid().to_string());
            is_taken = on_disk(move || any_pod(&pods_dir, Some(&but), |pod_dir| has_volume(pod_dir, &inner))).await?;
            if is_taken {
                self.pods.change(pod.uid(), name, |state| state.alone = None);
            }
        }
        if is_taken {
            let text = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
            return Err(VolumeFault::new(text));
        }
        Ok(())
    }
}

/// Refuses a persistent volume that is of other nodes.
pub(super) fn check_affinity(node: &PluginNode, resolved: &Resolved) -> Result<(), VolumeFault> {
    let Resolved::Claim { volume, .. } = resolved else {
        return Ok(());
    };
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    match affinity.and_then(|affinity| affinity.required.as_ref()) {
        Some(required) if !node_selector_matches(required, &node.context.node.now()) => {
            Err(VolumeFault::new("no matching NodeSelectorTerms"))
        }
        _ => Ok(()),
    }
}

/// Whether a pod has a persistent volume, of whichever type.
fn has_volume(pod_dir: &Path, name: &str) -> io::Result<bool> {
    for mode in [VolumeMode::Filesystem, VolumeMode::Block] {
        let of_mode = pod_dir.join(paths::folder(mode));
        for plugin in names_in(&of_mode)? {
            // By its name alone: what is mounted there may not answer.
            if names_in(&of_mode.join(plugin))?.iter().any(|there| there == name) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether a claim was made for a volume of this very pod.
fn is_of_pod(claim: &PersistentVolumeClaim, pod: &PodRecord) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.kind == "Pod" && owner.uid == pod.uid().as_str())
}
