//! An agent that is an ordinary user.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use kubelet_testing::contract::skip;

use crate::harness::{Node, pod, sleeper};

const NOBODY: u32 = 65534;

#[test]
fn an_ordinary_user_runs_pods_but_not_as_root() {
    let mut node = Node::new();
    node.write("mine.yaml", &sleeper("mine", "one"));
    node.write(
        "root.yaml",
        &pod(
            "root",
            "  securityContext: {runAsUser: 0}
  containers:
    - {name: app, image: localhost/host, command: [sleep, infinity]}
",
        ),
    );
    if rustix::process::geteuid().is_root() {
        if Command::new("setpriv").arg("--version").output().is_err() {
            return skip(
                "an_ordinary_user_runs_pods_but_not_as_root",
                "setpriv, which starts the agent as another user, is not installed",
            );
        }
        let command = node.command_of(NOBODY, &[]);
        node.start_as(command);
    } else {
        node.start(&[]);
    }
    node.lines(&[
        "pod default/mine-n1: Running, ready 1/1",
        "pod default/root-n1: CreateContainerError, ready 0/1, restarts 0 (cannot run as user 0: the agent runs as user",
    ]);
    let process = node.process("VERSION=one");
    let owner = |path: &Path| fs::metadata(path).unwrap().uid();
    assert_eq!(owner(Path::new(&format!("/proc/{process}"))), owner(&node.root()));
}
