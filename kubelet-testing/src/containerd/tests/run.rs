//! Whole lives of instances.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tokio::time::{Instant, sleep};

use super::leave::Traces;
use super::pod::{Pod, containers};
use crate::containerd::archive::OciArchive;
use crate::containerd::components::Containerd;
use crate::containerd::images::BUSYBOX_IMAGE;
use crate::containerd::instance::PrivateContainerd;
use crate::containerd::leftovers::remove_leftovers;

/// Set in a process that is to start an instance and die.
const DIES: &str = "KUBELET_TEST_DIES_WITH_CONTAINERD";

#[tokio::test]
async fn both_lines_run_side_by_side_and_leave_nothing() {
    let test = "both lines of containerd";
    let mut instances = Vec::new();
    for version in Containerd::ALL {
        let Some(instance) = PrivateContainerd::start_or_skip(version, test).await else {
            return;
        };
        println!("containerd {} at {}", instance.reported_version(), instance.endpoint());
        instances.push(instance);
    }
    let mut pods = Vec::new();
    for instance in &instances {
        let port = free_port();
        let pod = Pod::run(instance, "web", port).await;
        serves(&format!("{}:80", pod.address)).await;
        serves(&format!("127.0.0.1:{port}")).await;
        pods.push(pod);
    }
    for (instance, pod) in instances.iter_mut().zip(&pods) {
        let before = containers(instance).await;
        assert!(String::from_utf8_lossy(&before).contains(&pod.container));
        instance.restart().await.unwrap();
        let after = containers(instance).await;
        assert_eq!(before, after, "a restart changes nothing of a container");
        serves(&format!("{}:80", pod.address)).await;
    }
    // The first by its end, the other by its drop.
    let traces: Vec<Traces> = instances.iter().map(Traces::of).collect();
    let second = instances.pop().unwrap();
    instances.pop().unwrap().stop().await.unwrap();
    traces[0].assert_gone();
    serves(&format!("{}:80", pods[1].address)).await;
    drop(second);
    traces[1].assert_gone();
}

#[tokio::test]
async fn an_image_of_a_test_runs() {
    for version in Containerd::ALL {
        let Some(mut instance) = PrivateContainerd::start_or_skip(version, "an image of a test").await else {
            continue;
        };
        let image = OciArchive::busybox()
            .unwrap()
            .named("localhost/app:1")
            .user("app")
            .layer()
            .file("/data/x", 0o644, "y");
        instance.import(&image).await.unwrap();
        let runc = instance.folder().join("runc");
        let id = format!("{}-app", instance.network());
        let run = ["run", "--rm", "--runc-root", runc.to_str().unwrap(), image.name(), &id];
        let printed = instance
            .ctr(run.into_iter().chain(["sh", "-c", "id -un; cat /data/x"]))
            .await
            .unwrap();
        assert_eq!(printed, "app\ny");
        instance.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_container_of_the_shared_runc_is_removed_too() {
    for version in Containerd::ALL {
        let test = "a container of the shared runc";
        let Some(instance) = PrivateContainerd::start_or_skip(version, test).await else {
            continue;
        };
        let id = format!("{}-shared", instance.network());
        instance
            .ctr(["run", "--detach", BUSYBOX_IMAGE, &id, "sleep", "1000"])
            .await
            .unwrap();
        let state = PathBuf::from("/run/containerd/runc/k8s.io").join(&id);
        assert!(state.exists());
        instance.stop().await.unwrap();
        assert!(!state.exists());
    }
}

#[tokio::test]
async fn one_that_lacks_a_component_is_missing() {
    // The variable of a process of its own: other tests in this one read it.
    let test = "containerd::tests::run::helper_that_finds_no_containerd";
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("KUBELET_CONTAINERD_2", "/nonexistent")
        .env_remove("KUBELET_TEST_REQUIRE")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn helper_that_finds_no_containerd() {
    if env::var("KUBELET_CONTAINERD_2").as_deref() == Ok("/nonexistent") {
        assert!(
            PrivateContainerd::start_or_skip(Containerd::V2, "nothing")
                .await
                .is_none()
        );
    }
}

#[tokio::test]
async fn what_a_killed_process_left_is_removed() {
    let test = "what a killed process left";
    for version in Containerd::ALL {
        // Tells whether the machine has what the other process needs.
        let Some(own) = PrivateContainerd::start_or_skip(version, test).await else {
            continue;
        };
        let mut other = Command::new(env::current_exe().unwrap())
            .args(["--exact", "containerd::tests::run::helper_that_dies", "--nocapture"])
            .env(DIES, format!("{version:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(other.stdout.take().unwrap()).lines();
        let line = said
            .find_map(|line| line.unwrap().strip_prefix("instance ").map(str::to_owned))
            .unwrap();
        let (folder, network) = line.split_once(' ').unwrap();
        let traces = Traces::in_folder(folder.as_ref(), network);
        assert!(!remove_leftovers().unwrap().contains(&folder.into()), "its owner lives");
        drop(other.stdin.take());
        assert!(!other.wait().unwrap().success());
        // Another start may have been quicker.
        remove_leftovers().unwrap();
        traces.assert_gone();
        own.stop().await.unwrap();
    }
}

#[tokio::test]
async fn helper_that_dies() {
    let Ok(version) = env::var(DIES) else { return };
    let version = Containerd::ALL
        .into_iter()
        .find(|known| format!("{known:?}") == version)
        .unwrap();
    let instance = PrivateContainerd::start(version).await.unwrap();
    Pod::run(&instance, "web", free_port()).await;
    println!("\ninstance {} {}", instance.folder().display(), instance.network());
    std::io::stdout().flush().unwrap();
    // Until the other has seen it.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    kill_process(getpid(), Signal::KILL).unwrap();
    process::abort();
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until HTTP is answered there: a container has started before its program listens.
async fn serves(address: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let said = ask(address);
        if said.as_ref().is_ok_and(|said| said.starts_with("HTTP/1.")) {
            return;
        }
        assert!(Instant::now() < deadline, "{address}: {said:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn ask(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /passwd HTTP/1.0\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}
