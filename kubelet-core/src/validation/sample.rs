//! Pods for tests: one that sets about everything, and what random damage makes of it.

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::{Strategy, any};
use proptest::sample::Index;
use serde_json::{Value, json};

/// A pod with most fields set.
pub(crate) fn full_pod() -> Value {
    let probe = |handler: Value| {
        let mut probe = json!({"initialDelaySeconds": 1, "terminationGracePeriodSeconds": 5});
        probe
            .as_object_mut()
            .unwrap()
            .extend(handler.as_object().unwrap().clone());
        probe
    };
    json!({
        "metadata": {
            "name": "p", "namespace": "default", "uid": "u-1", "labels": {"a/b": "c"},
            "annotations": {"container.apparmor.security.beta.kubernetes.io/a": "unconfined"},
            "finalizers": ["a/b"], "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": true}],
        },
        "spec": {
            "nodeName": "n", "hostNetwork": true, "hostUsers": true, "os": {"name": "linux"},
            "containers": [{
                "name": "a", "image": "i",
                "ports": [{"name": "http", "containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
                "env": [
                    {"name": "A", "value": "b"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                    {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                    {"name": "D", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
                    {"name": "E", "valueFrom": {"fileKeyRef": {"key": "b", "path": "c", "volumeName": "empty"}}},
                ],
                "envFrom": [{"prefix": "P", "secretRef": {"name": "s"}}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi", "x.io/gpu": "1"}, "requests": {"cpu": "500m"}},
                "volumeMounts": [{"name": "empty", "mountPath": "/a", "subPath": "b", "readOnly": true, "recursiveReadOnly": "IfPossible"}],
                "volumeDevices": [{"name": "claim", "devicePath": "/dev/x"}],
                "livenessProbe": probe(json!({"exec": {"command": ["a"]}})),
                "startupProbe": probe(json!({"grpc": {"port": 5}})),
                "readinessProbe": {"httpGet": {"port": "http", "httpHeaders": [{"name": "X", "value": "y"}]}},
                "lifecycle": {"preStop": {"sleep": {"seconds": 5}}, "postStart": {"tcpSocket": {"port": 80}}, "stopSignal": "SIGTERM"},
                "restartPolicy": "Never",
                "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}],
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                "securityContext": {
                    "runAsUser": 0, "privileged": true, "procMount": "Default", "capabilities": {"add": ["NET_ADMIN"]},
                    "seccompProfile": {"type": "Localhost", "localhostProfile": "a"}, "appArmorProfile": {"type": "Unconfined"},
                },
            }],
            "initContainers": [{"name": "b", "image": "i:1", "restartPolicy": "Always"}],
            "ephemeralContainers": [{"name": "c", "image": "i", "targetContainerName": "a"}],
            "volumes": [
                {"name": "empty", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "host", "hostPath": {"path": "/a"}},
                {"name": "secret", "secret": {"secretName": "s", "items": [{"key": "a", "path": "b"}]}},
                {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "down", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                {"name": "all", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "c", "items": [{"key": "a", "path": "b"}]}},
                    {"clusterTrustBundle": {"name": "n", "path": "p"}},
                    {"podCertificate": {"signerName": "a.b/c", "keyType": "ED25519", "keyPath": "k"}},
                ]}},
                {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
                {"name": "csi", "csi": {"driver": "d.io"}},
            ],
            "resources": {"limits": {"cpu": "2"}, "requests": {"memory": "2Gi"}},
            "overhead": {"cpu": "10m"},
            "securityContext": {"sysctls": [{"name": "kernel.sem", "value": "1"}], "supplementalGroups": [1], "fsGroupChangePolicy": "Always"},
            "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a.b"], "options": [{"name": "ndots"}]},
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a"]}],
            "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}],
            "nodeSelector": {"a": "b"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
            ]}}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
            "resourceClaims": [{"name": "r", "resourceClaimName": "x"}],
        },
    })
}

/// [`full_pod`] with a few leaves removed or replaced by hostile values.
pub(crate) fn mutated_pods() -> impl Strategy<Value = Pod> {
    let texts = [
        "",
        ".",
        "..",
        "../x",
        "/",
        "a/b/c",
        "-1",
        "1e99",
        "0.1m",
        "Always",
        "é\n",
        "metadata.labels['",
        "requests.cpu",
        "hugepages-",
    ];
    let numbers = [0, -1, 1, 255, 65_536, i64::from(i32::MIN), i64::from(i32::MAX)];
    let damage = (any::<Index>(), any::<Index>(), 0..4_u8);
    proptest::collection::vec(damage, 0..12).prop_map(move |damages| {
        let mut pod = full_pod();
        for (leaf, with, how) in damages {
            let mut leaves = Vec::new();
            collect(&pod, "", &mut leaves);
            let leaf = leaf.get(&leaves).clone();
            let Some(place) = pod.pointer_mut(&leaf) else {
                continue;
            };
            *place = match (how, &*place) {
                (0, _) => Value::Null,
                (_, Value::Number(_)) => json!(with.get(&numbers)),
                (_, Value::Bool(set)) => json!(!set),
                (_, Value::Array(_)) => json!([]),
                (_, Value::Object(_)) => json!({}),
                _ => json!(with.get(&texts)),
            };
        }
        // Damage that is not even a pod is another test's matter.
        serde_json::from_value(pod).unwrap_or_default()
    })
}

fn collect(value: &Value, at: &str, leaves: &mut Vec<String>) {
    let step = |key: &str| format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
    if !at.is_empty() {
        leaves.push(at.to_owned());
    }
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| collect(value, &step(key), leaves)),
        Value::Array(list) => {
            let list = list.iter().enumerate();
            list.for_each(|(i, value)| collect(value, &step(&i.to_string()), leaves));
        }
        _ => {}
    }
}
