//! What ends up in a container's log.

use kubelet_core::ContainerRuntime;

use crate::harness::{BOTH, Mode, Node};

#[tokio::test]
async fn both_streams_long_lines_and_unfinished_ones_are_logged() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let script = "echo one; echo two >&2; head -c 40000 /dev/zero | tr '\\0' x; echo; printf last";
        let id = node.running(script).await;
        let log = Node::log(&node.exited(&id).await);
        let of = |stream: &str| -> Vec<&str> { log.iter().filter_map(|record| record.strip_prefix(stream)).collect() };
        assert_eq!(of("stderr "), ["F two"]);
        let full = "x".repeat(16 << 10);
        let expected = [
            "F one".to_owned(),
            format!("P {full}"),
            format!("P {full}"),
            format!("F {}", "x".repeat(40_000 - (32 << 10))),
            "P last".to_owned(),
        ];
        assert_eq!(of("stdout "), expected);
    }
}

#[tokio::test]
async fn everything_that_was_written_before_the_end_is_logged() {
    let node = Node::start(Mode::Supervised).await;
    let id = node.running("seq 1 20000").await;
    let log = Node::log(&node.exited(&id).await);
    assert_eq!(log.len(), 20_000);
    assert_eq!(log.last().unwrap(), "stdout F 20000");
}

#[tokio::test]
async fn a_reopened_log_goes_on_in_a_new_file() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let (before, go) = (node.pipe("before"), node.pipe("go"));
        let id = node
            .running("echo first; echo > $T/before; read line < $T/go; echo second")
            .await;
        before.read().await;
        let path = node.status(&id).await.log_path.unwrap();
        // Written when exec answers, since the supervisor takes one thing after the other.
        node.exec(&id, "true").await;
        let rotated = path.with_extension("log.1");
        std::fs::rename(&path, &rotated).unwrap();
        node.runtime().reopen_log(&id).await.unwrap();
        assert!(path.exists(), "the answer comes after the new file");
        go.write().await;
        let status = node.exited(&id).await;
        assert_eq!(Node::log(&status), ["stdout F second"], "{mode:?}");
        let old = std::fs::read_to_string(rotated).unwrap();
        assert!(old.ends_with("stdout F first\n") && old.lines().count() == 1);
        node.runtime().reopen_log(&id).await.unwrap();
    }
}
