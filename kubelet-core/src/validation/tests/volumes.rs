use serde_json::{Value, json};

use super::{check_spec, merge};

fn check(rows: impl IntoIterator<Item = (Value, Vec<&'static str>)>) {
    check_spec(rows.into_iter().map(|(source, wanted)| {
        let mut volume = json!({"name": "v"});
        merge(&mut volume, source);
        (json!({"volumes": [volume]}), wanted)
    }));
}

#[test]
fn names_and_the_one_source() {
    check_spec([
        (
            json!({"volumes": [{"name": ""}, {"name": "a.b"}, {"name": "a"}, {"name": "a"}]}),
            vec![
                "spec.volumes[0].name: Required value",
                r#"spec.volumes[1].name: Invalid value: "a.b": must not contain dots"#,
                r#"spec.volumes[3].name: Duplicate value: "a""#,
            ],
        ),
        // A volume with an error is not there for mounts.
        (
            json!({
                "volumes": [{"name": "v", "hostPath": {"path": ""}}],
                "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/a"}]}],
            }),
            vec![
                "spec.volumes[0].hostPath.path: Required value",
                r#"spec.containers[0].volumeMounts[0].name: Not found: "v""#,
            ],
        ),
    ]);
    check([(
        json!({"emptyDir": {}, "hostPath": {"path": ""}, "downwardAPI": {}, "image": {}}),
        vec![
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            "spec.volumes[0].downwarAPI: Forbidden: may not specify more than 1 volume type",
            "spec.volumes[0].image: Forbidden: may not specify more than 1 volume type",
        ],
    )]);
}

#[test]
fn local_sources() {
    check([
        (
            json!({"emptyDir": {"medium": "x", "sizeLimit": "-1"}}),
            vec!["spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity"],
        ),
        (
            json!({"hostPath": {"path": "a/../b", "type": "x"}}),
            vec![
                r#"spec.volumes[0].hostPath.path: Invalid value: "a/../b": must not contain '..'"#,
                r#"spec.volumes[0].hostPath.type: Unsupported value: "x": supported values: "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket""#,
            ],
        ),
        (
            json!({"secret": {"defaultMode": 512}}),
            vec![
                "spec.volumes[0].secret.secretName: Required value",
                "spec.volumes[0].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
            ],
        ),
        (
            json!({"configMap": {"name": "", "items": [{"key": "", "path": ""}, {"key": "a", "path": "/a/../b", "mode": -1}, {"key": "a", "path": "..x"}]}}),
            vec![
                "spec.volumes[0].configMap.name: Required value",
                "spec.volumes[0].configMap.items[0].key: Required value",
                "spec.volumes[0].configMap.items[0].path: Required value",
                r#"spec.volumes[0].configMap.items[1].path: Invalid value: "/a/../b": must be a relative path"#,
                r#"spec.volumes[0].configMap.items[1].path: Invalid value: "/a/../b": must not contain '..'"#,
                "spec.volumes[0].configMap.items[1].mode: Invalid value: -1: must be a number between 0 and 0777 (octal), both inclusive",
                r#"spec.volumes[0].configMap.items[2].path: Invalid value: "..x": must not start with '..'"#,
            ],
        ),
        (
            json!({"downwardAPI": {"items": [
                {"path": "a"},
                {"path": "b", "fieldRef": {"fieldPath": "spec.nodeName"}},
                {"path": "c", "resourceFieldRef": {"resource": "limits.cpu"}},
                {"path": "", "fieldRef": {"fieldPath": "metadata.labels"}, "resourceFieldRef": {"resource": "limits.cpu"}},
            ]}}),
            vec![
                "spec.volumes[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
                r#"spec.volumes[0].downwardAPI.fieldRef.fieldPath: Unsupported value: "spec.nodeName": supported values: "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid""#,
                "spec.volumes[0].downwardAPI.resourceFieldRef.containerName: Required value",
                "spec.volumes[0].downwardAPI.path: Required value",
                r#"spec.volumes[0].downwardAPI: Invalid value: "resource": fieldRef and resourceFieldRef can not be specified simultaneously"#,
            ],
        ),
        (
            json!({"image": {"reference": "", "pullPolicy": "x"}}),
            vec![
                r#"spec.volumes[0].image.pullPolicy: Unsupported value: "x": supported values: "Always", "IfNotPresent", "Never""#,
            ],
        ),
    ]);
}

#[test]
fn projected_sources() {
    let with = |sources: Value| json!({"projected": {"sources": sources}});
    let items = json!([{"key": "a", "path": "p"}]);
    check([
        (
            with(json!([{"secret": {"name": "s"}, "configMap": {"name": "c"}}])),
            vec!["spec.volumes[0].projected.sources[0]: Forbidden: may not specify more than 1 volume type per source"],
        ),
        (
            with(json!([{"secret": {"name": "s", "items": items}}, {"configMap": {"name": "c", "items": items}}])),
            vec![r#"spec.volumes[0].projected: Invalid value: "c": conflicting duplicate paths"#],
        ),
        (
            with(json!([{"serviceAccountToken": {"path": "", "expirationSeconds": 5}}])),
            vec![
                "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
                "spec.volumes[0].projected.path: Required value",
            ],
        ),
        (
            with(json!([{"serviceAccountToken": {"path": "../a", "expirationSeconds": 4_294_967_297_i64}}])),
            vec![
                "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds",
                r#"spec.volumes[0].projected.path: Invalid value: "../a": must not contain '..'"#,
            ],
        ),
        (
            with(json!([{"clusterTrustBundle": {"path": ""}}])),
            vec![
                "spec.volumes[0].projected.sources[0].clusterTrustBundle: Required value: must specify one of name and signerName",
                "spec.volumes[0].projected.sources[0].clusterTrustBundle.path: Required value",
            ],
        ),
        (
            with(json!([{"podCertificate": {"signerName": "", "keyType": "x"}}])),
            vec![
                "spec.volumes[0].projected.sources[0].podCertificate.signerName: Required value",
                r#"spec.volumes[0].projected.sources[0].podCertificate.keyType: Unsupported value: "x": supported values: "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519""#,
                "spec.volumes[0].projected.sources[0].podCertificate: Required value: must specify at least one of credentialBundlePath, keyPath and certificateChainPath",
            ],
        ),
        (
            with(
                json!([{"podCertificate": {"signerName": "a.kubernetes.io/b", "keyType": "ED25519", "keyPath": "k", "maxExpirationSeconds": 90_000}}]),
            ),
            vec![
                "spec.volumes[0].projected.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 90000: must be between 3600 and 86400, inclusive",
            ],
        ),
    ]);
}

#[test]
fn remote_sources() {
    check([
        (
            json!({"persistentVolumeClaim": {"claimName": ""}}),
            vec!["spec.volumes[0].persistentVolumeClaim.claimName: Required value"],
        ),
        (
            json!({"csi": {"driver": ""}}),
            vec!["spec.volumes[0].csi.driver: Required value"],
        ),
        (json!({"csi": {"driver": "A.b"}}), vec![]),
        (
            json!({"csi": {"driver": "a".repeat(64)}}),
            vec!["spec.volumes[0].csi.driver: Too long: may not be more than 63 bytes"],
        ),
        (
            json!({"ephemeral": {}}),
            vec!["spec.volumes[0].ephemeral.volumeClaimTemplate: Required value"],
        ),
        (
            json!({"ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": {}}}}),
            vec![
                "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set",
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes: Required value",
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value",
            ],
        ),
        (
            json!({"nfs": {"server": "", "path": "a"}}),
            vec![
                "spec.volumes[0].nfs.server: Required value",
                r#"spec.volumes[0].nfs.path: Invalid value: "a": must be an absolute path"#,
            ],
        ),
        (
            json!({"iscsi": {"targetPortal": "", "iqn": "x", "lun": 256}}),
            vec![
                "spec.volumes[0].iscsi.targetPortal: Required value",
                r#"spec.volumes[0].iscsi.iqn: Invalid value: "x": must start with iqn, eui or naa"#,
                "spec.volumes[0].iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            ],
        ),
        (
            json!({"fc": {}}),
            vec![
                "spec.volumes[0].fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both",
            ],
        ),
        (
            json!({"cephfs": {"monitors": []}}),
            vec!["spec.volumes[0].cephfs.monitors: Required value"],
        ),
        (
            json!({"scaleIO": {"gateway": "g", "system": "", "secretRef": {}}}),
            vec![
                "spec.volumes[0].scaleIO.system: Required value",
                "spec.volumes[0].scaleIO.volumeName: Required value",
            ],
        ),
    ]);
}
