//! What makes a manifest a static pod of this node.

use k8s_openapi::api::core::v1::{Pod, Toleration};
use serde_json::Value;

use crate::fnv::{fnv1a_128, fnv1a_128_more};
use crate::runtime::annotation;
use crate::source::Origin;

/// Gives a defaulted pod what static pods have: a UID, the node's name after its own, a namespace, the node, the hash
/// annotation, for files a toleration of everything, and the phase.
///
/// Source: kubelet 1.36, `config/common.go`. The UID is made from the pod as it was written, where upstream takes the
/// defaulted one: a later version with one more default must not replace every static pod.
pub(super) fn decorate(pod: &mut Pod, as_written: &Pod, node_name: &str, origin: Option<&Origin>) {
    let given = pod.metadata.uid.take().filter(|uid| !uid.is_empty());
    let uid = given.unwrap_or_else(|| generate_uid(as_written, node_name, origin));
    let metadata = &mut pod.metadata;
    metadata.name = metadata
        .name
        .take()
        .map(|name| format!("{name}-{}", node_name.to_lowercase()));
    metadata
        .annotations
        .get_or_insert_default()
        .insert(annotation::CONFIG_HASH.to_owned(), uid.clone());
    metadata.uid = Some(uid);
    place(pod, node_name);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_owned());
    if matches!(origin, Some(Origin::File(_))) {
        tolerate_eviction(spec.tolerations.get_or_insert_default());
    }
    pod.status.get_or_insert_default().phase = Some("Pending".to_owned());
}

/// Gives a pod a namespace and a node where it has none.
pub(super) fn place(pod: &mut Pod, node_name: &str) {
    let is_empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    if is_empty(&pod.metadata.namespace) {
        pod.metadata.namespace = Some("default".to_owned());
    }
    if let Some(spec) = pod.spec.as_mut().filter(|spec| is_empty(&spec.node_name)) {
        spec.node_name = Some(node_name.to_owned());
    }
}

fn tolerate_eviction(tolerations: &mut Vec<Toleration>) {
    let wanted = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let same = |toleration: &&mut Toleration| {
        text(&toleration.key).is_empty()
            && text(&toleration.value).is_empty()
            && toleration.operator == wanted.operator
            && toleration.effect == wanted.effect
    };
    match tolerations.iter_mut().find(same) {
        Some(toleration) => *toleration = wanted,
        None => tolerations.push(wanted),
    }
}

fn generate_uid(pod: &Pod, node_name: &str, origin: Option<&Origin>) -> String {
    let mut text = String::new();
    // A pod that was decoded can be encoded.
    write_sorted(&serde_json::to_value(pod).unwrap_or_default(), &mut text);
    let hash = fnv1a_128(text.as_bytes());
    let host = || fnv1a_128_more(hash, format!("host:{node_name}").as_bytes());
    let hash = match origin {
        Some(Origin::Url(url, _)) => fnv1a_128_more(hash, format!("url:{url}").as_bytes()),
        Some(Origin::File(path)) => {
            let hash = fnv1a_128_more(host(), b"file:");
            fnv1a_128_more(hash, path.as_os_str().as_encoded_bytes())
        }
        Some(Origin::Named(name)) => fnv1a_128_more(host(), format!("named:{name}").as_bytes()),
        None => host(),
    };
    format!("{hash:032x}")
}

/// Compact JSON with sorted keys, whatever order the map of the JSON crate has in this build.
fn write_sorted(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            text.push('{');
            for (name, value) in fields {
                text.push_str(&Value::from(name.as_str()).to_string());
                text.push(':');
                write_sorted(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_sorted(item, text);
                text.push(',');
            }
            text.push(']');
        }
        simple => text.push_str(&simple.to_string()),
    }
}
