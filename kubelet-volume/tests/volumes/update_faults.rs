//! Faults that kubelets had in public with files that are made from objects.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kubelet_core::{
    DirectoryObjects, Event, EventSink, Freshness, MapObjects, Object, ObjectError, ObjectKey, ObjectKind, ObjectQuery,
    ObjectSource, ObjectWatch, VolumeManager, async_trait,
};
use kubelet_volume::VolumeSettings;
use serde_json::{Value, json};

use crate::harness::{Node, may_mount, pod, pod_with, record};

fn config(data: Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "settings", "namespace": "default"}, "data": data})).unwrap()
}

fn secret(name: &str, text: &str) -> Secret {
    let secret = json!({"metadata": {"name": name, "namespace": "default"}, "stringData": {"color": text}});
    serde_json::from_value(secret).unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// A source whose cache, and what its watches tell, lag behind: they are as of then, unless something newer is asked for.
#[derive(Clone, Debug)]
struct Lagging {
    cached: MapObjects,
    as_of: Timestamp,
    now: MapObjects,
}

#[async_trait]
impl ObjectSource for Lagging {
    fn serves(&self, kind: ObjectKind) -> bool {
        self.now.serves(kind)
    }
    fn is_local(&self) -> bool {
        false
    }
    async fn get(&self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError> {
        match want {
            Freshness::Cached => self.cached.get(key, want).await,
            Freshness::NotOlderThan(time) if time <= self.as_of => self.cached.get(key, want).await,
            _ => self.now.get(key, want).await,
        }
    }
    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        self.cached.list(query).await
    }
    fn watch(&self, key: &ObjectKey) -> ObjectWatch {
        self.cached.watch(key)
    }
}

/// kubernetes/kubernetes#30189, #129645: a pod that was made right after a change saw what was before.
#[tokio::test]
async fn a_pod_never_has_files_that_were_replaced_before_it_was_made() {
    if !may_mount() {
        return;
    }
    let (cached, now) = (MapObjects::new(), MapObjects::new());
    let set = |objects: &MapObjects, color: &str| {
        objects.set(config(json!({"color": color})));
        objects.set(secret("db", color));
    };
    set(&cached, "old");
    set(&now, "new");
    let objects = Lagging {
        cached: cached.clone(),
        as_of: Timestamp::from_second(1_700_000_000).unwrap(),
        now: now.clone(),
    };
    let mut node = Node::start_with(VolumeSettings::default(), |context| {
        context.objects = Some(Arc::new(objects));
    });
    let volumes = json!([
        {"name": "a", "configMap": {"name": "settings"}}, {"name": "b", "secret": {"secretName": "db"}},
        {"name": "c", "projected": {"sources": [{"configMap": {"name": "settings"}}]}},
    ]);
    let mounts = json!([
        {"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}, {"name": "c", "mountPath": "/c"},
    ]);
    let made_at = |name: &str, created: &str| {
        let containers = json!([{"name": "app", "image": "app:1", "volumeMounts": mounts}]);
        let metadata = json!({"creationTimestamp": created});
        record(name, metadata, json!({"containers": containers, "volumes": volumes}))
    };
    let pod = made_at("after", "2023-11-14T22:13:21Z");
    node.ready(&pod).await;
    let places = node.container(&pod, "app").await.places;
    let colors = || -> Vec<String> { places.iter().map(|place| read(place.host_path.join("color"))).collect() };
    assert_eq!(colors(), ["new"; 3]);
    // The watches tell of what was before, and that changes nothing.
    node.woken(&pod).await;
    node.ready(&pod).await;
    assert_eq!(colors(), ["new"; 3]);
    set(&now, "newest");
    set(&cached, "newest");
    while colors() != ["newest"; 3] {
        node.woken(&pod).await;
        node.ready(&pod).await;
    }
    // Nobody is asked for more than is needed.
    set(&now, "later");
    let before = made_at("before", "2023-11-14T22:13:20Z");
    node.ready(&before).await;
    let places = node.container(&before, "app").await.places;
    assert_eq!(read(places[0].host_path.join("color")), "newest");
    for pod in [&pod, &before] {
        node.gone(pod).await;
    }
}

/// A source in which an object changes as soon as somebody has read it.
#[derive(Debug)]
struct Changing {
    objects: MapObjects,
    changes: AtomicBool,
    changed: AtomicU32,
}

#[async_trait]
impl ObjectSource for Changing {
    fn serves(&self, kind: ObjectKind) -> bool {
        self.objects.serves(kind)
    }
    fn is_local(&self) -> bool {
        true
    }
    async fn get(&self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError> {
        let found = self.objects.get(key, want).await;
        if self.changes.swap(false, Ordering::Relaxed) {
            let times = self.changed.fetch_add(1, Ordering::Relaxed) + 1;
            self.objects.set(config(json!({"color": format!("changed {times}")})));
        }
        found
    }
    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        self.objects.list(query).await
    }
    fn watch(&self, key: &ObjectKey) -> ObjectWatch {
        self.objects.watch(key)
    }
}

/// kubernetes/kubernetes#30189: changes came late, at the next turn of some timer. virtual-kubelet/virtual-kubelet#836: what was told
/// before anybody listened was lost.
#[tokio::test(start_paused = true)]
async fn what_changes_while_a_volume_is_made_from_it_is_not_missed() {
    let objects = Arc::new(Changing {
        objects: MapObjects::new(),
        changes: AtomicBool::new(true),
        changed: AtomicU32::new(0),
    });
    objects.objects.set(config(json!({"color": "red"})));
    let source = objects.clone();
    let mut node = Node::start_with(VolumeSettings::default(), |context| context.objects = Some(source));
    let pod = pod("a", &[json!({"configMap": {"name": "settings"}})]);
    node.ready(&pod).await;
    let place = node.place(&pod).await;
    assert_eq!(read(place.join("color")), "red");
    // Neither the first time, when nobody watches yet, nor once somebody does.
    for (color, changed) in [("blue", "changed 1"), ("green", "changed 2")] {
        node.woken(&pod).await;
        node.ready(&pod).await;
        assert_eq!(read(place.join("color")), changed);
        objects.changes.store(true, Ordering::Relaxed);
        objects.objects.set(config(json!({"color": color})));
        node.woken(&pod).await;
        node.ready(&pod).await;
        assert_eq!(read(place.join("color")), color);
    }
    node.woken(&pod).await;
    node.ready(&pod).await;
    assert_eq!(read(place.join("color")), "changed 3");
    node.gone(&pod).await;
}

/// kubernetes/kubernetes#68211, #72699, #127602: a container whose part of a map was replaced could not start again.
#[tokio::test]
async fn a_part_of_a_map_is_what_the_map_has_now_also_after_its_key_was_gone() {
    if !may_mount() {
        return;
    }
    let mut node = Node::start();
    let items = json!([{"key": "color", "path": "of/color"}]);
    let spec = json!({
        "containers": [{"name": "app", "image": "app:1", "volumeMounts": [
            {"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/color", "subPath": "color"},
            {"name": "b", "mountPath": "/b"}, {"name": "b", "mountPath": "/of", "subPath": "of/color"},
            {"name": "b", "mountPath": "/b/inner"},
        ]}],
        "volumes": [
            {"name": "a", "configMap": {"name": "settings"}},
            {"name": "b", "configMap": {"name": "settings", "optional": true, "items": items}},
        ],
    });
    let pod = record("a", json!({}), spec);
    node.objects.set(config(json!({"color": "red", "size": "1"})));
    node.ready(&pod).await;
    let places = node.container(&pod, "app").await.places;
    let [whole, part, other, inner] = [0, 1, 2, 3].map(|index| places[index].host_path.clone());
    assert_eq!((read(&part), read(&inner)), ("red".to_owned(), "red".to_owned()));
    for color in ["blue", "green"] {
        // A container that starts meanwhile has a folder in its place, as upstream gives it.
        node.objects.set(config(json!({"size": "2"})));
        node.woken(&pod).await;
        node.ready(&pod).await;
        assert_eq!(read(whole.join("size")), "2");
        node.container(&pod, "app").await;
        assert!(part.is_dir() && inner.is_dir());
        node.objects.set(config(json!({"color": color, "size": "3"})));
        node.woken(&pod).await;
        let ready = node.ready(&pod).await;
        assert_eq!((ready.again_at, node.messages("FailedMount")), (None, Vec::new()));
        assert_eq!(read(whole.join("color")), color);
        assert_eq!(read(other.join("of/color")), color);
        assert!(
            part.is_dir() && inner.is_dir(),
            "what a container has stays what it was"
        );
        node.container(&pod, "app").await;
        assert_eq!((read(&part), read(&inner)), (color.to_owned(), color.to_owned()));
        assert!(other.join("inner").is_dir(), "the place of another mount stays");
    }
    node.gone(&pod).await;
}

/// Who keeps no events.
#[derive(Debug)]
struct Nobody;

impl EventSink for Nobody {
    fn record(&self, _event: Event) {}
}

/// kubernetes/kubernetes#73587: who followed what pods refer to was never let go.
#[tokio::test]
async fn many_pods_that_come_and_go_leave_nothing_that_is_followed_or_remembered() {
    if !may_mount() {
        return;
    }
    let node = Node::start_with(VolumeSettings::default(), |context| context.events = Arc::new(Nobody));
    node.objects.set(config(json!({"color": "red"})));
    for round in 0..2 {
        for index in 0..30 {
            let name = format!("db-{}", index % 10);
            node.objects.set(secret(&name, &format!("{round}")));
            let volumes = [
                json!({"secret": {"secretName": name}}),
                json!({"configMap": {"name": "settings"}}),
                json!({"projected": {"sources": [{"secret": {"name": name}}]}}),
                json!({"emptyDir": {}}),
            ];
            let pod = pod(&format!("p-{round}-{index}"), &volumes);
            node.ready(&pod).await;
            let missing = crate::harness::pod(&format!("m-{round}-{index}"), &[json!({"configMap": {"name": name}})]);
            node.waits(&missing).await;
            for pod in [&pod, &missing] {
                node.gone(pod).await;
                assert!(node.volumes.usage(pod.uid()).is_empty());
            }
        }
        while node.objects.watched() > 0 {
            tokio::task::yield_now().await;
        }
        let known = format!("{:?}", node.volumes);
        assert!(!known.contains("uid-of-") && !known.contains("db-"), "{known}");
    }
}

/// kubernetes/kubernetes#8379, #27312: nothing but the API had config maps and secrets.
#[tokio::test]
async fn files_of_a_folder_of_objects_are_had_without_any_api() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let write = |color: &str| {
        let text = json!([config(json!({"color": color})), secret("db", color)]);
        let documents: Vec<String> = text.as_array().unwrap().iter().map(Value::to_string).collect();
        let (new, file) = (dir.path().join(".new"), dir.path().join("objects.yaml"));
        fs::write(&new, documents.join("\n---\n")).unwrap();
        fs::rename(new, file).unwrap();
    };
    write("red");
    let objects = DirectoryObjects::new(dir.path()).poll_interval(Duration::from_millis(10));
    let source = Arc::new(objects.clone());
    let mut node = Node::start_with(VolumeSettings::default(), |context| context.objects = Some(source));
    let sources = json!([{"configMap": {"name": "settings"}}, {"secret": {
        "name": "db", "items": [{"key": "color", "path": "secret"}],
    }}]);
    let pod = pod_with("a", &[json!({"projected": {"sources": sources}})], json!({}));
    node.ready(&pod).await;
    let place = node.place(&pod).await;
    assert_eq!(read(place.join("color")) + &read(place.join("secret")), "redred");
    write("blue");
    node.woken(&pod).await;
    node.ready(&pod).await;
    assert_eq!(read(place.join("color")) + &read(place.join("secret")), "blueblue");
    // A folder that is broken for a while takes nothing away.
    fs::write(
        dir.path().join("objects.yaml"),
        "kind: ConfigMap\nmetadata: {name: settin",
    )
    .unwrap();
    let mut node = node.restart().await;
    node.ready(&pod).await;
    assert_eq!(read(place.join("color")) + &read(place.join("secret")), "blueblue");
    write("green");
    while read(place.join("color")) != "green" {
        node.woken(&pod).await;
        node.ready(&pod).await;
    }
    node.gone(&pod).await;
    while objects.watches() > 0 {
        tokio::task::yield_now().await;
    }
}
