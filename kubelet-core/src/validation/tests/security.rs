use serde_json::{Value, json};

use super::{check_container, check_spec};

#[test]
fn container_contexts() {
    let with = |context: Value| json!({"securityContext": context});
    check_container([
        (
            with(json!({"runAsUser": -1, "runAsGroup": 2_147_483_648_i64})),
            vec![
                ".securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                ".securityContext.runAsGroup: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive",
            ],
        ),
        (
            with(json!({"procMount": "x"})),
            vec![r#".securityContext.procMount: Unsupported value: "x": supported values: "Default", "Unmasked""#],
        ),
        (
            with(json!({"procMount": "Unmasked"})),
            vec![
                r#".securityContext.procMount: Invalid value: "Unmasked": `hostUsers` must be false to use `Unmasked`"#,
            ],
        ),
        (
            with(
                json!({"allowPrivilegeEscalation": false, "privileged": true, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
            ),
            vec![
                r#".securityContext: Invalid value: {"Capabilities":{"Add":["CAP_SYS_ADMIN"],"Drop":null},"Privileged":true,"SELinuxOptions":null,"WindowsOptions":null,"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,"ReadOnlyRootFilesystem":null,"AllowPrivilegeEscalation":false,"ProcMount":null,"SeccompProfile":null,"AppArmorProfile":null}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true"#,
                r#".securityContext: Invalid value: {"Capabilities":{"Add":["CAP_SYS_ADMIN"],"Drop":null},"Privileged":true,"SELinuxOptions":null,"WindowsOptions":null,"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,"ReadOnlyRootFilesystem":null,"AllowPrivilegeEscalation":false,"ProcMount":null,"SeccompProfile":null,"AppArmorProfile":null}: cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"#,
            ],
        ),
        (
            with(json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["SYS_ADMIN"]}})),
            vec![],
        ),
        (
            with(json!({"seccompProfile": {"type": ""}, "appArmorProfile": {"type": "x"}})),
            vec![
                ".securityContext.seccompProfile.type: Required value: type is required when seccompProfile is set",
                r#".securityContext.appArmorProfile.type: Unsupported value: "x": supported values: "Localhost", "RuntimeDefault", "Unconfined""#,
            ],
        ),
        (
            with(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": ""}})),
            vec![],
        ),
        (
            with(json!({"seccompProfile": {"type": "Localhost"}})),
            vec![
                ".securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            ],
        ),
        (
            with(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "/../a"}})),
            vec![
                r#".securityContext.seccompProfile.localhostProfile: Invalid value: "/../a": must be a relative path"#,
                r#".securityContext.seccompProfile.localhostProfile: Invalid value: "/../a": must not contain '..'"#,
            ],
        ),
        (
            with(json!({"seccompProfile": {"type": "Unconfined", "localhostProfile": "a"}})),
            vec![
                r#".securityContext.seccompProfile.localhostProfile: Invalid value: "a": can only be set when seccomp type is Localhost"#,
            ],
        ),
        (
            with(json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": " a"}})),
            vec![
                r#".securityContext.appArmorProfile.localhostProfile: Invalid value: " a": must not be padded with whitespace"#,
            ],
        ),
        (
            with(json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": ""}})),
            vec![
                ".securityContext.appArmorProfile.localhostProfile: Required value: must be set when AppArmor type is Localhost",
            ],
        ),
        (
            with(json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "a".repeat(4096)}})),
            vec![".securityContext.appArmorProfile.localhostProfile: Too long: may not be more than 4095 bytes"],
        ),
    ]);
}

#[test]
fn pod_contexts() {
    let with = |context: Value| json!({"securityContext": context});
    check_spec([
        (
            with(json!({"fsGroup": -1, "supplementalGroups": [0, -1]})),
            vec![
                "spec.securityContext.fsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                "spec.securityContext.supplementalGroups[1]: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            ],
        ),
        (
            with(
                json!({"fsGroupChangePolicy": "", "supplementalGroupsPolicy": "x", "seLinuxChangePolicy": "MountOption"}),
            ),
            vec![
                r#"spec.securityContext.fsGroupChangePolicy: Unsupported value: "": supported values: "Always", "OnRootMismatch""#,
                r#"spec.securityContext.supplementalGroupsPolicy: Unsupported value: "x": supported values: "Merge", "Strict""#,
                r#"spec.securityContext.seLinuxChangePolicy: Unsupported value: "MountOption": supported values: "Recursive""#,
            ],
        ),
        (
            json!({"shareProcessNamespace": true, "hostPID": true}),
            vec![
                "spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled",
            ],
        ),
        (
            with(
                json!({"sysctls": [{"name": "a.b", "value": ""}, {"name": "a/b", "value": ""}, {"name": "a.b", "value": ""}, {"name": "", "value": ""}, {"name": "A", "value": ""}]}),
            ),
            vec![
                r#"spec.securityContext.sysctls[2].name: Duplicate value: "a.b""#,
                "spec.securityContext.sysctls[3].name: Required value",
                r#"spec.securityContext.sysctls[4].name: Invalid value: "A": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"#,
            ],
        ),
        (
            json!({"hostNetwork": true, "hostIPC": true, "securityContext": {"sysctls": [
                {"name": "net/ipv4/x", "value": ""}, {"name": "kernel.sem", "value": ""}, {"name": "fs/mqueue/x", "value": ""}, {"name": "kernel.other", "value": ""},
            ]}}),
            vec![
                r#"spec.securityContext.sysctls[0].name: Invalid value: "net/ipv4/x": may not be specified when 'hostNetwork' is true"#,
                r#"spec.securityContext.sysctls[1].name: Invalid value: "kernel.sem": may not be specified when 'hostIPC' is true"#,
                r#"spec.securityContext.sysctls[2].name: Invalid value: "fs/mqueue/x": may not be specified when 'hostIPC' is true"#,
            ],
        ),
        (
            json!({"hostUsers": false, "hostNetwork": true, "hostPID": true, "hostIPC": true}),
            vec![
                "spec.hostNetwork: Forbidden: when `hostUsers` is false",
                "spec.HostPID: Forbidden: when `hostUsers` is false",
                "spec.HostIPC: Forbidden: when `hostUsers` is false",
            ],
        ),
        (
            json!({"hostUsers": false, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "p"}}],
            "containers": [{"name": "c", "image": "i", "volumeDevices": [{"name": "v", "devicePath": "/d"}]}]}),
            vec!["spec.containers[0].volumeDevices: Forbidden: when `hostUsers` is false"],
        ),
    ]);
}

#[test]
fn operating_systems() {
    let container = |context: Value| json!([{"name": "c", "image": "i", "securityContext": context}]);
    check_spec([
        (
            json!({"os": {"name": "linux"}, "securityContext": {"windowsOptions": {}}, "containers": container(json!({"windowsOptions": {}}))}),
            vec![
                "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
                "spec.containers[0].securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
            ],
        ),
        (
            json!({"os": {"name": "windows"}, "hostPID": true, "securityContext": {"fsGroup": 1}, "containers": container(json!({"privileged": false}))}),
            vec![
                "spec.hostPID: Forbidden: cannot be set for a windows pod",
                "spec.securityContext.fsGroup: Forbidden: cannot be set for a windows pod",
                "spec.containers[0].securityContext.privileged: Forbidden: cannot be set for a windows pod",
            ],
        ),
        (
            json!({"containers": [
                {"name": "c", "image": "i", "securityContext": {"windowsOptions": {"hostProcess": true}}}, {"name": "d", "image": "i"},
            ]}),
            vec![
                r#"spec: Invalid value: "": a pod with one hostProcess container must have no other kind of container"#,
                "spec.hostNetwork: Invalid value: false: hostNetwork must be true if a pod has hostProcess containers",
            ],
        ),
    ]);
}
