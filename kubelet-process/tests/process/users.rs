//! Root and ordinary users, and root file systems.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use kubelet_core::{ContainerConfig, ContainerRuntime, ExecRequest, ImageRef, ImageService, Mount, PullRequest};
use kubelet_core::{IgnoreProgress, RuntimeError};
use kubelet_testing::contract::skip;

use crate::harness::{BOTH, Mode, Node};

/// The user `nobody` of most systems.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn a_container_runs_as_the_user_that_it_asks_for() {
    if !is_root() {
        return skip(
            "a_container_runs_as_the_user_that_it_asks_for",
            "changing the user needs root",
        );
    }
    for mode in BOTH {
        let node = Node::start(mode).await;
        let ready = node.pipe("ready");
        let mut config = node.script("id -u; id -g; id -G; echo > $T/ready; sleep 1000");
        config.security.run_as_user = Some(NOBODY);
        config.security.run_as_group = Some(4242);
        config.security.supplemental_groups = vec![4243];
        config.security.no_new_privileges = true;
        let id = node.run_config(&config).await.unwrap();
        ready.read().await;
        let seen = node
            .exec(&id, "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status")
            .await;
        assert_eq!(seen.stdout, "65534\n4242\n4242 4243\nNoNewPrivs:\t1\n", "{mode:?}");
        node.runtime()
            .stop_container(&id, std::time::Duration::ZERO)
            .await
            .unwrap();
        let log = Node::log(&node.status(&id).await);
        assert_eq!(log, ["stdout F 65534", "stdout F 4242", "stdout F 4242 4243"]);
    }
}

/// Runs other tests of this program again, as an ordinary user.
#[test]
fn an_ordinary_user_needs_no_root() {
    if !is_root() {
        return skip(
            "an_ordinary_user_needs_no_root",
            "all tests run as an ordinary user already",
        );
    }
    let program = std::env::current_exe().unwrap();
    // Where the program lies may be closed to others.
    let dir = tempfile::tempdir().unwrap();
    crate::harness::open_to_all(dir.path());
    let supervisor = env!("CARGO_BIN_EXE_kubelet-process-supervisor");
    let reachable = Command::new("test")
        .args(["-x", supervisor])
        .uid(NOBODY)
        .gid(NOBODY)
        .status()
        .unwrap();
    if !reachable.success() {
        return skip(
            "an_ordinary_user_needs_no_root",
            "the test program cannot be reached by others",
        );
    }
    let ended = Command::new(program)
        .args([
            "--test-threads=2",
            "contract::",
            "exec::",
            "restart::a_running",
            "restart::a_container_whose",
        ])
        .env("TMPDIR", dir.path())
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}

#[tokio::test]
async fn a_folder_is_a_root_file_system_with_its_mounts() {
    if !is_root() {
        return skip(
            "a_folder_is_a_root_file_system_with_its_mounts",
            "root file systems need root",
        );
    }
    for mode in BOTH {
        let node = Node::start(mode).await;
        let root = node.dir.path().join("images/app");
        fs::create_dir_all(&root).unwrap();
        // A link that leads out of the folder unless it is followed within.
        std::os::unix::fs::symlink("/run", root.join("link")).unwrap();
        fs::create_dir(root.join("run")).unwrap();
        fs::write(node.dir.path().join("data"), "shown\n").unwrap();
        let image = ImageRef::with_asked("app:latest", "app");
        assert_eq!(
            node.runtime().status(&image, "").await.unwrap().unwrap().tags,
            ["app:latest"]
        );
        let mut config = ContainerConfig::new("app", 0, image);
        config.command = vec![
            "sh".to_owned(),
            "-c".to_owned(),
            "cat /link/data; echo > /ready; exec sleep 1000".to_owned(),
        ];
        config.log_path = "app/0.log".into();
        config.security.read_only_root = true;
        let folders = ["/bin", "/lib", "/lib64", "/usr"]
            .iter()
            .filter(|path| fs::exists(path).unwrap());
        config.mounts = folders
            .map(|path| {
                let mut mount = Mount::new(*path, path);
                mount.read_only = true;
                mount
            })
            .collect();
        let ready = node.pipe("ready");
        config
            .mounts
            .push(Mount::new("/link/data", node.dir.path().join("data")));
        config.mounts.push(Mount::new("/ready", node.dir.path().join("ready")));
        let id = node.run_config(&config).await.unwrap();
        ready.read().await;
        let seen = node
            .exec(&id, "pwd; echo /*; touch /new 2>/dev/null || echo read-only; test -e /dev/null && echo dev; echo more >> /run/data")
            .await;
        let text = std::str::from_utf8(&seen.stdout).unwrap();
        assert!(text.starts_with("/\n/bin /dev "), "{text} {:?}", seen.stderr);
        assert!(text.ends_with("read-only\ndev\n"), "{text}");
        assert_eq!(
            fs::read_to_string(node.dir.path().join("data")).unwrap(),
            "shown\nmore\n"
        );
        assert!(!fs::exists("/run/data").unwrap(), "the link led out of the folder");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(root.to_str().unwrap()), "mounts show on the host");
        node.runtime()
            .stop_container(&id, std::time::Duration::ZERO)
            .await
            .unwrap();
        assert_eq!(Node::log(&node.status(&id).await), ["stdout F shown"], "{mode:?}");
    }
}

#[tokio::test]
async fn a_foreign_image_is_refused_with_the_folder_that_is_missing() {
    let node = Node::start(Mode::Supervised).await;
    let runtime = node.runtime();
    let images = node
        .dir
        .path()
        .join("images")
        .canonicalize()
        .unwrap_or(node.dir.path().join("images"));
    for (name, folder) in [
        ("nginx:1", images.join("nginx:1")),
        ("registry.example/app:1", images.clone()),
    ] {
        let image = ImageRef::new(name);
        assert!(runtime.status(&image, "").await.unwrap().is_none());
        let pulled = runtime.pull(PullRequest::new(&image), &IgnoreProgress).await;
        let Err(RuntimeError::Refused { message, reason }) = pulled else {
            panic!("{name} was pulled")
        };
        assert_eq!(reason, Some("ErrImagePull"));
        assert!(message.contains(folder.to_str().unwrap()), "{message}");
    }
    let host = ImageRef::new("localhost/host");
    let id = runtime.pull(PullRequest::new(&host), &IgnoreProgress).await.unwrap();
    assert_eq!(runtime.status(&host, "").await.unwrap().unwrap().id, id);
    assert!(runtime.remove(&id).await.is_err());
    runtime.remove(&"gone".into()).await.unwrap();
    let parts = kubelet_core::RuntimeParts::from(runtime.clone());
    assert_eq!(parts.images.list().await.unwrap().len(), 1);
    let id = node.running("sleep 1000").await;
    let ended = parts.runtime.exec(&id, ExecRequest::new(["true"])).await.unwrap();
    assert_eq!(ended.exit_code, 0);
}
