//! Logs of a real runtime: rotated and followed while they are written, and linked.

use std::fs;
use std::time::Duration;

use kubelet_core::{ContainerTarget, LogOptions, LogRotation, PodUid, Settings};
use serde_json::json;

use crate::node::{Node, is_running, on_both, pod, sh};

on_both!(a_log_of_200_kb_a_second_is_followed_over_its_rotations_and_linked);

const LINES: usize = 10_000;

async fn a_log_of_200_kb_a_second_is_followed_over_its_rotations_and_linked(node: Node) {
    let links = node.path("links");
    let mut settings = Settings::default();
    settings.log_check_period = Duration::from_millis(200);
    let mut rotation = LogRotation::default();
    rotation.max_size_bytes = 200_000;
    let agent = node
        .start_with(|builder| {
            builder
                .settings(settings)
                .log_rotation(rotation)
                .container_logs_dir(Some(links.clone()))
        })
        .await;
    // A hundred bytes each, twenty each ten milliseconds; it begins once somebody reads.
    let script = format!(
        "echo begin; sleep 1; i=0; while [ $i -lt {LINES} ]; do \
         echo \"line $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"; \
         i=$((i+1)); [ $((i%20)) = 0 ] && usleep 10000; done; echo end; \
         trap 'exit 0' TERM; while :; do sleep 0.2; done"
    );
    let talker = pod("talker", json!({"containers": [sh("app", &script)]}));
    agent.pods.set(vec![talker]).await.unwrap();
    agent.until("it runs", |all| is_running(all, "talker", "app")).await;

    let target = ContainerTarget::new(PodUid::from("uid-of-talker"), "app");
    let mut options = LogOptions::default();
    options.follow = true;
    let mut log = agent.handle.logs(&target, options).await.unwrap();
    let read = async {
        let mut text = Vec::new();
        while !text.ends_with(b"\nend\n") {
            text.extend_from_slice(&log.next().await.expect("the container runs").unwrap());
        }
        String::from_utf8(text).unwrap()
    };
    let text = tokio::time::timeout(Duration::from_secs(120), read)
        .await
        .expect("the log ends");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("begin"));
    for number in 0..LINES {
        let line = lines.next().unwrap_or_default();
        assert!(
            line.starts_with(&format!("line {number} ")),
            "{line} instead of line {number}"
        );
    }
    assert_eq!(lines.next(), Some("end"));
    // By now also the step that started it has ended.
    let linked: Vec<_> = fs::read_dir(&links)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(linked.len(), 1);
    let name = linked[0].file_name().unwrap().to_string_lossy().into_owned();
    assert!(
        name.starts_with("talker_default_app-") && name.ends_with(".log"),
        "{name}"
    );
    let logs = fs::read_link(&linked[0]).unwrap();
    assert!(
        logs.ends_with("default_talker_uid-of-talker/app/0.log"),
        "{}",
        logs.display()
    );
    let files = fs::read_dir(logs.parent().unwrap()).unwrap().count();
    assert!(
        (3..=5).contains(&files),
        "{files} files are left of a log that was rotated"
    );

    agent.stop_with_pods(&node).await;
    assert_eq!(fs::read_dir(&links).unwrap().count(), 0);
    node.containerd.stop().await.unwrap();
}
