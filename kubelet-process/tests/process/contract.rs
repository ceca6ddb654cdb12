//! Every line of the contract of `ContainerRuntime`, in both ways of supervising.

use std::time::Duration;

use futures::StreamExt;
use kubelet_core::{
    ContainerId, ContainerRuntime, ContainerState, NETWORK_READY, RUNTIME_READY, RuntimeError, RuntimeHint, SandboxId,
    SandboxState, Scope,
};
use kubelet_process::ProcessRuntime;

use crate::harness::{BOTH, HOUR, Mode, Node, ended};

const IGNORES_TERM: &str = "trap '' TERM; echo > $T/ready; while :; do sleep 1000; done";

#[tokio::test]
async fn stopping_or_removing_what_is_gone_succeeds() {
    let node = Node::start(Mode::Supervised).await;
    let runtime = node.runtime();
    let (container, sandbox) = (ContainerId::from("../../etc"), SandboxId::from("gone"));
    runtime.stop_container(&container, HOUR).await.unwrap();
    runtime.remove_container(&container).await.unwrap();
    runtime.stop_sandbox(&sandbox).await.unwrap();
    runtime.remove_sandbox(&sandbox).await.unwrap();
    assert!(runtime.container_status(&container).await.unwrap_err().is_not_found());
    assert!(runtime.sandbox_status(&sandbox).await.unwrap_err().is_not_found());
    assert!(runtime.start_container(&container).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_second_stop_with_less_grace_takes_effect_while_the_first_waits() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let ready = node.pipe("ready");
        let id = node.running(IGNORES_TERM).await;
        ready.read().await;
        let first = node.runtime().stop_container(&id, HOUR);
        let second = async {
            tokio::task::yield_now().await;
            node.runtime().stop_container(&id, Duration::from_millis(1)).await
        };
        let (first, second) = tokio::join!(first, second);
        first.unwrap();
        second.unwrap();
        let status = node.status(&id).await;
        assert_eq!(
            (status.state, status.exit_code),
            (ContainerState::Exited, 137),
            "{mode:?}"
        );
    }
}

#[tokio::test]
async fn what_returned_success_shows_in_every_later_list() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let runtime = node.runtime();
        let pod = node.pod().await;
        let other = node.pod().await;
        let states = async |id: &ContainerId| {
            let listed = runtime.list_containers(Scope::Pod(&pod.config.pod_uid)).await.unwrap();
            let found = listed.into_iter().find(|record| record.id == *id);
            found.map(|record| (record.state, record.sandbox_id))
        };
        assert_eq!(runtime.list_sandboxes(Scope::All).await.unwrap().len(), 2);
        let id = node.create(&pod, &node.script("sleep 1000")).await.unwrap();
        assert_eq!(states(&id).await, Some((ContainerState::Created, pod.id.clone())));
        runtime.start_container(&id).await.unwrap();
        assert_eq!(states(&id).await, Some((ContainerState::Running, pod.id.clone())));
        let of_other = Scope::Pod(&other.config.pod_uid);
        assert_eq!(runtime.list_containers(of_other).await.unwrap(), []);
        runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        assert_eq!(states(&id).await, Some((ContainerState::Exited, pod.id.clone())));
        runtime.remove_container(&id).await.unwrap();
        assert_eq!(states(&id).await, None);
        runtime.stop_sandbox(&pod.id).await.unwrap();
        let listed = runtime.list_sandboxes(Scope::Pod(&pod.config.pod_uid)).await.unwrap();
        assert_eq!(listed[0].state, SandboxState::NotReady);
        runtime.remove_sandbox(&pod.id).await.unwrap();
        assert_eq!(runtime.list_sandboxes(Scope::All).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_sandbox_that_is_not_ready_takes_no_containers_and_stopping_it_kills() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let runtime = node.runtime();
        let ready = node.pipe("ready");
        let pod = node.pod().await;
        let running = node.create(&pod, &node.script(IGNORES_TERM)).await.unwrap();
        let mut later = node.script("true");
        later.name = "later".to_owned();
        let later = node.create(&pod, &later).await.unwrap();
        runtime.start_container(&running).await.unwrap();
        ready.read().await;
        let main = node.main_pid(&running);
        runtime.stop_sandbox(&pod.id).await.unwrap();
        ended(main).await;
        assert_eq!(node.status(&running).await.exit_code, 137);
        assert!(matches!(
            runtime.start_container(&later).await,
            Err(RuntimeError::Refused { .. })
        ));
        let mut third = node.script("true");
        third.name = "third".to_owned();
        assert!(matches!(
            node.create(&pod, &third).await,
            Err(RuntimeError::Refused { .. })
        ));
        let containers = runtime.sandbox_status(&pod.id).await.unwrap().containers.unwrap();
        assert_eq!(containers.len(), 2);
    }
}

#[tokio::test]
async fn removing_a_running_container_or_sandbox_stops_it_first() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let runtime = node.runtime();
        let id = node.running("echo hello; sleep 1000").await;
        let (main, status) = (node.main_pid(&id), node.status(&id).await);
        runtime.remove_container(&id).await.unwrap();
        ended(main).await;
        assert!(status.log_path.unwrap().exists(), "logs are kept");
        assert!(!node.container_dir(&id).exists());
        let pod = node.pod().await;
        let id = node.create(&pod, &node.script("sleep 1000")).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        let main = node.main_pid(&id);
        runtime.remove_sandbox(&pod.id).await.unwrap();
        ended(main).await;
        assert_eq!(runtime.list_containers(Scope::All).await.unwrap(), []);
    }
}

#[tokio::test]
async fn an_identity_that_exists_is_taken_until_it_is_removed() {
    let node = Node::start(Mode::Supervised).await;
    let pod = node.pod().await;
    let sandbox = node.runtime().run_sandbox(&pod.config, "").await;
    assert!(matches!(sandbox, Err(RuntimeError::Taken { .. })));
    let config = node.script("true");
    let id = node.create(&pod, &config).await.unwrap();
    assert!(matches!(
        node.create(&pod, &config).await,
        Err(RuntimeError::Taken { .. })
    ));
    node.runtime().remove_container(&id).await.unwrap();
    node.create(&pod, &config).await.unwrap();
}

#[tokio::test]
async fn a_container_starts_at_most_once() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let id = node.running("exit 0").await;
        node.exited(&id).await;
        let again = node.runtime().start_container(&id).await;
        assert!(matches!(again, Err(RuntimeError::Refused { .. })));
        assert_eq!(node.status(&id).await.reason, "Completed");
    }
}

#[tokio::test]
async fn what_cannot_be_started_is_exited_with_the_reason_in_its_status() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let pod = node.pod().await;
        let mut config = node.script("");
        for (command, working_dir, expected) in [
            (
                "no-such-program",
                "",
                "exec: \"no-such-program\": executable file not found in $PATH",
            ),
            (
                "/no/such",
                "",
                "exec: \"/no/such\": No such file or directory (os error 2)",
            ),
            ("/etc", "", "exec: \"/etc\": Permission denied (os error 13)"),
            (
                "true",
                "/no/such",
                "chdir to cwd (\"/no/such\"): No such file or directory (os error 2)",
            ),
        ] {
            config.attempt += 1;
            config.command = vec![command.to_owned()];
            config.working_dir = working_dir.to_owned();
            let id = node.create(&pod, &config).await.unwrap();
            let refused = node.runtime().start_container(&id).await.unwrap_err();
            assert!(matches!(refused, RuntimeError::Refused { .. }));
            assert_eq!(refused.to_string(), expected);
            let status = node.status(&id).await;
            assert_eq!(
                (
                    status.state,
                    status.exit_code,
                    status.reason.as_str(),
                    status.message.as_str()
                ),
                (ContainerState::Exited, 128, "StartError", expected)
            );
            assert!(status.finished_at.is_some() && status.started_at.is_none());
        }
    }
}

#[tokio::test]
async fn hints_begin_with_ready_and_end_with_the_runtime() {
    let mut node = Node::start(Mode::Supervised).await;
    let mut hints = node.runtime().events();
    assert_eq!(hints.next().await.unwrap().unwrap(), RuntimeHint::Ready);
    let pod = node.pod().await;
    assert_eq!(
        hints.next().await.unwrap().unwrap(),
        RuntimeHint::Pod(pod.config.pod_uid.clone())
    );
    node.go_away();
    assert!(hints.next().await.is_none());
}

#[tokio::test]
async fn a_listener_that_lags_is_told_that_it_lost_hints() {
    let node = Node::start(Mode::Supervised).await;
    let mut hints = node.runtime().events();
    hints.next().await;
    let (mut lost, mut rounds) = (false, 0);
    while !lost {
        rounds += 1;
        assert!(rounds < 1000, "hints are kept without bound");
        node.pod().await;
        if rounds % 300 == 0 {
            lost = hints.next().await.unwrap().unwrap() == RuntimeHint::Lost;
        }
    }
}

#[tokio::test]
async fn exec_and_reads_overlap_a_stop() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let (ready, told) = (node.pipe("ready"), node.pipe("told"));
        let script = "trap 'echo > $T/told' TERM; echo > $T/ready; while :; do sleep 1000 & wait $!; done";
        let id = node.running(script).await;
        ready.read().await;
        let stop = node.runtime().stop_container(&id, HOUR);
        let others = async {
            told.read().await;
            assert_eq!(node.status(&id).await.state, ContainerState::Running);
            assert_eq!(node.exec(&id, "echo hi").await.stdout, "hi\n");
            node.runtime().stop_container(&id, Duration::ZERO).await
        };
        let (stopped, killed) = tokio::join!(stop, others);
        stopped.unwrap();
        killed.unwrap();
    }
}

#[tokio::test]
async fn info_tells_whether_containers_outlive_the_agent() {
    for (mode, survives) in [(Mode::Supervised, true), (Mode::Threads, false)] {
        let node = Node::start(mode).await;
        let info = node.runtime().info().await.unwrap();
        assert_eq!((info.name.as_str(), info.survives_restart), ("process", survives));
        assert!(!info.makes_container_cgroups);
        assert_eq!((info.unmet(RUNTIME_READY), info.unmet(NETWORK_READY)), (None, None));
    }
}

#[tokio::test]
async fn a_pod_has_the_address_of_the_node() {
    let mut node = Node::start(Mode::Supervised).await;
    let pod = node.pod().await;
    let status = node.runtime().sandbox_status(&pod.id).await.unwrap();
    // As it was asked for, and with an address all the same.
    assert!(!status.host_network && status.ips.len() == 1);
    node.go_away();
    let mut settings = node.settings();
    settings.node_ip = Some("192.0.2.7".parse().unwrap());
    let runtime = ProcessRuntime::open(node.supervisor(), settings).await.unwrap();
    let status = runtime.sandbox_status(&pod.id).await.unwrap();
    assert_eq!(status.ips, ["192.0.2.7".parse::<std::net::IpAddr>().unwrap()]);
}
