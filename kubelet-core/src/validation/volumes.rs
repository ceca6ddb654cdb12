//! Volumes and the one source each must have.

mod files;
mod projected;
mod remote;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{CSIVolumeSource, EphemeralVolumeSource, HostPathVolumeSource, PodSpec, Volume};

use super::check::{known_only, no_backsteps, quantity, required};
use super::field::{FieldErrors, FieldPath};
use super::names::NameKind;
use crate::volume_sources::source_names;

/// The volumes that have no error, by name: mounts see no others.
pub(super) fn check<'a>(spec: &'a PodSpec, errors: &mut FieldErrors) -> BTreeMap<&'a str, &'a Volume> {
    let list = FieldPath::new("spec").child("volumes");
    let mut names = BTreeSet::new();
    let mut sound = BTreeMap::new();
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = list.index(i);
        let before = errors.len();
        check_source(spec, volume, &path, errors);
        let name = volume.name.as_str();
        let at_name = path.child("name");
        if name.is_empty() {
            errors.required(at_name, "");
        } else if !NameKind::Label.allows(name) {
            errors.invalid_each(&at_name, name, NameKind::Label.faults(name));
        } else if names.contains(name) {
            errors.duplicate(at_name, name);
        }
        if errors.len() == before {
            names.insert(name);
            sound.insert(name, volume);
        }
    }
    sound
}

fn check_source(spec: &PodSpec, volume: &Volume, path: &FieldPath, errors: &mut FieldErrors) {
    let mut sources = source_names(volume);
    let Some(source) = sources.next() else {
        return errors.required(path.clone(), "must specify a volume type");
    };
    let place = path.child(source);
    match source {
        "emptyDir" => {
            let dir = volume.empty_dir.as_ref();
            if let Some(limit) = dir.and_then(|dir| dir.size_limit.as_ref()) {
                let place = place.child("sizeLimit");
                if quantity(&place, limit, errors).is_some_and(|limit| limit.is_negative()) {
                    let detail = "SizeLimit field must be a valid resource quantity";
                    errors.forbidden(place, detail);
                }
            }
        }
        "hostPath" => check_host_path(volume.host_path.as_ref(), &place, errors),
        "persistentVolumeClaim" => {
            if let Some(claim) = &volume.persistent_volume_claim {
                required(place.child("claimName"), &claim.claim_name, errors);
            }
        }
        "secret" | "configMap" | "downwarAPI" => {
            // The wrong spelling is for the one text about many sources.
            let place = path.child(if source == "downwarAPI" { "downwardAPI" } else { source });
            files::check(volume, &place, errors);
        }
        "projected" => projected::check(spec, volume.projected.as_ref(), &place, errors),
        "csi" => check_csi(volume.csi.as_ref(), &place, errors),
        "ephemeral" => check_ephemeral(volume.ephemeral.as_ref(), &place, errors),
        "image" => {
            let image = volume.image.as_ref();
            if let Some(policy) = image.and_then(|image| image.pull_policy.as_deref()) {
                known_only(
                    place.child("pullPolicy"),
                    policy,
                    &["Always", "IfNotPresent", "Never"],
                    errors,
                );
            }
        }
        _ => remote::check(volume, source, &place, errors),
    }
    for more in sources {
        errors.forbidden(path.child(more), "may not specify more than 1 volume type");
    }
}

fn check_host_path(source: Option<&HostPathVolumeSource>, path: &FieldPath, errors: &mut FieldErrors) {
    let Some(source) = source else { return };
    required(path.child("path"), &source.path, errors);
    no_backsteps(&path.child("path"), &source.path, errors);
    let kind = source.type_.as_deref().unwrap_or_default();
    let known = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    known_only(path.child("type"), kind, &known, errors);
}

fn check_csi(source: Option<&CSIVolumeSource>, path: &FieldPath, errors: &mut FieldErrors) {
    let Some(source) = source else { return };
    let path = path.child("driver");
    let driver = source.driver.as_str();
    if driver.is_empty() {
        return errors.required(path, "");
    }
    if driver.len() > 63 {
        errors.too_long(path.clone(), 63);
    }
    let faults = NameKind::Subdomain.faults(&driver.to_lowercase());
    errors.invalid_each(&path, driver, faults);
}

fn check_ephemeral(source: Option<&EphemeralVolumeSource>, path: &FieldPath, errors: &mut FieldErrors) {
    let path = path.child("volumeClaimTemplate");
    let Some(template) = source.and_then(|source| source.volume_claim_template.as_ref()) else {
        return errors.required(path, "");
    };
    if let Some(meta) = &template.metadata {
        let path = path.child("metadata");
        for (field, set) in [
            ("name", meta.name.is_some()),
            ("generateName", meta.generate_name.is_some()),
            ("namespace", meta.namespace.is_some()),
            ("uid", meta.uid.is_some()),
            ("resourceVersion", meta.resource_version.is_some()),
            ("generation", meta.generation.is_some()),
            ("creationTimestamp", meta.creation_timestamp.is_some()),
            ("deletionTimestamp", meta.deletion_timestamp.is_some()),
            ("ownerReferences", meta.owner_references.is_some()),
            ("finalizers", meta.finalizers.is_some()),
        ] {
            if set {
                errors.forbidden(path.child(field), "cannot be set");
            }
        }
    }
    let path = path.child("spec");
    if template.spec.access_modes.as_ref().is_none_or(Vec::is_empty) {
        errors.required(path.child("accessModes"), "");
    }
    let resources = template.spec.resources.as_ref();
    let path = path.child("resources");
    match resources.and_then(|resources| resources.requests.as_ref()?.get("storage")) {
        None => errors.required(path.key("storage"), ""),
        Some(amount) => {
            let path = path.key("storage");
            let amount = quantity(&path, amount, errors);
            if let Some(amount) = amount.filter(|amount| amount.is_negative() || amount.is_zero()) {
                errors.invalid(path, amount.to_string().as_str(), "must be greater than zero");
            }
        }
    }
}
