//! How fast a burst of pods comes up on a private containerd, with the limit of starts and without it.
//!
//! As root, with the components of the tests: `cargo run --release -p kubelet-cri --example burst -- 50`

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an example that measures: it prints, and ends where something is wrong"
)]

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{CancellationToken, ChannelSource, Containers, Kubelet, OnStop, Settings, StartLimits};
use kubelet_cri::CriRuntime;
use kubelet_pleg::EventedPleg;
use kubelet_testing::{BUSYBOX_IMAGE, Containerd, PrivateContainerd};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

#[tokio::main]
async fn main() {
    let pods = std::env::args()
        .nth(1)
        .map_or(50, |text| text.parse().expect("a number of pods"));
    for version in [Containerd::V1_6, Containerd::V2] {
        let containerd = PrivateContainerd::start(version).await.unwrap();
        println!(
            "containerd {}, {pods} pods of one container",
            containerd.reported_version()
        );
        let without = StartLimits::fixed(NonZeroUsize::MAX);
        // The first burst of a containerd is slower than all later ones.
        burst("warm", &containerd, pods, StartLimits::default()).await;
        for _ in 0..2 {
            burst("limited", &containerd, pods, StartLimits::default()).await;
            burst("unlimited", &containerd, pods, without.clone()).await;
        }
        containerd.stop().await.unwrap();
    }
}

/// Starts the pods, says when the first, half of them and all were up, and ends them.
async fn burst(name: &str, containerd: &PrivateContainerd, count: usize, limits: StartLimits) {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = Settings::default();
    settings.start_limits = limits;
    let (pods, source) = ChannelSource::new("api");
    let runtime = CriRuntime::connect(&containerd.endpoint()).await.unwrap();
    let kubelet = Kubelet::builder("node-1", Containers::new(runtime, EventedPleg::default()))
        .source(source)
        .settings(settings)
        .root_dir(dir.path().join("root"))
        .pod_logs_dir(dir.path().join("logs"))
        .on_stop(OnStop::LeavePods)
        .build()
        .unwrap();
    let (handle, stop) = (kubelet.handle(), CancellationToken::new());
    let mut task = JoinSet::new();
    task.spawn(kubelet.run(stop.clone()));
    pods.set(Vec::new()).await.unwrap();

    let mut changes = handle.statuses();
    let begun = Instant::now();
    pods.set((0..count).map(|number| pod(name, number)).collect())
        .await
        .unwrap();
    let mut up_at: Vec<Duration> = Vec::new();
    while up_at.len() < count {
        changes.next().await.unwrap();
        let phases = handle.pods().into_iter().filter_map(|pod| pod.status?.phase.clone());
        let up = phases.filter(|phase| phase == "Running").count();
        up_at.resize(up.max(up_at.len()), begun.elapsed());
    }
    let (first, half, all) = (up_at[0], up_at[(count - 1) / 2], up_at[count - 1]);
    let share = 100.0 * half.as_secs_f64() / all.as_secs_f64();
    println!("{name:>10}: first {first:.2?}, half {half:.2?} ({share:.0} %), all {all:.2?}");

    pods.set(Vec::new()).await.unwrap();
    while !handle.pods().is_empty() {
        changes.next().await;
    }
    stop.cancel();
    while task.join_next().await.is_some() {}
    assert!(!has_folders(&dir.path().join("logs")), "logs of pods are left");
}

fn has_folders(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

fn pod(name: &str, number: usize) -> Pod {
    let name = format!("{name}-{number}");
    let script = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done";
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}")},
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [{"name": "app", "image": BUSYBOX_IMAGE, "command": ["/bin/sh", "-c", script]}],
        },
    }))
    .unwrap()
}
