//! A kubelet on a runtime that speaks CRI, which is a process of its own: what is measured is the kubelet's alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::{
    CancellationToken, ChannelHandle, ChannelSource, Clock, ContainerId, ContainerRuntime, Containers, Kubelet,
    KubeletHandle, RunError, StateDir, StatusChange, StopReport, SystemClock,
};
use kubelet_cri::CriRuntime;
use kubelet_pleg::GenericPleg;
use kubelet_testing::{FakeCri, FakeRuntime};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::measure::{Row, cpu_time, middle_and_p99, real, resident_bytes};
use crate::node::{Unheard, Writes, all_run, view};
use crate::pods::{Weight, pod, pods};
use crate::sizes::Sizes;

pub(crate) fn measure(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    for count in &sizes.pods[..2] {
        real(2).block_on(measure_one(sizes, *count, tell));
    }
}

/// Serves a fake runtime on a socket until the process is killed.
pub fn serve_cri(socket: &str) {
    real(1).block_on(async {
        let _fake = serve(Path::new(socket)).await;
        std::future::pending::<()>().await;
    });
}

async fn serve(socket: &Path) -> FakeCri {
    let world = FakeRuntime::builder()
        .clock(Arc::new(SystemClock))
        .all_images_present()
        .call_limit(0)
        .build();
    let fake = FakeCri::builder(world).without_logs().build();
    fake.listen(socket).await.expect("the socket can be made");
    fake
}

/// The other side: a process, or where none can be started this very one.
enum Runtime {
    Process(Child),
    Here(#[expect(dead_code, reason = "serves as long as it lives")] FakeCri),
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Self::Process(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Node {
    handle: KubeletHandle,
    pods: ChannelHandle,
    cri: Arc<CriRuntime>,
    _task: JoinSet<Result<StopReport, RunError>>,
    _runtime: Runtime,
}

async fn start(sizes: &Sizes, socket: &Path) -> Node {
    let runtime = if sizes.processes {
        let itself = std::env::current_exe().expect("this program's own path");
        let child = Command::new(itself).arg("--serve-cri").arg(socket).spawn();
        Runtime::Process(child.expect("this program starts"))
    } else {
        Runtime::Here(serve(socket).await)
    };
    let endpoint = format!("unix://{}", socket.display());
    let cri = loop {
        match CriRuntime::connect(&endpoint).await {
            Ok(cri) => break Arc::new(cri),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let (pods, source) = ChannelSource::new("api");
    let kubelet = Kubelet::builder("node-1", Containers::new(cri.clone(), GenericPleg::default()))
        .source(source)
        .node_view(view())
        .events(Unheard)
        .status_sink(Writes::default())
        .state_only(StateDir::in_memory())
        .build()
        .expect("all parts are there");
    let handle = kubelet.handle();
    let mut task = JoinSet::new();
    task.spawn(kubelet.run(CancellationToken::new()));
    Node {
        handle,
        pods,
        cri,
        _task: task,
        _runtime: runtime,
    }
}

async fn measure_one(sizes: &Sizes, count: usize, tell: &mut dyn FnMut(Row)) {
    let socket = std::env::temp_dir().join(format!("kubelet-bench-{}-{count}.sock", std::process::id()));
    let node = start(sizes, &socket).await;
    let all = pods(Weight::Typical, 0, count);
    let (begun, before) = (Instant::now(), cpu_time());
    node.pods.set(all).await.expect("the kubelet runs");
    until_running(&node, count).await;
    let (took, cpu) = (begun.elapsed(), cpu_time() - before);
    tell(Row::new(
        "cri: two containers each, one snapshot, all up",
        count,
        format!("{:.2} s, {:.2} CPU-seconds", took.as_secs_f64(), cpu.as_secs_f64()),
    ));
    let watch = Duration::from_secs(sizes.watch_seconds);
    tokio::time::sleep(Duration::from_secs(3).min(watch)).await;
    let before = cpu_time();
    tokio::time::sleep(watch).await;
    let used = cpu_time() - before;
    tell(Row::new(
        "cri: at rest, relist every 1 s",
        count,
        format!(
            "{:.3} % of a core, {:.2?} a relist at most, {:.1} MB resident",
            used.as_secs_f64() / watch.as_secs_f64() * 100.0,
            used / u32::try_from(sizes.watch_seconds).expect("few"),
            resident_bytes() as f64 / 1e6
        ),
    ));
    let mut samples = Vec::new();
    for number in count..count + sizes.samples {
        samples.push(react(&node, number).await);
        // A period that shares no factor with the relist.
        tokio::time::sleep(Duration::from_millis(23)).await;
    }
    let (middle, p99) = middle_and_p99(samples);
    tell(Row::new(
        "cri: upsert to a container's start",
        count,
        format!("median {middle:.2?}, p99 {p99:.2?}"),
    ));
    drop(node);
    let _ = std::fs::remove_file(socket);
}

/// How long after its pod was pushed the runtime says that a container was started. Both look at one clock.
async fn react(node: &Node, number: usize) -> Duration {
    let pod = pod(Weight::Small, number);
    let uid = pod.metadata.uid.clone().expect("pods have one");
    let mut changes = node.handle.statuses();
    let begun = SystemClock.now();
    node.pods.upsert(pod).await.expect("the kubelet runs");
    loop {
        let Some(change) = changes.next().await else {
            panic!("the kubelet ended early");
        };
        if let StatusChange::Updated(update) = change
            && update.pod.uid().as_str() == uid
            && let Some(id) = running(&update.status)
        {
            // A pod's status counts whole seconds.
            let status = node.cri.container_status(&id).await.expect("the runtime answers");
            let started = status.started_at.expect("it runs");
            return Duration::try_from(started.duration_since(begun)).unwrap_or_default();
        }
    }
}

fn running(status: &PodStatus) -> Option<ContainerId> {
    let first = status.container_statuses.as_ref()?.first()?;
    first.state.as_ref()?.running.as_ref()?;
    let (_, id) = first.container_id.as_ref()?.split_once("://")?;
    Some(ContainerId::from(id))
}

async fn until_running(node: &Node, count: usize) {
    let mut reader = node.handle.statuses();
    let mut running = BTreeSet::new();
    while running.len() < count {
        match reader.next().await {
            Some(StatusChange::Updated(update)) if all_run(&update.status) => {
                running.insert(update.pod.uid().clone());
            }
            Some(_) => {}
            None => panic!("the kubelet ended early"),
        }
    }
}
