//! Volume mounts and block devices.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::check::{has_backsteps, known_only, local_path, required};
use super::containers::PodContext;
use super::field::{FieldErrors, FieldPath};

pub(super) fn check(cx: &PodContext<'_>, container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    check_mounts(cx, container, &path.child("volumeMounts"), errors);
    check_devices(cx, container, &path.child("volumeDevices"), errors);
}

fn check_mounts(cx: &PodContext<'_>, container: &Container, list: &FieldPath, errors: &mut FieldErrors) {
    let devices = || container.volume_devices.iter().flatten();
    let names: BTreeSet<_> = devices().map(|device| device.name.as_str()).collect();
    let paths: BTreeSet<_> = devices().map(|device| device.device_path.as_str()).collect();
    let mut seen = BTreeSet::new();
    for (j, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = list.index(j);
        let (name, target) = (mount.name.as_str(), mount.mount_path.as_str());
        required(path.child("name"), name, errors);
        if !cx.volumes.contains_key(name) {
            errors.not_found(path.child("name"), name, "");
        }
        required(path.child("mountPath"), target, errors);
        if !seen.insert(target) {
            errors.invalid(path.child("mountPath"), target, "must be unique");
        }
        if names.contains(name) {
            let detail = "must not already exist in volumeDevices";
            errors.invalid(path.child("name"), name, detail);
        }
        if paths.contains(target) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.invalid(path.child("mountPath"), target, detail);
        }
        check_sub_paths(mount, list, &path, errors);
        check_propagation(container, mount, list, errors);
        check_read_only(mount, list, errors);
    }
}

fn check_sub_paths(mount: &VolumeMount, list: &FieldPath, path: &FieldPath, errors: &mut FieldErrors) {
    let plain = mount.sub_path.as_deref().unwrap_or_default();
    let expression = mount.sub_path_expr.as_deref().unwrap_or_default();
    local_path(&list.child("subPath"), plain, errors);
    if !plain.is_empty() && !expression.is_empty() {
        let detail = "subPathExpr and subPath are mutually exclusive";
        errors.invalid(path.child("subPathExpr"), expression, detail);
    }
    local_path(&list.child("subPathExpr"), expression, errors);
}

fn check_propagation(container: &Container, mount: &VolumeMount, list: &FieldPath, errors: &mut FieldErrors) {
    let Some(mode) = &mount.mount_propagation else {
        return;
    };
    let path = list.child("mountPropagation");
    let context = container.security_context.as_ref();
    let privileged = context.and_then(|context| context.privileged) == Some(true);
    if mode == "Bidirectional" && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        return errors.forbidden(path, detail);
    }
    known_only(path, mode, &["Bidirectional", "HostToContainer", "None"], errors);
}

fn check_read_only(mount: &VolumeMount, list: &FieldPath, errors: &mut FieldErrors) {
    let Some(mode) = &mount.recursive_read_only else {
        return;
    };
    let path = list.child("recursiveReadOnly");
    known_only(path.clone(), mode, &["Disabled", "Enabled", "IfPossible"], errors);
    if mode != "Enabled" && mode != "IfPossible" {
        return;
    }
    if mount.read_only != Some(true) {
        errors.forbidden(path.clone(), "may only be specified when readOnly is true");
    }
    if mount.mount_propagation.as_deref().is_some_and(|mode| mode != "None") {
        let detail = "may only be specified when mountPropagation is None or not specified";
        errors.forbidden(path, detail);
    }
}

fn check_devices(cx: &PodContext<'_>, container: &Container, list: &FieldPath, errors: &mut FieldErrors) {
    let mounts = || container.volume_mounts.iter().flatten();
    let mount_names: BTreeSet<_> = mounts().map(|mount| mount.name.as_str()).collect();
    let mount_paths: BTreeSet<_> = mounts().map(|mount| mount.mount_path.as_str()).collect();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (j, device) in container.volume_devices.iter().flatten().enumerate() {
        let path = list.index(j);
        let (name, target) = (device.name.as_str(), device.device_path.as_str());
        let (at_name, at_path) = (path.child("name"), path.child("devicePath"));
        required(at_name.clone(), name, errors);
        if !names.insert(name) {
            errors.invalid(at_name.clone(), name, "must be unique");
        }
        match cx.volumes.get(name) {
            None => errors.not_found(at_name.clone(), name, ""),
            Some(volume) if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(at_name.clone(), name, detail);
            }
            Some(_) => {}
        }
        required(at_path.clone(), target, errors);
        if !paths.insert(target) {
            errors.invalid(at_path.clone(), target, "must be unique");
        }
        if has_backsteps(target) {
            errors.invalid(at_path.clone(), target, "can not contain backsteps ('..')");
        }
        if mount_names.contains(name) {
            errors.invalid(at_name, name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(target) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.invalid(at_path, target, detail);
        }
    }
}
