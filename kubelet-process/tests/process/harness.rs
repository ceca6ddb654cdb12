//! A runtime in a temporary folder, pods of shell scripts, and pipes through which they say where they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use kubelet_core::{
    ContainerConfig, ContainerId, ContainerRuntime, ContainerState, ContainerStatus, CreateContainer, ExecOutput,
    ExecRequest, ImageRef, PodKey, PodUid, RuntimeError, SandboxConfig, SandboxId, label,
};
use kubelet_process::{ProcessRuntime, Settings, Supervisor};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

/// Longer than anything here may take.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Each container has a process as its parent.
    Supervised,
    /// Containers are children of the test.
    Threads,
}

pub(crate) const BOTH: [Mode; 2] = [Mode::Supervised, Mode::Threads];

pub(crate) struct Node {
    pub(crate) dir: TempDir,
    mode: Mode,
    runtime: Option<Arc<ProcessRuntime>>,
    next: AtomicU32,
}

/// A pod's sandbox.
pub(crate) struct Pod {
    pub(crate) config: SandboxConfig,
    pub(crate) id: SandboxId,
}

impl Node {
    pub(crate) async fn start(mode: Mode) -> Self {
        let mut node = Self {
            dir: tempfile::tempdir().expect("a temporary folder"),
            mode,
            runtime: None,
            next: AtomicU32::new(0),
        };
        // Containers of other users reach their pipes through it.
        open_to_all(node.dir.path());
        node.come_back().await;
        node
    }

    /// What a kill -9 of the agent leaves: nobody says goodbye.
    pub(crate) fn go_away(&mut self) {
        self.runtime = None;
    }

    pub(crate) async fn come_back(&mut self) {
        let opened = ProcessRuntime::open(self.supervisor(), self.settings()).await;
        self.runtime = Some(opened.expect("the runtime opens"));
    }

    pub(crate) fn supervisor(&self) -> Option<Supervisor> {
        (self.mode == Mode::Supervised).then(|| Supervisor::at(env!("CARGO_BIN_EXE_kubelet-process-supervisor")))
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings::new(self.state_dir(), self.dir.path().join("images"))
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn runtime(&self) -> &Arc<ProcessRuntime> {
        self.runtime.as_ref().expect("the agent is there")
    }

    pub(crate) async fn pod(&self) -> Pod {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let uid = PodUid::from(format!("uid-{number}"));
        let mut config = SandboxConfig::new(uid.clone(), PodKey::new("default", format!("pod-{number}")), 0);
        config.labels = BTreeMap::from([(label::POD_UID.to_owned(), uid.to_string())]);
        config.log_directory = self.dir.path().join("logs").join(uid.as_str());
        let id = self.runtime().run_sandbox(&config, "").await.expect("a sandbox");
        Pod { config, id }
    }

    /// A container that runs a script on the host's files, in a pod of its own.
    pub(crate) async fn created(&self, script: &str) -> ContainerId {
        let pod = self.pod().await;
        self.create(&pod, &self.script(script)).await.expect("created")
    }

    pub(crate) async fn running(&self, script: &str) -> ContainerId {
        let id = self.created(script).await;
        self.runtime().start_container(&id).await.expect("started");
        id
    }

    pub(crate) async fn run_config(&self, config: &ContainerConfig) -> Result<ContainerId, RuntimeError> {
        let pod = self.pod().await;
        let id = self.create(&pod, config).await?;
        self.runtime().start_container(&id).await?;
        Ok(id)
    }

    pub(crate) async fn create(&self, pod: &Pod, config: &ContainerConfig) -> Result<ContainerId, RuntimeError> {
        let req = CreateContainer::new(&pod.id, &pod.config, config);
        self.runtime().create_container(req).await
    }

    pub(crate) fn script(&self, script: &str) -> ContainerConfig {
        let mut config = ContainerConfig::new(
            "app",
            0,
            ImageRef::with_asked("localhost/host:latest", "localhost/host"),
        );
        config.command = vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        config.log_path = "app/0.log".into();
        config.env = vec![("T".to_owned(), self.dir.path().display().to_string())];
        config
    }

    /// A pipe with a name, which scripts reach as `$T/<name>`.
    pub(crate) fn pipe(&self, name: &str) -> Pipe {
        let path = self.dir.path().join(name);
        let status = std::process::Command::new("mkfifo")
            .args(["-m", "666"])
            .arg(&path)
            .status();
        assert!(status.expect("mkfifo runs").success());
        Pipe { path }
    }

    pub(crate) async fn status(&self, id: &ContainerId) -> ContainerStatus {
        self.runtime().container_status(id).await.expect("a status")
    }

    /// Waits for the end of a container by the runtime's own hints.
    pub(crate) async fn exited(&self, id: &ContainerId) -> ContainerStatus {
        let mut hints = self.runtime().events();
        while let Some(hint) = hints.next().await {
            hint.expect("hints go on");
            let status = self.status(id).await;
            if status.state == ContainerState::Exited {
                return status;
            }
        }
        panic!("the hints ended");
    }

    pub(crate) async fn exec(&self, id: &ContainerId, script: &str) -> ExecOutput {
        let ended = self.runtime().exec(id, ExecRequest::new(["sh", "-c", script])).await;
        ended.expect("the command runs")
    }

    /// Records of a log without their times: stream, tag, content.
    pub(crate) fn log(status: &ContainerStatus) -> Vec<String> {
        let path = status.log_path.as_ref().expect("a log path");
        let text = fs::read_to_string(path).expect("a log");
        let records = text
            .lines()
            .map(|line| line.split_once(' ').expect("a time").1.to_owned());
        records.collect()
    }

    /// Process id of a container's supervisor.
    pub(crate) fn supervisor_pid(&self, id: &ContainerId) -> i32 {
        self.recorded(id, "supervisor.json", |file| file["pid"].as_i64())
    }

    /// Process id of a container's main process.
    pub(crate) fn main_pid(&self, id: &ContainerId) -> i32 {
        self.recorded(id, "process.json", |file| file["main"]["pid"].as_i64())
    }

    pub(crate) fn container_dir(&self, id: &ContainerId) -> PathBuf {
        self.state_dir().join("containers").join(id.as_str())
    }

    fn recorded(&self, id: &ContainerId, file: &str, get: impl Fn(&serde_json::Value) -> Option<i64>) -> i32 {
        let text = fs::read(self.container_dir(id).join(file)).expect("a record");
        let value = serde_json::from_slice(&text).expect("JSON");
        get(&value).and_then(|pid| pid.try_into().ok()).expect("a pid")
    }
}

impl Drop for Node {
    /// Also after a failed test nothing stays behind.
    fn drop(&mut self) {
        self.runtime = None;
        let Ok(containers) = fs::read_dir(self.state_dir().join("containers")) else {
            return;
        };
        let ids: Vec<_> = containers
            .flatten()
            .map(|entry| entry.file_name().into_encoded_bytes())
            .collect();
        let marks: Vec<_> = ids
            .iter()
            .map(|id| [b"KUBELET_PROCESS_CONTAINER=".as_slice(), id].concat())
            .collect();
        // Programs that are being executed show no environment: seen once more after nobody was found.
        let mut quiet = 0;
        while quiet < 3 {
            let killed = kill_marked(&ids, &marks);
            quiet = if killed == 0 { quiet + 1 } else { 0 };
            std::thread::yield_now();
        }
    }
}

fn kill_marked(ids: &[Vec<u8>], marks: &[Vec<u8>]) -> usize {
    let mut killed = 0;
    for process in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let holds = |file: &str, wanted: &[Vec<u8>]| {
            let text = fs::read(process.path().join(file)).unwrap_or_default();
            wanted.iter().any(|text_of_ours| contains(&text, text_of_ours))
        };
        if pid != std::process::id().cast_signed() && runs(pid) && (holds("environ", marks) || holds("cmdline", ids)) {
            // With its group, which holds what it is just about to execute.
            let group = Pid::from_raw(pid).expect("a pid");
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            kill(pid);
            killed += 1;
        }
    }
    killed
}

/// A named pipe.
pub(crate) struct Pipe {
    path: PathBuf,
}

impl Pipe {
    /// Waits until somebody has written, and closed it again.
    pub(crate) async fn read(&self) -> String {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || fs::read_to_string(path)).await;
        read.expect("no panic").expect("the pipe reads").trim().to_owned()
    }

    pub(crate) async fn read_pid(&self) -> i32 {
        self.read().await.parse().expect("a pid")
    }

    /// Waits until somebody reads, and writes a line.
    pub(crate) async fn write(&self) {
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || fs::write(path, "\n")).await;
        written.expect("no panic").expect("the pipe writes");
    }
}

/// Waits until a process has ended; a zombie has.
pub(crate) async fn ended(pid: i32) {
    let wait = move || {
        let Ok(handle) = pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()) else {
            return;
        };
        let mut fds = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).expect("poll");
    };
    tokio::task::spawn_blocking(wait).await.expect("no panic");
}

/// Whether a process runs: exists and is no zombie.
pub(crate) fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

pub(crate) fn kill(pid: i32) {
    // It may have ended by itself.
    let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL);
}

pub(crate) fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("permissions");
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}
