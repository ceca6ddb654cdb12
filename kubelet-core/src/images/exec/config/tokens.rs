//! `tokenAttributes`: which plugins are shown whom a pod is.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::validation::NameKind;

/// The only version of plugins that are shown tokens.
const API_VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";

/// What a plugin is told of the service account of a pod, checked.
#[derive(Debug)]
pub(in crate::images::exec) struct TokenAttributes {
    /// For whom the token is.
    pub(in crate::images::exec) audience: String,
    /// Whether the plugin is not asked for pods without a service account.
    pub(in crate::images::exec) is_required: bool,
    /// Annotations without which the plugin is not asked.
    pub(in crate::images::exec) required_keys: Vec<String>,
    /// Annotations that are told where they are there.
    pub(in crate::images::exec) optional_keys: Vec<String>,
    /// Whether an answer is for one token, and not for all of its service account.
    pub(in crate::images::exec) is_cached_by_token: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Attributes {
    #[serde(default)]
    service_account_token_audience: String,
    #[serde(default)]
    cache_type: String,
    require_service_account: Option<bool>,
    #[serde(default)]
    required_service_account_annotation_keys: Option<Vec<String>>,
    #[serde(default)]
    optional_service_account_annotation_keys: Option<Vec<String>>,
}

/// Checks them; tells `wrong` each field, its value and why it is none.
///
/// Source: kubelet 1.36, `credentialprovider/plugin/config.go`.
pub(super) fn check(
    of: Attributes,
    api_version: &str,
    mut wrong: impl FnMut(&str, &str, &str),
) -> Option<TokenAttributes> {
    const AUDIENCE: &str = "serviceAccountTokenAudience";
    const REQUIRED: &str = "requiredServiceAccountAnnotationKeys";
    const OPTIONAL: &str = "optionalServiceAccountAnnotationKeys";
    let mut is_fine = true;
    let mut wrong = |field: &str, value: &str, why: &str| {
        is_fine = false;
        wrong(&format!("tokenAttributes.{field}"), value, why);
    };
    if api_version != API_VERSION {
        wrong(
            "apiVersion",
            api_version,
            &format!("only plugins of {API_VERSION} are given tokens"),
        );
    }
    if of.service_account_token_audience.is_empty() {
        wrong(AUDIENCE, "", "required");
    }
    let is_cached_by_token = match of.cache_type.as_str() {
        "ServiceAccount" => false,
        "Token" => true,
        "" => {
            wrong("cacheType", "", "required");
            false
        }
        other => {
            wrong("cacheType", other, "must be ServiceAccount or Token");
            false
        }
    };
    if of.require_service_account.is_none() {
        wrong("requireServiceAccount", "", "required");
    }
    let is_required = of.require_service_account.unwrap_or(false);
    let required_keys = of.required_service_account_annotation_keys.unwrap_or_default();
    let optional_keys = of.optional_service_account_annotation_keys.unwrap_or_default();
    if of.require_service_account == Some(false) && !required_keys.is_empty() {
        let why = "must be empty where requireServiceAccount is false";
        wrong(REQUIRED, &required_keys.join(", "), why);
    }
    let mut known = BTreeSet::new();
    for (field, keys) in [(REQUIRED, &required_keys), (OPTIONAL, &optional_keys)] {
        for (index, key) in keys.iter().enumerate() {
            let field = format!("{field}[{index}]");
            if let Some(why) = NameKind::AnnotationKey.faults(key).into_iter().next() {
                wrong(&field, key, &why);
            }
            if !known.insert(key) {
                wrong(&field, key, "it is there twice");
            }
        }
    }
    is_fine.then_some(TokenAttributes {
        audience: of.service_account_token_audience,
        is_required,
        required_keys,
        optional_keys,
        is_cached_by_token,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{API_VERSION, TokenAttributes, check};

    fn checked(change: impl FnOnce(&mut Value), version: &str) -> (Option<TokenAttributes>, Vec<String>) {
        let mut attributes = json!({
            "serviceAccountTokenAudience": "reg.example",
            "cacheType": "ServiceAccount",
            "requireServiceAccount": true,
            "requiredServiceAccountAnnotationKeys": ["example.com/role"],
            "optionalServiceAccountAnnotationKeys": ["example.com/region"],
        });
        change(&mut attributes);
        let mut told = Vec::new();
        let found = check(
            serde_json::from_value(attributes).unwrap(),
            version,
            |field, value, why| {
                told.push(format!("{field}: {value:?}: {why}"));
            },
        );
        (found, told)
    }

    #[test]
    fn good_attributes_are_taken() {
        let (found, told) = checked(|_| {}, API_VERSION);
        let found = found.unwrap();
        assert_eq!(told, [] as [&str; 0]);
        assert_eq!(
            (found.audience.as_str(), found.is_required, found.is_cached_by_token),
            ("reg.example", true, false)
        );
        assert_eq!((found.required_keys.len(), found.optional_keys.len()), (1, 1));
        let (found, _) = checked(
            |a| {
                a["cacheType"] = "Token".into();
                a["requireServiceAccount"] = false.into();
                a["requiredServiceAccountAnnotationKeys"] = Value::Null;
            },
            API_VERSION,
        );
        let found = found.unwrap();
        assert!(found.is_cached_by_token && !found.is_required);
    }

    #[test]
    fn each_mistake_is_named() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 8] = [
            (
                |a| a["serviceAccountTokenAudience"] = "".into(),
                r#"tokenAttributes.serviceAccountTokenAudience: "": required"#,
            ),
            (
                |a| a["cacheType"] = "".into(),
                r#"tokenAttributes.cacheType: "": required"#,
            ),
            (
                |a| a["cacheType"] = "Pod".into(),
                r#"tokenAttributes.cacheType: "Pod": must be ServiceAccount or Token"#,
            ),
            (
                |a| a["requireServiceAccount"] = Value::Null,
                r#"tokenAttributes.requireServiceAccount: "": required"#,
            ),
            (
                |a| a["requireServiceAccount"] = false.into(),
                r#"tokenAttributes.requiredServiceAccountAnnotationKeys: "example.com/role": must be empty"#,
            ),
            (
                |a| a["optionalServiceAccountAnnotationKeys"] = json!(["example.com/role"]),
                r#"tokenAttributes.optionalServiceAccountAnnotationKeys[0]: "example.com/role": it is there twice"#,
            ),
            (
                |a| a["optionalServiceAccountAnnotationKeys"] = json!(["a", "a"]),
                r#"tokenAttributes.optionalServiceAccountAnnotationKeys[1]: "a": it is there twice"#,
            ),
            (
                |a| a["optionalServiceAccountAnnotationKeys"] = json!(["a b"]),
                r#"tokenAttributes.optionalServiceAccountAnnotationKeys[0]: "a b": "#,
            ),
        ];
        for (change, expected) in cases {
            let (found, told) = checked(change, API_VERSION);
            assert!(found.is_none());
            assert!(told.len() == 1 && told[0].starts_with(expected), "{told:?}");
        }
        let (found, told) = checked(|_| {}, "credentialprovider.kubelet.k8s.io/v1beta1");
        assert!(
            found.is_none() && told[0].contains("only plugins of credentialprovider.kubelet.k8s.io/v1"),
            "{told:?}"
        );
    }
}
