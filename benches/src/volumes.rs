//! What volumes cost, on a real disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kubelet_core::{
    CancellationToken, MapObjects, PodRecord, SourceKind, VolumeContext, VolumeManager, async_trait, error_chain,
    pod_signals,
};
use kubelet_volume::{
    Placed, PluginFeatures, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSettings, VolumeSpec, Volumes,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::measure::{Row, cpu_time, real};
use crate::sizes::Sizes;

/// How often each pod is synced while nothing changes.
const SYNCS: u32 = 100;

/// Counts what a type of volume is asked to do.
#[derive(Debug)]
struct Counted {
    plugin: Arc<dyn VolumePlugin>,
    set_ups: Arc<AtomicU64>,
}

#[async_trait]
impl VolumePlugin for Counted {
    fn name(&self) -> &str {
        self.plugin.name()
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        self.plugin.takes(volume)
    }

    fn features(&self) -> PluginFeatures {
        self.plugin.features()
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        self.set_ups.fetch_add(1, Ordering::Relaxed);
        self.plugin.set_up(cx).await
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        self.plugin.tear_down(cx).await
    }
}

/// One life of an agent's volumes.
#[derive(Clone)]
struct Life {
    volumes: Volumes,
    set_ups: Arc<AtomicU64>,
}

impl Life {
    fn new(root: &Path, objects: &MapObjects) -> Self {
        let mut settings = VolumeSettings::default();
        // So that others than root can measure.
        settings.secrets_on_disk = true;
        settings.measure_every = Duration::ZERO;
        let set_ups = Arc::<AtomicU64>::default();
        let counted = Volumes::known_plugins().into_iter().map(|plugin| {
            let set_ups = set_ups.clone();
            Arc::new(Counted { plugin, set_ups }) as Arc<dyn VolumePlugin>
        });
        let volumes = Volumes::with_plugins(settings, counted);
        let mut context = VolumeContext::new("node-1", root);
        context.objects = Some(Arc::new(objects.clone()));
        volumes.open(context);
        Self { volumes, set_ups }
    }

    async fn mount(&self, pod: &Arc<PodRecord>) {
        if let Err(error) = self.volumes.mount(pod, &CancellationToken::new()).await {
            panic!("{}", error_chain(&error));
        }
    }

    async fn unmount(&self, pod: &PodRecord) {
        if let Err(error) = self.volumes.unmount(pod.uid(), &CancellationToken::new()).await {
            panic!("{}", error_chain(&error));
        }
    }
}

/// A pod with ten volumes.
fn pod(number: usize, host: &Path) -> Arc<PodRecord> {
    // Nobody else may mount.
    let memory = if rustix::process::geteuid().is_root() {
        "Memory"
    } else {
        ""
    };
    let names = json!({"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]});
    let sources = json!([{"configMap": {"name": "config"}}, {"secret": {"name": "secret"}}, {"downwardAPI": names}]);
    let mut volumes = json!([
        {"emptyDir": {}},
        {"emptyDir": {}},
        {"emptyDir": {"medium": memory}},
        {"configMap": {"name": "config"}},
        {"configMap": {"name": "config"}},
        {"secret": {"secretName": "secret"}},
        {"projected": {"sources": sources}},
        {"downwardAPI": names},
        {"hostPath": {"path": host}},
        {"hostPath": {"path": host, "type": "Directory"}},
    ]);
    let mut mounts = Vec::new();
    for (index, volume) in volumes.as_array_mut().into_iter().flatten().enumerate() {
        volume["name"] = format!("v{index}").into();
        mounts.push(json!({"name": format!("v{index}"), "mountPath": format!("/v{index}")}));
    }
    let pod = json!({
        "metadata": {"name": format!("p{number}"), "namespace": "default", "uid": format!("uid-{number}")},
        "spec": {"containers": [{"name": "app", "image": "app:1", "volumeMounts": mounts}], "volumes": volumes},
    });
    let mut pod = serde_json::from_value(pod).expect("a pod");
    kubelet_core::apply_defaults(&mut pod);
    Arc::new(PodRecord::new(&pod, "api".into(), SourceKind::Managed).expect("a whole pod"))
}

fn objects() -> MapObjects {
    let objects = MapObjects::new();
    let data: serde_json::Map<String, Value> = (0..5)
        .map(|key| (format!("key-{key}"), "x".repeat(500).into()))
        .collect();
    let meta = |name: &str| json!({"name": name, "namespace": "default"});
    let map = json!({"metadata": meta("config"), "data": data});
    objects.set(serde_json::from_value::<ConfigMap>(map).expect("a config map"));
    let secret = json!({"metadata": meta("secret"), "data": {"key": "c2VjcmV0"}});
    objects.set(serde_json::from_value::<Secret>(secret).expect("a secret"));
    objects
}

/// Has something done for all pods at once; tells how long that takes, and the processor time.
async fn for_all<F>(pods: &[Arc<PodRecord>], work: impl Fn(Arc<PodRecord>) -> F) -> (Duration, Duration)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (began, before) = (Instant::now(), cpu_time());
    let mut all = JoinSet::new();
    for pod in pods {
        all.spawn(work(pod.clone()));
    }
    all.join_all().await;
    (began.elapsed(), cpu_time() - before)
}

pub(crate) fn measure(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    let count = sizes.pods[0];
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().canonicalize().expect("it is there");
    let host = root.join("host");
    std::fs::create_dir(&host).expect("a folder");
    let pods: Vec<_> = (0..count).map(|number| pod(number, &host)).collect();
    let objects = objects();
    let mut row = |what: &str, (took, busy): (Duration, Duration)| {
        let each = took / u32::try_from(count).expect("not so many");
        let value = format!("{took:.1?} in all, {each:.1?} for each; {busy:.1?} of CPU");
        tell(Row::new(what, count, value));
    };
    // Each on a runtime of its own, so that threads that have ended their work are not counted in what comes next.
    let life = Life::new(&root, &objects);
    let made = real(1).block_on(for_all(&pods, |pod| mount(&life, pod)));
    row("volumes: mount, ten of each pod", made);
    let life = Life::new(&root, &objects);
    let again = real(1).block_on(for_all(&pods, |pod| mount(&life, pod)));
    row("volumes: mount in a later life of the agent", again);
    let watch = Duration::from_secs(sizes.watch_seconds);
    let (sync, set_ups, idle) = real(1).block_on(rest(&life, &pods, watch));
    let gone = real(1).block_on(for_all(&pods, |pod| unmount(&life, pod)));
    row("volumes: unmount", gone);
    tell(Row::new(
        "volumes: a sync of a pod of which nothing changed",
        count,
        format!("{sync:.1?} of CPU, {set_ups} volumes of ten looked at, none of them on disk"),
    ));
    tell(Row::new(
        format!("volumes: {} s in which nothing happens", sizes.watch_seconds),
        count,
        format!("{idle:.1?} of CPU"),
    ));
}

fn mount(life: &Life, pod: Arc<PodRecord>) -> impl Future<Output = ()> + Send + 'static {
    let life = life.clone();
    async move { life.mount(&pod).await }
}

fn unmount(life: &Life, pod: Arc<PodRecord>) -> impl Future<Output = ()> + Send + 'static {
    let life = life.clone();
    async move { life.unmount(&pod).await }
}

/// The processor time of one sync, how many volumes are looked at in it, and the processor time of doing nothing.
async fn rest(life: &Life, pods: &[Arc<PodRecord>], watch: Duration) -> (Duration, f64, Duration) {
    let (wake, _signals) = pod_signals();
    let stop = CancellationToken::new();
    let mut work = JoinSet::new();
    let (volumes, until) = (life.volumes.clone(), stop.clone());
    work.spawn(async move { volumes.run(wake, until).await });
    // Until what volumes are made from is watched.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (before, looked) = (cpu_time(), life.set_ups.load(Ordering::Relaxed));
    for _ in 0..SYNCS {
        for pod in pods {
            life.mount(pod).await;
        }
    }
    let syncs = SYNCS * u32::try_from(pods.len()).expect("not so many");
    let sync = (cpu_time() - before) / syncs;
    let looked = life.set_ups.load(Ordering::Relaxed) - looked;
    let before = cpu_time();
    tokio::time::sleep(watch).await;
    let idle = cpu_time() - before;
    stop.cancel();
    work.join_all().await;
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let set_ups = looked as f64 / f64::from(syncs);
    (sync, set_ups, idle)
}
