//! Exit codes, signals, and that nothing outlives its container.

use std::time::Duration;

use kubelet_core::{ContainerRuntime, ContainerState};

use crate::harness::{BOTH, HOUR, Mode, Node, ended, runs};

#[tokio::test]
async fn exit_codes_and_signals_show_as_kubernetes_shows_them() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        for (script, code, reason) in [
            ("exit 0", 0, "Completed"),
            ("exit 3", 3, "Error"),
            ("kill -9 $$", 137, "Error"),
            ("kill -15 $$", 143, "Error"),
        ] {
            let id = node.running(script).await;
            let status = node.exited(&id).await;
            assert_eq!(
                (status.exit_code, status.reason.as_str()),
                (code, reason),
                "{script} {mode:?}"
            );
            assert!(status.finished_at.unwrap() >= status.started_at.unwrap());
        }
    }
}

#[tokio::test]
async fn a_stop_sends_the_configured_signal_and_keeps_the_programs_own_exit_code() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let ready = node.pipe("ready");
        for (signal, trapped) in [(None, "TERM"), (Some("SIGINT"), "INT"), (Some("SIGRTMIN+3"), "RTMIN+3")] {
            let script = format!("trap 'exit 7' {trapped}; echo > $T/ready; while :; do sleep 1000 & wait; done");
            let mut config = node.script(&script);
            config.command[0] = "bash".to_owned();
            config.stop_signal = signal.map(str::to_owned);
            let id = node.run_config(&config).await.unwrap();
            ready.read().await;
            node.runtime().stop_container(&id, HOUR).await.unwrap();
            assert_eq!(node.status(&id).await.exit_code, 7, "{signal:?}");
        }
    }
}

#[tokio::test]
async fn zero_grace_kills_at_once() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let (ready, told) = (node.pipe("ready"), node.dir.path().join("told"));
        let script = "trap 'touch $T/told; exit 0' TERM; echo > $T/ready; while :; do sleep 1000 & wait; done";
        let id = node.running(script).await;
        ready.read().await;
        node.runtime().stop_container(&id, Duration::ZERO).await.unwrap();
        assert_eq!(node.status(&id).await.exit_code, 137);
        assert!(!told.exists());
    }
}

#[tokio::test]
async fn a_daemon_dies_with_the_container_that_left_it() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let pid = node.pipe("pid");
        // Two forks and a session of its own: nothing but its ancestry or its environment tells whose it is.
        let id = node
            .running("setsid sh -c 'sleep 1000 & echo $! > $T/pid' & wait; exit 5")
            .await;
        let daemon = pid.read_pid().await;
        assert_eq!(node.exited(&id).await.exit_code, 5);
        assert!(!runs(daemon), "{mode:?}");
    }
}

#[tokio::test]
async fn a_daemon_that_hides_dies_with_its_supervised_container() {
    let node = Node::start(Mode::Supervised).await;
    let pid = node.pipe("pid");
    let script = "pipe=$T/pid; setsid env -i sh -c \"sleep 1000 & echo \\$! > $T/pid\" & sleep 1000";
    let id = node.running(script).await;
    let daemon = pid.read_pid().await;
    assert!(runs(daemon));
    node.runtime().stop_container(&id, Duration::ZERO).await.unwrap();
    assert!(!runs(daemon));
}

#[tokio::test]
async fn a_container_is_alone_in_its_session_with_a_clean_environment() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let mut config =
            node.script("env | sort; pwd; read -r line || echo no input; ls /proc/self/fd; ps -o sid= -p $$");
        config.working_dir = "/tmp".to_owned();
        config.env.push(("GREETING".to_owned(), "hello".to_owned()));
        let id = node.run_config(&config).await.unwrap();
        let status = node.exited(&id).await;
        let log = Node::log(&status);
        let has = |line: &str| log.iter().any(|record| record == &format!("stdout F {line}"));
        assert!(has("GREETING=hello") && has("/tmp") && has("no input"), "{log:?}");
        assert!(
            !log.iter().any(|record| record.contains("CARGO")),
            "the agent's environment leaks"
        );
        assert!(
            has("0") && has("1") && has("2") && has("3") && !has("4"),
            "descriptors leak: {log:?}"
        );
        let main = node.main_pid(&id);
        assert!(log.last().unwrap().ends_with(&format!(" {main}")), "{log:?}");
    }
}

#[tokio::test]
async fn dropping_a_runtime_without_supervisors_kills_what_it_ran() {
    let mut node = Node::start(Mode::Threads).await;
    let ready = node.pipe("ready");
    let id = node
        .running("trap '' TERM; setsid sh -c 'sleep 1000 & echo $! > $T/ready'; sleep 1000")
        .await;
    let (daemon, main) = (ready.read_pid().await, node.main_pid(&id));
    node.go_away();
    ended(main).await;
    ended(daemon).await;
    // The thread may be about to end: the next runtime then waits for it.
    node.come_back().await;
    assert_eq!(node.exited(&id).await.exit_code, 137);
}

#[tokio::test]
async fn shutdown_stops_what_would_not_survive_and_nothing_else() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let ready = node.pipe("ready");
        let id = node
            .running("trap 'exit 9' TERM; echo > $T/ready; while :; do sleep 1000 & wait; done")
            .await;
        ready.read().await;
        node.runtime().shutdown(HOUR).await;
        let status = node.status(&id).await;
        match mode {
            Mode::Threads => assert_eq!((status.state, status.exit_code), (ContainerState::Exited, 9)),
            Mode::Supervised => assert_eq!(status.state, ContainerState::Running),
        }
    }
}
