//! The pod's metadata and the annotations that have a meaning.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::containers::all_containers;
use super::field::{FieldErrors, FieldPath, Json};
use super::names::NameKind;

const ANNOTATIONS_BYTES: usize = 256 * 1024;
/// A uid stands in the names of directories, cgroups and log folders, beside other parts of them.
const UID_BYTES: usize = 128;
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub(super) fn check(pod: &Pod, spec: &PodSpec, errors: &mut FieldErrors) {
    let root = FieldPath::new("metadata");
    check_object(&pod.metadata, &root, errors);
    if let Some(annotations) = &pod.metadata.annotations {
        check_pod_annotations(annotations, spec, &root.child("annotations"), errors);
    }
}

fn check_object(meta: &ObjectMeta, root: &FieldPath, errors: &mut FieldErrors) {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (name, namespace, uid) = (text(&meta.name), text(&meta.namespace), text(&meta.uid));
    if name.is_empty() {
        errors.required(root.child("name"), "name or generateName is required");
    } else {
        errors.invalid_each(&root.child("name"), &name, NameKind::Subdomain.faults(&name));
    }
    if namespace.is_empty() {
        errors.required(root.child("namespace"), "");
    } else {
        let faults = NameKind::Label.faults(&namespace);
        errors.invalid_each(&root.child("namespace"), &namespace, faults);
    }
    // Upstream keeps any uid and builds paths of it; a manifest must not reach outside the pods' directory.
    if !uid.is_empty() && !is_path_element(&uid) {
        errors.invalid(
            root.child("uid"),
            uid.as_str(),
            format!("must be one path element of letters, digits, '-', '_' and '.', at most {UID_BYTES} bytes, and not '.' or '..'"),
        );
    }
    if let Some(generation) = meta.generation.filter(|generation| *generation < 0) {
        let path = root.child("generation");
        errors.invalid(path, generation, "must be greater than or equal to 0");
    }
    check_labels(meta.labels.as_ref(), &root.child("labels"), errors);
    if let Some(annotations) = &meta.annotations {
        check_annotations(annotations, &root.child("annotations"), errors);
    }
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    check_owners(owners, &root.child("ownerReferences"), errors);
    for (i, finalizer) in meta.finalizers.iter().flatten().enumerate() {
        check_finalizer(finalizer, root.child("finalizers").index(i), errors);
    }
}

fn is_path_element(uid: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    uid.len() <= UID_BYTES && uid != "." && uid != ".." && uid.bytes().all(allowed)
}

/// Also for node selectors, which are labels by their form.
pub(super) fn check_labels(labels: Option<&BTreeMap<String, String>>, path: &FieldPath, errors: &mut FieldErrors) {
    for (key, value) in labels.into_iter().flatten() {
        errors.invalid_each(path, key, NameKind::Qualified.faults(key));
        errors.invalid_each(path, value, NameKind::LabelValue.faults(value));
    }
}

fn check_annotations(annotations: &BTreeMap<String, String>, path: &FieldPath, errors: &mut FieldErrors) {
    let mut bytes = 0;
    for (key, value) in annotations {
        errors.invalid_each(path, key, NameKind::AnnotationKey.faults(key));
        bytes += key.len() + value.len();
    }
    if bytes > ANNOTATIONS_BYTES {
        errors.too_long(path.clone(), ANNOTATIONS_BYTES);
    }
}

fn check_owners(owners: &[OwnerReference], path: &FieldPath, errors: &mut FieldErrors) {
    for owner in owners {
        let fields = [
            ("apiVersion", &owner.api_version, "version must not be empty"),
            ("kind", &owner.kind, "must not be empty"),
            ("name", &owner.name, "must not be empty"),
            ("uid", &owner.uid, "must not be empty"),
        ];
        for (field, value, detail) in fields {
            if value.is_empty() {
                errors.invalid(path.child(field), value.as_str(), detail);
            }
        }
    }
    if owners.iter().filter(|owner| owner.controller == Some(true)).count() > 1 {
        let detail = "at most one reference may be the controller";
        errors.invalid(path.clone(), Json(&owners), detail);
    }
}

fn check_finalizer(finalizer: &str, path: FieldPath, errors: &mut FieldErrors) {
    let faults = NameKind::Qualified.faults(finalizer);
    if !faults.is_empty() {
        errors.invalid_each(&path, finalizer, faults);
    } else if !finalizer.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer) {
        errors.invalid(path, finalizer, "must be a standard finalizer or have a prefix");
    }
}

fn check_pod_annotations(
    annotations: &BTreeMap<String, String>,
    spec: &PodSpec,
    path: &FieldPath,
    errors: &mut FieldErrors,
) {
    if let Some(cost) = annotations.get(DELETION_COST)
        && cost.parse::<i32>().is_err()
    {
        let path = path.key(DELETION_COST);
        errors.invalid(path, cost.as_str(), "must be a 32bit integer");
    }
    for (key, profile) in annotations {
        if let Some(name) = key.strip_prefix(APP_ARMOR) {
            check_app_armor(name, profile, spec, &path.key(key), errors);
        }
        if (key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER)) && seccomp_type(profile).is_none() {
            let path = path.child(key.clone());
            errors.invalid(path, profile.as_str(), "must be a valid seccomp profile");
        }
    }
    check_agreement(annotations, spec, errors);
}

fn check_app_armor(name: &str, profile: &str, spec: &PodSpec, path: &FieldPath, errors: &mut FieldErrors) {
    if !all_containers(spec).any(|(_, container)| container.name == name) {
        errors.invalid(path.clone(), name, "container not found");
    }
    if app_armor_type(profile).is_none() {
        let detail = format!("invalid AppArmor profile name: \"{profile}\"");
        errors.invalid(path.clone(), profile, detail);
    }
}

/// An annotation and the field that replaced it must not contradict each other.
fn check_agreement(annotations: &BTreeMap<String, String>, spec: &PodSpec, errors: &mut FieldErrors) {
    let differs = |given: Option<&str>, field: Option<&str>| matches!((given, field), (Some(given), Some(field)) if given != field);
    let given = annotations.get(SECCOMP_POD).and_then(|profile| seccomp_type(profile));
    let context = spec.security_context.as_ref();
    let field = context.and_then(|context| context.seccomp_profile.as_ref());
    if differs(given, field.map(|profile| profile.type_.as_str())) {
        let path = FieldPath::new("spec").child("securityContext");
        seccomp_mismatch(&path, errors);
    }
    for (path, container) in all_containers(spec) {
        let Container {
            name,
            security_context: Some(context),
            ..
        } = &*container
        else {
            continue;
        };
        let path = path.child("securityContext");
        let given = annotations.get(&format!("{SECCOMP_CONTAINER}{name}"));
        let field = context.seccomp_profile.as_ref();
        if differs(
            given.and_then(|profile| seccomp_type(profile)),
            field.map(|field| field.type_.as_str()),
        ) {
            seccomp_mismatch(&path, errors);
        }
        let given = annotations.get(&format!("{APP_ARMOR}{name}"));
        let field = context.app_armor_profile.as_ref();
        if differs(
            given.and_then(|profile| app_armor_type(profile)),
            field.map(|field| field.type_.as_str()),
        ) {
            let path = path.child("appArmorProfile").child("type");
            errors.forbidden(path, "apparmor type in annotation and field must match");
        }
    }
}

fn seccomp_mismatch(context: &FieldPath, errors: &mut FieldErrors) {
    let path = context.child("seccompProfile").child("type");
    errors.forbidden(path, "seccomp type in annotation and field must match");
}

/// The field's value that an annotation's profile means; nothing if there is no such profile.
fn seccomp_type(profile: &str) -> Option<&'static str> {
    match profile {
        "runtime/default" | "docker/default" => Some("RuntimeDefault"),
        "unconfined" => Some("Unconfined"),
        _ => {
            let path = profile.strip_prefix("localhost/")?;
            let local = !path.starts_with('/') && path.split('/').all(|part| part != "..");
            local.then_some("Localhost")
        }
    }
}

fn app_armor_type(profile: &str) -> Option<&'static str> {
    match profile {
        "" | "runtime/default" => Some("RuntimeDefault"),
        "unconfined" => Some("Unconfined"),
        _ => profile.starts_with("localhost/").then_some("Localhost"),
    }
}
