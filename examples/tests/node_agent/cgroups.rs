//! Cgroups of the pods of an agent whose containers are processes of this machine.

use std::fs;
use std::process::Command;

use kubelet_testing::CgroupRoot;
use kubelet_testing::contract::skip;

use crate::harness::{Node, Program, pod, sleeper};

const NOBODY: u32 = 65534;

#[test]
fn limits_hold_and_cgroups_go_with_their_pods() {
    let Some(root) = CgroupRoot::v1_or_skip("limits_hold_and_cgroups_go_with_their_pods") else {
        return;
    };
    let mut node = Node::new();
    let path = root.path();
    let limited = "  restartPolicy: Never
  containers:
    - name: app
      image: localhost/host
      command: [tail, /dev/zero]
      resources: {limits: {memory: 16Mi}}
";
    node.write("large.yaml", &pod("large", limited));
    node.write("steady.yaml", &sleeper("steady", "one"));
    let args = ["--cgroup-root", &path, "--pod-max-pids", "50"];
    node.start(&args);
    node.lines(&[
        "pod default/steady-n1: Running, ready 1/1",
        "app ended with 137 (OOMKilled)",
    ]);
    let process = node.process("VERSION=one");
    let of_process = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    let memory = of_process
        .lines()
        .find_map(|line| line.split_once(":memory:"))
        .unwrap()
        .1;
    let inside = memory.strip_prefix(&format!("{path}/")).unwrap();
    let of_pod = inside.strip_suffix("/app").unwrap();
    assert!(of_pod.starts_with("kubepods/besteffort/pod"), "{of_pod}");
    assert_eq!(root.value(of_pod, "pids.max").as_deref(), Some("50"));
    assert_eq!(root.value(inside, "cpu.shares").as_deref(), Some("2"));

    // What runs is in its cgroup in the next life too, and no other one is left.
    node.kill();
    fs::remove_file(node.manifest("large.yaml")).unwrap();
    node.start(&args);
    node.running("steady");
    assert_eq!(node.process("VERSION=one"), process);
    fs::remove_file(node.manifest("steady.yaml")).unwrap();
    node.line("pod default/steady-n1 has left the node");
    let folder = root.folder("memory", of_pod);
    assert!(!folder.exists(), "{}", folder.display());
    node.interrupt();
}

#[test]
fn who_asks_for_cgroups_that_cannot_be_is_told() {
    let node = Node::new();
    let mut agent = Program::start(node.command(&["--cgroups-per-qos", "--cgroup-root", "elsewhere"]));
    agent.line("cgroups cannot be used: \"elsewhere\" does not begin with /");
    assert!(!agent.rest().0.success());
    let mut agent = Program::start(node.command(&["--cgroup-root", "/", "--enforce-node-allocatable", "pods,none"]));
    agent.line("none stands alone");
    assert!(!agent.rest().0.success());
}

#[test]
fn pods_of_an_ordinary_user_run_without() {
    const TEST: &str = "pods_of_an_ordinary_user_run_without";
    if !rustix::process::geteuid().is_root() || Command::new("setpriv").arg("--version").output().is_err() {
        return skip(TEST, "it takes root and setpriv to start the agent as another user");
    }
    let mut node = Node::new();
    node.write("mine.yaml", &sleeper("mine", "one"));
    let command = node.command_of(NOBODY, &["--cgroup-root", "/kubelet-test-of-nobody"]);
    node.start_as(command);
    node.line("pods have no cgroups of their own: ");
    node.running("mine");
    node.interrupt();
}
