//! Volumes of files: config maps, secrets, what a pod is, and tokens.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kubelet_core::{ObjectKey, ObjectKind};
use kubelet_testing::FakeTokens;
use kubelet_volume::{MountOptions, Mounts, SystemMounts, VolumeSettings};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::harness::{Node, may_mount, pod, pod_with, record, table};

fn config_map(data: Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "settings", "namespace": "default"}, "data": data})).unwrap()
}

fn secret(data: Value) -> Secret {
    serde_json::from_value(json!({"metadata": {"name": "db", "namespace": "default"}, "stringData": data})).unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test(start_paused = true)]
async fn a_config_map_is_files_that_change_with_it() {
    let mut node = Node::start();
    node.objects.set(config_map(json!({"color": "red", "size": "1"})));
    let pod = pod("a", &[json!({"configMap": {"name": "settings"}})]);
    node.ready(&pod).await;
    let place = node.place(&pod).await;
    assert_eq!(
        place,
        node.pod_dir("uid-of-a").join("volumes/kubernetes.io~configmap/a")
    );
    assert_eq!(
        (read(place.join("color")), read(place.join("size"))),
        ("red".to_owned(), "1".to_owned())
    );
    assert_eq!(mode(place.join("color")), 0o644);
    // The layout that upstream has too.
    assert_eq!(fs::read_link(place.join("color")).unwrap(), Path::new("..data/color"));
    let folder = fs::read_link(place.join("..data")).unwrap();
    assert!(folder.to_string_lossy().starts_with(".."), "{folder:?}");
    let given = node.container(&pod, "app").await;
    assert!(given.places[0].read_only && given.places[0].selinux_relabel);

    node.ready(&pod).await;
    assert_eq!(fs::read_link(place.join("..data")).unwrap(), folder, "nothing changed");
    node.objects.set(config_map(json!({"color": "blue", "shape": "round"})));
    node.woken(&pod).await;
    node.ready(&pod).await;
    assert_eq!(
        (read(place.join("color")), read(place.join("shape"))),
        ("blue".to_owned(), "round".to_owned())
    );
    assert!(!place.join("size").exists());
    node.gone(&pod).await;
    while node.objects.watched() > 0 {
        // Until it is noticed that nobody asks any more.
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_there_stays_when_its_object_goes() {
    let mut node = Node::start();
    node.objects.set(config_map(json!({"color": "red"})));
    let pod = pod("a", &[json!({"configMap": {"name": "settings"}})]);
    node.ready(&pod).await;
    let place = node.place(&pod).await;
    node.objects
        .remove(&ObjectKey::new(ObjectKind::ConfigMap, "default", "settings"));
    node.woken(&pod).await;
    let ready = node.ready(&pod).await;
    assert_eq!(read(place.join("color")), "red");
    assert!(ready.again_at.is_some(), "it is looked at again");
    assert_eq!(
        node.messages("FailedMount"),
        [r#"MountVolume.SetUp failed for volume "a" : configmap "settings" not found"#]
    );
    node.objects.set(config_map(json!({"color": "blue"})));
    node.woken(&pod).await;
    assert_eq!(node.ready(&pod).await.again_at, None);
    assert_eq!(read(place.join("color")), "blue");
    node.gone(&pod).await;
}

#[tokio::test(start_paused = true)]
async fn a_later_life_goes_on_with_what_is_there_although_its_object_is_not() {
    let node = Node::start();
    node.objects.set(config_map(json!({"color": "red"})));
    let pod = pod("a", &[json!({"configMap": {"name": "settings"}})]);
    node.ready(&pod).await;
    node.objects
        .remove(&ObjectKey::new(ObjectKind::ConfigMap, "default", "settings"));
    let mut node = node.restart().await;
    let ready = node.ready(&pod).await;
    assert!(ready.again_at.is_some(), "it is looked at again");
    assert_eq!(node.messages("FailedMount").len(), 1);
    let place = node.place(&pod).await;
    assert_eq!(read(place.join("color")), "red");
    assert!(node.container(&pod, "app").await.places[0].read_only);
    node.objects.set(config_map(json!({"color": "blue"})));
    node.woken(&pod).await;
    node.ready(&pod).await;
    assert_eq!(read(place.join("color")), "blue");
    node.gone(&pod).await;
}

#[tokio::test]
async fn what_the_host_mounts_later_in_a_folder_stays_mounted() {
    if !may_mount() {
        return;
    }
    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
    let node = Node::start();
    let host = node.root.join("host");
    fs::create_dir_all(host.join("part/usb")).unwrap();
    let mounts = SystemMounts::default();
    mounts.bind(&host, &host, &MountOptions::default()).unwrap();
    mount_change(&host, MountPropagationFlags::SHARED).unwrap();
    let app = json!({"name": "app", "image": "app:1", "volumeMounts": [
        {"name": "a", "mountPath": "/a", "subPath": "part"},
    ]});
    let pod = record(
        "a",
        json!({}),
        json!({"containers": [app], "volumes": [{"name": "a", "hostPath": {"path": host}}]}),
    );
    node.ready(&pod).await;
    let place = node.place(&pod).await;
    let usb = host.join("part/usb");
    mounts
        .mount("tmpfs", "tmpfs", &usb, &MountOptions::default(), "size=64k")
        .unwrap();
    fs::write(usb.join("data"), "precious").unwrap();
    assert_eq!(read(place.join("usb/data")), "precious", "it shows in the part");
    node.gone(&pod).await;
    assert_eq!(read(usb.join("data")), "precious");
    unmount(&usb, UnmountFlags::empty()).unwrap();
    unmount(&host, UnmountFlags::DETACH).unwrap();
}

#[tokio::test]
async fn what_cannot_change_is_not_watched() {
    let node = Node::start();
    let mut map = config_map(json!({"color": "red"}));
    map.immutable = Some(true);
    node.objects.set(map);
    let pod = pod("a", &[json!({"configMap": {"name": "settings"}})]);
    node.ready(&pod).await;
    node.objects.set(config_map(json!({"color": "blue"})));
    node.ready(&pod).await;
    assert_eq!(read(node.place(&pod).await.join("color")), "red");
    node.gone(&pod).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_sees_all_of_the_old_or_all_of_the_new() {
    let mut node = Node::start();
    let both = |number: u32| config_map(json!({"a": number.to_string(), "b": number.to_string()}));
    node.objects.set(both(0));
    let pod = pod("a", &[json!({"configMap": {"name": "settings"}})]);
    node.ready(&pod).await;
    let place = node.place(&pod).await;
    let ends = Arc::new(AtomicBool::new(false));
    let (reads, until) = (place.clone(), ends.clone());
    let reader = std::thread::spawn(move || {
        let mut seen = 0_u32;
        while !until.load(Ordering::Relaxed) {
            // As one who keeps to the layout reads: the folder once, and what is in it from there.
            let folder = reads.join(fs::read_link(reads.join("..data")).unwrap());
            match (
                fs::read_to_string(folder.join("a")),
                fs::read_to_string(folder.join("b")),
            ) {
                (Ok(a), Ok(b)) => {
                    assert_eq!(a, b);
                    seen += 1;
                }
                // It was replaced meanwhile.
                _ => assert!(!folder.exists() || fs::read_link(reads.join("..data")).is_ok()),
            }
        }
        seen
    });
    for number in 1..=100 {
        node.objects.set(both(number));
        node.woken(&pod).await;
        node.ready(&pod).await;
        assert!(read(place.join("a")).parse::<u32>().unwrap() <= number);
    }
    ends.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
    node.gone(&pod).await;
}

#[tokio::test]
async fn secrets_are_in_memory_with_their_modes_and_group() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    node.objects.set(secret(json!({"user": "me", "password": "hunter2"})));
    let pod = pod_with(
        "a",
        &[json!({"secret": {"secretName": "db", "defaultMode": 0o400, "items": [
            {"key": "user", "path": "of/user", "mode": 0o640}, {"key": "password", "path": "password"},
        ]}})],
        json!({"securityContext": {"fsGroup": 4711}}),
    );
    node.ready(&pod).await;
    let place = node.place(&pod).await;
    assert_eq!(table().at(&place).unwrap().fs_type, "tmpfs");
    assert!(
        table().at(&place).unwrap().super_options.contains("size=1048576k"),
        "as much as the node has"
    );
    assert_eq!(
        (read(place.join("of/user")), read(place.join("password"))),
        ("me".to_owned(), "hunter2".to_owned())
    );
    let of = |path: &str| (mode(place.join(path)), fs::metadata(place.join(path)).unwrap().gid());
    assert_eq!(of("of/user"), (0o640, 4711));
    assert_eq!(of("password"), (0o440, 4711));
    assert_eq!(of("of").1, 4711);
    assert_ne!(of("of").0 & 0o2000, 0, "what is made there is the group's too");
    node.gone(&pod).await;
}

#[tokio::test]
async fn an_agent_that_may_not_mount_has_secrets_for_itself_alone() {
    if rustix::process::geteuid().is_root() {
        // Root may mount; the other way is what its tests show.
        return;
    }
    let mut settings = VolumeSettings::default();
    settings.secrets_on_disk = true;
    let node = Node::start_with(settings, |_| {});
    node.objects.set(secret(json!({"user": "me"})));
    let pod = pod("a", &[json!({"secret": {"secretName": "db"}})]);
    node.ready(&pod).await;
    assert_eq!(read(node.place(&pod).await.join("user")), "me");
    node.gone(&pod).await;
}

#[tokio::test]
async fn a_pod_is_told_what_it_is_and_what_becomes_of_its_labels() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let of = |color: &str| {
        let volume = json!({"name": "a", "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "of/name", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o400},
            {"path": "memory", "resourceFieldRef": {"containerName": "app", "resource": "limits.memory", "divisor": "1Mi"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "app", "resource": "requests.cpu", "divisor": "1m"}},
        ]}});
        let app = json!({
            "name": "app", "image": "app:1", "volumeMounts": [{"name": "a", "mountPath": "/a"}],
            "resources": {"requests": {"cpu": "250m"}},
        });
        let metadata = json!({"labels": {"color": color, "app": "shop"}});
        record("a", metadata, json!({"containers": [app], "volumes": [volume]}))
    };
    let red = of("red");
    node.ready(&red).await;
    let place = node.place(&red).await;
    assert_eq!(read(place.join("labels")), "app=\"shop\"\ncolor=\"red\"");
    assert_eq!(
        (read(place.join("of/name")), mode(place.join("of/name"))),
        ("a".to_owned(), 0o400)
    );
    assert_eq!(read(place.join("memory")), "1024", "as much as the node has");
    assert_eq!(read(place.join("cpu")), "250");
    node.ready(&of("blue")).await;
    assert_eq!(read(place.join("labels")), "app=\"shop\"\ncolor=\"blue\"");
    node.gone(&red).await;
}

#[tokio::test]
async fn sources_of_many_kinds_are_in_one_volume_and_its_token_is_replaced_in_time() {
    if !may_mount() {
        return;
    }
    let tokens = FakeTokens::new();
    tokens.add_account("default", "shop", "uid-of-shop");
    let given = tokens.clone();
    let node = Node::start_with(VolumeSettings::default(), |context| {
        context.tokens = Some(Arc::new(given))
    });
    node.objects.set(config_map(json!({"color": "red", "token": "hidden"})));
    node.objects.set(secret(json!({"user": "me"})));
    let pod = pod_with(
        "a",
        &[json!({"projected": {"defaultMode": 0o640, "sources": [
            {"configMap": {"name": "settings"}},
            {"secret": {"name": "db", "items": [{"key": "user", "path": "of/user"}]}},
            {"secret": {"name": "none", "optional": true}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600, "audience": "vault"}},
        ]}})],
        json!({"serviceAccountName": "shop", "securityContext": {"fsGroup": 4711, "runAsUser": 4712}}),
    );
    let ready = node.ready(&pod).await;
    let place = node.place(&pod).await;
    assert_eq!(
        (read(place.join("color")), read(place.join("of/user"))),
        ("red".to_owned(), "me".to_owned())
    );
    assert_eq!(read(place.join("namespace")), "default");
    assert_eq!(mode(place.join("color")), 0o640);
    // Of two sources with one path the later one counts.
    let token = fs::metadata(place.join("token")).unwrap();
    assert_eq!(
        (token.uid(), token.gid(), token.mode() & 0o777),
        (4712, 4711, 0o640),
        "for the pod's user and group alone"
    );
    let request = tokens
        .review(&read(place.join("token")))
        .expect("a token that is valid");
    assert_eq!(
        (request.service_account.as_str(), request.audiences.as_slice()),
        ("shop", &["vault".to_owned()][..])
    );
    assert_eq!(request.pod, Some(("a".to_owned(), "uid-of-a".into())));
    let after = ready.again_at.unwrap() - Instant::now();
    assert!((460..=480).contains(&after.as_secs()), "{after:?}");
    let asked = tokens.requests().len();
    node.ready(&pod).await;
    assert_eq!(tokens.requests().len(), asked, "nobody is asked before it is time");
    node.gone(&pod).await;
}

#[tokio::test]
async fn what_one_source_lacks_is_named_and_so_is_what_the_next_one_does() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    node.objects.set(config_map(json!({"color": "red"})));
    let pod = pod(
        "a",
        &[json!({"projected": {"sources": [
            {"configMap": {"name": "settings", "items": [{"key": "shape", "path": "shape"}]}},
            {"secret": {"name": "db"}},
        ]}})],
    );
    let text = node.waits(&pod).await;
    assert!(
        text.contains("configmap references non-existent config key: shape; secret \"db\" not found"),
        "{text}"
    );
    node.gone(&pod).await;
}

#[tokio::test]
async fn folders_for_mounts_within_are_there() {
    let node = Node::start();
    node.objects.set(config_map(json!({"color": "red"})));
    let app = json!({"name": "app", "image": "app:1", "volumeMounts": [
        {"name": "a", "mountPath": "/etc/app"}, {"name": "b", "mountPath": "/etc/app/more/data"},
    ]});
    let pod = record(
        "a",
        json!({}),
        json!({"containers": [app], "volumes": [
            {"name": "a", "configMap": {"name": "settings"}}, {"name": "b", "emptyDir": {}},
        ]}),
    );
    node.ready(&pod).await;
    let place = node.container(&pod, "app").await.places[0].host_path.clone();
    assert!(place.join("more/data").is_dir());
    node.objects.set(config_map(json!({"color": "blue"})));
    let node = node.restart().await;
    node.ready(&pod).await;
    assert_eq!(read(place.join("color")), "blue");
    assert!(place.join("more/data").is_dir(), "what is not of the map stays");
    node.gone(&pod).await;
}

#[tokio::test]
async fn paths_that_lead_out_of_a_volume_are_refused() {
    let node = Node::start();
    node.objects.set(config_map(json!({"color": "red"})));
    for path in ["../x", "/x", "a/../../x", "..x"] {
        let pod = pod(
            "a",
            &[json!({"configMap": {"name": "settings", "items": [{"key": "color", "path": path}]}})],
        );
        let text = node.waits(&pod).await;
        assert!(text.contains(path), "{text}");
        node.gone(&pod).await;
    }
}
