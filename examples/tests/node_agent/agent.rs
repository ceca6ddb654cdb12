//! One agent under test, and everything that it starts.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;

/// How long a line may take on a busy machine. Only a failure waits that long.
const PATIENCE: Duration = Duration::from_secs(90);

/// A folder for one test: manifests and the agent's root. Dropped, it ends what still runs.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("manifests")).unwrap();
        Self { dir }
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.dir.path().join("manifests")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.manifests().join(name), text).unwrap();
    }

    /// Starts an agent here, with further arguments.
    pub(crate) fn start(&self, arguments: &[&str]) -> Agent {
        self.start_as(Command::new(env!("CARGO_BIN_EXE_node-agent")), arguments)
    }

    pub(crate) fn start_as(&self, mut command: Command, arguments: &[&str]) -> Agent {
        command
            .arg(self.manifests())
            .args(["--plain", "--node-name", "n1", "--root-dir"])
            .arg(self.root())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Agent::spawn(command)
    }

    /// The processes whose environment names this folder: those of its containers, and their parents.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let marker = self.dir.path().to_str().unwrap().as_bytes().to_vec();
        let mut found: Vec<i32> = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                let has = |file: &str| {
                    fs::read(format!("/proc/{pid}/{file}"))
                        .is_ok_and(|text| text.windows(marker.len()).any(|window| window == marker.as_slice()))
                };
                has("environ") || has("cmdline")
            })
            .collect();
        found.sort_unstable();
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Parents first, so that none of them starts or records anything more.
        for _ in 0..50 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for pid in left {
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            std::thread::yield_now();
        }
    }
}

/// A running agent. Dropped, it is killed; its pods are the folder's business.
pub(crate) struct Agent {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    readers: Vec<JoinHandle<()>>,
}

impl Agent {
    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let mut readers = Vec::new();
        let outputs: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for output in outputs {
            let sender = sender.clone();
            readers.push(std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            }));
        }
        Self {
            child,
            lines,
            seen: Vec::new(),
            readers,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Waits for a line that has all these parts, and gives it.
    pub(crate) fn line(&mut self, parts: &[&str]) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if parts.iter().all(|part| line.contains(part)) {
                        return line;
                    }
                }
                Err(error) => {
                    let why = match error {
                        RecvTimeoutError::Timeout => "in time",
                        RecvTimeoutError::Disconnected => "before the agent ended",
                    };
                    panic!("no line with {parts:?} {why}; seen:\n{}", self.seen.join("\n"));
                }
            }
        }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until it has ended by itself, and says whether well.
    pub(crate) fn end(mut self) -> bool {
        let status = self.child.wait().unwrap();
        status.success()
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// A manifest of one pod that runs a shell command.
pub(crate) fn pod(name: &str, policy: &str, command: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  restartPolicy: {policy}\n  \
         terminationGracePeriodSeconds: 2\n  containers:\n    - name: app\n      image: localhost/host\n      \
         command: [\"/bin/sh\", \"-c\", {command:?}]\n"
    )
}

/// Waits, without a clock, for a file with content that the agent's processes write.
pub(crate) fn content(path: &Path) -> String {
    loop {
        match fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text,
            _ => std::thread::yield_now(),
        }
    }
}
