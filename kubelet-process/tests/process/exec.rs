//! Commands in running containers.

use std::time::Duration;

use kubelet_core::{ContainerId, ContainerRuntime, ExecRequest, RuntimeError};

use crate::harness::{BOTH, Node, ended, runs};

#[tokio::test]
async fn a_command_sees_what_its_container_sees() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let mut config = node.script("sleep 1000");
        config.env.push(("GREETING".to_owned(), "hello".to_owned()));
        config.working_dir = "/tmp".to_owned();
        let id = node.run_config(&config).await.unwrap();
        let ended = node.exec(&id, "echo $GREETING $PWD; echo oops >&2; exit 4").await;
        assert_eq!((ended.exit_code, ended.timed_out), (4, false));
        assert_eq!(
            (&ended.stdout[..], &ended.stderr[..]),
            (&b"hello /tmp\n"[..], &b"oops\n"[..])
        );
        assert_eq!(node.exec(&id, "kill -9 $$").await.exit_code, 137);
    }
}

#[tokio::test]
async fn what_cannot_be_run_is_refused() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let run = async |id: &ContainerId, command: &str| node.runtime().exec(id, ExecRequest::new([command])).await;
        let gone = run(&ContainerId::from("gone"), "true").await.unwrap_err();
        assert!(gone.is_not_found());
        let created = node.created("true").await;
        assert!(matches!(run(&created, "true").await, Err(RuntimeError::Refused { .. })));
        let id = node.running("sleep 1000").await;
        let missing = run(&id, "no-such-program").await.unwrap_err();
        assert_eq!(
            missing.to_string(),
            "exec: \"no-such-program\": executable file not found in $PATH"
        );
        assert!(matches!(missing, RuntimeError::Refused { .. }));
        node.runtime().stop_container(&id, Duration::ZERO).await.unwrap();
        assert!(matches!(run(&id, "true").await, Err(RuntimeError::Refused { .. })));
    }
}

#[tokio::test]
async fn a_timeout_kills_the_command_and_what_it_started() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let pid = node.pipe("pid");
        let id = node.running("sleep 1000").await;
        let command = ["sh", "-c", "sleep 1000 & echo $! > $T/pid; wait"];
        let exec = node
            .runtime()
            .exec(&id, ExecRequest::new(command).with_timeout(Duration::from_secs(1)));
        let (timed_out, child) = tokio::join!(exec, pid.read_pid());
        assert!(timed_out.unwrap().timed_out);
        ended(child).await;
        assert!(runs(node.main_pid(&id)), "the container goes on");
    }
}

#[tokio::test]
async fn a_dropped_exec_is_killed() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let pid = node.pipe("pid");
        let id = node.running("sleep 1000").await;
        let exec = node
            .runtime()
            .exec(&id, ExecRequest::new(["sh", "-c", "echo $$ > $T/pid; sleep 1000"]));
        let child = tokio::select! {
            biased;
            child = pid.read_pid() => child,
            _ = exec => panic!("it does not end"),
        };
        ended(child).await;
    }
}

#[tokio::test]
async fn output_beyond_the_limit_is_read_and_dropped() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let id = node.running("sleep 1000").await;
        let mut req = ExecRequest::new(["sh", "-c", "head -c 1000000 /dev/zero; echo end >&2"]);
        req.output_limit_bytes = 1000;
        let ended = node.runtime().exec(&id, req).await.unwrap();
        assert_eq!(
            (ended.exit_code, ended.stdout.len(), &ended.stderr[..]),
            (0, 1000, &b"end\n"[..])
        );
    }
}

#[tokio::test]
async fn a_command_that_leaves_something_behind_ends_and_that_dies_with_the_container() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let id = node.running("sleep 1000").await;
        // What stays holds the output open.
        let ended = node.exec(&id, "setsid sleep 1000 & echo $!").await;
        let left: i32 = std::str::from_utf8(&ended.stdout).unwrap().trim().parse().unwrap();
        assert!(runs(left));
        node.runtime().stop_container(&id, Duration::ZERO).await.unwrap();
        assert!(!runs(left), "{mode:?}");
    }
}

#[tokio::test]
async fn a_command_ends_with_its_container() {
    for mode in BOTH {
        let node = Node::start(mode).await;
        let ready = node.pipe("ready");
        let id = node.running("sleep 1000").await;
        let exec = node
            .runtime()
            .exec(&id, ExecRequest::new(["sh", "-c", "echo > $T/ready; sleep 1000"]));
        let stop = async {
            ready.read().await;
            node.runtime().stop_container(&id, Duration::ZERO).await
        };
        let (ended, stopped) = tokio::join!(exec, stop);
        stopped.unwrap();
        assert_eq!(ended.unwrap().exit_code, 137);
    }
}
