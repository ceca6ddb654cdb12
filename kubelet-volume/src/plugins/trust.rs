//! Certificates of those whom a pod is to trust.
//!
//! Source: kubelet 1.36, `clustertrustbundle_manager.go`.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_core::k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kubelet_core::{Object, ObjectError, ObjectKind, error_chain};

use crate::plugin::{SetUp, VolumeFault};

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The certificates of one bundle, or of all of a signer that are selected: each once.
pub(super) async fn certificates(cx: &SetUp<'_>, source: &ClusterTrustBundleProjection) -> Result<String, VolumeFault> {
    let is_optional = source.optional.unwrap_or(false);
    let failed = |error: &ObjectError| VolumeFault::new(error_chain(error));
    let mut texts = Vec::new();
    if let Some(name) = source.name.as_deref().filter(|name| !name.is_empty()) {
        match cx.object(ObjectKind::ClusterTrustBundle, name).await {
            Ok(Object::ClusterTrustBundle(bundle)) => texts.push(bundle.spec.trust_bundle.clone()),
            Ok(other) => return Err(VolumeFault::new(format!("{other:?} was given for a trust bundle"))),
            Err(ObjectError::NotFound { .. }) if is_optional => {}
            Err(error) => return Err(failed(&error)),
        }
    } else {
        let signer = source.signer_name.as_deref().unwrap_or_default();
        let found = cx
            .objects(ObjectKind::ClusterTrustBundle)
            .await
            .map_err(|error| failed(&error))?;
        for object in found {
            let Object::ClusterTrustBundle(bundle) = object else {
                continue;
            };
            let is_signers = bundle.spec.signer_name.as_deref() == Some(signer);
            let labels = bundle.metadata.labels.clone().unwrap_or_default();
            if is_signers
                && source
                    .label_selector
                    .as_ref()
                    .is_some_and(|selector| matches(selector, &labels))
            {
                texts.push(bundle.spec.trust_bundle.clone());
            }
        }
        if texts.is_empty() && !is_optional {
            return Err(VolumeFault::new(format!(
                "no trust bundle of signer {signer:?} is selected"
            )));
        }
    }
    let certificates: BTreeSet<String> = texts.iter().flat_map(|text| blocks(text)).collect();
    Ok(certificates.into_iter().collect())
}

/// The certificates in a text, without what is around them, in one form.
fn blocks(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(BEGIN) {
        let Some((body, next)) = after.split_once(END) else {
            break;
        };
        rest = next;
        let body: String = body.split_whitespace().collect();
        if body.is_empty() || !body.is_ascii() {
            continue;
        }
        let mut block = format!("{BEGIN}\n");
        for (index, byte) in body.chars().enumerate() {
            if index > 0 && index % 64 == 0 {
                block.push('\n');
            }
            block.push(byte);
        }
        block.push_str(&format!("\n{END}\n"));
        found.push(block);
    }
    found
}

/// Whether labels are selected: by nothing all are.
fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut equal = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    equal.all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|expression| {
            let (value, values) = (
                labels.get(&expression.key),
                expression.values.as_deref().unwrap_or_default(),
            );
            match expression.operator.as_str() {
                "In" => value.is_some_and(|value| values.contains(value)),
                "NotIn" => value.is_none_or(|value| !values.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::{blocks, matches};

    #[test]
    fn certificates_are_found_between_other_text() {
        let text = "a comment\n-----BEGIN CERTIFICATE-----\nTUlJ\nQg==\n-----END CERTIFICATE-----\nmore\n\
                    -----BEGIN CERTIFICATE-----TUlJQg==-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nno end";
        let found = blocks(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], found[1], "in one form");
        assert_eq!(
            found[0],
            "-----BEGIN CERTIFICATE-----\nTUlJQg==\n-----END CERTIFICATE-----\n"
        );
        assert!(blocks("-----BEGIN CERTIFICATE----------END CERTIFICATE-----").is_empty());
    }

    #[test]
    fn labels_are_selected() {
        let labels = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        let select = |selector| matches(&serde_json::from_value(selector).unwrap(), &labels);
        assert!(select(json!({})));
        assert!(select(json!({"matchLabels": {"a": "1"}})) && !select(json!({"matchLabels": {"a": "2"}})));
        for (operator, values, expected) in [
            ("In", json!(["1", "2"]), true),
            ("In", json!(["2"]), false),
            ("NotIn", json!(["1"]), false),
            ("NotIn", json!(["2"]), true),
            ("Exists", json!([]), true),
            ("DoesNotExist", json!([]), false),
            ("Sideways", json!([]), false),
        ] {
            let expression = json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]});
            assert_eq!(select(expression), expected, "{operator}");
        }
    }
}
