//! Claims, and what they are bound to.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use kubelet_core::PodRecord;
use kubelet_core::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use crate::harness::{Node, may_mount, pod, pod_with, record, table};

fn claim(more: Value) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "uid-of-claim", "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"},
    });
    for (key, value) in more.as_object().unwrap() {
        for (inner, value) in value.as_object().unwrap() {
            claim[key][inner] = value.clone();
        }
    }
    serde_json::from_value(claim).unwrap()
}

fn volume(spec: Value) -> PersistentVolume {
    let mut volume = json!({
        "metadata": {"name": "pv-1"},
        "spec": {"claimRef": {"uid": "uid-of-claim"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"},
    });
    for (key, value) in spec.as_object().unwrap() {
        volume["spec"][key] = value.clone();
    }
    serde_json::from_value(volume).unwrap()
}

fn claiming(name: &str) -> Arc<PodRecord> {
    pod(name, &[json!({"persistentVolumeClaim": {"claimName": "data"}})])
}

#[tokio::test]
async fn a_folder_of_the_node_is_a_volume_that_outlives_its_pods() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let host = node.root.join("disk");
    fs::create_dir(&host).unwrap();
    let affinity = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]},
    ]}});
    let mut made =
        volume(json!({"local": {"path": host}, "nodeAffinity": affinity, "mountOptions": ["noexec", "nosuid"]}));
    made.metadata.annotations = Some([("pv.beta.kubernetes.io/gid".to_owned(), "4713".to_owned())].into());
    node.objects.set(claim(json!({})));
    node.objects.set(made);
    let first = pod_with(
        "a",
        &[json!({"persistentVolumeClaim": {"claimName": "data"}})],
        json!({"securityContext": {"fsGroup": 4711}}),
    );
    assert_eq!(node.ready(&first).await.groups, [4713]);
    let place = node.place(&first).await;
    assert_eq!(
        place,
        node.pod_dir("uid-of-a").join("volumes/kubernetes.io~local-volume/pv-1")
    );
    let options = table().at(&place).unwrap().options.clone();
    assert!(options.contains("noexec") && options.contains("nosuid"), "{options}");
    fs::write(place.join("data"), "precious").unwrap();
    assert_eq!(fs::metadata(host.join("data")).unwrap().gid(), 4711);

    let second = pod(
        "b",
        &[json!({"persistentVolumeClaim": {"claimName": "data", "readOnly": true}})],
    );
    node.ready(&second).await;
    let other = node.container(&second, "app").await.places.remove(0);
    assert!(other.read_only);
    assert!(fs::write(other.host_path.join("data"), "lost").is_err());
    let node = node.restart().await;
    node.ready(&first).await;
    node.gone(&first).await;
    assert_eq!(fs::read_to_string(other.host_path.join("data")).unwrap(), "precious");
    // Gone by a life that never saw it.
    node.gone(&second).await;
    assert_eq!(fs::read_to_string(host.join("data")).unwrap(), "precious");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_bound_says_so_and_is_followed_until_it_is() {
    let mut node = Node::start();
    let host = node.root.join("disk");
    fs::create_dir(&host).unwrap();
    let pod = claiming("a");
    let prefix = "error processing PVC default/data: ";
    let text = node.waits(&pod).await;
    let missing = "failed to fetch PVC from API server: persistentvolumeclaim \"data\" not found";
    assert!(text.contains(&format!("{prefix}{missing}")), "{text}");
    node.objects.set(claim(json!({"status": {"phase": "Pending"}})));
    node.woken(&pod).await;
    assert!(node.waits(&pod).await.contains(&format!("{prefix}PVC is not bound")));
    node.objects.set(claim(
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": []}}),
    ));
    node.woken(&pod).await;
    assert!(
        node.waits(&pod)
            .await
            .contains(&format!("{prefix}PVC is being deleted"))
    );
    node.objects.set(claim(json!({})));
    node.woken(&pod).await;
    assert!(node.waits(&pod).await.contains("failed to fetch PV pv-1"));
    node.objects.set(volume(
        json!({"hostPath": {"path": host}, "claimRef": {"uid": "another"}}),
    ));
    let mut text = String::new();
    while !text.contains("bound to another claim") {
        node.woken(&pod).await;
        text = node.waits(&pod).await;
    }
    node.objects.set(volume(json!({"hostPath": {"path": host}})));
    node.woken(&pod).await;
    node.ready(&pod).await;
    assert_eq!(node.place(&pod).await, host);
    node.gone(&pod).await;
}

#[tokio::test]
async fn volumes_that_are_not_for_this_pod_are_refused() {
    let node = Node::start();
    let host = node.root.join("disk");
    fs::create_dir(&host).unwrap();
    node.objects.set(claim(json!({})));
    let elsewhere = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["slow"]}]},
    ]}});
    let unprocessed = "Unable to attach or mount volumes: unmounted volumes=[a], unattached volumes=[], \
                       failed to process volumes=[a]: volume \"a\": ";
    let unmade = "MountVolume.SetUp failed for volume \"pv-1\" : ";
    let block = json!({"hostPath": {"path": host}, "volumeMode": "Block"});
    let unknown = json!({"iscsi": {"targetPortal": "x", "iqn": "y", "lun": 0}});
    for (index, (spec, stage, expected)) in [
        (
            json!({"hostPath": {"path": host}, "nodeAffinity": elsewhere}),
            "MountVolume.NodeAffinity check failed for volume \"pv-1\" : ",
            "no matching NodeSelectorTerms",
        ),
        (
            block,
            unprocessed,
            "volume a has volumeMode Block, but is specified in volumeMounts",
        ),
        (
            json!({"hostPath": {"path": host}, "mountOptions": ["ro"]}),
            unmade,
            "mount options are not supported for this volume type",
        ),
        (unknown, unprocessed, "no volume plugin matched"),
        (json!({"local": {"path": host.join("none")}}), unmade, "cannot look at"),
        (
            json!({"local": {"path": host.join("../x")}}),
            unmade,
            "must not contain",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        node.objects.set(volume(spec));
        let text = node.waits(&claiming(&format!("p{index}"))).await;
        assert!(text.contains(expected), "{text}");
        let told = node.messages("FailedMount");
        assert_eq!(told.len(), index + 1);
        let whole = told[index].starts_with(stage) && told[index].contains(expected);
        assert!(whole, "{}", told[index]);
    }
    // What is to be a device has an event of its own.
    let device = record(
        "device",
        json!({}),
        json!({
            "containers": [{"name": "app", "image": "app:1", "volumeDevices": [{"name": "a", "devicePath": "/dev/a"}]}],
            "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}],
        }),
    );
    node.objects.set(volume(
        json!({"local": {"path": host.join("none")}, "volumeMode": "Block"}),
    ));
    node.waits(&device).await;
    let told = node.messages("FailedMapVolume");
    let expected = "MapVolume.MapPodDevice failed for volume \"pv-1\" : ";
    assert!(told.len() == 1 && told[0].starts_with(expected), "{told:?}");
    node.objects.set(volume(
        json!({"hostPath": {"path": host}, "accessModes": ["ReadWriteOncePod"]}),
    ));
    let (first, second) = (claiming("first"), claiming("second"));
    node.ready(&first).await;
    let text = node.waits(&second).await;
    assert!(
        text.contains("uses the ReadWriteOncePod access mode and is already in use by another pod"),
        "{text}"
    );
    node.gone(&first).await;
    node.gone(&second).await;
    let third = claiming("third");
    node.ready(&third).await;
    node.gone(&third).await;
}

#[tokio::test]
async fn of_two_pods_that_want_a_volume_for_themselves_one_has_it_over_restarts_too() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let host = node.root.join("disk");
    fs::create_dir(&host).unwrap();
    node.objects.set(claim(json!({})));
    node.objects.set(volume(
        json!({"local": {"path": host}, "accessModes": ["ReadWriteOncePod"]}),
    ));
    let (first, second) = (claiming("first"), claiming("second"));
    let (a, b) = tokio::join!(node.mount(&first), node.mount(&second));
    assert_ne!(a.is_ok(), b.is_ok(), "{a:?} {b:?}");
    let (owner, other) = if a.is_ok() {
        (&first, &second)
    } else {
        (&second, &first)
    };
    // The next life is asked for the other one first.
    let node = node.restart().await;
    let text = node.waits(other).await;
    assert!(text.contains("is already in use by another pod"), "{text}");
    node.ready(owner).await;
    node.gone(owner).await;
    let node = node.restart().await;
    node.ready(other).await;
    node.gone(other).await;
}

#[tokio::test]
async fn a_claim_that_was_made_for_a_pod_is_that_pods() {
    let node = Node::start();
    let host = node.root.join("disk");
    fs::create_dir(&host).unwrap();
    node.objects.set(volume(json!({"hostPath": {"path": host}})));
    let owned_by = |uid: &str| {
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid, "controller": true}]);
        claim(json!({"metadata": {"name": "a-a", "ownerReferences": owner}}))
    };
    let template =
        json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {}}}}});
    node.objects.set(owned_by("another"));
    let text = node.waits(&pod("a", std::slice::from_ref(&template))).await;
    assert!(text.contains("was not created for pod"), "{text}");
    node.objects.set(owned_by("uid-of-a"));
    let node = node.restart().await;
    let pod = pod("a", &[template]);
    node.ready(&pod).await;
    assert_eq!(node.place(&pod).await, host);
    node.gone(&pod).await;
}
