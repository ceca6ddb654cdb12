use serde_json::{Value, json};

use super::{check_container, check_spec};

#[test]
fn names_images_and_policies() {
    check_spec([
        (json!({"containers": []}), vec!["spec.containers: Required value"]),
        (
            json!({"initContainers": [{"name": "c", "image": "i"}]}),
            vec![r#"spec.initContainers[0].name: Duplicate value: "c""#],
        ),
    ]);
    check_container([
        (json!({"name": ""}), vec![".name: Required value"]),
        (
            json!({"name": "a.b"}),
            vec![r#".name: Invalid value: "a.b": must not contain dots"#],
        ),
        (json!({"image": ""}), vec![".image: Required value"]),
        (
            json!({"image": " i"}),
            vec![r#".image: Invalid value: " i": must not have leading or trailing whitespace"#],
        ),
        (
            json!({"imagePullPolicy": "x"}),
            vec![r#".imagePullPolicy: Unsupported value: "x": supported values: "Always", "IfNotPresent", "Never""#],
        ),
        (
            json!({"terminationMessagePolicy": "x"}),
            vec![
                r#".terminationMessagePolicy: Unsupported value: "x": supported values: "File", "FallbackToLogsOnError""#,
            ],
        ),
    ]);
}

#[test]
fn restart_rules() {
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [-1, -1]}});
    let values = vec![0; 256];
    check_container([
        (
            json!({"restartPolicy": "x"}),
            vec![r#".restartPolicy: Unsupported value: "x": supported values: "Always", "Never", "OnFailure""#],
        ),
        (
            json!({"restartPolicyRules": [rule]}),
            vec![".restartPolicy: Required value: must specify restartPolicy when restart rules are used"],
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": vec![rule.clone(); 21]}),
            vec![".restartPolicyRules: Too many: 21: must have at most 20 items"],
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "x"}]}),
            vec![
                r#".restartPolicyRules[0].action: Unsupported value: "x": supported values: "Restart", "RestartAllContainers""#,
                ".restartPolicyRules[0].exitCodes: Required value: must be specified",
            ],
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "x", "values": values}}]}),
            vec![
                r#".restartPolicyRules[0].exitCodes.operator: Unsupported value: "x": supported values: "In", "NotIn""#,
                ".restartPolicyRules[0].exitCodes.values: Too many: 256: must have at most 255 items",
            ],
        ),
        (
            json!({"resizePolicy": [{"resourceName": "x", "restartPolicy": "y"}]}),
            vec![
                r#".resizePolicy: Unsupported value: "x": supported values: "cpu", "memory""#,
                r#".resizePolicy: Unsupported value: "y": supported values: "NotRequired", "RestartContainer""#,
            ],
        ),
        (
            json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": ""}, {"resourceName": "cpu", "restartPolicy": "NotRequired"}]}),
            vec![
                ".resizePolicy: Required value",
                r#".resizePolicy[1]: Duplicate value: "cpu""#,
            ],
        ),
    ]);
    let resize = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    check_spec([
        (
            json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i", "resizePolicy": resize}]}),
            vec![
                r#"spec.containers[0].resizePolicy: Invalid value: "RestartContainer": must be 'NotRequired' when pod `restartPolicy` is 'Never'"#,
            ],
        ),
        (
            json!({"initContainers": [{"name": "b", "image": "i", "resizePolicy": resize}]}),
            vec![
                r#"spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: "RestartContainer": must not be set to 'RestartContainer' for non-sidecar initContainers"#,
            ],
        ),
    ]);
}

#[test]
fn init_and_ephemeral_containers_have_fewer_fields() {
    let probe = json!({"exec": {"command": ["a"]}});
    check_spec([
        (
            json!({"initContainers": [{"name": "b", "image": "i", "restartPolicy": "Always", "livenessProbe": probe}]}),
            vec![],
        ),
        (
            json!({"initContainers": [{"name": "b", "image": "i", "lifecycle": {}, "livenessProbe": probe}]}),
            vec![
                "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
            ],
        ),
        (
            json!({
                "volumes": [{"name": "v"}],
                "ephemeralContainers": [{
                    "name": "c", "image": "i", "targetContainerName": "x", "ports": [{"containerPort": 1}], "lifecycle": {},
                    "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}],
                }],
            }),
            vec![
                r#"spec.ephemeralContainers[0].name: Duplicate value: "c""#,
                r#"spec.ephemeralContainers[0].targetContainerName: Not found: "x""#,
                "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
                "spec.ephemeralContainers[0].lifecycle: Forbidden: cannot be set for an Ephemeral Container",
                "spec.ephemeralContainers[0].volumeMounts[0].subPath: Forbidden: cannot be set for an Ephemeral Container",
                "spec.ephemeralContainers: Forbidden: cannot be set on create",
            ],
        ),
    ]);
}

#[test]
fn ports() {
    let with = |ports: Value| json!({"ports": ports});
    check_container([
        (with(json!([{"containerPort": 80}, {"containerPort": 80}])), vec![]),
        (
            with(json!([{"containerPort": 0, "hostPort": 70000, "protocol": "tcp", "name": "80"}])),
            vec![
                r#".ports[0].name: Invalid value: "80": must contain at least one letter (a-z)"#,
                ".ports[0].containerPort: Required value",
                ".ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                r#".ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP""#,
            ],
        ),
        (
            with(json!([{"containerPort": 1, "name": "a"}, {"containerPort": 65536, "name": "a"}])),
            vec![
                r#".ports[1].name: Duplicate value: "a""#,
                ".ports[1].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            with(
                json!([{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 80, "hostIP": "1.2.3.4"}, {"containerPort": 3, "hostPort": 80}]),
            ),
            vec![r#".ports[2].hostPort: Duplicate value: "TCP//80""#],
        ),
    ]);
    let twice = json!([{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 80}]);
    check_spec([
        (
            json!({"initContainers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i", "ports": twice}]}),
            vec![r#"spec.initContainers[0].ports[1].hostPort: Duplicate value: "TCP//80""#],
        ),
        (
            json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 1, "hostPort": 80}]}]}),
            vec![
                "spec.containers[0].ports[0].hostPort: Invalid value: 80: must match `containerPort` when `hostNetwork` is true",
            ],
        ),
    ]);
}

#[test]
fn probes() {
    let live = |probe: Value| json!({"livenessProbe": probe});
    check_container([
        (live(json!({"httpGet": {"port": "web"}, "timeoutSeconds": 99})), vec![]),
        (
            live(json!({})),
            vec![".livenessProbe: Required value: must specify a handler type"],
        ),
        (
            live(json!({"exec": {}, "tcpSocket": {"port": 0}})),
            vec![
                ".livenessProbe.exec.command: Required value",
                ".livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
            ],
        ),
        (
            live(json!({"httpGet": {"port": "80", "scheme": "http", "httpHeaders": [{"name": "a:", "value": ""}]}})),
            vec![
                r#".livenessProbe.httpGet.port: Invalid value: "80": must contain at least one letter (a-z)"#,
                r#".livenessProbe.httpGet.scheme: Unsupported value: "http": supported values: "HTTP", "HTTPS""#,
                r#".livenessProbe.httpGet.httpHeaders: Invalid value: "a:": an HTTP header's name holds letters, digits and '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')"#,
            ],
        ),
        (
            live(
                json!({"grpc": {"port": 70000}, "initialDelaySeconds": -1, "successThreshold": 2, "terminationGracePeriodSeconds": 0}),
            ),
            vec![
                ".livenessProbe.grpc.port: Invalid value: 70000: must be between 1 and 65535, inclusive",
                ".livenessProbe.initialDelaySeconds: Invalid value: -1: must be greater than or equal to 0",
                ".livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
                ".livenessProbe.successThreshold: Invalid value: 2: must be 1",
            ],
        ),
        (
            json!({"readinessProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2, "terminationGracePeriodSeconds": 5}}),
            vec![
                ".readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes",
            ],
        ),
        (json!({"lifecycle": {}}), vec![]),
        (json!({"lifecycle": {"preStop": {"sleep": {"seconds": 30}}}}), vec![]),
        (
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}, "postStart": {}}}),
            vec![
                ".lifecycle.postStart: Required value: must specify a handler type",
                ".lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
            ],
        ),
        (
            json!({"lifecycle": {"stopSignal": "SIGTERM"}}),
            vec![".lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`"],
        ),
    ]);
    check_spec([(
        json!({"os": {"name": "windows"}, "containers": [{"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGHUP"}}]}),
        vec![
            r#"spec.containers[0].lifecycle.stopSignal: Unsupported value: "SIGHUP": supported values: "SIGKILL", "SIGTERM""#,
        ],
    )]);
}
