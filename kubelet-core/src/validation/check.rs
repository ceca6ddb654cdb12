//! Checks that many fields share.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::field::{FieldErrors, FieldPath};
use super::names::NameKind;
use crate::quantity::Quantity;

/// A text of a fixed set, where an empty one counts as not set and is required.
pub(super) fn one_of(path: FieldPath, value: Option<&str>, known: &[&str], errors: &mut FieldErrors) {
    match value.unwrap_or_default() {
        "" => errors.required(path, ""),
        value => known_only(path, value, known, errors),
    }
}

/// A text of a fixed set, where an empty one is like any other.
pub(super) fn known_only(path: FieldPath, value: &str, known: &[&str], errors: &mut FieldErrors) {
    if !known.contains(&value) {
        errors.not_supported(path, value, known);
    }
}

pub(super) fn required(path: FieldPath, value: &str, errors: &mut FieldErrors) {
    if value.is_empty() {
        errors.required(path, "");
    }
}

pub(super) fn name(path: &FieldPath, value: &str, kind: NameKind, errors: &mut FieldErrors) {
    errors.invalid_each(path, value, kind.faults(value));
}

pub(super) fn required_name(path: &FieldPath, value: &str, kind: NameKind, errors: &mut FieldErrors) {
    if value.is_empty() {
        errors.required(path.clone(), "");
    } else {
        name(path, value, kind, errors);
    }
}

/// Both ends belong to the range.
pub(super) fn range(path: FieldPath, value: i64, least: i64, most: i64, errors: &mut FieldErrors) {
    if !(least..=most).contains(&value) {
        let detail = format!("must be between {least} and {most}, inclusive");
        errors.invalid(path, value, detail);
    }
}

pub(super) fn not_negative(path: FieldPath, value: i64, errors: &mut FieldErrors) {
    if value < 0 {
        errors.invalid(path, value, "must be greater than or equal to 0");
    }
}

/// A path below some directory: relative, and never upwards.
pub(super) fn local_path(path: &FieldPath, value: &str, errors: &mut FieldErrors) {
    if value.starts_with('/') {
        errors.invalid(path.clone(), value, "must be a relative path");
    }
    no_backsteps(path, value, errors);
}

/// A [`local_path`] that leaves names starting with `..` to the node.
pub(super) fn local_file(path: &FieldPath, value: &str, errors: &mut FieldErrors) {
    local_path(path, value, errors);
    if value.starts_with("..") && value != ".." && !value.starts_with("../") {
        errors.invalid(path.clone(), value, "must not start with '..'");
    }
}

pub(super) fn no_backsteps(path: &FieldPath, value: &str, errors: &mut FieldErrors) {
    if has_backsteps(value) {
        errors.invalid(path.clone(), value, "must not contain '..'");
    }
}

pub(super) fn has_backsteps(value: &str) -> bool {
    value.split('/').any(|part| part == "..")
}

/// Reads an amount. Upstream refuses a bad one when it decodes the manifest; here it has a path.
pub(super) fn quantity(path: &FieldPath, value: &ApiQuantity, errors: &mut FieldErrors) -> Option<Quantity> {
    match Quantity::try_from(value) {
        Ok(read) => Some(read),
        Err(error) => {
            errors.invalid(path.clone(), value.0.as_str(), error.to_string());
            None
        }
    }
}
