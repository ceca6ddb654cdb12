//! Faults that kubelets had in public with the logs of containers, each a test of its kind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::io::Write;
use std::time::Duration;

use kubelet_core::{ContainerState, LogRotation, StateDir};
use kubelet_testing::{Op, PodBuilder};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;

#[tokio::test(start_paused = true)]
async fn the_logs_of_a_container_that_writes_much_and_crashes_are_bounded() {
    let root = tempfile::tempdir().unwrap();
    let logs = root.path().join("logs");
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| {
        let mut rotation = LogRotation::default();
        (rotation.max_size_bytes, rotation.max_files) = (10_000, 3);
        b.root_dir(root.path().join("root"))
            .pod_logs_dir(&logs)
            .log_rotation(rotation)
    });
    let pod = PodBuilder::new("p").uid("u").container("app", |c| c).build();
    node.pods.set(vec![pod]).await.unwrap();
    node.running("p").await;
    let dir = logs.join("default_p_u/app");
    let bytes = || -> u64 {
        let files = std::fs::read_dir(&dir).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    let mut most = 0;
    for second in 0..3000 {
        sleep(Duration::from_secs(1)).await;
        let container = runtime.containers().pop().unwrap();
        if container.state == ContainerState::Running {
            // 10 kB of a second's output each; whoever opens the log of a path that is gone makes it.
            let log = std::fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(container.log_path.unwrap());
            log.unwrap().write_all(&[b'x'; 1000]).unwrap();
        }
        if second % 120 == 119 {
            runtime.kill_container(&container.id, 1);
            if second % 240 == 239 {
                // Somebody else removes it, and leaves its logs.
                sleep(Duration::from_secs(2)).await;
                runtime.vanish_container(&container.id);
            }
        }
        most = most.max(bytes());
    }
    assert!(
        runtime.count(Op::StartContainer) >= 10,
        "{}",
        runtime.count(Op::StartContainer)
    );
    assert!(runtime.count(Op::ReopenLog) >= 50, "{}", runtime.count(Op::ReopenLog));
    // Two instances of three files, each of which may grow for another period.
    assert!(most <= 2 * 3 * (10_000 + 10 * 1000), "{most} bytes");
    node.pods.set(Vec::new()).await.unwrap();
    node.until("gone", |node| node.named("p").is_none()).await;
    assert!(!logs.join("default_p_u").exists());
    node.stop().await;
}
