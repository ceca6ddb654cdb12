//! Mounts that no test machine can make: what would be called.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kubelet_core::{
    CancellationToken, MapObjects, PodRecord, SourceKind, VolumeContext, VolumeManager as _, error_chain,
};
use rustix::io::Errno;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{VolumeSettings, Volumes};
use crate::ground::mount_table::MountTable;
use crate::ground::mounts::{MountOptions, Mounts};
use crate::plugins;
use crate::testing::{MountCall, MountOp, ScriptedMounts};

struct Node<M = ScriptedMounts> {
    volumes: Volumes,
    mounts: Arc<M>,
    objects: MapObjects,
    root: PathBuf,
    _dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        Self::with(ScriptedMounts::new())
    }
}

impl<M: Mounts + 'static> Node<M> {
    fn with(mounts: M) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let mounts = Arc::new(mounts);
        let objects = MapObjects::new();
        let volumes = life(&root, &mounts, &objects);
        Self {
            volumes,
            mounts,
            objects,
            root,
            _dir: dir,
        }
    }

    async fn ready(&self, pod: &Arc<PodRecord>) {
        if let Err(error) = self.volumes.mount(pod, &CancellationToken::new()).await {
            panic!("{}", error_chain(&error));
        }
    }

    async fn waits(&self, pod: &Arc<PodRecord>) -> String {
        let failed = self.volumes.mount(pod, &CancellationToken::new()).await;
        error_chain(&failed.unwrap_err())
    }

    async fn gone(&self, pod: &PodRecord) {
        let gone = self.volumes.unmount(pod.uid(), &CancellationToken::new()).await;
        if let Err(error) = gone {
            panic!("{}", error_chain(&error));
        }
        let left: Vec<_> = fs::read_dir(self.root.join("pods/uid-of-a")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(self.mounts.table().unwrap().points().len(), 1, "all is unmounted");
    }

    fn dir(&self, folder: &str, name: &str) -> PathBuf {
        self.root.join("pods/uid-of-a/volumes").join(folder).join(name)
    }
}

fn life<M: Mounts + 'static>(root: &Path, mounts: &Arc<M>, objects: &MapObjects) -> Volumes {
    let settings = VolumeSettings {
        backoff: (Duration::ZERO, Duration::ZERO),
        ..VolumeSettings::default()
    };
    let volumes = Volumes::assemble(settings, plugins::all(), mounts.clone());
    let mut context = VolumeContext::new("node-1", root);
    context.objects = Some(Arc::new(objects.clone()));
    volumes.open(context);
    volumes
}

fn pod(volume: &Value, requests: &Value) -> Arc<PodRecord> {
    let mut volume = volume.clone();
    volume["name"] = "a".into();
    let mut pod = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-of-a"},
        "spec": {
            "containers": [{"name": "app", "image": "app:1", "volumeMounts": [{"name": "a", "mountPath": "/a"}],
                "resources": {"requests": requests, "limits": requests}}],
            "volumes": [volume],
        },
    }))
    .unwrap();
    kubelet_core::apply_defaults(&mut pod);
    Arc::new(PodRecord::new(&pod, "api".into(), SourceKind::Managed).unwrap())
}

fn huge(medium: &str, sizes: &[&str]) -> Arc<PodRecord> {
    let mut requests = json!({"memory": "64Mi", "cpu": "1"});
    for size in sizes {
        requests[format!("hugepages-{size}")] = "1Gi".into();
    }
    pod(&json!({"emptyDir": {"medium": medium}}), &requests)
}

#[tokio::test]
async fn huge_pages_are_mounted_of_the_size_that_the_pod_asks_for() {
    for (medium, sizes, page_bytes) in [
        ("HugePages", &["2Mi"][..], 2 << 20),
        ("HugePages-2Mi", &["2Mi", "1Gi"], 2 << 20),
        ("HugePages-1Gi", &["2Mi", "1Gi"], 1 << 30),
    ] {
        let node = Node::new();
        let pod = huge(medium, sizes);
        node.ready(&pod).await;
        let dir = node.dir("kubernetes.io~empty-dir", "a");
        let mount = MountCall::Mount {
            fs_type: "hugetlbfs".to_owned(),
            source: "nodev".to_owned(),
            target: dir.clone(),
            options: MountOptions::default(),
            data: format!("pagesize={page_bytes}"),
        };
        assert_eq!(node.mounts.calls(), std::slice::from_ref(&mount));
        // Another life finds it mounted.
        life(&node.root, &node.mounts, &node.objects)
            .mount(&pod, &CancellationToken::new())
            .await
            .unwrap();
        node.gone(&pod).await;
        assert_eq!(node.mounts.calls(), [mount, MountCall::Unmount { target: dir }]);
    }
}

#[tokio::test]
async fn huge_pages_that_the_pod_does_not_ask_for_are_refused() {
    for (medium, sizes, expected) in [
        (
            "HugePages",
            &[][..],
            "hugePages storage requested, but there is no resource request for huge pages.",
        ),
        ("HugePages-2Mi", &[], "there is no resource request for huge pages."),
        ("HugePages", &["2Mi", "1Gi"], "multiple huge page sizes"),
        (
            "HugePages-1Gi",
            &["2Mi"],
            "no container of the pod requests huge pages of \"1Gi\"",
        ),
        (
            "HugePages-x",
            &["2Mi"],
            "no container of the pod requests huge pages of \"x\"",
        ),
        ("Floppy", &[], "unknown storage medium \"Floppy\""),
    ] {
        let node = Node::new();
        let pod = huge(medium, sizes);
        let text = node.waits(&pod).await;
        assert!(text.contains(expected), "{text}");
        assert_eq!(node.mounts.calls(), []);
    }
    // What is mounted with pages of another size is not taken for it.
    let node = Node::new();
    node.ready(&huge("HugePages", &["2Mi"])).await;
    let other = huge("HugePages", &["1Gi"]);
    let failed = life(&node.root, &node.mounts, &node.objects)
        .mount(&other, &CancellationToken::new())
        .await;
    let text = error_chain(&failed.unwrap_err());
    assert!(text.contains("not with huge pages of 1073741824 bytes"), "{text}");
    node.gone(&other).await;
}

#[tokio::test]
async fn no_huge_pages_leave_nothing_but_what_goes_with_the_pod() {
    let node = Node::new();
    let pod = huge("HugePages", &["2Mi"]);
    node.mounts.fail_next(MountOp::Mount, Errno::NOMEM.raw_os_error());
    let text = node.waits(&pod).await;
    assert!(text.contains("Cannot allocate memory"), "{text}");
    let ready = node.root.join("pods/uid-of-a/plugins/kubernetes.io~empty-dir/a/ready");
    assert!(!ready.exists());
    node.ready(&pod).await;
    assert!(ready.exists());
    node.gone(&pod).await;
}

fn export(more: &Value) -> PersistentVolume {
    let mut volume = json!({
        "metadata": {"name": "pv-1"},
        "spec": {"claimRef": {"uid": "uid-of-claim"}, "nfs": {"server": "2001:db8::1", "path": "/exports/a b"}},
    });
    for (key, value) in more.as_object().unwrap() {
        volume["spec"][key] = value.clone();
    }
    serde_json::from_value(volume).unwrap()
}

fn claim() -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "uid-of-claim"},
        "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"},
    }))
    .unwrap()
}

const NFS: &str = "kubernetes.io~nfs";

#[tokio::test]
async fn an_export_is_mounted_with_the_options_of_its_volume() {
    let claiming = |read_only: bool| json!({"persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}});
    let inline = |read_only: bool| json!({"nfs": {"server": "nfs.example", "path": "/", "readOnly": read_only}});
    let timed = json!({"mountOptions": ["nfsvers=4.1", "hard", "noexec", "hard"]});
    let (v6, plain) = ("[2001:db8::1]:/exports/a b", "nfs.example:/");
    for (volume, more, source, options, name) in [
        (inline(false), json!({}), plain, &[][..], "a"),
        (inline(true), json!({}), plain, &["ro"], "a"),
        (
            claiming(false),
            timed.clone(),
            v6,
            &["nfsvers=4.1", "hard", "noexec"],
            "pv-1",
        ),
        (
            claiming(true),
            timed,
            v6,
            &["ro", "nfsvers=4.1", "hard", "noexec"],
            "pv-1",
        ),
    ] {
        let node = Node::new();
        node.objects.set(claim());
        node.objects.set(export(&more));
        let pod = pod(&volume, &json!({}));
        node.ready(&pod).await;
        let dir = node.dir(NFS, name);
        let mount = MountCall::Mount {
            fs_type: "nfs".to_owned(),
            source: source.to_owned(),
            target: dir.clone(),
            options: MountOptions::parse(options),
            data: String::new(),
        };
        assert_eq!(node.mounts.calls(), std::slice::from_ref(&mount));
        let given = node
            .volumes
            .container(&pod, "app", &kubelet_core::env::Env::default())
            .await;
        let place = given.unwrap().places.remove(0);
        assert_eq!(place.read_only, options.contains(&"ro"));
        assert!(!place.selinux_relabel);
        life(&node.root, &node.mounts, &node.objects)
            .mount(&pod, &CancellationToken::new())
            .await
            .unwrap();
        node.gone(&pod).await;
        assert_eq!(node.mounts.calls(), [mount, MountCall::Unmount { target: dir }]);
    }
}

/// Fails after all was done.
#[derive(Debug, Default)]
struct Late(ScriptedMounts);

impl Mounts for Late {
    fn bind(&self, source: &Path, target: &Path, options: &MountOptions) -> io::Result<()> {
        self.0.bind(source, target, options)
    }

    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path, options: &MountOptions) -> io::Result<()> {
        self.0.bind_fd(source, target, options)
    }

    fn mount(&self, fs_type: &str, source: &str, target: &Path, options: &MountOptions, data: &str) -> io::Result<()> {
        self.0.mount(fs_type, source, target, options, data)?;
        Err(io::Error::other("the server is too slow"))
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        self.0.unmount(target)
    }

    fn table(&self) -> io::Result<MountTable> {
        self.0.table()
    }
}

#[tokio::test]
async fn an_export_that_cannot_be_mounted_leaves_nothing() {
    let volume = json!({"nfs": {"server": "nfs.example", "path": "/"}});
    let pod = pod(&volume, &json!({}));
    let node = Node::new();
    node.mounts.fail_next(MountOp::Mount, Errno::TIMEDOUT.raw_os_error());
    let text = node.waits(&pod).await;
    assert!(text.contains("timed out"), "{text}");
    assert!(!node.dir(NFS, "a").exists());
    node.ready(&pod).await;
    assert!(node.dir(NFS, "a").exists());
    node.gone(&pod).await;

    let node = Node::with(Late::default());
    let text = node.waits(&pod).await;
    assert!(text.contains("the server is too slow"), "{text}");
    assert!(!node.dir(NFS, "a").exists());
    node.gone(&pod).await;
}

#[tokio::test]
async fn an_export_in_use_stays_mounted_and_its_pod_stays() {
    let pod = pod(&json!({"nfs": {"server": "nfs.example", "path": "/"}}), &json!({}));
    let node = Node::new();
    node.ready(&pod).await;
    // Something may be mounted below, which is looked for; then it is tried again.
    for _ in 0..2 {
        node.mounts.fail_next(MountOp::Unmount, Errno::BUSY.raw_os_error());
    }
    let failed = node.volumes.unmount(pod.uid(), &CancellationToken::new()).await;
    let text = error_chain(&failed.unwrap_err());
    assert!(text.contains("cannot tear down volume \"a\""), "{text}");
    assert!(node.dir(NFS, "a").exists());
    node.gone(&pod).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_holds_its_pod_for_a_minute() {
    let pod = pod(&json!({"nfs": {"server": "nfs.example", "path": "/"}}), &json!({}));
    let node = Node::new();
    node.ready(&pod).await;
    node.mounts.hang_unmounts_of("nfs");
    let target = node.dir(NFS, "a");
    let unmount = MountCall::Unmount { target: target.clone() };
    let began = Instant::now();
    let mut gone = pin!(node.gone(&pod));
    loop {
        tokio::select! {
            biased;
            () = &mut gone => break,
            () = tokio::task::yield_now() => {}
        }
        // The clock does not go by itself while a thread is busy, and does not run away from it.
        if node.mounts.calls().contains(&unmount) && began.elapsed() < Duration::from_secs(60) {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }
    assert!(began.elapsed() >= Duration::from_secs(60));
    assert!(node.mounts.calls().contains(&MountCall::UnmountForced { target }));
}
