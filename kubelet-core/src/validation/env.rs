//! Environment variables and the references they share with downward API volumes.

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVarSource, FileKeySelector, ObjectFieldSelector, ResourceFieldSelector,
};

use super::check::{name, no_backsteps, quantity, required, required_name};
use super::containers::PodContext;
use super::field::{FieldErrors, FieldPath};
use super::names::NameKind;
use crate::resources::is_huge_page;

const MANY_SOURCES: &str = "may not have more than one field specified at a time";
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields a path may name at all, besides those of [`ENV_FIELDS`].
const OTHER_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "spec.restartPolicy",
    "spec.schedulerName",
    "status.phase",
];
pub(super) const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

pub(super) fn check(cx: &PodContext<'_>, container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    for (j, variable) in container.env.iter().flatten().enumerate() {
        let path = path.child("env").index(j);
        required_name(&path.child("name"), &variable.name, NameKind::EnvVar, errors);
        if let Some(from) = &variable.value_from {
            let path = path.child("valueFrom");
            let count = check_sources(cx, from, &path, errors);
            let valued = variable.value.as_ref().is_some_and(|value| !value.is_empty());
            match count {
                0 => errors.invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"),
                _ if valued => errors.invalid(path, "", "may not be specified when `value` is not empty"),
                1 => {}
                _ => errors.invalid(path, "", MANY_SOURCES),
            }
        }
    }
    for (j, from) in container.env_from.iter().flatten().enumerate() {
        check_env_from(from, &path.child("envFrom"), j, errors);
    }
}

fn check_sources(cx: &PodContext<'_>, from: &EnvVarSource, path: &FieldPath, errors: &mut FieldErrors) -> usize {
    let mut count = 0;
    if let Some(field) = &from.field_ref {
        count += 1;
        check_field_ref(field, &ENV_FIELDS, &path.child("fieldRef"), errors);
    }
    if let Some(resource) = &from.resource_field_ref {
        count += 1;
        check_resource_ref(resource, &path.child("resourceFieldRef"), errors);
    }
    if let Some(key) = &from.config_map_key_ref {
        count += 1;
        check_key_ref(&key.name, &key.key, &path.child("configMapKeyRef"), errors);
    }
    if let Some(key) = &from.secret_key_ref {
        count += 1;
        check_key_ref(&key.name, &key.key, &path.child("secretKeyRef"), errors);
    }
    if let Some(file) = &from.file_key_ref {
        count += 1;
        check_file_ref(cx, file, &path.child("fileKeyRef"), errors);
    }
    count
}

pub(super) fn check_field_ref(
    field: &ObjectFieldSelector,
    allowed: &[&str],
    path: &FieldPath,
    errors: &mut FieldErrors,
) {
    let version = field.api_version.as_deref().unwrap_or_default();
    let given = field.field_path.as_str();
    if version.is_empty() {
        return errors.required(path.child("apiVersion"), "");
    }
    if given.is_empty() {
        return errors.required(path.child("fieldPath"), "");
    }
    let place = path.child("fieldPath");
    let fault = |text: String| format!("error converting fieldPath: {text}");
    if version != "v1" {
        let detail = fault(format!("unsupported pod version: {version}"));
        return errors.invalid(place, given, detail);
    }
    match subscript(given) {
        Some(("metadata.labels", key)) => name(path, key, NameKind::Qualified, errors),
        Some(("metadata.annotations", key)) => name(path, key, NameKind::AnnotationKey, errors),
        Some(_) => {
            let detail = fault(format!("field label does not support subscript: {given}"));
            errors.invalid(place, given, detail);
        }
        None => {
            let field = if given == "spec.host" { "spec.nodeName" } else { given };
            if !ENV_FIELDS.contains(&field) && !OTHER_FIELDS.contains(&field) {
                let detail = fault(format!("field label not supported: {given}"));
                errors.invalid(place, given, detail);
            } else if !allowed.contains(&field) {
                errors.not_supported(place, field, allowed);
            }
        }
    }
}

/// `path['key']` in its parts.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (path, key) = path.strip_suffix("']")?.split_once("['")?;
    (!path.is_empty()).then_some((path, key))
}

pub(super) fn check_resource_ref(resource: &ResourceFieldSelector, path: &FieldPath, errors: &mut FieldErrors) {
    let given = resource.resource.as_str();
    if given.is_empty() {
        return errors.required(path.child("resource"), "");
    }
    let bare = given
        .strip_prefix("limits.")
        .or_else(|| given.strip_prefix("requests."));
    if !RESOURCES.contains(&given) && !bare.is_some_and(is_huge_page) {
        return errors.not_supported(path.child("resource"), given, &RESOURCES);
    }
    let place = path.child("divisor");
    let Some(divisor) = resource
        .divisor
        .as_ref()
        .and_then(|text| quantity(&place, text, errors))
    else {
        return;
    };
    let known: &[&str] = match bare {
        Some("cpu") => &["1m", "1"],
        _ => &[
            "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
        ],
    };
    if !divisor.is_zero() && !known.contains(&divisor.canonical().as_str()) {
        let detail = format!("the divisor of {given} must be one of {}", known.join(", "));
        errors.invalid(place, given, detail);
    }
}

fn check_key_ref(object: &str, key: &str, path: &FieldPath, errors: &mut FieldErrors) {
    name(&path.child("name"), object, NameKind::Subdomain, errors);
    required_name(&path.child("key"), key, NameKind::ConfigMapKey, errors);
}

fn check_file_ref(cx: &PodContext<'_>, file: &FileKeySelector, path: &FieldPath, errors: &mut FieldErrors) {
    required_name(&path.child("key"), &file.key, NameKind::EnvVar, errors);
    required(path.child("path"), &file.path, errors);
    no_backsteps(&path.child("path"), &file.path, errors);
    let path = path.child("volumeName");
    let volume = file.volume_name.as_str();
    if volume.is_empty() {
        errors.required(path, "");
    } else if !NameKind::Label.allows(volume) {
        name(&path, volume, NameKind::Label, errors);
    } else {
        match cx.volumes.get(volume) {
            None => errors.not_found(path, volume, ""),
            Some(found) if found.empty_dir.is_none() => {
                errors.invalid(path, volume, "referenced volume must be of type emptyDir");
            }
            Some(_) => {}
        }
    }
}

/// What is said about the list as a whole has no index, as upstream prints it.
fn check_env_from(from: &EnvFromSource, list: &FieldPath, j: usize, errors: &mut FieldErrors) {
    let path = list.index(j);
    if let Some(prefix) = from.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        name(&path.child("prefix"), prefix, NameKind::EnvVar, errors);
    }
    let refs = [
        ("configMapRef", from.config_map_ref.as_ref().map(|found| &found.name)),
        ("secretRef", from.secret_ref.as_ref().map(|found| &found.name)),
    ];
    let mut count = 0;
    for (field, object) in refs {
        let Some(object) = object else { continue };
        count += 1;
        let path = path.child(field).child("name");
        // Upstream takes the name for the beginning of one.
        let begun = object.strip_suffix('-').unwrap_or(object);
        match object.as_str() {
            "" => errors.required(path, ""),
            _ => errors.invalid_each(&path, object, NameKind::Subdomain.faults(begun)),
        }
    }
    match count {
        0 => errors.invalid(list.clone(), "", "must specify one of: `configMapRef` or `secretRef`"),
        1 => {}
        _ => errors.invalid(list.clone(), "", MANY_SOURCES),
    }
}
