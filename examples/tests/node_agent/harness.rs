//! A folder with manifests and state, the agent on it, and what it says.

mod processes;
mod program;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use tempfile::TempDir;

pub(crate) use self::processes::ended;
pub(crate) use self::program::Program;

/// A pod of one process that goes on, and has its version in its environment.
pub(crate) fn sleeper(name: &str, version: &str) -> String {
    pod(
        name,
        &format!(
            "  terminationGracePeriodSeconds: 2
  containers:
    - name: app
      image: localhost/host
      command: [sleep, infinity]
      env:
        - {{name: VERSION, value: {version}}}
"
        ),
    )
}

/// A pod that runs a shell script once.
pub(crate) fn once(name: &str, script: &str) -> String {
    pod(
        name,
        &format!(
            "  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
    - name: app
      image: localhost/host
      command: [/bin/sh, -c, '{script}']
      env:
        - {{name: SCRIPT_OF, value: {name}}}
"
        ),
    )
}

/// A manifest, from the fields of its spec.
pub(crate) fn pod(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n{spec}")
}

/// A node on temporary folders. Nothing of it is left once it is dropped.
pub(crate) struct Node {
    dir: TempDir,
    agent: Option<Program>,
}

impl Node {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(dir.path().join("manifests")).expect("the folder is ours");
        Self { dir, agent: None }
    }

    /// A path in the node's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.path("root")
    }

    pub(crate) fn manifest(&self, name: &str) -> PathBuf {
        self.path("manifests").join(name)
    }

    /// Writes a manifest in place, as `cat >` does.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.manifest(name), text).expect("the folder is ours");
    }

    /// The agent's command line. Without a word on cgroups there are none: those of `/` are everybody's.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_node-agent"));
        command.args(["--plain", "--node-name", "n1", "--root-dir"]);
        command.arg(self.root()).args(args);
        if !args.iter().any(|word| word.starts_with("--cgroup")) {
            command.arg("--cgroups-per-qos=false");
        }
        command.arg(self.path("manifests"));
        command
    }

    /// The same, of another user, whose folders the node's are from then on. It takes root and `setpriv`.
    pub(crate) fn command_of(&self, user: u32, args: &[&str]) -> Command {
        fs::set_permissions(self.path(""), PermissionsExt::from_mode(0o755)).expect("the folder is ours");
        fs::create_dir(self.root()).expect("the folder is ours");
        chown(self.root(), Some(user), Some(user)).expect("this is root");
        // The build's own folder may be closed to others. `cp` runs by itself: a file that this process wrote could
        // still be open in the child of another test, and then not be executed.
        let copy = self.path("node-agent");
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_node-agent"))
            .arg(&copy)
            .status()
            .expect("cp runs");
        assert!(copied.success());
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
        command.arg(copy).args(self.command(args).get_args());
        command
    }

    pub(crate) fn start(&mut self, args: &[&str]) {
        self.start_as(self.command(args));
    }

    pub(crate) fn start_as(&mut self, command: Command) {
        assert!(self.agent.is_none(), "an agent runs already");
        self.agent = Some(Program::start(command));
    }

    fn agent(&mut self) -> &mut Program {
        self.agent.as_mut().expect("an agent was started")
    }

    /// Waits for a line that holds `text`, from the last one seen on.
    pub(crate) fn line(&mut self, text: &str) -> String {
        self.agent().line(text)
    }

    /// Waits for lines that hold these texts, in any order.
    pub(crate) fn lines(&mut self, texts: &[&str]) {
        self.agent().lines(texts);
    }

    /// Waits until a pod's only container is ready.
    pub(crate) fn running(&mut self, pod: &str) -> String {
        self.line(&format!("pod default/{pod}-n1: Running, ready 1/1"))
    }

    /// All that the agent has said so far.
    pub(crate) fn said(&mut self) -> &[String] {
        self.agent().said()
    }

    /// Ends the agent as Ctrl-C does; its exit status and its last words.
    pub(crate) fn interrupt(&mut self) -> (ExitStatus, Vec<String>) {
        let mut agent = self.agent.take().expect("an agent was started");
        agent.signal(Signal::INT);
        agent.rest()
    }

    /// Ends the agent with no chance to say or do anything.
    pub(crate) fn kill(&mut self) {
        let mut agent = self.agent.take().expect("an agent was started");
        agent.signal(Signal::KILL);
        agent.rest();
    }

    /// Processes of this node's containers.
    pub(crate) fn processes(&self) -> BTreeSet<i32> {
        processes::of_containers(&self.root())
    }

    /// The one process of this node's containers that has this in its environment.
    pub(crate) fn process(&self, variable: &str) -> i32 {
        let found: Vec<i32> = self
            .processes()
            .into_iter()
            .filter(|pid| processes::has_variable(*pid, variable))
            .collect();
        assert_eq!(found.len(), 1, "processes with {variable}: {found:?}");
        found[0]
    }

    /// The parent that a container's process has for itself.
    pub(crate) fn supervisor(&self, process: i32) -> i32 {
        processes::parent(process)
    }

    /// A pipe whose reader waits for a line.
    pub(crate) fn pipe(&self, name: &str) -> Pipe {
        Pipe::new(self.path(name))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.agent = None;
        processes::kill_all(&self.root());
    }
}

/// A named pipe through which a script is told to go on.
pub(crate) struct Pipe {
    path: PathBuf,
    file: File,
}

impl Pipe {
    fn new(path: PathBuf) -> Self {
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe can be made");
        // Open for reading too: opening then never waits, and what is written stays for a later reader.
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .expect("a pipe can be opened");
        Self { path, file }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn go(&mut self) {
        self.file.write_all(b"go\n").expect("this process reads it too");
    }
}
