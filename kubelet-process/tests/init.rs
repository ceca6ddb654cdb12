//! A program that calls `init` first supervises containers itself, also after its file was replaced.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests fail by panicking; the list goes to the test runner"
)]

use std::path::Path;
use std::process::Command;

use futures::StreamExt;
use kubelet_core::{
    ContainerConfig, ContainerRuntime, ContainerState, CreateContainer, ImageRef, PodKey, PodUid, SandboxConfig,
};
use kubelet_process::{ProcessRuntime, Settings, Supervisor};

const NAME: &str = "a_program_without_a_file_supervises";
const INNER: &str = "KUBELET_PROCESS_TEST_INNER";

fn main() {
    let supervisor = kubelet_process::init();
    let args: Vec<String> = std::env::args().collect();
    let has = |wanted: &str| args.iter().any(|arg| arg == wanted);
    if has("--list") {
        if !has("--ignored") {
            println!("{NAME}: test");
        }
    } else if let Some(dir) = std::env::var_os(INNER) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(agent(supervisor, dir.as_ref()));
    } else {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let copy = dir.path().join("agent");
        std::fs::copy(std::env::current_exe().expect("this program"), &copy).expect("a copy");
        let ended = Command::new(copy)
            .env(INNER, dir.path())
            .status()
            .expect("the copy runs");
        assert!(ended.success());
    }
}

async fn agent(supervisor: Supervisor, dir: &Path) {
    std::fs::remove_file(dir.join("agent")).expect("the file is removed");
    let settings = Settings::new(dir.join("state"), dir.join("images"));
    let runtime = ProcessRuntime::open(Some(supervisor), settings)
        .await
        .expect("it opens");
    let mut hints = runtime.events();
    let sandbox = SandboxConfig::new(PodUid::from("uid"), PodKey::new("default", "pod"), 0);
    let sandbox_id = runtime.run_sandbox(&sandbox, "").await.expect("a sandbox");
    let mut container = ContainerConfig::new("app", 0, ImageRef::new("localhost/host"));
    container.command = ["sh", "-c", "exit 3"].map(str::to_owned).to_vec();
    let req = CreateContainer::new(&sandbox_id, &sandbox, &container);
    let id = runtime.create_container(req).await.expect("a container");
    runtime.start_container(&id).await.expect("it starts");
    while let Some(hint) = hints.next().await {
        hint.expect("hints go on");
        let status = runtime.container_status(&id).await.expect("a status");
        if status.state == ContainerState::Exited {
            assert_eq!(status.exit_code, 3);
            return;
        }
    }
    panic!("the hints ended");
}
