//! The sample manifests, and what a user is told.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::agent::{Place, pod};

fn copy_samples(place: &Place) {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    for entry in fs::read_dir(samples).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), place.manifests().join(entry.file_name())).unwrap();
    }
}

#[test]
fn the_sample_manifests_run_and_the_bad_one_is_named() {
    if std::env::var_os("KUBELET_TEST_SLOW").is_none() {
        println!("skipped: KUBELET_TEST_SLOW is not set");
        return;
    }
    let place = Place::new();
    copy_samples(&place);
    let mut agent = place.start(&[]);
    let bad = agent.line(&["bad.yaml", "eighty"]);
    assert!(bad.contains("line 12"), "{bad}");
    assert!(bad.contains("spec.containers[0].ports[0].containerPort"), "{bad}");
    // In whatever order: each is waited for by an agent of its own, which the next one takes over from.
    for (name, state) in [
        ("plain", "Running, ready 1/1"),
        ("init", "Running, ready 1/1"),
        ("sidecar", "Running, ready 1/1"),
        ("completes", "Succeeded"),
    ] {
        agent.kill();
        agent = place.start(&[]);
        agent.line(&[&format!("pod default/{name}-n1: {state}")]);
    }
    agent.line(&["crash-loop", "CrashLoopBackOff", "back-off 10s"]);
    agent.line(&["crash-loop", "CrashLoopBackOff", "back-off 20s"]);
    agent.kill();
    let mut agent = place.start(&["--stop-pods"]);
    agent.line(&["pod default/plain-n1: Running, ready 1/1"]);
    agent.signal(Signal::INT);
    agent.line(&["the agent has ended; no pod runs"]);
    assert!(agent.end());
    assert_eq!(place.processes(), Vec::<i32>::new());
}

#[test]
fn an_unknown_image_names_its_folder_and_hurts_no_other() {
    if std::env::var_os("KUBELET_TEST_SLOW").is_none() {
        println!("skipped: KUBELET_TEST_SLOW is not set");
        return;
    }
    let place = Place::new();
    place.write("other.yaml", &pod("other", "Always", "sleep 1000"));
    place.write(
        "lost.yaml",
        &pod("lost", "Always", "true").replace("localhost/host", "registry.example/lost:1"),
    );
    let mut agent = place.start(&[]);
    let line = agent.line(&["lost", "Failed to pull image"]);
    assert!(line.contains(place.root().join("images").to_str().unwrap()), "{line}");
    agent.line(&["lost", "ImagePullBackOff"]);
    agent.kill();
    let mut agent = place.start(&[]);
    agent.line(&["pod default/other-n1: Running, ready 1/1"]);
}

#[test]
fn a_second_agent_on_one_folder_is_refused() {
    let place = Place::new();
    place.write("app.yaml", &pod("app", "Always", "sleep 1000"));
    let mut first = place.start(&[]);
    first.line(&["pod default/app-n1: Running"]);
    let mut second = place.start(&[]);
    second.line(&["error:", "in use by another runtime", place.root().to_str().unwrap()]);
    assert!(!second.end());
}

#[test]
fn pods_get_what_a_folder_of_objects_serves() {
    if std::env::var_os("KUBELET_TEST_SLOW").is_none() {
        println!("skipped: KUBELET_TEST_SLOW is not set");
        return;
    }
    let place = Place::new();
    let objects = place.path().join("objects");
    fs::create_dir(&objects).unwrap();
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n  COLOUR: blue\n";
    fs::write(objects.join("settings.yaml"), map).unwrap();
    let told = place.path().join("told");
    let text = pod("app", "Never", &format!("echo $COLOUR > {}", told.display()));
    place.write(
        "app.yaml",
        &format!("{text}      envFrom:\n        - configMapRef:\n            name: settings\n"),
    );
    let mut agent = place.start(&["--objects", objects.to_str().unwrap()]);
    agent.line(&["pod default/app-n1: Succeeded"]);
    assert_eq!(fs::read_to_string(told).unwrap(), "blue\n");
}

#[test]
fn an_ordinary_user_runs_pods() {
    if !rustix::process::geteuid().is_root() {
        // Then every test here is this one.
        return;
    }
    let place = Place::new();
    place.write("app.yaml", &pod("app", "Never", "id -u; exit 5"));
    let root = "runAsUser: 0";
    place.write(
        "root.yaml",
        &format!(
            "{}      securityContext:\n        {root}\n",
            pod("root", "Always", "sleep 1000")
        ),
    );
    // The program may be in a folder that only root can enter.
    let program = place.path().join("node-agent");
    fs::copy(env!("CARGO_BIN_EXE_node-agent"), &program).unwrap();
    let everybody = Command::new("chmod").args(["-R", "a+rwX"]).arg(place.path()).status();
    assert!(everybody.unwrap().success());
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program);
    let mut agent = place.start_as(command, &[]);
    agent.line(&["pod default/app-n1: Failed", "ended with 5"]);
    agent.kill();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(place.path().join("node-agent"));
    let mut agent = place.start_as(command, &[]);
    agent.line(&["root", "Failed: Error:"]);
}

#[test]
fn the_first_example_ends_by_itself() {
    if std::env::var_os("KUBELET_TEST_SLOW").is_none() {
        println!("skipped: KUBELET_TEST_SLOW is not set");
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_first")).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("default/job is Succeeded"), "{text}");
}
