use serde_json::{Value, json};

use super::{defaulted, merge, sound};
use crate::validation::{ApiReference, refuse_api_references};

fn pod(spec: Value) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = sound();
    merge(&mut pod["spec"], spec);
    defaulted(pod)
}

fn volume(source: Value) -> Value {
    let mut volume = json!({"name": "v"});
    merge(&mut volume, source);
    json!({"volumes": [volume]})
}

fn env(source: Value) -> Value {
    json!({"containers": [{"name": "c", "image": "i", "env": [{"name": "A", "valueFrom": source}]}]})
}

#[test]
fn whatever_only_an_api_server_has_is_refused_by_name() {
    let projected = |source: Value| volume(json!({"projected": {"sources": [source]}}));
    for (spec, what) in [
        (json!({"serviceAccountName": "a"}), "serviceaccounts"),
        (json!({"serviceAccount": "a"}), "serviceaccounts"),
        (json!({"imagePullSecrets": [{"name": "s"}]}), "secrets"),
        (
            env(json!({"secretKeyRef": {"name": "s", "key": "k", "optional": true}})),
            "secrets",
        ),
        (
            json!({"initContainers": [{"name": "b", "envFrom": [{"secretRef": {"name": "s"}}]}]}),
            "secrets",
        ),
        (volume(json!({"secret": {"secretName": "s"}})), "secrets"),
        (projected(json!({"secret": {"name": "s"}})), "secrets"),
        (
            volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}})),
            "secrets",
        ),
        (
            volume(json!({"azureFile": {"secretName": "s", "shareName": "x"}})),
            "secrets",
        ),
        (
            volume(json!({"scaleIO": {"gateway": "g", "system": "s", "secretRef": {"name": "s"}}})),
            "secrets",
        ),
        (env(json!({"configMapKeyRef": {"name": "s", "key": "k"}})), "configmaps"),
        (volume(json!({"configMap": {"name": "s"}})), "configmaps"),
        (projected(json!({"configMap": {"name": "s"}})), "configmaps"),
        (json!({"resourceClaims": [{"name": "a"}]}), "resourceclaims"),
        (volume(json!({"csi": {"driver": "d"}})), "csidrivers (via CSI volumes)"),
        (
            volume(json!({"glusterfs": {"endpoints": "e", "path": "p"}})),
            "endpoints (via glusterFS volumes)",
        ),
        (
            volume(json!({"persistentVolumeClaim": {"claimName": "p"}})),
            "persistentvolumeclaims",
        ),
        (
            volume(json!({"ephemeral": {}})),
            "persistentvolumeclaims (via ephemeral volumes)",
        ),
        (
            projected(json!({"serviceAccountToken": {"path": "p"}})),
            "serviceaccounts (via projected volumes)",
        ),
        (
            projected(json!({"clusterTrustBundle": {"path": "p"}})),
            "clustertrustbundles",
        ),
        (
            projected(json!({"podCertificate": {"signerName": "a", "keyType": "b"}})),
            "podcertificates",
        ),
    ] {
        let shown = spec.to_string();
        let refused = refuse_api_references(&pod(spec), &|_| false).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("static pods may not reference {what}"),
            "{shown}"
        );
    }
}

#[test]
fn the_first_reference_in_order_is_named() {
    let mut spec = volume(json!({"configMap": {"name": "c"}}));
    merge(
        &mut spec,
        json!({"imagePullSecrets": [{"name": "s"}], "serviceAccountName": "a"}),
    );
    let pod = pod(spec);
    let refused = |served: &[ApiReference]| {
        refuse_api_references(&pod, &|kind| served.contains(&kind)).map_err(|error| error.to_string())
    };
    let accounts = ApiReference::ServiceAccounts;
    assert!(refused(&[]).unwrap_err().ends_with(" serviceaccounts"));
    assert!(refused(&[accounts]).unwrap_err().ends_with(" secrets"));
    assert!(
        refused(&[accounts, ApiReference::Secrets])
            .unwrap_err()
            .ends_with(" configmaps")
    );
    assert_eq!(
        refused(&[accounts, ApiReference::Secrets, ApiReference::ConfigMaps]),
        Ok(())
    );
}

#[test]
fn what_a_node_has_itself_is_allowed() {
    for spec in [
        json!({"imagePullSecrets": [{"name": ""}, {}]}),
        volume(json!({"emptyDir": {}})),
        volume(json!({"hostPath": {"path": "/a"}})),
        volume(json!({"image": {"reference": "a"}})),
        volume(json!({"nfs": {"server": "s", "path": "/p"}})),
        volume(json!({"rbd": {"image": "i", "monitors": ["m"]}})),
        volume(json!({"projected": {"sources": [{"downwardAPI": {"items": []}}]}})),
    ] {
        assert_eq!(refuse_api_references(&pod(spec), &|_| false), Ok(()));
    }
    let unknown = pod(volume(json!({"projected": {"sources": [{}]}})));
    let refused = refuse_api_references(&unknown, &|_| true).unwrap_err();
    assert_eq!(refused.to_string(), r#"unknown source for projected volume "v""#);
}
