use serde_json::{Value, json};

use super::{check_spec, merge};

#[test]
fn mounts_and_devices() {
    let with = |container: Value| {
        let mut spec = json!({
            "volumes": [{"name": "v"}, {"name": "pvc", "persistentVolumeClaim": {"claimName": "p"}}],
            "containers": [{"name": "c", "image": "i"}],
        });
        merge(&mut spec["containers"][0], container);
        spec
    };
    let mount = |mount: Value| {
        let mut full = json!({"name": "v", "mountPath": "/a"});
        merge(&mut full, mount);
        with(json!({"volumeMounts": [full]}))
    };
    check_spec([
        (
            mount(json!({"name": "", "mountPath": ""})),
            vec![
                "spec.containers[0].volumeMounts[0].name: Required value",
                r#"spec.containers[0].volumeMounts[0].name: Not found: """#,
                "spec.containers[0].volumeMounts[0].mountPath: Required value",
            ],
        ),
        (
            with(
                json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a/"}, {"name": "v", "mountPath": "/a"}]}),
            ),
            vec![r#"spec.containers[0].volumeMounts[2].mountPath: Invalid value: "/a": must be unique"#],
        ),
        (mount(json!({"subPath": "..x"})), vec![]),
        (
            mount(json!({"subPath": "/x/../y", "subPathExpr": "a"})),
            vec![
                r#"spec.containers[0].volumeMounts.subPath: Invalid value: "/x/../y": must be a relative path"#,
                r#"spec.containers[0].volumeMounts.subPath: Invalid value: "/x/../y": must not contain '..'"#,
                r#"spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: "a": subPathExpr and subPath are mutually exclusive"#,
            ],
        ),
        (
            mount(json!({"mountPropagation": "x"})),
            vec![
                r#"spec.containers[0].volumeMounts.mountPropagation: Unsupported value: "x": supported values: "Bidirectional", "HostToContainer", "None""#,
            ],
        ),
        (
            mount(json!({"mountPropagation": "Bidirectional"})),
            vec![
                "spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
            ],
        ),
        (
            mount(json!({"recursiveReadOnly": "x"})),
            vec![
                r#"spec.containers[0].volumeMounts.recursiveReadOnly: Unsupported value: "x": supported values: "Disabled", "Enabled", "IfPossible""#,
            ],
        ),
        (
            mount(json!({"recursiveReadOnly": "Enabled", "mountPropagation": "HostToContainer"})),
            vec![
                "spec.containers[0].volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
                "spec.containers[0].volumeMounts.recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None or not specified",
            ],
        ),
        (
            with(
                json!({"volumeDevices": [{"name": "pvc", "devicePath": "/d"}], "volumeMounts": [{"name": "pvc", "mountPath": "/d"}]}),
            ),
            vec![
                r#"spec.containers[0].volumeMounts[0].name: Invalid value: "pvc": must not already exist in volumeDevices"#,
                r#"spec.containers[0].volumeMounts[0].mountPath: Invalid value: "/d": must not already exist as a path in volumeDevices"#,
                r#"spec.containers[0].volumeDevices[0].name: Invalid value: "pvc": must not already exist in volumeMounts"#,
                r#"spec.containers[0].volumeDevices[0].devicePath: Invalid value: "/d": must not already exist as a path in volumeMounts"#,
            ],
        ),
        (
            with(
                json!({"volumeDevices": [{"name": "v", "devicePath": "/d/../e"}, {"name": "x", "devicePath": ""}, {"name": "x", "devicePath": "/f"}]}),
            ),
            vec![
                r#"spec.containers[0].volumeDevices[0].name: Invalid value: "v": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"#,
                r#"spec.containers[0].volumeDevices[0].devicePath: Invalid value: "/d/../e": can not contain backsteps ('..')"#,
                r#"spec.containers[0].volumeDevices[1].name: Not found: "x""#,
                "spec.containers[0].volumeDevices[1].devicePath: Required value",
                r#"spec.containers[0].volumeDevices[2].name: Invalid value: "x": must be unique"#,
                r#"spec.containers[0].volumeDevices[2].name: Not found: "x""#,
            ],
        ),
    ]);
}
