//! The promises of volume plugins, kept by those of this crate.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests: a panic is the failure")]

use std::path::PathBuf;
use std::sync::Arc;

use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kubelet_core::{MapObjects, VolumeContext};
use kubelet_testing::contract::skip;
use kubelet_volume::testing::PluginFixture;
use kubelet_volume::{MountTable, VolumePlugin, Volumes};
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

fn one(plugin: &str, mut volume: Value) -> (Arc<dyn VolumePlugin>, PluginFixture) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let objects = MapObjects::new();
    let map = json!({"metadata": {"name": "c", "namespace": "default"}, "data": {"key": "value"}});
    objects.set(serde_json::from_value::<ConfigMap>(map).unwrap());
    let secret = json!({"metadata": {"name": "s", "namespace": "default"}, "data": {"key": "c2VjcmV0"}});
    objects.set(serde_json::from_value::<Secret>(secret).unwrap());
    let mut context = VolumeContext::new("node-1", &root);
    context.objects = Some(Arc::new(objects));
    volume["name"] = "data".into();
    let pod = json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-of-a"},
        "spec": {
            "containers": [{"name": "app", "image": "app:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [volume],
        },
    });
    let fixture = PluginFixture::new(context, &serde_json::from_value(pod).unwrap(), "data")
        .also_makes("plugins/kubernetes.io~empty-dir/wrapped_data")
        .keeping(Place { root, _dir: dir });
    let mut known = Volumes::known_plugins().into_iter();
    (known.find(|known| known.name() == plugin).unwrap(), fixture)
}

fn may_mount(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(what, "needs root");
    }
    is_root
}

macro_rules! each {
    ($($name:ident, $plugin:literal, $needs_root:literal, $volume:tt;)*) => { $(
        mod $name {
            use super::*;

            async fn make() -> Option<(Arc<dyn VolumePlugin>, PluginFixture)> {
                if $needs_root && !may_mount(stringify!($name)) {
                    return None;
                }
                Some(one(concat!("kubernetes.io/", $plugin), json!($volume)))
            }

            kubelet_volume::volume_plugin_contract!(make);
        }
    )* };
}

each! {
    scratch, "empty-dir", false, {"emptyDir": {}};
    memory, "empty-dir", true, {"emptyDir": {"medium": "Memory"}};
    config_map, "configmap", false, {"configMap": {"name": "c"}};
    secret, "secret", true, {"secret": {"secretName": "s"}};
    projected, "projected", true, {"projected": {"sources": [{"secret": {"name": "s"}}]}};
    host_path, "host-path", false, {"hostPath": {"path": "/tmp"}};
}
