//! The agent ends, in every way, and starts again.

use std::fs;

use rustix::process::Signal;

use super::agent::{Place, content, pod};

#[test]
fn a_killed_agent_leaves_everything_as_it_is_for_the_next_one() {
    let place = Place::new();
    let (stays, ends, go) = (
        place.path().join("stays"),
        place.path().join("ends"),
        place.path().join("go"),
    );
    place.write(
        "stays.yaml",
        &pod(
            "stays",
            "Always",
            &format!(
                "echo $$$$ > {}; echo one; while ! [ -e {} ]; do sleep 0.1; done; echo two; exec sleep 1000",
                stays.display(),
                go.display()
            ),
        ),
    );
    place.write(
        "ends.yaml",
        &pod(
            "ends",
            "Never",
            &format!(
                "echo $$$$ > {}; while ! [ -e {} ]; do sleep 0.1; done; exit 7",
                ends.display(),
                go.display()
            ),
        ),
    );
    let mut agent = place.start(&[]);
    let (pid, ending) = (content(&stays), content(&ends));
    agent.line(&["stays-n1: Running, ready 1/1"]);
    agent.kill();
    // While nobody looks, one goes on and writes, and the other ends.
    fs::write(&go, "").unwrap();
    while fs::exists(format!("/proc/{}", ending.trim())).unwrap() {
        std::thread::yield_now();
    }
    let mut agent = place.start(&[]);
    agent.line(&["ends-n1: Failed", "restarts 0", "ended with 7"]);
    agent.kill();
    let mut agent = place.start(&[]);
    agent.line(&["stays-n1: Running, ready 1/1, restarts 0"]);
    assert!(fs::exists(format!("/proc/{}", pid.trim())).unwrap());
    assert_eq!(content(&stays), pid, "started once");
    let logs = place.root().join("logs");
    let folder = fs::read_dir(&logs)
        .unwrap()
        .map(|entry| entry.unwrap())
        .find(|entry| entry.file_name().to_string_lossy().starts_with("default_stays-n1_"))
        .unwrap();
    let log = folder.path().join("app/0.log");
    let text = loop {
        let text = fs::read_to_string(&log).unwrap();
        if text.contains("two") {
            break text;
        }
        std::thread::yield_now();
    };
    let said: Vec<&str> = text.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(said, ["one", "two"]);
}

#[test]
fn an_interrupt_leaves_pods_running_and_says_which() {
    let place = Place::new();
    let told = place.path().join("told");
    place.write(
        "app.yaml",
        &pod(
            "app",
            "Always",
            &format!("echo $$$$ > {}; exec sleep 1000", told.display()),
        ),
    );
    let mut agent = place.start(&[]);
    let pid = content(&told);
    agent.line(&["app-n1: Running, ready 1/1"]);
    agent.signal(Signal::INT);
    agent.line(&["the agent has ended; 1 pods keep running: default/app-n1"]);
    assert!(agent.end());
    assert!(fs::exists(format!("/proc/{}", pid.trim())).unwrap());
    let mut agent = place.start(&["--stop-pods"]);
    agent.line(&["app-n1: Running, ready 1/1, restarts 0"]);
    agent.signal(Signal::TERM);
    agent.line(&["the agent has ended; no pod runs"]);
    assert!(agent.end());
    assert!(!fs::exists(format!("/proc/{}", pid.trim())).unwrap());
}
