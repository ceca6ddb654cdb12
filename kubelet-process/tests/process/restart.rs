//! What a restarted agent makes of what it finds.

use std::fs;
use std::time::Duration;

use kubelet_core::{ContainerId, ContainerRuntime, ContainerState, ContainerStatus, SandboxState, Scope};
use kubelet_process::{OpenError, ProcessRuntime};

use crate::harness::{BOTH, HOUR, Mode, Node, ended, kill, runs};

fn is_lost(status: &ContainerStatus) -> bool {
    status.state == ContainerState::Exited
        && status.exit_code == 137
        && status.reason == "ContainerStatusUnknown"
        && status.finished_at.is_some()
}

#[tokio::test]
async fn a_running_container_is_adopted_and_goes_on() {
    let mut node = Node::start(Mode::Supervised).await;
    let (ready, go) = (node.pipe("ready"), node.pipe("go"));
    let id = node
        .running("echo before; echo > $T/ready; read line < $T/go; echo after; exit 6")
        .await;
    ready.read().await;
    let (before, main) = (node.status(&id).await, node.main_pid(&id));
    node.go_away();
    node.come_back().await;
    let after = node.status(&id).await;
    assert_eq!(
        (after.state, after.started_at),
        (ContainerState::Running, before.started_at)
    );
    assert_eq!((node.main_pid(&id), runs(main)), (main, true));
    assert_eq!(node.exec(&id, "echo hi").await.stdout, "hi\n");
    go.write().await;
    let status = node.exited(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (6, "Error"));
    assert_eq!(Node::log(&status), ["stdout F before", "stdout F after"]);
}

#[tokio::test]
async fn an_adopted_container_stops_with_its_grace() {
    let mut node = Node::start(Mode::Supervised).await;
    let ready = node.pipe("ready");
    let id = node
        .running("trap 'exit 7' TERM; echo > $T/ready; while :; do sleep 1000 & wait; done")
        .await;
    ready.read().await;
    node.go_away();
    node.come_back().await;
    node.runtime().stop_container(&id, HOUR).await.unwrap();
    assert_eq!(node.status(&id).await.exit_code, 7);
}

#[tokio::test]
async fn a_container_that_ended_meanwhile_shows_its_real_exit_code() {
    let mut node = Node::start(Mode::Supervised).await;
    let go = node.pipe("go");
    let id = node.running("read line < $T/go; exit 5").await;
    let supervisor = node.supervisor_pid(&id);
    node.go_away();
    go.write().await;
    ended(supervisor).await;
    node.come_back().await;
    let status = node.status(&id).await;
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited, 5));
    assert!(status.started_at.is_some());
}

#[tokio::test]
async fn a_container_whose_supervisor_was_killed_is_ended_with_its_daemons() {
    for away in [false, true] {
        let mut node = Node::start(Mode::Supervised).await;
        let pid = node.pipe("pid");
        let id = node
            .running("setsid sh -c 'sleep 1000 & echo $! > $T/pid'; sleep 1000")
            .await;
        let (daemon, main, supervisor) = (pid.read_pid().await, node.main_pid(&id), node.supervisor_pid(&id));
        if away {
            node.go_away();
        }
        kill(supervisor);
        if away {
            ended(supervisor).await;
            node.come_back().await;
        }
        let status = match away {
            true => node.status(&id).await,
            false => node.exited(&id).await,
        };
        assert!(is_lost(&status), "{status:?}");
        ended(main).await;
        assert!(!runs(daemon));
    }
}

#[tokio::test]
async fn an_agent_without_supervisors_kills_what_a_kill_9_left() {
    let mut node = Node::start(Mode::Threads).await;
    let id = node.created("true").await;
    node.go_away();
    // As if it had been started, and its agent killed before that was recorded.
    fs::write(node.container_dir(&id).join("starting"), "").unwrap();
    let mut left = std::process::Command::new("sleep")
        .arg("1000")
        .env("KUBELET_PROCESS_CONTAINER", id.as_str())
        .spawn()
        .unwrap();
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    node.come_back().await;
    assert!(is_lost(&node.status(&id).await));
    assert!(!left.wait().unwrap().success());
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn a_number_that_went_to_another_process_is_left_alone() {
    let mut node = Node::start(Mode::Supervised).await;
    let id = node.created("true").await;
    node.go_away();
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let dir = node.container_dir(&id);
    let who = format!("{{\"pid\":{},\"start_time\":1}}", stranger.id());
    fs::write(dir.join("starting"), "").unwrap();
    fs::write(dir.join("supervisor.json"), &who).unwrap();
    let process = format!("{{\"main\":{who},\"started_at\":\"2026-01-01T00:00:00Z\"}}");
    fs::write(dir.join("process.json"), process).unwrap();
    node.come_back().await;
    assert!(is_lost(&node.status(&id).await));
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn half_made_folders_are_understood() {
    for mode in BOTH {
        let mut node = Node::start(mode).await;
        let pod = node.pod().await;
        let id = node.create(&pod, &node.script("exit 3")).await.unwrap();
        node.go_away();
        let (containers, sandboxes) = (node.state_dir().join("containers"), node.state_dir().join("sandboxes"));
        for half in [".new-1", ".old-2", "without-config"] {
            fs::create_dir(containers.join(half)).unwrap();
            fs::create_dir(sandboxes.join(half)).unwrap();
        }
        fs::write(containers.join(".old-2/config.json"), "{}").unwrap();
        node.come_back().await;
        for folder in [&containers, &sandboxes] {
            assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
        }
        assert_eq!(node.runtime().list_sandboxes(Scope::All).await.unwrap().len(), 1);
        // What was only created can still be started.
        node.runtime().start_container(&id).await.unwrap();
        assert_eq!(node.exited(&id).await.exit_code, 3);
    }
}

#[tokio::test]
async fn what_runs_without_a_readable_record_is_ended_and_costs_no_other_anything() {
    for file in ["config.json", "process.json"] {
        let mut node = Node::start(Mode::Supervised).await;
        let broken = node.running("sleep 1000").await;
        let whole = node.running("sleep 1000").await;
        let (main, other) = (node.main_pid(&broken), node.main_pid(&whole));
        node.go_away();
        fs::write(node.container_dir(&broken).join(file), "{").unwrap();
        node.come_back().await;
        ended(main).await;
        assert_eq!(node.status(&whole).await.state, ContainerState::Running);
        assert!(runs(other));
        let listed = node.runtime().list_containers(Scope::All).await.unwrap();
        let is_told_of = listed.iter().any(|container| container.id == broken);
        // Without its config nobody knows whose it is.
        assert_eq!(is_told_of, file == "process.json");
        if is_told_of {
            assert!(is_lost(&node.status(&broken).await));
        }
    }
}

#[tokio::test]
async fn a_start_that_was_cut_short_is_not_tried_again() {
    let mut node = Node::start(Mode::Supervised).await;
    let id = node.created("true").await;
    node.go_away();
    fs::write(node.container_dir(&id).join("starting"), "").unwrap();
    node.come_back().await;
    assert!(is_lost(&node.status(&id).await));
    assert!(node.runtime().start_container(&id).await.is_err());
}

#[tokio::test]
async fn after_a_reboot_nothing_is_ready_and_nothing_runs() {
    let mut node = Node::start(Mode::Supervised).await;
    let pod = node.pod().await;
    let id = node.create(&pod, &node.script("true")).await.unwrap();
    node.go_away();
    let sandbox = node.state_dir().join("sandboxes").join(pod.id.as_str());
    for folder in [node.container_dir(&id), sandbox] {
        let path = folder.join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["boot_id"] = "an earlier one".into();
        fs::write(&path, config.to_string()).unwrap();
    }
    node.come_back().await;
    let status = node.runtime().sandbox_status(&pod.id).await.unwrap();
    assert_eq!(status.state, SandboxState::NotReady);
    assert!(is_lost(&node.status(&id).await));
}

#[tokio::test]
async fn a_stopped_sandbox_stays_stopped_and_labels_stay() {
    let mut node = Node::start(Mode::Supervised).await;
    let pod = node.pod().await;
    let mut config = node.script("true");
    config.annotations.insert("key".to_owned(), "value".to_owned());
    let id = node.create(&pod, &config).await.unwrap();
    node.runtime().stop_sandbox(&pod.id).await.unwrap();
    node.go_away();
    node.come_back().await;
    let status = node.runtime().sandbox_status(&pod.id).await.unwrap();
    assert_eq!(
        (status.state, status.key),
        (SandboxState::NotReady, pod.config.key.clone())
    );
    assert_eq!(status.labels, pod.config.labels);
    let status = node.status(&id).await;
    assert_eq!(
        (status.state, &status.annotations),
        (ContainerState::Created, &config.annotations)
    );
    assert_eq!(
        (status.image.as_str(), status.image_ref.as_str()),
        ("localhost/host", "localhost/host:latest")
    );
}

#[tokio::test]
async fn one_runtime_at_a_time_uses_a_folder() {
    let mut node = Node::start(Mode::Supervised).await;
    let second = ProcessRuntime::open(node.supervisor(), node.settings()).await;
    assert!(matches!(second, Err(OpenError::InUse { .. })));
    node.go_away();
    node.come_back().await;
}

#[tokio::test]
async fn a_supervisor_that_hangs_is_killed_with_its_container() {
    let node = Node::start(Mode::Supervised).await;
    let id: ContainerId = node.running("sleep 1000").await;
    let (supervisor, main) = (node.supervisor_pid(&id), node.main_pid(&id));
    let pid = rustix::process::Pid::from_raw(supervisor).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    node.runtime().stop_container(&id, Duration::ZERO).await.unwrap();
    assert!(is_lost(&node.status(&id).await));
    ended(main).await;
}
