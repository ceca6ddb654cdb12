//! Seccomp and AppArmor profiles.

use k8s_openapi::api::core::v1::{AppArmorProfile, SeccompProfile};

use crate::validation::check::{known_only, local_path};
use crate::validation::field::{FieldErrors, FieldPath};

const TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
const APP_ARMOR_BYTES: usize = 4095;

pub(super) fn check_seccomp(profile: Option<&SeccompProfile>, context: &FieldPath, errors: &mut FieldErrors) {
    let Some(profile) = profile else { return };
    let path = context.child("seccompProfile");
    match profile.type_.as_str() {
        "" => {
            let detail = "type is required when seccompProfile is set";
            errors.required(path.child("type"), detail);
        }
        kind => known_only(path.child("type"), kind, &TYPES, errors),
    }
    let path = path.child("localhostProfile");
    match (profile.type_ == "Localhost", profile.localhost_profile.as_deref()) {
        (true, None) => errors.required(path, "must be set when seccomp type is Localhost"),
        (true, Some(file)) => local_path(&path, file, errors),
        (false, Some(file)) => {
            errors.invalid(path, file, "can only be set when seccomp type is Localhost");
        }
        (false, None) => {}
    }
}

pub(super) fn check_app_armor(profile: Option<&AppArmorProfile>, context: &FieldPath, errors: &mut FieldErrors) {
    let Some(profile) = profile else { return };
    let path = context.child("appArmorProfile");
    match profile.type_.as_str() {
        "" => {
            let detail = "type is required when appArmorProfile is set";
            errors.required(path.child("type"), detail);
        }
        kind => known_only(path.child("type"), kind, &TYPES, errors),
    }
    let path = path.child("localhostProfile");
    match (profile.type_ == "Localhost", profile.localhost_profile.as_deref()) {
        (true, Some(name)) if !name.trim().is_empty() => {
            if name != name.trim() {
                errors.invalid(path.clone(), name, "must not be padded with whitespace");
            }
            if name.len() > APP_ARMOR_BYTES {
                errors.too_long(path, APP_ARMOR_BYTES);
            }
        }
        (true, _) => errors.required(path, "must be set when AppArmor type is Localhost"),
        (false, Some(name)) => {
            errors.invalid(path, name, "can only be set when AppArmor type is Localhost");
        }
        (false, None) => {}
    }
}
