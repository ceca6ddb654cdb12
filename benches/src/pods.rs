//! Pods to measure with.

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::alloc::live_bytes;

/// What a pod weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// One container, little more than an image and requests.
    Small,
    /// Two containers with an environment, as an API server sends them.
    Typical,
}

impl Weight {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Typical => "typical",
        }
    }
}

/// That many pods, from number `first` on. Decoded from text, as a source decodes them.
pub(crate) fn pods(weight: Weight, first: usize, count: usize) -> Vec<Pod> {
    (first..first + count).map(|number| pod(weight, number)).collect()
}

pub(crate) fn pod(weight: Weight, number: usize) -> Pod {
    let (containers, variables) = match weight {
        Weight::Small => (1, 0),
        Weight::Typical => (2, 24),
    };
    let containers: Vec<Value> = (0..containers).map(|c| container(c, variables)).collect();
    let mut annotations = json!({"kubernetes.io/config.seen": "2026-01-01T00:00:00.000000000Z"});
    if weight == Weight::Typical {
        annotations["prometheus.io/scrape"] = json!("true");
        annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] = json!("true");
        annotations["checksum/config"] = json!("5f7d9f2f1c1f4b1e8d5f7d9f2f1c1f4b1e8d5f7d9f2f1c1f4b1e8d5f7d9f2f1c");
    }
    let pod = json!({
        "metadata": {
            "name": format!("web-6d4cf56db6-{number:05}"),
            "namespace": "default",
            "uid": format!("0f7ca5a2-3d5a-4a0e-9b1c-{number:012}"),
            "resourceVersion": "123456",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web-1", "pod-template-hash": "6d4cf56db6"},
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6d4cf56db6",
                "uid": "5c1de0cf-7a3a-4d2b-8f57-0c8a3c0f3f11", "controller": true, "blockOwnerDeletion": true,
            }],
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}}}],
        },
        "spec": {
            "nodeName": "node-1",
            "serviceAccountName": "web",
            "priority": 0,
            "enableServiceLinks": false,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 30,
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
            "containers": containers,
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    });
    serde_json::from_slice(&serde_json::to_vec(&pod).expect("plain data")).expect("a pod")
}

fn container(number: usize, variables: usize) -> Value {
    let env: Vec<Value> = (0..variables)
        .map(|v| json!({"name": format!("SERVICE_SETTING_{v:02}"), "value": format!("http://service-{v}.default.svc:8080/path")}))
        .collect();
    json!({
        "name": format!("app-{number}"),
        "image": "registry.example.com/team/web:1.2.3",
        "imagePullPolicy": "IfNotPresent",
        "args": ["--listen=:8080", "--log-format=json"],
        "env": env,
        "ports": [{"name": "http", "containerPort": 8080 + number, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    })
}

/// The bytes of one exact-capacity copy, without the bookkeeping of the API server that no record keeps.
pub(crate) fn bytes_of_copy(weight: Weight) -> usize {
    let pod = pod(weight, 1);
    let before = live_bytes();
    let mut copy = Box::new(pod.clone());
    copy.metadata.managed_fields = None;
    live_bytes() - before
}
