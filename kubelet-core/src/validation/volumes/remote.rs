//! Network and block volumes: mostly that their identifying fields are set.

use k8s_openapi::api::core::v1::{FCVolumeSource, FlockerVolumeSource, Volume};

use crate::validation::check::{range, required};
use crate::validation::field::{FieldErrors, FieldPath};

pub(super) fn check(volume: &Volume, source: &str, path: &FieldPath, errors: &mut FieldErrors) {
    for (field, value) in identity(volume, source) {
        required(path.child(field), &value, errors);
    }
    match source {
        "nfs" => {
            let target = volume.nfs.as_ref().map_or("", |nfs| nfs.path.as_str());
            if !target.is_empty() && !target.starts_with('/') {
                errors.invalid(path.child("path"), target, "must be an absolute path");
            }
        }
        "iscsi" => {
            if let Some(iscsi) = &volume.iscsi {
                let iqn = iscsi.iqn.as_str();
                if !iqn.is_empty() && !["iqn", "eui", "naa"].iter().any(|form| iqn.starts_with(form)) {
                    errors.invalid(path.child("iqn"), iqn, "must start with iqn, eui or naa");
                }
                range(path.child("lun"), i64::from(iscsi.lun), 0, 255, errors);
            }
        }
        "fc" => check_fc(volume.fc.as_ref(), path, errors),
        "flocker" => check_flocker(volume.flocker.as_ref(), path, errors),
        _ => {}
    }
}

/// The fields that must not be empty, by their JSON name.
fn identity(volume: &Volume, source: &str) -> Vec<(&'static str, String)> {
    macro_rules! fields {
        ($source:ident: $($name:literal $field:ident),+) => {
            volume.$source.as_ref().map(|source| vec![$(($name, text(&source.$field))),+])
        };
    }
    let fields = match source {
        "gitRepo" => fields!(git_repo: "repository" repository),
        "gcePersistentDisk" => fields!(gce_persistent_disk: "pdName" pd_name),
        "awsElasticBlockStore" => fields!(aws_elastic_block_store: "volumeID" volume_id),
        "nfs" => fields!(nfs: "server" server, "path" path),
        "iscsi" => fields!(iscsi: "targetPortal" target_portal, "iqn" iqn),
        "glusterfs" => fields!(glusterfs: "endpoints" endpoints, "path" path),
        "rbd" => fields!(rbd: "monitors" monitors, "image" image),
        "cinder" => fields!(cinder: "volumeID" volume_id),
        "cephfs" => fields!(cephfs: "monitors" monitors),
        "quobyte" => fields!(quobyte: "registry" registry, "volume" volume),
        "flexVolume" => fields!(flex_volume: "driver" driver),
        "azureFile" => fields!(azure_file: "secretName" secret_name, "shareName" share_name),
        "vsphereVolume" => fields!(vsphere_volume: "volumePath" volume_path),
        "azureDisk" => fields!(azure_disk: "diskName" disk_name, "diskURI" disk_uri),
        "storageos" => fields!(storageos: "volumeName" volume_name),
        "photonPersistentDisk" => fields!(photon_persistent_disk: "pdID" pd_id),
        "portworxVolume" => fields!(portworx_volume: "volumeID" volume_id),
        "scaleIO" => {
            fields!(scale_io: "gateway" gateway, "system" system, "volumeName" volume_name)
        }
        _ => None,
    };
    fields.unwrap_or_default()
}

/// A field that identifies something: a text, or a list that must have items.
trait Identity {
    fn text(&self) -> String;
}

impl Identity for String {
    fn text(&self) -> String {
        self.clone()
    }
}

impl Identity for Option<String> {
    fn text(&self) -> String {
        self.clone().unwrap_or_default()
    }
}

impl Identity for Vec<String> {
    fn text(&self) -> String {
        self.join(",")
    }
}

fn text(field: &impl Identity) -> String {
    field.text()
}

fn check_fc(source: Option<&FCVolumeSource>, path: &FieldPath, errors: &mut FieldErrors) {
    let Some(source) = source else { return };
    let count = |list: &Option<Vec<String>>| list.as_ref().map_or(0, Vec::len);
    let detail = "must specify either targetWWNs or wwids, but not both";
    match (count(&source.target_wwns), count(&source.wwids)) {
        (0, 0) => errors.required(path.child("targetWWNs"), detail),
        (0, _) => {}
        (_, 0) => match source.lun {
            None => errors.required(path.child("lun"), "lun is required if targetWWNs is specified"),
            Some(lun) => range(path.child("lun"), i64::from(lun), 0, 255, errors),
        },
        _ => {
            let names = source.target_wwns.as_deref().unwrap_or_default().join(",");
            errors.invalid(path.child("targetWWNs"), names.as_str(), detail);
        }
    }
}

fn check_flocker(source: Option<&FlockerVolumeSource>, path: &FieldPath, errors: &mut FieldErrors) {
    let Some(source) = source else { return };
    let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    match (empty(&source.dataset_name), empty(&source.dataset_uuid)) {
        (true, true) => errors.required(path.clone(), "one of datasetName and datasetUUID is required"),
        (false, false) => {
            let name = source.dataset_name.as_deref().unwrap_or_default();
            let detail = "datasetName and datasetUUID can not be specified simultaneously";
            errors.invalid(path.clone(), name, detail);
        }
        _ => {}
    }
}
