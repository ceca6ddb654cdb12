use serde_json::{Value, json};

use super::{check_container, check_spec};

#[test]
fn env() {
    let from = |source: Value| json!({"env": [{"name": "A", "valueFrom": source}]});
    let field = |path: &str| json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]});
    check_container([
        (
            json!({"env": [{"name": "1 a"}, {"name": "1 a"}, {"name": ""}, {"name": "a=b"}]}),
            vec![
                ".env[2].name: Required value",
                r#".env[3].name: Invalid value: "a=b": an environment variable's name must consist only of printable ASCII characters other than '='"#,
            ],
        ),
        (
            from(json!({})),
            vec![
                r#".env[0].valueFrom: Invalid value: "": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"#,
            ],
        ),
        (
            from(json!({"configMapKeyRef": {"name": "a", "key": "b"}, "secretKeyRef": {"name": "a", "key": ""}})),
            vec![
                ".env[0].valueFrom.secretKeyRef.key: Required value",
                r#".env[0].valueFrom: Invalid value: "": may not have more than one field specified at a time"#,
            ],
        ),
        (
            json!({"env": [{"name": "A", "value": "x", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]}),
            vec![r#".env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty"#],
        ),
        (field("spec.host"), vec![]),
        (field("metadata.labels['a/b']"), vec![]),
        (field("metadata.annotations['A.b/c']"), vec![]),
        (
            field("metadata.labels['/a']"),
            vec![r#".env[0].valueFrom.fieldRef: Invalid value: "/a": prefix part must be non-empty"#],
        ),
        (
            field("metadata.labels"),
            vec![
                r#".env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels": supported values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs""#,
            ],
        ),
        (
            field("spec.x"),
            vec![
                r#".env[0].valueFrom.fieldRef.fieldPath: Invalid value: "spec.x": error converting fieldPath: field label not supported: spec.x"#,
            ],
        ),
        (
            field("spec.x['a']"),
            vec![
                r#".env[0].valueFrom.fieldRef.fieldPath: Invalid value: "spec.x['a']": error converting fieldPath: field label does not support subscript: spec.x['a']"#,
            ],
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v2"}})),
            vec![
                r#".env[0].valueFrom.fieldRef.fieldPath: Invalid value: "metadata.name": error converting fieldPath: unsupported pod version: v2"#,
            ],
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.hugepages-2Mi", "divisor": "1Mi"}})),
            vec![],
        ),
        (
            from(json!({"resourceFieldRef": {"resource": ""}})),
            vec![".env[0].valueFrom.resourceFieldRef.resource: Required value"],
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.pods"}})),
            vec![
                r#".env[0].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.pods": supported values: "limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory""#,
            ],
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1000m"}})),
            vec![],
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}})),
            vec![
                r#".env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.cpu": the divisor of limits.cpu must be one of 1m, 1"#,
            ],
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1K"}})),
            vec![
                r#".env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "1K": unable to parse quantity's suffix"#,
            ],
        ),
        (
            from(json!({"secretKeyRef": {"name": "a", "key": "..b"}})),
            vec![r#".env[0].valueFrom.secretKeyRef.key: Invalid value: "..b": must not start with '..'"#],
        ),
        (
            from(json!({"fileKeyRef": {"key": "", "path": "../a", "volumeName": "v"}})),
            vec![
                ".env[0].valueFrom.fileKeyRef.key: Required value",
                r#".env[0].valueFrom.fileKeyRef.path: Invalid value: "../a": must not contain '..'"#,
                r#".env[0].valueFrom.fileKeyRef.volumeName: Not found: "v""#,
            ],
        ),
        (
            json!({"envFrom": [{"configMapRef": {"name": "a-"}}, {"prefix": "=", "secretRef": {"name": ""}}]}),
            vec![
                r#".envFrom[1].prefix: Invalid value: "=": an environment variable's name must consist only of printable ASCII characters other than '='"#,
                ".envFrom[1].secretRef.name: Required value",
            ],
        ),
        (
            json!({"envFrom": [{}, {"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]}),
            vec![
                r#".envFrom: Invalid value: "": must specify one of: `configMapRef` or `secretRef`"#,
                r#".envFrom: Invalid value: "": may not have more than one field specified at a time"#,
            ],
        ),
    ]);
    check_spec([(
        json!({
            "volumes": [{"name": "v", "hostPath": {"path": "/a"}}],
            "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k", "path": "/a", "volumeName": "v"}}}]}],
        }),
        vec![
            r#"spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Invalid value: "v": referenced volume must be of type emptyDir"#,
        ],
    )]);
}
