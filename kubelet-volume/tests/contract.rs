//! The promises of volume managers, kept by the one that works on a real disk.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests: a panic is the failure")]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Volume, VolumeMount};
use kubelet_core::{MapObjects, VolumeContext, VolumeManager};
use kubelet_testing::PodBuilder;
use kubelet_testing::contract::{Unmakeable, VolumeFixture, now, skip};
use kubelet_volume::{MountTable, VolumeSettings, Volumes};
use serde_json::{Value, json};

/// A folder in which nothing stays mounted, whether the test passes or not.
struct Place {
    root: PathBuf,
    _dir: tempfile::TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        for mount in MountTable::read().unwrap().below(&self.root) {
            let _ = rustix::mount::unmount(&mount.target, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// A pod that mounts each of its volumes, and a part of the one named `data` as well.
fn pod(name: &str, volumes: Value) -> Pod {
    let volumes: Vec<Volume> = serde_json::from_value(volumes).unwrap();
    let mount = |name: &str, part: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: format!("/{name}{part}"),
        sub_path: Some(part.to_owned()).filter(|part| !part.is_empty()),
        ..VolumeMount::default()
    };
    // What is bound beside a volume needs root.
    let parts = volumes.iter().filter(|volume| volume.name == "data" && is_root());
    let mut mounts: Vec<_> = volumes.iter().map(|volume| mount(&volume.name, "")).collect();
    mounts.extend(parts.map(|volume| mount(&volume.name, "part")));
    PodBuilder::new(name)
        .container("app", |c| c.with(|c| c.volume_mounts = Some(mounts)))
        .spec(|spec| spec.volumes = Some(volumes))
        .build()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn manager() -> Volumes {
    let mut settings = VolumeSettings::default();
    // What is for memory alone is on disk then.
    settings.secrets_on_disk = !is_root();
    settings.backoff = (Duration::from_millis(10), Duration::from_millis(100));
    Volumes::new(settings)
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "data": {"key": "value"}}))
        .unwrap()
}

async fn disk() -> Option<(Volumes, VolumeFixture)> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let place = Arc::new(Place {
        root: root.clone(),
        _dir: dir,
    });
    let objects = MapObjects::new();
    objects.set(config_map("c"));
    let secret = json!({"metadata": {"name": "s", "namespace": "default"}, "data": {"key": "c2VjcmV0"}});
    objects.set(serde_json::from_value::<Secret>(secret).unwrap());
    let mut context = VolumeContext::new("node-1", &root);
    context.objects = Some(Arc::new(objects.clone()));
    let host = root.join("host");
    fs::create_dir(&host).unwrap();
    let names = json!({"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]});
    let medium = if is_root() { "Memory" } else { "" };
    if !is_root() {
        skip("volumes in memory", "needs root");
    }
    let second = json!([
        {"name": "data", "emptyDir": {"medium": medium}},
        {"name": "names", "downwardAPI": names},
        {"name": "secret", "secret": {"secretName": "s"}},
    ]);
    let pods = [
        pod(
            "a",
            json!([
                {"name": "data", "emptyDir": {}},
                {"name": "config", "configMap": {"name": "c"}},
                {"name": "host", "hostPath": {"path": host}},
            ]),
        ),
        pod("b", second),
    ];
    let waiting = json!([{"name": "data", "emptyDir": {}}, {"name": "missing", "configMap": {"name": "late"}}]);
    let fixture = VolumeFixture::new(context, pods)
        .on_disk()
        .next_life(move || {
            // The fixture outlives the managers, and this goes with it.
            let _ = &place;
            now(|| Arc::new(manager()) as Arc<dyn VolumeManager>)
        })
        .unmakeable(Unmakeable::new(pod("c", waiting), ["missing"], ["data"]))
        .mend(move || {
            objects.set(config_map("late"));
            std::future::ready(())
        })
        .never_hangs();
    Some((manager(), fixture))
}

kubelet_testing::volume_contract!(disk);
