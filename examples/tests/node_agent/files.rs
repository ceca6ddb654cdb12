//! Manifests that change while the agent runs. It reads all files once an hour here: changes are followed by watching.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use kubelet_testing::contract::skip;

use crate::harness::{Node, sleeper};

const HOURLY: [&str; 2] = ["--period", "3600"];

/// A node with one running pod, `a`, in version `one`.
fn node_with_pod() -> Node {
    let mut node = Node::new();
    node.write("a.yaml", &sleeper("a", "one"));
    node.start(&HOURLY);
    node.running("a");
    node.process("VERSION=one");
    node
}

/// Waits for the pod's next version, which is then the only one.
fn assert_followed(node: &mut Node, version: &str) {
    node.line("pod default/a-n1 has left the node");
    node.running("a");
    let process = node.process(&format!("VERSION={version}"));
    assert_eq!(node.processes(), [process].into());
}

#[test]
fn a_file_that_is_added_is_followed() {
    let mut node = node_with_pod();
    node.write("b.yaml", &sleeper("b", "two"));
    node.running("b");
    assert_ne!(node.process("VERSION=two"), node.process("VERSION=one"));
}

#[test]
fn a_file_that_is_edited_in_place_is_followed() {
    let mut node = node_with_pod();
    node.write("a.yaml", &sleeper("a", "two"));
    assert_followed(&mut node, "two");
}

#[test]
fn a_file_that_is_edited_with_vim_is_followed() {
    let has = |program: &&&str| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let Some(vim) = ["vim.tiny", "vi", "vim"].iter().find(has) else {
        return skip("a_file_that_is_edited_with_vim_is_followed", "vim is not installed");
    };
    let mut node = node_with_pod();
    // Once as vim does where it keeps the file, and once where it writes another one.
    for (copy, edit, version) in [
        ("set backupcopy=yes", "%s/one/two/", "two"),
        ("set backupcopy=no", "%s/two/three/", "three"),
    ] {
        let inode = || fs::metadata(node.manifest("a.yaml")).unwrap().ino();
        let before = inode();
        let edited = Command::new(vim)
            .args(["-e", "-s", "-N", "-u", "NONE"])
            // For files in /tmp it would make no backups, and write them in place.
            .args(["-c", "set backupskip=", "-c", copy, "-c", edit, "-c", "wq"])
            .arg(node.manifest("a.yaml"))
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(edited.success(), "{vim} ended with {edited}");
        assert_eq!(inode() != before, version == "three");
        assert_followed(&mut node, version);
    }
}

#[test]
fn a_file_that_is_replaced_by_another_is_followed() {
    let mut node = node_with_pod();
    let new = node.path("new.yaml");
    fs::write(&new, sleeper("a", "two")).unwrap();
    fs::rename(new, node.manifest("a.yaml")).unwrap();
    assert_followed(&mut node, "two");
}

#[test]
fn a_file_that_is_deleted_ends_its_pod() {
    let mut node = node_with_pod();
    fs::remove_file(node.manifest("a.yaml")).unwrap();
    node.line("pod default/a-n1 has left the node");
    assert!(node.processes().is_empty());
}

#[test]
fn a_broken_edit_leaves_the_last_good_version_running() {
    let mut node = node_with_pod();
    let process = node.process("VERSION=one");
    let good = sleeper("a", "two");
    let complaint = format!("manifest {}: ", node.manifest("a.yaml").display());
    node.write("a.yaml", &good.replace("[sleep, infinity]", "{sleep: infinity}"));
    node.line(&complaint);
    // A change that is followed shows that the agent has done with the broken one.
    node.write("b.yaml", &sleeper("b", "other"));
    node.running("b");
    assert_eq!(node.process("VERSION=one"), process);

    node.interrupt();
    node.start(&HOURLY);
    node.lines(&[
        &complaint,
        "pod default/a-n1: Running, ready 1/1, restarts 0",
        "pod default/b-n1: Running, ready 1/1, restarts 0",
    ]);
    assert_eq!(node.process("VERSION=one"), process);

    fs::remove_file(node.manifest("b.yaml")).unwrap();
    node.line("pod default/b-n1 has left the node");
    node.write("a.yaml", &good);
    assert_followed(&mut node, "two");
}
