//! An agent that is an ordinary user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
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
        fs::set_permissions(node.path(""), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(node.root()).unwrap();
        chown(node.root(), Some(NOBODY), Some(NOBODY)).unwrap();
        // The build's own folder may be closed to others. `cp` runs by itself: a file that this process wrote could
        // still be open in the child of another test, and then not be executed.
        let copy = node.path("node-agent");
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_node-agent"))
            .arg(&copy)
            .status()
            .unwrap();
        assert!(copied.success());
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(copy).args(node.command(&[]).get_args());
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
