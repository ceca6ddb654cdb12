//! Parts of volumes.

use std::path::{Component, Path};

use k8s_openapi::api::core::v1::VolumeMount;

use crate::env::{Env, expand_sub_path};

/// The part of a volume that a container mounts, as a relative path; empty: all of it. `env` is what the container is started with.
///
/// Source: kubelet 1.36, `kubelet_pods.go`.
///
/// # Errors
/// A text that names what is wrong: a variable that is not there, an absolute path, or one with `..`. What variables hold is not
/// in it, since it may come from a secret.
pub fn volume_sub_path(mount: &VolumeMount, env: &Env) -> Result<String, String> {
    let expression = mount.sub_path_expr.as_deref().filter(|text| !text.is_empty());
    let path = match expression {
        Some(expression) => expand_sub_path(expression, env)
            .map_err(|error| format!("cannot expand subPathExpr {expression:?}: {error}"))?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    // What an expression becomes may come from a secret.
    let named = || match expression {
        Some(expression) => format!("what subPathExpr {expression:?} becomes"),
        None => format!("subPath {path:?}"),
    };
    let as_path = Path::new(&path);
    if as_path.is_absolute() {
        return Err(format!("{} must not be an absolute path", named()));
    }
    if as_path.components().any(|part| part == Component::ParentDir) {
        return Err(format!("{} must not contain \"..\"", named()));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::volume_sub_path;
    use crate::env::Env;

    #[test]
    fn a_part_is_a_relative_path_that_stays_inside() {
        let env = Env::from_iter([("LANGUAGE", "en"), ("EMPTY", ""), ("UP", "../../x"), ("ROOT", "/x")]);
        let of = |field: &str, path: &str| {
            let mut mount = json!({"name": "model", "mountPath": "/model"});
            mount[field] = path.into();
            volume_sub_path(&serde_json::from_value(mount).unwrap(), &env)
        };
        for (field, path, expected) in [
            ("subPath", "", ""),
            ("subPath", "a/b", "a/b"),
            ("subPath", "a/..b", "a/..b"),
            ("subPath", "$(LANGUAGE)", "$(LANGUAGE)"),
            ("subPathExpr", "texts/$(LANGUAGE)", "texts/en"),
            ("subPathExpr", "", ""),
        ] {
            assert_eq!(of(field, path).as_deref(), Ok(expected));
        }
        for (field, path, expected) in [
            ("subPath", "/a", "absolute"),
            ("subPath", "a/../b", "\"..\""),
            (
                "subPathExpr",
                "$(UP)",
                "what subPathExpr \"$(UP)\" becomes must not contain \"..\"",
            ),
            (
                "subPathExpr",
                "$(ROOT)",
                "what subPathExpr \"$(ROOT)\" becomes must not be an absolute path",
            ),
            ("subPathExpr", "$(EMPTY)", "missing value for EMPTY"),
            ("subPathExpr", "a/$(NONE)", "missing value for NONE"),
        ] {
            let error = of(field, path).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
