//! Volumes made of files: secrets, config maps, downward API.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Volume};

use crate::validation::check::{local_file, required};
use crate::validation::env::{VOLUME_FIELDS, check_field_ref, check_resource_ref};
use crate::validation::field::{FieldErrors, FieldPath};

pub(super) fn check(volume: &Volume, path: &FieldPath, errors: &mut FieldErrors) {
    if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        required(path.child("secretName"), name, errors);
        check_mode(source.default_mode, path.child("defaultMode"), errors);
        check_items(source.items.as_deref(), path, errors);
    } else if let Some(source) = &volume.downward_api {
        check_mode(source.default_mode, path.child("defaultMode"), errors);
        for file in source.items.iter().flatten() {
            check_downward(file, path, errors);
        }
    } else if let Some(source) = &volume.config_map {
        required(path.child("name"), &source.name, errors);
        check_mode(source.default_mode, path.child("defaultMode"), errors);
        check_items(source.items.as_deref(), path, errors);
    }
}

pub(super) fn check_mode(mode: Option<i32>, path: FieldPath, errors: &mut FieldErrors) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid(path, mode, detail);
    }
}

pub(super) fn check_items(items: Option<&[KeyToPath]>, path: &FieldPath, errors: &mut FieldErrors) {
    for (j, item) in items.into_iter().flatten().enumerate() {
        let path = path.child("items").index(j);
        required(path.child("key"), &item.key, errors);
        required(path.child("path"), &item.path, errors);
        local_file(&path.child("path"), &item.path, errors);
        check_mode(item.mode, path.child("mode"), errors);
    }
}

/// The paths have no index of the file, as upstream prints them.
pub(super) fn check_downward(file: &DownwardAPIVolumeFile, path: &FieldPath, errors: &mut FieldErrors) {
    required(path.child("path"), &file.path, errors);
    local_file(&path.child("path"), &file.path, errors);
    if let Some(field) = &file.field_ref {
        check_field_ref(field, &VOLUME_FIELDS, &path.child("fieldRef"), errors);
        if file.resource_field_ref.is_some() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.invalid(path.clone(), "resource", detail);
        }
    } else if let Some(resource) = &file.resource_field_ref {
        let path = path.child("resourceFieldRef");
        let container = resource.container_name.as_deref().unwrap_or_default();
        required(path.child("containerName"), container, errors);
        check_resource_ref(resource, &path, errors);
    } else {
        let detail = "one of fieldRef and resourceFieldRef is required";
        errors.required(path.clone(), detail);
    }
    check_mode(file.mode, path.child("mode"), errors);
}
