use std::sync::Arc;

use serde_json::{Value, json};

use super::{Abilities, AbsentParts};
use crate::admission::{ActivePods, Admission, AdmitHandler, AdmitRequest, NodeView, Operation};
use crate::objects::{MapObjects, ObjectKind};
use crate::pod::testing::record;

fn ask(abilities: Abilities, spec: &Value) -> String {
    let pod = Arc::new(record(json!({"spec": spec})));
    let mut node = NodeView::new("edge-7");
    node.allocatable
        .insert("example.com/listed".into(), "1".parse().unwrap());
    let (others, handler) = (ActivePods::new(), AbsentParts::new(abilities));
    let answer = |operation| handler.admit(&AdmitRequest::new(operation, &pod, &others, &node));
    assert_eq!(answer(Operation::Resize), Admission::Admit);
    match answer(Operation::New) {
        Admission::Admit => String::new(),
        Admission::Reject { reason, message } => {
            assert_eq!(reason, "PartMissing");
            message
        }
        Admission::NotYet { .. } => unreachable!("a part does not appear later"),
    }
}

fn everything() -> Abilities {
    Abilities {
        volumes: true,
        exec_probes: true,
        network_probes: true,
        http_hooks: true,
        devices: true,
        resource_claims: true,
        tokens: true,
        objects: ObjectKind::ALL.iter().copied().collect(),
    }
}

fn container(field: &str, value: Value) -> Value {
    let mut container = json!({"name": "app"});
    container[field] = value;
    json!({"containers": [container]})
}

#[test]
fn each_need_without_a_part_is_refused_by_name() {
    let sources = "no object source that serves them (DirectoryObjects or kubelet-apiserver)";
    for (spec, expected) in [
        (
            json!({
                "containers": [{
                    "name": "app",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "volumeDevices": [{"name": "cache", "devicePath": "/dev/cache"}],
                }],
                "volumes": [{"name": "data"}, {"name": "cache"}, {"name": "unused"}],
            }),
            r#"pod needs volumes ("cache", "data"), and this node has no volume manager (kubelet-volume)"#.to_owned(),
        ),
        (
            container("livenessProbe", json!({"exec": {"command": ["true"]}})),
            r#"pod needs exec probes ("app"), and this node has no probe manager (kubelet-core)"#.to_owned(),
        ),
        (
            container("startupProbe", json!({"grpc": {"port": 1}})),
            r#"pod needs HTTP, TCP or gRPC probes ("app"), and this node has no prober (kubelet-probe)"#.to_owned(),
        ),
        (
            container("lifecycle", json!({"preStop": {"httpGet": {"port": 1}}})),
            r#"pod needs HTTP hooks ("app"), and this node has no HTTP client (kubelet-probe)"#.to_owned(),
        ),
        (
            container("resources", json!({"limits": {"example.com/gpu": 1, "example.com/listed": 1, "cpu": 1}})),
            r#"pod needs devices ("example.com/gpu"), and this node has no device manager (kubelet-deviceplugin)"#.to_owned(),
        ),
        (
            json!({"containers": [], "resourceClaims": [{"name": "gpu"}]}),
            r#"pod needs resource claims ("gpu"), and this node has no dynamic resource allocation (kubelet-deviceplugin)"#.to_owned(),
        ),
        (
            json!({"containers": [], "imagePullSecrets": [{"name": "registry"}, {}]}),
            format!(r#"pod needs image pull secrets ("registry"), and this node has {sources}"#),
        ),
        (
            container("env", json!([
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "maybe", "key": "k", "optional": true}}},
                {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ])),
            format!(r#"pod needs secrets ("db"), and this node has {sources}"#),
        ),
        (
            container("envFrom", json!([{"configMapRef": {"name": "app"}}, {"secretRef": {"name": "db"}}])),
            format!(
                r#"pod needs secrets ("db"), and this node has {sources}; pod needs config maps ("app"), and this node has {sources}"#
            ),
        ),
        (
            json!({"containers": [], "runtimeClassName": "kata"}),
            format!(r#"pod needs a runtime class ("kata"), and this node has {sources}"#),
        ),
    ] {
        assert_eq!(ask(Abilities::default(), &spec), expected);
        assert_eq!(ask(everything(), &spec), "");
    }
}

#[test]
fn what_no_part_can_give_is_refused_everywhere() {
    let spec = container("lifecycle", json!({"postStart": {"tcpSocket": {"port": 1}}}));
    let expected = r#"pod needs TCP hooks ("app"), and this node has no such thing, as no kubelet has"#;
    assert_eq!(ask(everything(), &spec), expected);
}

#[test]
fn a_plain_pod_needs_no_part() {
    let spec = json!({
        "containers": [{
            "name": "app",
            "env": [{"name": "A", "value": "b"}],
            "envFrom": [{"configMapRef": {"name": "maybe", "optional": true}}],
            "lifecycle": {"preStop": {"sleep": {"seconds": 1}}, "postStart": {"exec": {"command": ["true"]}}},
        }],
        "ephemeralContainers": [{"name": "debug", "envFrom": [{"secretRef": {"name": "db"}}]}],
        "runtimeClassName": "",
        "volumes": [{"name": "model", "image": {"reference": "registry.example/model:1"}}],
    });
    assert_eq!(ask(Abilities::default(), &spec), "");
}

#[test]
fn a_source_gives_the_kinds_that_it_serves() {
    let abilities = Abilities::default().with_source(&MapObjects::new().kinds([ObjectKind::Secret]));
    assert_eq!(abilities.objects.into_iter().collect::<Vec<_>>(), [ObjectKind::Secret]);
}
