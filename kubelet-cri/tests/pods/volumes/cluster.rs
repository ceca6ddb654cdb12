//! What the cluster has for pods: whom they are to trust, and claims of their own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use kubelet_core::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kubelet_core::{ContainerId, ContainerRuntime};
use serde_json::{Value, json};

use super::{FOREVER, World, inside, mounted, nothing_is_left, pod, until_inside};
use crate::node::{Node, container, is_running, on_both, sh, waits_for, with};

on_both!(
    certificates_of_trust_bundles_are_read_from_inside_and_follow_them
    a_claim_that_is_made_for_a_pod_is_read_and_written_from_inside
);

/// A certificate as far as anybody here looks at it.
fn certificate(letter: &str) -> String {
    let line = letter.repeat(64);
    format!("-----BEGIN CERTIFICATE-----\n{line}\n{letter}{letter}==\n-----END CERTIFICATE-----\n")
}

fn bundle(name: &str, team: &str, signer: Option<&str>, letters: &[&str]) -> ClusterTrustBundle {
    let text: String = letters
        .iter()
        .map(|letter| format!("# {letter}\n{}", certificate(letter)))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"team": team}},
        "spec": {"signerName": signer, "trustBundle": text},
    }))
    .unwrap()
}

/// Waits until a pod is told that a volume cannot be had.
async fn until_told(node: &Node, text: &str) {
    let told = async {
        while !node
            .events
            .0
            .lock()
            .unwrap()
            .iter()
            .any(|event| event.reason == "FailedMount" && event.message.contains(text))
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect(text);
}

async fn certificates_of_trust_bundles_are_read_from_inside_and_follow_them(node: Node) {
    let mut world = World::new();
    let signer = Some("example.com/signer");
    world
        .objects
        .set(bundle("example.com:signer:a", "shop", signer, &["B", "A"]));
    world
        .objects
        .set(bundle("example.com:signer:b", "shop", signer, &["C", "B"]));
    world
        .objects
        .set(bundle("example.com:signer:c", "bank", signer, &["D"]));
    world
        .objects
        .set(bundle("example.com:other:a", "shop", Some("example.com/other"), &["E"]));
    let agent = node.start_with(world.shape()).await;
    let mounts = json!([
        {"name": "trust", "mountPath": "/trust", "readOnly": true},
        {"name": "trust", "mountPath": "/etc/ssl/ca.pem", "subPath": "named.pem", "readOnly": true},
    ]);
    let trusting = pod(
        "trusting",
        json!({
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 4711},
            "containers": [with(sh("app", FOREVER), &json!({"volumeMounts": mounts}))],
            "volumes": [{"name": "trust", "projected": {"sources": [
                {"clusterTrustBundle": {"name": "shop", "path": "named.pem"}},
                {"clusterTrustBundle": {
                    "signerName": signer, "labelSelector": {"matchLabels": {"team": "shop"}}, "path": "of/signer.pem",
                }},
                {"clusterTrustBundle": {"name": "none", "optional": true, "path": "none.pem"}},
            ]}}],
        }),
    );
    agent.pods.set(vec![trusting.clone()]).await.unwrap();
    until_told(&node, "clustertrustbundle \"shop\" not found").await;
    let (reason, _) = waits_for(&agent.statuses(), "trusting", "app").unwrap();
    assert_eq!(reason, "ContainerCreating");
    world.objects.set(bundle("shop", "shop", None, &["F", "F"]));
    agent.until("it runs", |all| is_running(all, "trusting", "app")).await;
    let runtime = node.runtime().await;
    let says = async |script: &str| inside(&runtime, &agent, "trusting", script).await;
    assert_eq!(
        says("cat /trust/named.pem").await,
        certificate("F"),
        "once, and nothing else"
    );
    assert_eq!(says("cat /etc/ssl/ca.pem").await, certificate("F"));
    let of_signer: String = ["A", "B", "C"].map(certificate).concat();
    assert_eq!(
        says("cat /trust/of/signer.pem").await,
        of_signer,
        "of the signer and the labels"
    );
    assert_eq!(says("wc -c < /trust/none.pem").await.trim(), "0");
    assert_eq!(
        says("stat -L -c '%a %u %g' /trust/named.pem /trust/of/signer.pem").await,
        "640 1000 4711\n640 1000 4711\n",
        "for the pod alone"
    );
    assert!(says("grep ' /trust ' /proc/mounts").await.starts_with("tmpfs"));
    says("! touch /trust/x 2>/dev/null").await;

    // A bundle that changes is seen without a restart, also by the next life of the agent.
    world.objects.set(bundle("shop", "shop", None, &["G"]));
    until_inside(&runtime, &agent, "trusting", "grep -q GG== /trust/named.pem").await;
    assert_eq!(says("cat /trust/named.pem").await, certificate("G"));
    let before = mounted(&node);
    agent.kill().await;
    world.next_life();
    world
        .objects
        .set(bundle("example.com:signer:b", "shop", signer, &["H"]));
    let agent = node.start_with(world.shape()).await;
    agent.pods.set(vec![trusting]).await.unwrap();
    agent
        .until("it is taken over", |all| is_running(all, "trusting", "app"))
        .await;
    until_inside(&runtime, &agent, "trusting", "grep -q HH== /trust/of/signer.pem").await;
    assert_eq!(mounted(&node), before, "nothing is mounted anew");
    assert_eq!(
        inside(&runtime, &agent, "trusting", "cat /trust/of/signer.pem").await,
        ["A", "B", "H"].map(certificate).concat()
    );

    // A part of it that was replaced keeps no container from starting again.
    assert_eq!(
        inside(&runtime, &agent, "trusting", "cat /etc/ssl/ca.pem").await,
        certificate("F")
    );
    let status = container(&agent.statuses(), "trusting", "app").unwrap().clone();
    assert_eq!(status.restart_count, 0);
    let id = status.container_id.unwrap();
    let id = ContainerId::from(id.strip_prefix("containerd://").unwrap());
    runtime.stop_container(&id, Duration::from_secs(5)).await.unwrap();
    agent
        .until("it runs again", |all| {
            is_running(all, "trusting", "app")
                && container(all, "trusting", "app").is_some_and(|c| c.restart_count == 1)
        })
        .await;
    assert_eq!(
        inside(&runtime, &agent, "trusting", "cat /etc/ssl/ca.pem").await,
        certificate("G")
    );

    agent.stop_with_pods(&node).await;
    nothing_is_left(&node);
    node.containerd.stop().await.unwrap();
}

/// What a controller of the cluster makes for a volume of a pod, bound to a folder of the node.
fn provide(world: &World, pod: &str, owner_uid: &str, path: &Path) {
    let claim_uid = format!("uid-of-claim-of-{owner_uid}");
    let volume_name = format!("pv-of-{pod}");
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": owner_uid, "controller": true}]);
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {
            "name": format!("{pod}-own"), "namespace": "default", "uid": claim_uid, "ownerReferences": owner,
            "finalizers": ["kubernetes.io/pvc-protection"],
        },
        "spec": {"volumeName": volume_name, "accessModes": ["ReadWriteOncePod"]}, "status": {"phase": "Bound"},
    }))
    .unwrap();
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": volume_name},
        "spec": {
            "claimRef": {"uid": claim_uid}, "volumeMode": "Filesystem", "accessModes": ["ReadWriteOncePod"],
            "local": {"path": path},
        },
    }))
    .unwrap();
    world.objects.set(volume);
    world.objects.set(claim);
}

async fn a_claim_that_is_made_for_a_pod_is_read_and_written_from_inside(node: Node) {
    let mut world = World::new();
    let disk = |name: &str| -> PathBuf {
        let disk = node.path(&format!("disk-of-{name}"));
        fs::create_dir(&disk).unwrap();
        fs::set_permissions(&disk, fs::Permissions::from_mode(0o755)).unwrap();
        disk
    };
    let (first, second) = (disk("first"), disk("second"));
    let agent = node.start_with(world.shape()).await;
    let of = |name: &str| -> Pod {
        let mounts = json!({"volumeMounts": [
            {"name": "own", "mountPath": "/own"}, {"name": "own", "mountPath": "/part", "subPath": "made/anew"},
            {"name": "own", "mountPath": "/seen", "readOnly": true},
        ]});
        let template: Value = json!({
            "metadata": {"labels": {"app": "shop"}},
            "spec": {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "1Mi"}}},
        });
        pod(
            name,
            json!({
                "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 4711},
                "initContainers": [with(sh("init", "echo from init > /own/x"), &mounts)],
                "containers": [with(sh("app", FOREVER), &mounts)],
                "volumes": [{"name": "own", "ephemeral": {"volumeClaimTemplate": template}}],
            }),
        )
    };
    // A claim of that name that was made for an earlier pod of the same name is not this pod's.
    provide(&world, "first", "uid-of-an-earlier-one", &first);
    fs::write(first.join("precious"), "of an earlier one").unwrap();
    agent.pods.set(vec![of("first"), of("second")]).await.unwrap();
    until_told(
        &node,
        "PVC default/first-own was not created for pod default/first (pod is not owner)",
    )
    .await;
    until_told(
        &node,
        r#"failed to fetch PVC from API server: persistentvolumeclaim "second-own" not found"#,
    )
    .await;
    for name in ["first", "second"] {
        assert!(waits_for(&agent.statuses(), name, "app").is_some(), "{name}");
    }
    let group = fs::metadata(first.join("precious")).unwrap().gid();
    assert_eq!(group, 0, "what is another's is given to nobody");
    fs::remove_file(first.join("precious")).unwrap();
    provide(&world, "first", "uid-of-first", &first);
    provide(&world, "second", "uid-of-second", &second);
    agent
        .until("both run", |all| {
            ["first", "second"].iter().all(|name| is_running(all, name, "app"))
        })
        .await;
    let runtime = node.runtime().await;
    for (name, disk) in [("first", &first), ("second", &second)] {
        let says = async |script: &str| inside(&runtime, &agent, name, script).await;
        assert_eq!(says("cat /own/x /seen/x").await, "from init\nfrom init\n");
        assert_eq!(says("stat -c '%g' /own /own/x").await, "4711\n4711\n");
        says(&format!("echo {name} > /own/y; echo part of {name} > /part/z")).await;
        assert_eq!(says("cat /seen/made/anew/z").await, format!("part of {name}\n"));
        says("! touch /seen/x 2>/dev/null").await;
        assert_eq!(
            fs::read_to_string(disk.join("y")).unwrap(),
            format!("{name}\n"),
            "each has its own"
        );
        assert_eq!(
            fs::read_to_string(disk.join("made/anew/z")).unwrap(),
            format!("part of {name}\n")
        );
    }

    // Another life of the agent leaves them as they are.
    let before = mounted(&node);
    agent.kill().await;
    world.next_life();
    let agent = node.start_with(world.shape()).await;
    agent.pods.set(vec![of("first"), of("second")]).await.unwrap();
    agent
        .until("both are taken over", |all| {
            ["first", "second"].iter().all(|name| is_running(all, name, "app"))
        })
        .await;
    assert_eq!(
        inside(&runtime, &agent, "first", "cat /own/y; echo more >> /own/y").await,
        "first\n"
    );
    assert_eq!(mounted(&node), before, "nothing is mounted anew");
    for name in ["first", "second"] {
        assert_eq!(container(&agent.statuses(), name, "app").unwrap().restart_count, 0);
    }
    // What becomes of a claim whose pod went is the cluster's to say: nothing of it is lost here.
    agent.pods.set(vec![of("second")]).await.unwrap();
    agent.until("one is gone", |all| !all.contains_key("first")).await;
    assert!(mounted(&node).iter().all(|path| !path.ends_with("pv-of-first")));
    assert_eq!(inside(&runtime, &agent, "second", "cat /own/y").await, "second\n");
    agent.stop_with_pods(&node).await;
    nothing_is_left(&node);
    assert_eq!(fs::read_to_string(first.join("y")).unwrap(), "first\nmore\n");
    assert_eq!(fs::read_to_string(second.join("y")).unwrap(), "second\n");
    node.containerd.stop().await.unwrap();
}
