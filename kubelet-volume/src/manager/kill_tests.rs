//! An agent that is killed while it has volumes made or gone: the next one finds its way from whatever it left.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_core::env::Env;
use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret};
use kubelet_core::{
    CancellationToken, ContainerVolumes, MapObjects, PodRecord, SourceKind, VolumeContext, VolumeManager, error_chain,
};
use serde_json::{Value, json};

use super::Volumes;
use crate::MountTable;
use crate::ground::crash::{is_to_be_killed, kill_at_each};
use crate::ground::mounts::testing::Place;

/// The names of the volumes, in the order in which the container mounts them.
const VOLUMES: [&str; 7] = ["scratch", "memory", "config", "secret", "all", "disk", "host"];

/// What the config map says, with what a pod gets of it.
const STATES: [&[(&str, &str)]; 2] = [
    &[("first", "1 of old"), ("second", "2 of old"), ("gone", "later")],
    &[("first", "1 of new"), ("second", "2 of new"), ("come", "lately")],
];

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// One life of an agent, whose cluster is in one of two states.
struct Life {
    root: PathBuf,
    volumes: Volumes,
    pod: Arc<PodRecord>,
}

impl Life {
    fn new(root: &Path, state: usize) -> Self {
        let objects = MapObjects::new();
        let meta = |name: &str| json!({"name": name, "namespace": "default", "uid": format!("uid-of-{name}")});
        let data: serde_json::Map<String, Value> = STATES[state]
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).into()))
            .collect();
        objects.set(parse::<ConfigMap>(json!({"metadata": meta("config"), "data": data})));
        objects.set(parse::<Secret>(
            json!({"metadata": meta("secret"), "data": {"key": "c2VjcmV0"}}),
        ));
        objects.set(parse::<PersistentVolumeClaim>(json!({
            "metadata": meta("claim"), "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"},
        })));
        objects.set(parse::<PersistentVolume>(json!({
            "metadata": {"name": "pv-1"},
            "spec": {
                "claimRef": {"uid": "uid-of-claim"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                "local": {"path": root.join("disk")},
            },
        })));
        let mut context = VolumeContext::new("node-1", root);
        context.objects = Some(Arc::new(objects));
        let volumes = Volumes::default();
        volumes.open(context);
        let pod = pod(root);
        Self {
            root: root.to_owned(),
            volumes,
            pod,
        }
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(work)
    }

    fn mount(&self) {
        let mounted = Self::block_on(self.volumes.mount(&self.pod, &CancellationToken::new()));
        mounted.unwrap_or_else(|error| panic!("{}", error_chain(&error)));
    }

    fn container(&self) -> ContainerVolumes {
        let given = Self::block_on(self.volumes.container(&self.pod, "app", &Env::default()));
        given.unwrap_or_else(|error| panic!("{}", error_chain(&error)))
    }

    fn unmount(&self) {
        let gone = Self::block_on(self.volumes.unmount(self.pod.uid(), &CancellationToken::new()));
        gone.unwrap_or_else(|error| panic!("{}", error_chain(&error)));
    }

    fn place(&self, volume: &str) -> PathBuf {
        let index = VOLUMES.iter().position(|name| *name == volume).unwrap();
        self.container().places[index].host_path.clone()
    }

    fn pod_dir(&self) -> PathBuf {
        self.root.join("pods/uid-of-pod")
    }

    /// Nothing of the pod is mounted or left, and what is not the pod's is whole.
    fn nothing_is_left(&self, when: &str) {
        let table = MountTable::read().unwrap();
        let mounted: Vec<_> = table
            .below(&self.root)
            .iter()
            .map(|point| point.target.clone())
            .collect();
        assert!(mounted.is_empty(), "{when}: {mounted:?}");
        let left: Vec<_> = fs::read_dir(self.pod_dir())
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default();
        assert!(left.is_empty(), "{when}: {left:?}");
        self.others_are_whole(when);
    }

    fn others_are_whole(&self, when: &str) {
        for folder in ["disk", "host"] {
            let text = fs::read_to_string(self.root.join(folder).join("precious"));
            assert_eq!(text.unwrap_or_default(), "precious", "{folder} {when}");
        }
    }

    /// All volumes are as they are to be.
    fn is_whole(&self, state: usize, when: &str) {
        assert_eq!(files(&self.place("config")), wanted(state), "{when}");
        assert_eq!(
            files(&self.place("secret")),
            [("key".to_owned(), "secret".to_owned())],
            "{when}"
        );
        assert_eq!(files(&self.place("all")).len(), 4, "{when}");
        for volume in ["scratch", "config"] {
            let mode = fs::metadata(self.place(volume)).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o777, "the folder of {volume} {when}");
        }
        let table = MountTable::read().unwrap();
        for volume in ["memory", "secret", "all", "disk"] {
            let place = self.place(volume);
            let points = table.at_or_below(&place);
            assert_eq!(points.len(), 1, "{volume} {when}: {points:?}");
        }
        // The part that is bound is that of the volume.
        let bound = fs::metadata(&self.container().places[VOLUMES.len()].host_path).unwrap();
        let part = fs::metadata(self.place("scratch").join("part")).unwrap();
        assert_eq!((bound.dev(), bound.ino()), (part.dev(), part.ino()), "{when}");
        self.others_are_whole(when);
    }

    fn write(&self) {
        for volume in ["scratch", "memory", "disk"] {
            fs::write(self.place(volume).join("data"), volume).unwrap();
        }
        fs::write(self.place("scratch").join("part/data"), "part").unwrap();
    }

    fn has_what_was_written(&self, when: &str) {
        for volume in ["scratch", "memory", "disk"] {
            let text = fs::read_to_string(self.place(volume).join("data"));
            assert_eq!(text.unwrap_or_default(), volume, "{when}");
        }
        let text = fs::read_to_string(self.container().places[VOLUMES.len()].host_path.join("data"));
        assert_eq!(text.unwrap_or_default(), "part", "{when}");
    }
}

fn pod(root: &Path) -> Arc<PodRecord> {
    let mut mounts: Vec<Value> = VOLUMES
        .iter()
        .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
        .collect();
    mounts.push(json!({"name": "scratch", "mountPath": "/part", "subPath": "part"}));
    // So that a folder for it is made in the volume.
    mounts.push(json!({"name": "scratch", "mountPath": "/config/inner"}));
    let mut pod = parse(json!({
        "metadata": {"name": "pod", "namespace": "default", "uid": "uid-of-pod"},
        "spec": {
            "containers": [{"name": "app", "image": "app:1", "volumeMounts": mounts}],
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "config", "configMap": {"name": "config"}},
                {"name": "secret", "secret": {"secretName": "secret"}},
                {"name": "all", "projected": {"sources": [
                    {"configMap": {"name": "config"}}, {"secret": {"name": "secret"}},
                ]}},
                {"name": "disk", "persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "host", "hostPath": {"path": root.join("host")}},
            ],
        },
    }));
    kubelet_core::apply_defaults(&mut pod);
    Arc::new(PodRecord::new(&pod, "api".into(), SourceKind::Managed).unwrap())
}

/// The files that are seen in a volume, by their names.
fn files(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Ok(text) = fs::read_to_string(dir.join(&name)) {
            found.push((name, text));
        }
    }
    found.sort();
    found
}

fn wanted(state: usize) -> Vec<(String, String)> {
    let mut files: Vec<_> = STATES[state]
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    files.sort();
    files
}

fn place(what: &str) -> Option<Place> {
    let place = Place::new(what)?;
    for folder in ["disk", "host"] {
        fs::write(place.dir(folder).join("precious"), "precious").unwrap();
    }
    Some(place)
}

/// Kills an agent at each step of its work, and has each of the checks look at what it left. `begin` has things as they are
/// before the work.
fn walk(test: &str, begin: fn(&Path), work: fn(&Path), checks: &[fn(&Path, &str)]) {
    let test = format!("manager::kill_tests::{test}");
    if is_to_be_killed() {
        kill_at_each(&test, Path::new("/"), work, |_| {});
        return;
    }
    let Some(place) = place(&test) else { return };
    let root = place.root();
    for check in checks {
        begin(root);
        let steps = kill_at_each(&test, root, work, |step| {
            check(root, &format!("after a kill at step {step}"));
            begin(root);
        });
        let steps = steps.unwrap();
        assert!(steps > 3, "only {steps} steps");
        check(root, "after all of it was done");
        println!("{steps} steps");
    }
}

fn nothing(_: &Path) {}

/// A pod that runs, with data in its volumes.
fn running(root: &Path) {
    let life = Life::new(root, 0);
    life.mount();
    life.container();
    life.write();
}

fn comes_up(root: &Path, when: &str) {
    let life = Life::new(root, 0);
    life.mount();
    life.is_whole(0, when);
    life.unmount();
    life.nothing_is_left(when);
}

fn goes(root: &Path, when: &str) {
    let life = Life::new(root, 0);
    life.unmount();
    life.nothing_is_left(when);
    let _ = fs::remove_file(root.join("disk/data"));
}

#[test]
fn killed_while_it_mounts() {
    walk(
        "killed_while_it_mounts",
        nothing,
        |root| Life::new(root, 0).mount(),
        &[comes_up, goes],
    );
}

#[test]
fn killed_while_it_updates() {
    let update = |root: &Path| Life::new(root, 1).mount();
    walk(
        "killed_while_it_updates",
        running,
        update,
        &[
            |root, when| {
                // Before anybody looks after it: what containers see is all old or all new, but for names.
                let config = root.join("pods/uid-of-pod/volumes/kubernetes.io~configmap/config/..data");
                let seen = files(&config);
                assert!(seen == wanted(0) || seen == wanted(1), "{when}: {seen:?}");
                let life = Life::new(root, 1);
                life.mount();
                life.is_whole(1, when);
                life.has_what_was_written(when);
                let names = fs::read_dir(life.place("config")).unwrap().count();
                assert_eq!(
                    names, 6,
                    "its folder, the link to it, a place for a mount and three files {when}"
                );
            },
            goes,
        ],
    );
}

#[test]
fn killed_while_it_binds_a_part() {
    walk(
        "killed_while_it_binds_a_part",
        nothing,
        |root| {
            let life = Life::new(root, 0);
            life.mount();
            life.container();
        },
        &[
            |root, when| {
                let life = Life::new(root, 0);
                life.mount();
                life.is_whole(0, when);
                life.write();
                life.has_what_was_written(when);
                goes(root, when);
            },
            goes,
        ],
    );
}

#[test]
fn killed_while_it_unmounts() {
    let unmount = |root: &Path| Life::new(root, 0).unmount();
    walk(
        "killed_while_it_unmounts",
        running,
        unmount,
        &[
            |root, when| {
                let on_disk = fs::read_to_string(root.join("disk/data"));
                assert_eq!(on_disk.unwrap_or_default(), "disk", "{when}");
                goes(root, when);
            },
            comes_up,
        ],
    );
}
