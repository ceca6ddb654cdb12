//! What a kubelet adds to the time that the runtime itself takes, on a private containerd: a manifest appears and its container
//! starts, a container ends and starts again, each beside the same calls made raw.
//!
//! As root, with the components of the tests: `cargo run --release -p kubelet-cri --example reaction -- 30`

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an example that measures: it prints, and ends where something is wrong"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{
    CancellationToken, Clock, ContainerConfig, ContainerId, ContainerRuntime, Containers, CreateContainer, ExecRequest,
    FileSource, ImageRef, Kubelet, KubeletHandle, OnStop, PodKey, PodUid, SandboxConfig, SystemClock,
};
use kubelet_cri::CriRuntime;
use kubelet_pleg::EventedPleg;
use kubelet_testing::{BUSYBOX_IMAGE, Containerd, PrivateContainerd};
use serde_json::json;
use tokio::task::JoinSet;

/// Ends at once when it is told to.
const SCRIPT: &str = "trap 'exit 1' TERM; while :; do sleep 1000 & wait; done";

#[tokio::main]
async fn main() {
    let pairs = std::env::args()
        .nth(1)
        .map_or(30, |text| text.parse().expect("a number of pairs"));
    for version in [Containerd::V1_6, Containerd::V2] {
        let containerd = PrivateContainerd::start(version).await.unwrap();
        println!("containerd {}, {pairs} pairs", containerd.reported_version());
        measure(&containerd, pairs).await;
        containerd.stop().await.unwrap();
    }
}

async fn measure(containerd: &PrivateContainerd, pairs: usize) {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    let runtime = Arc::new(CriRuntime::connect(&containerd.endpoint()).await.unwrap());
    let kubelet = Kubelet::builder("node-1", Containers::new(runtime.clone(), EventedPleg::default()))
        .source(FileSource::new(&manifests))
        .root_dir(dir.path().join("root"))
        .pod_logs_dir(dir.path().join("logs"))
        .on_stop(OnStop::StopPods)
        .build()
        .unwrap();
    let (handle, stop) = (kubelet.handle(), CancellationToken::new());
    let mut task = JoinSet::new();
    task.spawn(kubelet.run(stop.clone()));

    let (mut raw, mut raw_restart, mut kubelet, mut restart) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // The first of each is slower than all later ones, and does not count.
    for number in 0..=pairs {
        let one = by_hand(&runtime, dir.path(), number).await;
        let other = by_kubelet(&runtime, &handle, &manifests, number).await;
        if number > 0 {
            raw.push(one.0);
            raw_restart.push(one.1);
            kubelet.push(other.0);
            restart.push(other.1);
        }
    }
    for (what, kubelet, raw) in [
        ("appeared → started", kubelet, raw),
        ("ended → started again", restart, raw_restart),
    ] {
        let (kubelet, raw) = (median(kubelet), median(raw));
        let (ratio, more) = (kubelet.as_secs_f64() / raw.as_secs_f64(), kubelet.saturating_sub(raw));
        println!("{what:>22}: kubelet {kubelet:.1?}, raw {raw:.1?}: x {ratio:.2}, {more:.1?} more");
    }
    stop.cancel();
    while task.join_next().await.is_some() {}
}

/// The calls that a kubelet makes: how long until the container runs, and another one in the same sandbox.
async fn by_hand(runtime: &CriRuntime, dir: &Path, number: usize) -> (Duration, Duration) {
    let name = format!("raw-{number}");
    let mut config = SandboxConfig::new(PodUid::from(name.as_str()), PodKey::new("default", name.as_str()), 0);
    config.hostname.clone_from(&name);
    config.log_directory = dir.join(&name);
    fs::create_dir(&config.log_directory).unwrap();
    let begun = SystemClock.now();
    let sandbox = runtime.run_sandbox(&config, "").await.unwrap();
    let first = make(runtime, &sandbox, &config, 0).await;
    let took = since(first.1, begun);
    runtime.stop_container(&first.0, Duration::ZERO).await.unwrap();
    let begun = SystemClock.now();
    let second = make(runtime, &sandbox, &config, 1).await;
    let again = since(second.1, begun);
    runtime.stop_sandbox(&sandbox).await.unwrap();
    runtime.remove_sandbox(&sandbox).await.unwrap();
    (took, again)
}

async fn make(
    runtime: &CriRuntime,
    sandbox: &kubelet_core::SandboxId,
    config: &SandboxConfig,
    attempt: u32,
) -> (ContainerId, Timestamp) {
    let mut container = ContainerConfig::new("app", attempt, ImageRef::new(BUSYBOX_IMAGE));
    container.command = ["/bin/sh", "-c", SCRIPT].map(str::to_owned).to_vec();
    container.log_path = format!("{attempt}.log").into();
    let request = CreateContainer::new(sandbox, config, &container);
    let id = runtime.create_container(request).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let started = runtime.container_status(&id).await.unwrap().started_at.unwrap();
    (id, started)
}

/// How long it takes from a manifest to its container, and from that one's end to the next.
async fn by_kubelet(
    runtime: &CriRuntime,
    handle: &KubeletHandle,
    manifests: &Path,
    number: usize,
) -> (Duration, Duration) {
    let name = format!("pod-{number}");
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "app", "image": BUSYBOX_IMAGE, "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sh", "-c", SCRIPT],
            }],
        },
    });
    let draft = manifests.join(".draft");
    fs::write(&draft, pod.to_string()).unwrap();
    let place = manifests.join(&name);
    let begun = SystemClock.now();
    fs::rename(&draft, &place).unwrap();
    let first = runs(handle, &name, 0).await;
    let took = since(started_at(runtime, &first).await, begun);
    let request = ExecRequest::new(["kill", "1"]);
    // What it answers does not matter: it may end with the container.
    let _ = runtime.exec(&first, request).await;
    let second = runs(handle, &name, 1).await;
    let ended = runtime.container_status(&first).await.unwrap().finished_at.unwrap();
    let again = since(started_at(runtime, &second).await, ended);
    fs::remove_file(&place).unwrap();
    let mut changes = handle.statuses();
    while !handle.pods().is_empty() {
        changes.next().await;
    }
    (took, again)
}

async fn started_at(runtime: &CriRuntime, id: &ContainerId) -> Timestamp {
    runtime.container_status(id).await.unwrap().started_at.unwrap()
}

/// The container of a pod that runs after so many restarts.
async fn runs(handle: &KubeletHandle, name: &str, restarts: i32) -> ContainerId {
    let mut changes = handle.statuses();
    loop {
        for pod in handle.pods() {
            let status = pod.status.filter(|_| pod.pod.key().name.starts_with(name));
            let first = status
                .as_ref()
                .and_then(|status| status.container_statuses.as_ref()?.first());
            if let Some(container) = first.filter(|c| c.restart_count == restarts)
                && container.state.as_ref().is_some_and(|state| state.running.is_some())
                && let Some((_, id)) = container.container_id.as_deref().and_then(|id| id.split_once("://"))
            {
                return ContainerId::from(id);
            }
        }
        changes.next().await.expect("the kubelet runs");
    }
}

fn since(at: Timestamp, begun: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(begun)).unwrap_or_default()
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}
