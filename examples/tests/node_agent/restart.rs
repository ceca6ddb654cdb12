//! The end of the agent, and its next life.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::harness::{Node, Pipe, Program, ended, once, sleeper};

/// The log files of a pod's only container.
fn logs(node: &Node, pod: &str) -> Vec<PathBuf> {
    let begin = node.root().join("logs").join(format!("default_{pod}-n1_"));
    let folders = entries(&node.root().join("logs"));
    let of_pod = |path: &&PathBuf| path.to_string_lossy().starts_with(&*begin.to_string_lossy());
    let folders: Vec<&PathBuf> = folders.iter().filter(of_pod).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    entries(&folders[0].join("app"))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn a_killed_agent_finds_everything_as_it_is() {
    let mut node = Node::new();
    let (mut tell, mut end, mut fail) = (node.pipe("tell"), node.pipe("end"), node.pipe("fail"));
    let wait = |pipe: &Pipe| format!("read line < {}", pipe.path().display());
    let talk = format!("echo before; {}; echo after; {}", wait(&tell), wait(&end));
    node.write("talks.yaml", &once("talks", &talk));
    node.write("fails.yaml", &once("fails", &format!("{}; exit 7", wait(&fail))));
    node.write("sleeps.yaml", &sleeper("sleeps", "one"));
    node.start(&[]);
    let running = [
        "pod default/talks-n1: Running, ready 1/1, restarts 0",
        "pod default/sleeps-n1: Running, ready 1/1, restarts 0",
    ];
    node.lines(&[running[0], running[1], "pod default/fails-n1: Running, ready 1/1"]);
    let of = |node: &Node| (node.process("SCRIPT_OF=talks"), node.process("VERSION=one"));
    let before = of(&node);
    let fails = node.supervisor(node.process("SCRIPT_OF=fails"));

    node.kill();
    assert_eq!(of(&node), before);
    fail.go();
    tell.go();
    ended(fails);
    node.start(&[]);
    node.lines(&[
        running[0],
        running[1],
        "pod default/fails-n1: Failed, ready 0/1, restarts 0 (app ended with 7)",
    ]);
    assert_eq!(of(&node), before);

    end.go();
    node.line("pod default/talks-n1: Succeeded");
    let files = logs(&node, "talks");
    assert_eq!(files.len(), 1, "{files:?}");
    let log = fs::read_to_string(&files[0]).unwrap();
    let lines: Vec<&str> = log.lines().filter_map(|line| line.split(' ').nth(3)).collect();
    assert_eq!(lines, ["before", "after"], "{log}");
}

#[test]
fn an_interrupted_agent_leaves_its_pods_and_says_which() {
    let mut node = Node::new();
    node.write("a.yaml", &sleeper("a", "one"));
    node.write("b.yaml", &once("b", "exit 0"));
    node.start(&[]);
    node.lines(&["pod default/a-n1: Running, ready 1/1", "pod default/b-n1: Succeeded"]);
    let process = node.process("VERSION=one");
    let (status, last) = node.interrupt();
    assert!(status.success(), "{status}");
    let last = last.last().expect("it says something");
    assert!(last.contains("1 pod keeps running: default/a-n1 ("), "{last}");
    assert_eq!(node.processes(), [process].into());
}

#[test]
fn an_agent_that_is_told_so_ends_its_pods_and_says_so() {
    let mut node = Node::new();
    node.write("a.yaml", &sleeper("a", "one"));
    node.start(&["--stop-pods"]);
    node.running("a");
    let (status, last) = node.interrupt();
    assert!(status.success(), "{status}");
    assert_eq!(last.last().unwrap(), "the agent has ended; no pod runs");
    assert!(node.processes().is_empty());
}

#[test]
fn the_next_agent_ends_the_pods_that_the_last_one_left() {
    let mut node = Node::new();
    node.write("a.yaml", &sleeper("a", "one"));
    node.start(&[]);
    node.running("a");
    node.interrupt();
    node.start(&["--stop-pods"]);
    node.running("a");
    let (_, last) = node.interrupt();
    assert_eq!(last.last().unwrap(), "the agent has ended; no pod runs");
    assert!(node.processes().is_empty());
}

#[test]
fn a_second_agent_on_the_same_folder_names_it_and_ends() {
    let mut node = Node::new();
    node.write("a.yaml", &sleeper("a", "one"));
    node.start(&[]);
    node.running("a");
    let process = node.process("VERSION=one");
    let mut second = Program::start(node.command(&[]));
    let (status, said) = second.rest();
    assert_eq!(status.code(), Some(1));
    let folder = node.root().join("process").display().to_string();
    let error = format!("error: state directory {folder} is in use");
    assert!(said.iter().any(|line| line.starts_with(&error)), "{said:?}");
    assert_eq!(node.processes(), [process].into());
}

#[test]
fn a_second_signal_ends_the_agent_at_once() {
    let node = Node::new();
    // It does not end when it is asked to.
    let deaf = sleeper("deaf", "one").replace("[sleep, infinity]", "[/bin/sh, -c, 'trap \"\" TERM; sleep infinity']");
    node.write(
        "deaf.yaml",
        &deaf.replace("GracePeriodSeconds: 2", "GracePeriodSeconds: 3600"),
    );
    let mut agent = Program::start(node.command(&["--stop-pods"]));
    agent.line("pod default/deaf-n1: Running, ready 1/1");
    agent.signal(Signal::TERM);
    agent.line("Killing: Stopping container app");
    agent.signal(Signal::TERM);
    let (status, last) = agent.rest();
    assert_eq!(status.code(), Some(1));
    assert!(last.last().unwrap().starts_with("error: ended at once"), "{last:?}");
}
