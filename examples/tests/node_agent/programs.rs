//! The other programs of this package.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::harness::Program;

#[test]
fn the_first_program_ends_by_itself_once_its_pod_has_succeeded() {
    let mut program = Program::start(Command::new(env!("CARGO_BIN_EXE_first")));
    let (status, said) = program.rest();
    assert!(status.success(), "{said:?}");
    assert_eq!(
        said.last().map(String::as_str),
        Some("default/job is Succeeded"),
        "{said:?}"
    );
}

#[test]
fn the_virtual_node_shows_its_pods_as_running() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtual-node"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests"));
    let mut program = Program::start(command);
    program.lines(&["default/plain-virtual Running", "default/completes-virtual Running"]);
    program.signal(Signal::INT);
    let (status, said) = program.rest();
    assert!(status.success(), "{said:?}");
}

#[test]
fn the_embedded_kubelet_ends_with_ctrl_c_from_its_first_line_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_embed"));
    command.env("TMPDIR", dir.path());
    let mut program = Program::start(command);
    program.line("the pod's log is below");
    program.signal(Signal::INT);
    let (status, said) = program.rest();
    assert!(status.success(), "{status}: {said:?}");
    assert!(
        said.last().is_some_and(|line| line.starts_with("StopReport")),
        "{said:?}"
    );
}

#[test]
fn the_readme_shows_the_example_as_it_is() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &str| fs::read_to_string(package.join(path)).unwrap();
    let embed = text("embed.rs");
    let (_, code) = embed.split_once("\n\n").unwrap();
    assert!(text("../README.md").contains(&format!("```rust\n{code}```\n")));
}
