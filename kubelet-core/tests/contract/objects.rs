//! Sources of objects: a directory and the embedder's memory.

#![allow(clippy::unwrap_used, reason = "a helper of tests: a panic is the failure")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_core::{DirectoryObjects, MapObjects, Object, ObjectKey, ObjectKind};
use kubelet_testing::contract::{ObjectFixture, now};
use serde_json::{Value, json};
use tempfile::TempDir;

async fn map() -> Option<(MapObjects, ObjectFixture)> {
    let source = MapObjects::new().kinds([ObjectKind::ConfigMap]);
    let (put, remove, held) = (source.clone(), source.clone(), source.clone());
    let fixture = ObjectFixture::new(
        move |object| now(|| put.set(object)),
        move |key| now(|| remove.remove(&key)),
    );
    Some((source, fixture.always_readable().held(move || held.watched())))
}

fn manifest(object: &Object) -> String {
    let (mut value, kind): (Value, _) = match object {
        Object::ConfigMap(map) => (serde_json::to_value(&**map).unwrap(), "ConfigMap"),
        other => panic!("{other:?} is no config map"),
    };
    value["apiVersion"] = json!("v1");
    value["kind"] = json!(kind);
    value.to_string()
}

fn file(dir: &Path, key: &ObjectKey) -> PathBuf {
    // A key sorts as a file name does only by chance, which is the source's own affair.
    dir.join(format!("{}-{}.yaml", key.name, key.namespace))
}

/// A directory whose files `write` writes.
fn directory(write: fn(&Path, &Path, &str)) -> (DirectoryObjects, ObjectFixture) {
    let outer = TempDir::new().unwrap();
    let dir = outer.path().join("objects");
    fs::create_dir(&dir).unwrap();
    let source = DirectoryObjects::new(&dir).poll_interval(Duration::from_millis(20));
    let held = source.clone();
    let away = outer.path().join("away");
    let (down, up) = ((dir.clone(), away.clone()), (away, dir.clone()));
    let of_remove = dir.clone();
    let put = move |object: Object| now(|| write(outer.path(), &file(&dir, &object.key()), &manifest(&object)));
    let remove = move |key: ObjectKey| now(|| fs::remove_file(file(&of_remove, &key)).unwrap());
    let fixture = ObjectFixture::new(put, remove)
        .outage(
            move || now(|| fs::rename(&down.0, &down.1).unwrap()),
            move || now(|| fs::rename(&up.0, &up.1).unwrap()),
        )
        .held(move || held.watches());
    (source, fixture)
}

/// As editors and most programs do.
async fn replaced_files() -> Option<(DirectoryObjects, ObjectFixture)> {
    Some(directory(|outer, file, text| {
        fs::write(outer.join("new"), text).unwrap();
        fs::rename(outer.join("new"), file).unwrap();
    }))
}

/// As a shell does: the file stays the same one.
async fn overwritten_files() -> Option<(DirectoryObjects, ObjectFixture)> {
    Some(directory(|_, file, text| fs::write(file, text).unwrap()))
}

mod of_a_map {
    kubelet_testing::object_contract!(super::map);
}

mod of_replaced_files {
    kubelet_testing::object_contract!(super::replaced_files);
}

mod of_overwritten_files {
    kubelet_testing::object_contract!(super::overwritten_files);
}
