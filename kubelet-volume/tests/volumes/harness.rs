//! A node's volumes, without the rest of the node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::env::Env;
use kubelet_core::{
    CancellationToken, ContainerVolumes, Event, EventSink, MapObjects, NodeView, NodeViews, PodRecord,
    PodSignalReceiver, PodVolumes, SourceKind, VolumeContext, VolumeError, VolumeManager, error_chain, pod_signals,
};
use kubelet_volume::{MountTable, VolumePlugin, VolumeSettings, Volumes};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Events, kept for a look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<Event>>>);

impl EventSink for Events {
    fn record(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

/// One life of an agent's volumes.
pub(crate) struct Node {
    pub(crate) root: PathBuf,
    pub(crate) volumes: Volumes,
    pub(crate) objects: MapObjects,
    pub(crate) context: VolumeContext,
    events: Events,
    stop: CancellationToken,
    signals: PodSignalReceiver,
    work: JoinSet<()>,
    dir: Arc<tempfile::TempDir>,
}

impl Node {
    /// With its work going on beside.
    pub(crate) fn start() -> Self {
        Self::start_with(VolumeSettings::default(), |_| {})
    }

    /// With one more type of volumes.
    pub(crate) fn start_also_with(plugin: impl VolumePlugin) -> Self {
        let plugins = Volumes::known_plugins().into_iter();
        let plugins = plugins.chain([Arc::new(plugin) as Arc<dyn VolumePlugin>]);
        Self::start_of(Volumes::with_plugins(VolumeSettings::default(), plugins), |_| {})
    }

    pub(crate) fn start_with(settings: VolumeSettings, shape: impl FnOnce(&mut VolumeContext)) -> Self {
        Self::start_of(Volumes::new(settings), shape)
    }

    fn start_of(volumes: Volumes, shape: impl FnOnce(&mut VolumeContext)) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        // Links in the path of the folder are not what is tested.
        let root = dir.path().canonicalize().unwrap();
        let objects = MapObjects::new();
        let events = Events::default();
        let mut context = VolumeContext::new("node-1", &root);
        context.objects = Some(Arc::new(objects.clone()));
        context.events = Arc::new(events.clone());
        let mut view = NodeView::new("node-1");
        view.labels.insert("disk".to_owned(), "fast".to_owned());
        view.allocatable.insert("memory".to_owned(), "1Gi".parse().unwrap());
        let view = Arc::new(view);
        context.node = NodeViews::new(move || view.clone());
        shape(&mut context);
        Self::live(volumes, (dir, root), objects, (context, events))
    }

    fn live(
        volumes: Volumes,
        (dir, root): (Arc<tempfile::TempDir>, PathBuf),
        objects: MapObjects,
        (context, events): (VolumeContext, Events),
    ) -> Self {
        volumes.open(context.clone());
        let (wake, signals) = pod_signals();
        let stop = CancellationToken::new();
        let mut work = JoinSet::new();
        let (worker, until) = (volumes.clone(), stop.clone());
        work.spawn(async move { worker.run(wake, until).await.unwrap() });
        Self {
            root,
            volumes,
            objects,
            context,
            events,
            stop,
            signals,
            work,
            dir,
        }
    }

    /// The same node after a restart of its agent, which ended as a kill ends it.
    pub(crate) async fn restart(mut self) -> Self {
        self.work.shutdown().await;
        let of_node = (self.dir.clone(), self.root.clone());
        let (objects, context, events) = (self.objects.clone(), self.context.clone(), self.events.clone());
        drop(self);
        Self::live(Volumes::default(), of_node, objects, (context, events))
    }

    pub(crate) async fn mount(&self, pod: &Arc<PodRecord>) -> Result<PodVolumes, VolumeError> {
        self.volumes.mount(pod, &CancellationToken::new()).await
    }

    /// Has the volumes of a pod there.
    pub(crate) async fn ready(&self, pod: &Arc<PodRecord>) -> PodVolumes {
        match self.mount(pod).await {
            Ok(ready) => ready,
            Err(error) => panic!("{}", error_chain(&error)),
        }
    }

    /// What a pod waits for.
    pub(crate) async fn waits(&self, pod: &Arc<PodRecord>) -> String {
        error_chain(&self.mount(pod).await.unwrap_err())
    }

    pub(crate) async fn container(&self, pod: &PodRecord, name: &str) -> ContainerVolumes {
        match self.volumes.container(pod, name, &Env::default()).await {
            Ok(given) => given,
            Err(error) => panic!("{}", error_chain(&error)),
        }
    }

    /// The place of the only thing that the only container of a pod mounts.
    pub(crate) async fn place(&self, pod: &PodRecord) -> PathBuf {
        self.container(pod, "app").await.places.remove(0).host_path
    }

    pub(crate) async fn gone(&self, pod: &PodRecord) {
        let gone = self.volumes.unmount(pod.uid(), &CancellationToken::new()).await;
        if let Err(error) = gone {
            panic!("{}", error_chain(&error));
        }
        self.nothing_is_left(pod.uid().as_str());
    }

    /// The folder of a pod.
    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    pub(crate) fn nothing_is_left(&self, uid: &str) {
        let dir = self.pod_dir(uid);
        let mounted: Vec<_> = table()
            .below(&dir)
            .into_iter()
            .map(|mount| mount.target.clone())
            .collect();
        assert!(mounted.is_empty(), "{mounted:?}");
        let left: Vec<_> = fs::read_dir(&dir)
            .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect())
            .unwrap_or_default();
        assert!(left.is_empty(), "{left:?}");
    }

    /// Waits until somebody says that a pod is to be looked at again, and until what failed just now may be tried again.
    pub(crate) async fn woken(&mut self, pod: &PodRecord) {
        self.told(pod).await;
        tokio::time::sleep(VolumeSettings::default().backoff.0).await;
    }

    /// Waits until somebody says that a pod is to be looked at again.
    pub(crate) async fn told(&mut self, pod: &PodRecord) {
        let woken = async {
            loop {
                if self.signals.next().await.iter().any(|(uid, _)| uid == pod.uid()) {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), woken)
            .await
            .expect("the pod is woken");
    }

    pub(crate) fn messages(&self, reason: &str) -> Vec<String> {
        let events = self.events.0.lock().unwrap();
        let fitting = events.iter().filter(|event| event.reason == reason);
        fitting.map(|event| event.message.clone()).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
        if Arc::strong_count(&self.dir) > 1 {
            // It goes on in another life.
            return;
        }
        for mount in table().at_or_below(&self.root) {
            let _ = rustix::mount::unmount(&mount.target, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

pub(crate) fn table() -> MountTable {
    MountTable::read().unwrap()
}

/// Whether the tests may mount; says so where they may not.
pub(crate) fn may_mount() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        kubelet_testing::contract::skip("volumes that are mounted", "needs root");
    }
    is_root
}

/// An empty disk: a loop device, which is detached at the end whatever becomes of the test.
pub(crate) struct TestDisk {
    pub(crate) device: PathBuf,
    backing: tempfile::TempDir,
}

impl TestDisk {
    /// Nothing, with the reason printed, where there can be none.
    pub(crate) fn new() -> Option<Self> {
        if !may_mount() {
            return None;
        }
        let backing = tempfile::tempdir().unwrap();
        let file = backing.path().join("disk.img");
        fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let why = match made {
            Ok(made) if made.status.success() => {
                let device = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
                return Some(Self { device, backing });
            }
            Ok(made) => String::from_utf8_lossy(&made.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        kubelet_testing::contract::skip("volumes on disks", &format!("no loop device: {why}"));
        None
    }

    /// All that is on it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(&self.device).unwrap()
    }
}

impl Drop for TestDisk {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.device).status();
        let is_free = detached.is_ok_and(|status| status.success());
        let left = self.backing.path().display();
        assert!(is_free || std::thread::panicking(), "a loop device is left, of {left}");
    }
}

/// A pod of one container that mounts volumes, which are named a, b and so on, at `/a`, `/b` and so on.
pub(crate) fn pod(name: &str, volumes: &[Value]) -> Arc<PodRecord> {
    pod_with(name, volumes, json!({}))
}

/// The same, with more in its spec.
pub(crate) fn pod_with(name: &str, volumes: &[Value], more: Value) -> Arc<PodRecord> {
    let letters = || ('a'..).map(String::from);
    let mounts: Vec<Value> = letters()
        .take(volumes.len())
        .map(|letter| json!({"name": letter, "mountPath": format!("/{letter}")}))
        .collect();
    let volumes: Vec<Value> = letters()
        .zip(volumes)
        .map(|(letter, volume)| {
            let mut volume = volume.clone();
            volume["name"] = letter.into();
            volume
        })
        .collect();
    let mut spec = json!({
        "containers": [{"name": "app", "image": "app:1", "volumeMounts": mounts}],
        "volumes": volumes,
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    record(name, json!({}), spec)
}

pub(crate) fn record(name: &str, metadata: Value, spec: Value) -> Arc<PodRecord> {
    let mut pod =
        json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}")}, "spec": spec});
    for (key, value) in metadata.as_object().unwrap() {
        pod["metadata"][key] = value.clone();
    }
    let mut pod = serde_json::from_value(pod).unwrap();
    kubelet_core::apply_defaults(&mut pod);
    Arc::new(PodRecord::new(&pod, "api".into(), SourceKind::Managed).unwrap())
}

/// Whether nothing is at a path, not even a link.
pub(crate) fn is_nothing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err()
}
