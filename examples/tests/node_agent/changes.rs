//! What a user does to the folder of manifests while the agent runs, with the periodic read out of the way.

use std::fs;
use std::process::Command;

use super::agent::{Place, content, pod};

const HOURLY: [&str; 2] = ["--period", "3600"];

/// A pod that tells its version in a file, and goes on.
fn telling(place: &Place, version: u32) -> String {
    let told = place.path().join(format!("v{version}"));
    pod(
        "app",
        "Always",
        &format!("echo $$$$ > {}; exec sleep 1000", told.display()),
    )
}

#[test]
fn files_added_edited_replaced_and_deleted_are_followed() {
    let place = Place::new();
    let mut agent = place.start(&HOURLY);
    agent.line(&["logs in"]);
    place.write("app.yaml", &telling(&place, 1));
    content(&place.path().join("v1"));
    // In place.
    place.write("app.yaml", &telling(&place, 2));
    content(&place.path().join("v2"));
    // By renaming a new file over it.
    fs::write(place.path().join("new"), telling(&place, 3)).unwrap();
    fs::rename(place.path().join("new"), place.manifests().join("app.yaml")).unwrap();
    content(&place.path().join("v3"));
    fs::remove_file(place.manifests().join("app.yaml")).unwrap();
    agent.line(&["pod default/app-n1 has left the node"]);
}

#[test]
fn an_edit_with_vim_is_followed() {
    if std::env::var_os("KUBELET_TEST_SLOW").is_none() {
        println!("skipped: KUBELET_TEST_SLOW is not set");
        return;
    }
    let vim = ["vim.tiny", "vim"].into_iter().find(|program| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output();
        found.is_ok_and(|output| output.status.success())
    });
    let Some(vim) = vim else {
        let why = "vim is not installed";
        assert!(std::env::var_os("KUBELET_TEST_REQUIRE").is_none(), "{why}");
        println!("skipped: {why}");
        return;
    };
    let place = Place::new();
    place.write("app.yaml", &telling(&place, 1));
    let mut agent = place.start(&HOURLY);
    content(&place.path().join("v1"));
    let edited = Command::new(vim)
        .args(["-u", "NONE", "-i", "NONE", "-es", "-c", "set backup writebackup", "-c"])
        .args(["%s/v1/v2/", "-c", "wq"])
        .arg(place.manifests().join("app.yaml"))
        .status();
    assert!(edited.unwrap().success());
    content(&place.path().join("v2"));
    // Backups and swap files are no manifests.
    fs::remove_file(place.manifests().join("app.yaml")).unwrap();
    agent.line(&["pod default/app-n1 has left the node"]);
}

#[test]
fn a_broken_edit_leaves_the_last_good_version_running_over_restarts_too() {
    if std::env::var_os("KUBELET_TEST_SLOW").is_none() {
        println!("skipped: KUBELET_TEST_SLOW is not set");
        return;
    }
    let place = Place::new();
    place.write("app.yaml", &telling(&place, 1));
    let mut agent = place.start(&HOURLY);
    let pid = content(&place.path().join("v1"));
    let broken = telling(&place, 2).replace("localhost/host", "[1]");
    place.write("app.yaml", &broken);
    agent.line(&["app.yaml", "FailedValidation", "spec.containers"]);
    agent.kill();
    let mut agent = place.start(&HOURLY);
    agent.line(&["app.yaml", "FailedValidation", "spec.containers"]);
    agent.line(&["pod default/app-n1: Running, ready 1/1, restarts 0"]);
    assert!(fs::exists(format!("/proc/{}", pid.trim())).unwrap());
    place.write("app.yaml", &telling(&place, 3));
    content(&place.path().join("v3"));
}
