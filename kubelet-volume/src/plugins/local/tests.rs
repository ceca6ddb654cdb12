//! Agents that are killed between any two steps.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kubelet_core::{
    CancellationToken, MapObjects, PodRecord, SourceKind, VolumeContext, VolumeManager as _, error_chain,
};
use serde_json::json;

use crate::ground::command::{SystemTools, Tools as _};
use crate::ground::crash::{is_to_be_killed, kill_at_each};
use crate::ground::loop_device::LoopDevices;
use crate::ground::mount_table::MountTable;
use crate::ground::mounts::testing::Place;
use crate::{VolumeSettings, Volumes};

const TOOLS: SystemTools = SystemTools {
    limit: Duration::from_secs(120),
};

/// A disk with data, which is called `disk` in its place.
struct TestDisk {
    place: Place,
    device: PathBuf,
}

impl TestDisk {
    /// Nothing, with the reason printed, where there can be none.
    fn new(test: &str) -> Option<Self> {
        let place = Place::new(test)?;
        let data = place.dir("data");
        fs::write(data.join("data"), "precious").unwrap();
        let file = place.path("disk.img");
        fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
        let made = TOOLS
            .run(
                "mkfs.ext4",
                &["-q", "-d", data.to_str().unwrap(), file.to_str().unwrap()],
            )
            .and_then(|ended| {
                assert!(ended.is_success(), "{}", ended.why());
                LoopDevices::new(&TOOLS).attach(&file)
            });
        match made {
            Ok(device) => {
                std::os::unix::fs::symlink(&device, place.path("disk")).unwrap();
                Some(Self { place, device })
            }
            Err(error) => {
                kubelet_testing::contract::skip(test, &error.to_string());
                None
            }
        }
    }
}

impl Drop for TestDisk {
    fn drop(&mut self) {
        LoopDevices::new(&TOOLS).detach(&self.device).unwrap();
    }
}

/// One life of an agent.
struct Life {
    volumes: Volumes,
    runtime: tokio::runtime::Runtime,
}

impl Life {
    fn new(place: &Path) -> Self {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "uid-of-claim"},
            "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"},
        }))
        .unwrap();
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": "pv-1"},
            "spec": {"claimRef": {"uid": "uid-of-claim"}, "local": {"path": place.join("disk")}},
        }))
        .unwrap();
        let objects = MapObjects::new();
        objects.set(claim);
        objects.set(volume);
        let volumes = Volumes::new(VolumeSettings::default());
        let mut context = VolumeContext::new("node-1", place.join("root"));
        context.objects = Some(Arc::new(objects));
        volumes.open(context);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        Self { volumes, runtime }
    }

    fn ready(&self, name: &str) {
        let never = CancellationToken::new();
        let pod = pod(name);
        let ready = self.runtime.block_on(self.volumes.mount(&pod, &never));
        if let Err(error) = ready {
            panic!("{}", error_chain(&error));
        }
    }

    fn gone(&self, name: &str) {
        let never = CancellationToken::new();
        let pod = pod(name);
        let gone = self.runtime.block_on(self.volumes.unmount(pod.uid(), &never));
        if let Err(error) = gone {
            panic!("{}", error_chain(&error));
        }
    }
}

fn pod(name: &str) -> Arc<PodRecord> {
    let mut pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {
            "securityContext": {"fsGroup": 4711},
            "containers": [{"name": "app", "image": "app:1", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
            "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }))
    .unwrap();
    kubelet_core::apply_defaults(&mut pod);
    Arc::new(PodRecord::new(&pod, "api".into(), SourceKind::Managed).unwrap())
}

/// What an agent does until it is killed.
fn live(place: &Path) {
    let life = Life::new(place);
    life.ready("a");
    life.ready("b");
    life.gone("a");
    life.gone("b");
}

fn nothing_is_left(root: &Path) {
    let table = MountTable::read().unwrap();
    let mounted: Vec<_> = table.below(root).iter().map(|mount| mount.target.clone()).collect();
    assert!(mounted.is_empty(), "{mounted:?}");
    for dir in ["pods/a", "pods/b", "plugins/kubernetes.io/local-volume/mounts"] {
        let left = fs::read_dir(root.join(dir)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{dir}");
    }
}

fn killed_at_each_step(test: &str, check: impl Fn(&Path)) {
    if is_to_be_killed() {
        kill_at_each(test, Path::new(""), live, |_| {});
        return;
    }
    let Some(disk) = TestDisk::new(test) else { return };
    let root = disk.place.dir("root");
    let steps = kill_at_each(test, disk.place.root(), live, |_| {
        check(disk.place.root());
        nothing_is_left(&root);
    });
    nothing_is_left(&root);
    assert!(steps.unwrap() > 10, "{steps:?}");
    let life = Life::new(disk.place.root());
    life.ready("a");
    let data = root.join("pods/a/volumes/kubernetes.io~local-volume/pv-1/data");
    assert_eq!(fs::read_to_string(data).unwrap(), "precious");
    life.gone("a");
}

#[test]
fn what_a_killed_agent_mounted_is_unmounted_with_its_pods() {
    killed_at_each_step(
        "plugins::local::tests::what_a_killed_agent_mounted_is_unmounted_with_its_pods",
        |place| {
            let life = Life::new(place);
            life.gone("a");
            life.gone("b");
        },
    );
}

#[test]
fn what_a_killed_agent_began_is_gone_on_with() {
    killed_at_each_step(
        "plugins::local::tests::what_a_killed_agent_began_is_gone_on_with",
        |place| {
            let life = Life::new(place);
            life.ready("b");
            life.ready("a");
            for name in ["a", "b"] {
                let dir = place
                    .join("root/pods")
                    .join(name)
                    .join("volumes/kubernetes.io~local-volume/pv-1");
                assert_eq!(fs::read_to_string(dir.join("data")).unwrap(), "precious");
                let group = std::os::unix::fs::MetadataExt::gid(&fs::metadata(dir.join("data")).unwrap());
                assert_eq!(group, 4711);
            }
            life.gone("b");
            life.gone("a");
        },
    );
}
