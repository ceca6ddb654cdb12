use serde_json::{Value, json};

use super::{check_pod, check_spec, errors_of, sound};

#[test]
fn metadata() {
    let meta = |meta: Value| json!({"metadata": meta});
    check_pod([
        (meta(json!({"uid": "12-ab_c.d"})), vec![]),
        (
            meta(json!({"uid": "../x"})),
            vec![
                r#"metadata.uid: Invalid value: "../x": must be one path element of letters, digits, '-', '_' and '.', at most 128 bytes, and not '.' or '..'"#,
            ],
        ),
        (
            meta(json!({"uid": ".."})),
            vec![
                r#"metadata.uid: Invalid value: "..": must be one path element of letters, digits, '-', '_' and '.', at most 128 bytes, and not '.' or '..'"#,
            ],
        ),
        (
            meta(json!({"namespace": "a.b"})),
            vec![r#"metadata.namespace: Invalid value: "a.b": must not contain dots"#],
        ),
        (meta(json!({"name": "a.b"})), vec![]),
        (
            meta(json!({"labels": {"a": "b/"}})),
            vec![
                r#"metadata.labels: Invalid value: "b/": a label's value is empty, or holds letters, digits, '-', '_' and '.', and starts and ends with a letter or digit (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"#,
            ],
        ),
        (
            meta(json!({"labels": {"/a": ""}})),
            vec![r#"metadata.labels: Invalid value: "/a": prefix part must be non-empty"#],
        ),
        (
            meta(json!({"annotations": {"A.B/c": "", "/a": ""}})),
            vec![r#"metadata.annotations: Invalid value: "/a": prefix part must be non-empty"#],
        ),
        (
            meta(json!({"annotations": {"a": "x".repeat(262_144)}})),
            vec!["metadata.annotations: Too long: may not be more than 262144 bytes"],
        ),
        (
            meta(json!({"generation": -1})),
            vec!["metadata.generation: Invalid value: -1: must be greater than or equal to 0"],
        ),
        (
            meta(json!({"finalizers": ["orphan", "a/b", "c"]})),
            vec![r#"metadata.finalizers[2]: Invalid value: "c": must be a standard finalizer or have a prefix"#],
        ),
        (
            meta(json!({"ownerReferences": [{"apiVersion": "", "kind": "", "name": "n", "uid": "u"}]})),
            vec![
                r#"metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty"#,
                r#"metadata.ownerReferences.kind: Invalid value: "": must not be empty"#,
            ],
        ),
    ]);
}

#[test]
fn annotations_with_a_meaning() {
    let with = |annotations: Value| json!({"metadata": {"annotations": annotations}});
    check_pod([
        (
            with(json!({"controller.kubernetes.io/pod-deletion-cost": "-5"})),
            vec![],
        ),
        (
            with(json!({"controller.kubernetes.io/pod-deletion-cost": "x"})),
            vec![
                r#"metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "x": must be a 32bit integer"#,
            ],
        ),
        (
            with(json!({"container.apparmor.security.beta.kubernetes.io/c": "localhost/x"})),
            vec![],
        ),
        (
            with(json!({"container.apparmor.security.beta.kubernetes.io/d": "x"})),
            vec![
                r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/d]: Invalid value: "d": container not found"#,
                r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/d]: Invalid value: "x": invalid AppArmor profile name: "x""#,
            ],
        ),
        (
            with(json!({"seccomp.security.alpha.kubernetes.io/pod": "x"})),
            vec![
                r#"metadata.annotations.seccomp.security.alpha.kubernetes.io/pod: Invalid value: "x": must be a valid seccomp profile"#,
            ],
        ),
    ]);
    let mut change = with(
        json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined", "container.apparmor.security.beta.kubernetes.io/c": "unconfined"}),
    );
    change["spec"] = json!({
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "i", "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}],
    });
    check_pod([(
        change,
        vec![
            "spec.securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match",
            "spec.containers[0].securityContext.appArmorProfile.type: Forbidden: apparmor type in annotation and field must match",
        ],
    )]);
}

#[test]
fn policies_and_names() {
    check_spec([
        (
            json!({"restartPolicy": "always"}),
            vec![
                r#"spec.restartPolicy: Unsupported value: "always": supported values: "Always", "OnFailure", "Never""#,
            ],
        ),
        (
            json!({"dnsPolicy": "x"}),
            vec![
                r#"spec.dnsPolicy: Unsupported value: "x": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None""#,
            ],
        ),
        (
            json!({"preemptionPolicy": ""}),
            vec![r#"spec.preemptionPolicy: Unsupported value: "": supported values: "PreemptLowerPriority", "Never""#],
        ),
        (
            json!({"activeDeadlineSeconds": 0}),
            vec!["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
        (
            json!({"hostname": "a.b", "subdomain": "a"}),
            vec![r#"spec.hostname: Invalid value: "a.b": must not contain dots"#],
        ),
        (
            json!({"hostnameOverride": "a", "setHostnameAsFQDN": true, "hostNetwork": true}),
            vec![
                "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true",
                "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
            ],
        ),
        (
            json!({"hostnameOverride": "a".repeat(65)}),
            vec!["spec.hostnameOverride: Too long: may not be more than 64 bytes"],
        ),
        (json!({"os": {"name": ""}}), vec!["spec.os.name: Required value"]),
        (
            json!({"os": {"name": "x"}}),
            vec![r#"spec.os: Unsupported value: "x": supported values: "linux", "windows""#],
        ),
        (
            json!({"readinessGates": [{"conditionType": "a/"}]}),
            vec![
                r#"spec.readinessGates[0].conditionType: Invalid value: "a/": name part must be non-empty"#,
                r#"spec.readinessGates[0].conditionType: Invalid value: "a/": name part it holds letters, digits, '-', '_' and '.', and starts and ends with a letter or digit (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"#,
            ],
        ),
        (
            json!({"schedulingGates": [{"name": "g"}]}),
            vec!["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"],
        ),
        (json!({"serviceAccountName": "", "priorityClassName": ""}), vec![]),
    ]);
    for field in [
        "runtimeClassName",
        "nodeName",
        "serviceAccountName",
        "priorityClassName",
    ] {
        let mut pod = sound();
        pod["spec"][field] = json!(if field == "runtimeClassName" { "" } else { "A" });
        let errors = errors_of(pod);
        assert_eq!(errors.len(), 1);
        assert!(
            errors[0].starts_with(&format!("spec.{field}: Invalid value: ")),
            "{errors:?}"
        );
    }
}

#[test]
fn dns() {
    let many: Vec<_> = (0..33).map(|n| format!("s{n}")).collect();
    let long: Vec<_> = (0..9).map(|_| vec!["a"; 115].join(".")).collect();
    check_spec([
        (
            json!({"dnsPolicy": "None"}),
            vec!["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        ),
        (
            json!({"dnsPolicy": "None", "dnsConfig": {"options": [{}]}}),
            vec![
                "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
            ],
        ),
        (
            json!({"dnsConfig": {"nameservers": ["1.1.1.1", "::1", "1.1.1.2", "x"]}}),
            vec![
                r#"spec.dnsConfig.nameservers: Invalid value: ["1.1.1.1","::1","1.1.1.2","x"]: must not have more than 3 nameservers"#,
                r#"spec.dnsConfig.nameservers[3]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
            ],
        ),
        (
            json!({"dnsConfig": {"searches": [".", "a.", "_b.c_d"], "options": [{"name": ""}]}}),
            vec!["spec.dnsConfig.options[0]: Required value: must not be empty"],
        ),
        (
            json!({"hostAliases": [{"ip": "", "hostnames": ["a"]}]}),
            vec![
                r#"spec.hostAliases[0].ip: Invalid value: "": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
            ],
        ),
    ]);
    for (searches, end) in [
        (many, "must not have more than 32 search paths"),
        (
            long,
            "must not have more than 2048 characters (including spaces) in the search list",
        ),
    ] {
        let mut pod = sound();
        pod["spec"]["dnsConfig"] = json!({"searches": searches});
        let errors = errors_of(pod);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].starts_with("spec.dnsConfig.searches: Invalid value: [") && errors[0].ends_with(end));
    }
}

#[test]
fn claims() {
    check_spec([(
        json!({"resourceClaims": [{"name": "a", "resourceClaimName": "x"}, {"name": "a"}]}),
        vec![
            r#"spec.resourceClaims[1].name: Duplicate value: "a""#,
            "spec.resourceClaims[1]: Required value: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
        ],
    )]);
    check_pod([(
        json!({
            "metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}},
            "spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "x"}]},
        }),
        vec!["[]: Forbidden: static pods do not support resource claims"],
    )]);
}

#[test]
fn tolerations() {
    let with = |toleration: Value| json!({"tolerations": [toleration]});
    check_spec([
        (with(json!({"operator": "Exists"})), vec![]),
        (
            with(json!({"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": -1})),
            vec![],
        ),
        (
            with(json!({"operator": "Equal"})),
            vec![
                r#"spec.tolerations[0].operator: Invalid value: "Equal": operator must be Exists when `key` is empty, which means "match all values and all keys""#,
            ],
        ),
        (
            with(json!({"key": "a", "operator": "equal"})),
            vec![r#"spec.tolerations[0].operator: Unsupported value: "equal": supported values: "Equal", "Exists""#],
        ),
        (
            with(json!({"key": "a", "operator": "Gt", "value": "1"})),
            vec![
                r#"spec.tolerations[0].operator: Unsupported value: "Gt": supported values: "Equal", "Exists", "Lt", "Gt""#,
            ],
        ),
        (
            with(json!({"key": "a", "operator": "Exists", "value": "b"})),
            vec![
                r#"spec.tolerations[0].operator: Invalid value: {"Key":"a","Operator":"Exists","Value":"b","Effect":"","TolerationSeconds":null}: value must be empty when `operator` is 'Exists'"#,
            ],
        ),
        (
            with(json!({"operator": "Exists", "effect": "x"})),
            vec![
                r#"spec.tolerations[0].effect: Unsupported value: "x": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#,
            ],
        ),
        (
            with(json!({"operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5})),
            vec![
                r#"spec.tolerations[0].effect: Invalid value: "NoSchedule": effect must be 'NoExecute' when `tolerationSeconds` is set"#,
            ],
        ),
        (
            json!({"nodeSelector": {"/a": "b"}}),
            vec![r#"spec.nodeSelector: Invalid value: "/a": prefix part must be non-empty"#],
        ),
    ]);
}

#[test]
fn affinity_and_spread() {
    let node = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
    check_spec([
        (
            node(json!([])),
            vec![
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
            ],
        ),
        (
            node(
                json!([{"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["x"]}, {"key": "a", "operator": "Gt"}]}]),
            ),
            vec![
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[2].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
            ],
        ),
        (
            json!({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "podAffinityTerm": {"topologyKey": ""}}]}}}),
            vec![
                "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be in the range 1-100",
                "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey: Required value: can not be empty",
            ],
        ),
        (
            json!({"topologySpreadConstraints": [
                {"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "x"},
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 2, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
            ]}),
            vec![
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
                r#"spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "x": supported values: "DoNotSchedule", "ScheduleAnyway""#,
                r#"spec.topologySpreadConstraints[2].{topologyKey, whenUnsatisfiable}: Duplicate value: "{z, DoNotSchedule}""#,
            ],
        ),
    ]);
}
