//! One row per rule: what is changed in a sound pod, and the texts that must come of it.

mod containers;
mod env;
mod mounts;
mod pod;
mod references;
mod resources;
mod security;
mod volumes;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::{prop_assert, proptest};
use serde_json::{Value, json};

use super::{sample, validate_pod};
use crate::defaults::apply_defaults;

/// A pod with nothing wrong, as the node has it after its edits.
fn sound() -> Value {
    json!({
        "metadata": {"name": "p-node", "namespace": "default"},
        "spec": {"nodeName": "node", "containers": [{"name": "c", "image": "i"}]},
    })
}

/// Puts values over those of a pod: objects are merged, anything else is replaced.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn defaulted(value: Value) -> Pod {
    let mut pod: Pod = serde_json::from_value(value).unwrap();
    apply_defaults(&mut pod);
    pod
}

fn errors_of(value: Value) -> Vec<String> {
    let errors = validate_pod(&defaulted(value));
    errors.iter().map(ToString::to_string).collect()
}

fn check_pod(rows: impl IntoIterator<Item = (Value, Vec<&'static str>)>) {
    for (change, wanted) in rows {
        let mut pod = sound();
        let shown = change.to_string();
        merge(&mut pod, change);
        assert_eq!(errors_of(pod), wanted, "{shown}");
    }
}

/// Changes of the spec.
fn check_spec(rows: impl IntoIterator<Item = (Value, Vec<&'static str>)>) {
    check_pod(rows.into_iter().map(|(spec, wanted)| (json!({"spec": spec}), wanted)));
}

/// Changes of the one container; paths are given below it.
fn check_container(rows: impl IntoIterator<Item = (Value, Vec<&'static str>)>) {
    for (change, wanted) in rows {
        let mut pod = sound();
        let shown = change.to_string();
        merge(&mut pod["spec"]["containers"][0], change);
        let wanted: Vec<_> = wanted.iter().map(|text| format!("spec.containers[0]{text}")).collect();
        assert_eq!(errors_of(pod), wanted, "{shown}");
    }
}

#[test]
fn a_sound_pod_and_a_full_one_pass() {
    assert_eq!(errors_of(sound()), [""; 0]);
    let mut pod = sample::full_pod();
    let spec = pod["spec"].as_object_mut().unwrap();
    spec.remove("ephemeralContainers");
    spec.insert("serviceAccountName".to_owned(), json!("a"));
    assert_eq!(errors_of(pod), [""; 0]);
}

#[test]
fn all_errors_come_in_a_fixed_order_and_in_brackets() {
    let mut pod = sound();
    merge(
        &mut pod,
        json!({"metadata": {"namespace": "a.b"}, "spec": {"restartPolicy": "x", "containers": [{"name": "c"}]}}),
    );
    assert_eq!(
        validate_pod(&defaulted(pod)).to_string(),
        "[metadata.namespace: Invalid value: \"a.b\": must not contain dots spec.containers[0].image: Required value \
         spec.restartPolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnFailure\", \"Never\"]"
    );
}

proptest! {
    #[test]
    fn damage_is_reported_not_fatal(pod in sample::mutated_pods(), with_defaults in proptest::bool::ANY) {
        let mut pod = pod;
        if with_defaults {
            apply_defaults(&mut pod);
        }
        let errors = validate_pod(&pod);
        prop_assert!(errors.iter().all(|error| !error.path().steps().is_empty()));
        let _ = super::refuse_api_references(&pod, &|_| false);
        let _ = (crate::pod_requests(&pod.spec.clone().unwrap_or_default()), crate::pod_limits(&pod.spec.unwrap_or_default()));
    }
}
