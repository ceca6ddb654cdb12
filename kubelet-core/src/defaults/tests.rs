use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::{prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::apply_defaults;
use crate::validation::sample;

fn defaulted(value: Value) -> Value {
    let mut pod: Pod = serde_json::from_value(value).unwrap();
    apply_defaults(&mut pod);
    serde_json::to_value(pod).unwrap()
}

fn spec(spec: Value) -> Value {
    let mut pod = defaulted(json!({"metadata": {"name": "p"}, "spec": spec}));
    pod["spec"].take()
}

fn container(container: Value) -> Value {
    let mut spec = spec(json!({"containers": [container]}));
    spec["containers"][0].take()
}

#[test]
fn an_empty_pod_gets_every_pod_default() {
    assert_eq!(
        spec(json!({"containers": []})),
        json!({
            "containers": [], "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
        })
    );
    let given = spec(json!({"containers": [], "terminationGracePeriodSeconds": 0, "enableServiceLinks": false}));
    assert_eq!(given["terminationGracePeriodSeconds"], 0);
    assert_eq!(given["enableServiceLinks"], false);
}

#[test]
fn an_explicit_zero_becomes_the_default() {
    let got = container(json!({
        "name": "c", "image": "nginx:1",
        "ports": [{"containerPort": 80, "protocol": ""}],
        "env": [
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "B", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}},
        ],
        "livenessProbe": {"httpGet": {"port": 80}, "timeoutSeconds": 0, "periodSeconds": 5},
        "readinessProbe": {"grpc": {"port": 1}},
        "lifecycle": {"preStop": {"httpGet": {"port": 80, "scheme": "HTTPS"}}},
    }));
    assert_eq!(
        got,
        json!({
            "name": "c", "image": "nginx:1", "imagePullPolicy": "IfNotPresent",
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "ports": [{"containerPort": 80, "protocol": "TCP"}],
            "env": [
                {"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
                {"name": "B", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v", "optional": false}}},
            ],
            "livenessProbe": {
                "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                "timeoutSeconds": 1, "periodSeconds": 5, "successThreshold": 1, "failureThreshold": 3,
            },
            "readinessProbe": {
                "grpc": {"port": 1, "service": ""},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
            },
            "lifecycle": {"preStop": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTPS"}}},
        })
    );
}

#[test]
fn the_host_network_opens_every_port_of_lasting_containers() {
    let port = json!([{"containerPort": 80}]);
    let got = spec(json!({
        "hostNetwork": true,
        "containers": [{"name": "a", "ports": port}],
        "initContainers": [{"name": "b", "ports": port}],
        "ephemeralContainers": [{"name": "c", "ports": port}],
    }));
    assert_eq!(got["containers"][0]["ports"][0]["hostPort"], 80);
    assert_eq!(got["initContainers"][0]["ports"][0]["hostPort"], 80);
    assert_eq!(got["ephemeralContainers"][0]["ports"][0]["hostPort"], Value::Null);
}

#[test]
fn volumes_get_the_defaults_of_their_source() {
    #[rustfmt::skip]
    let table = [
        (json!({}), json!({"emptyDir": {}})),
        (json!({"secret": {"secretName": "s"}}), json!({"secret": {"secretName": "s", "defaultMode": 420}})),
        (json!({"configMap": {"name": "s", "defaultMode": 0}}), json!({"configMap": {"name": "s", "defaultMode": 0}})),
        (json!({"hostPath": {"path": "/"}}), json!({"hostPath": {"path": "/", "type": ""}})),
        (json!({"image": {"reference": "a:1"}}), json!({"image": {"reference": "a:1", "pullPolicy": "IfNotPresent"}})),
        (json!({"image": {"reference": "a"}}), json!({"image": {"reference": "a", "pullPolicy": "Always"}})),
        (
            json!({"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "b"}}]}}),
            json!({"downwardAPI": {"defaultMode": 420, "items": [{"path": "a", "fieldRef": {"apiVersion": "v1", "fieldPath": "b"}}]}}),
        ),
        (
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            json!({"projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}}),
        ),
        (
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1500u"}}}}}}),
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "2m"}}, "volumeMode": "Filesystem"}}}}),
        ),
        (
            json!({"rbd": {"image": "i", "monitors": []}}),
            json!({"rbd": {"image": "i", "monitors": [], "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"}}),
        ),
        (json!({"emptyDir": {"sizeLimit": "1500u"}}), json!({"emptyDir": {"sizeLimit": "1500u"}})),
    ];
    for (given, wanted) in table {
        let mut volume = json!({"name": "v"});
        volume
            .as_object_mut()
            .unwrap()
            .extend(given.as_object().unwrap().clone());
        let mut got = spec(json!({"containers": [], "volumes": [volume]}))["volumes"][0].take();
        got.as_object_mut().unwrap().remove("name");
        assert_eq!(got, wanted);
    }
}

#[test]
fn requests_follow_limits_and_are_rounded_last() {
    let got = container(
        json!({"name": "c", "resources": {"limits": {"cpu": "0.1m", "memory": "x"}, "requests": {"a/b": "1"}}}),
    );
    assert_eq!(
        got["resources"],
        json!({"limits": {"cpu": "1m", "memory": "x"}, "requests": {"cpu": "1m", "memory": "x", "a/b": "1"}})
    );
}

#[test]
fn pod_level_requests_follow_the_containers_then_the_limits() {
    let pod = |own: Value| {
        let mut spec = spec(json!({"resources": own, "containers": [
            {"name": "a", "resources": {"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}, "requests": {"cpu": "500m"}}},
        ]}));
        spec["resources"].take()
    };
    assert_eq!(pod(json!({})), json!({}));
    assert_eq!(
        pod(json!({"requests": {"hugepages-2Mi": "4Mi"}})),
        json!({"requests": {"hugepages-2Mi": "4Mi"}})
    );
    // The huge page limit makes the limits non-empty, and thereby sets the rest.
    assert_eq!(
        pod(json!({"requests": {"cpu": "1"}})),
        json!({"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"}})
    );
    assert_eq!(
        pod(json!({"limits": {"cpu": "2", "memory": "2Gi"}})),
        json!({
            "limits": {"cpu": "2", "memory": "2Gi", "hugepages-2Mi": "4Mi"},
            "requests": {"cpu": "500m", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
        })
    );
}

#[test]
fn conversion_leaves_its_marks() {
    let got = defaulted(json!({
        "metadata": {"annotations": {"pod.beta.kubernetes.io/init-containers": "x", "a": "b"}},
        "spec": {"containers": [], "serviceAccount": "old", "terminationGracePeriodSeconds": -5},
        "status": {"podIP": "1.2.3.4"},
    }));
    assert_eq!(got["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(got["spec"]["serviceAccountName"], "old");
    assert_eq!(got["spec"]["terminationGracePeriodSeconds"], 1);
    assert_eq!(got["status"]["podIPs"], json!([{"ip": "1.2.3.4"}]));
    let got = spec(json!({"containers": [], "serviceAccount": "old", "serviceAccountName": "new"}));
    assert_eq!(
        (&got["serviceAccount"], &got["serviceAccountName"]),
        (&json!("new"), &json!("new"))
    );
}

proptest! {
    #[test]
    fn applying_defaults_again_changes_nothing(mut pod in sample::mutated_pods()) {
        apply_defaults(&mut pod);
        let once = pod.clone();
        apply_defaults(&mut pod);
        prop_assert_eq!(once, pod);
    }
}
