//! The state directory: one folder per sandbox and container, in which every file appears whole or not at all.
//!
//! A container's folder tells where it stands, so that an agent killed between any two steps can go on:
//!
//! | file | says |
//! |---|---|
//! | `config.json` | it was created; the folder appears by a rename and never lacks it |
//! | `starting` | a start was tried: it is never tried again |
//! | `lock` | locked by the supervisor for as long as it lives, from before it was spawned |
//! | `supervisor.json` | who that is |
//! | `control` | the supervisor's socket |
//! | `process.json` | the main process was started |
//! | `exit.json` | it has ended, or could not be started; never changed again |

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::record::{ContainerFile, ExitFile, Identity, ProcessFile};

const CONFIG: &str = "config.json";
const STARTING: &str = "starting";
const LOCK: &str = "lock";
const SUPERVISOR: &str = "supervisor.json";
const PROCESS: &str = "process.json";
const EXIT: &str = "exit.json";
const CONTROL: &str = "control";
const STOPPED: &str = "stopped";

/// What starts the name of a folder that is half made or half removed.
pub(crate) const HALF: char = '.';

/// A container's folder.
#[derive(Clone, Debug)]
pub(crate) struct ContainerDir {
    path: PathBuf,
}

/// Where a container stands, as its folder tells.
#[derive(Clone, Debug)]
pub(crate) enum OnDisk {
    Created,
    Starting,
    Running(ProcessFile),
    Exited(Option<ProcessFile>, ExitFile),
}

impl ContainerDir {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The container's id: the folder's name.
    pub(crate) fn id(&self) -> String {
        self.path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    pub(crate) fn config(&self) -> io::Result<Option<ContainerFile>> {
        read_json(&self.path.join(CONFIG))
    }

    pub(crate) fn read(&self) -> io::Result<OnDisk> {
        // The exit is looked for first: it stays, while the other files come before it.
        let exit = read_json(&self.path.join(EXIT))?;
        let process = read_json(&self.path.join(PROCESS))?;
        Ok(match (process, exit) {
            (process, Some(exit)) => OnDisk::Exited(process, exit),
            (Some(process), None) => OnDisk::Running(process),
            (None, None) if self.path.join(STARTING).exists() => OnDisk::Starting,
            (None, None) => OnDisk::Created,
        })
    }

    pub(crate) fn mark_starting(&self) -> io::Result<()> {
        private().create(true).truncate(true).open(self.path.join(STARTING))?;
        Ok(())
    }

    /// Opens the lock file. The lock itself belongs to whoever locks what this returns, and to every copy of it.
    pub(crate) fn open_lock(&self) -> io::Result<File> {
        private()
            .read(true)
            .create(true)
            .truncate(false)
            .open(self.path.join(LOCK))
    }

    /// Opens the file that a supervisor's panics go to.
    pub(crate) fn open_complaints(&self) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.path.join("supervisor.log"))
    }

    pub(crate) fn write_supervisor(&self, who: &Identity) -> io::Result<()> {
        write_json(&self.path.join(SUPERVISOR), who, Durability::Process)
    }

    pub(crate) fn supervisor(&self) -> io::Result<Option<Identity>> {
        read_json(&self.path.join(SUPERVISOR))
    }

    pub(crate) fn write_process(&self, process: &ProcessFile) -> io::Result<()> {
        write_json(&self.path.join(PROCESS), process, Durability::Process)
    }

    pub(crate) fn process(&self) -> io::Result<Option<ProcessFile>> {
        read_json(&self.path.join(PROCESS))
    }

    /// Records the end. The caller holds the lock.
    pub(crate) fn write_exit(&self, exit: &ExitFile) -> io::Result<()> {
        write_json(&self.path.join(EXIT), exit, Durability::Disk)
    }

    /// Name of the control socket within the folder.
    pub(crate) fn control_name(&self) -> &'static str {
        CONTROL
    }
}

/// Tries to lock; `false` if somebody else holds it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(err) => Err(err.into()),
    }
}

/// Waits for the lock.
pub(crate) fn wait_lock(file: &File) -> io::Result<()> {
    loop {
        match rustix::fs::flock(file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Makes folder `parent/id` with a config in it, as one step.
pub(crate) fn create_with_config(parent: &Path, id: &str, config: &impl Serialize) -> io::Result<PathBuf> {
    let (half, whole) = (parent.join(format!("{HALF}new-{id}")), parent.join(id));
    let made = (|| {
        fs::DirBuilder::new().mode(0o700).create(&half)?;
        write_json(&half.join(CONFIG), config, Durability::Disk)?;
        fs::rename(&half, &whole)?;
        sync_dir(parent)
    })();
    if let Err(err) = made {
        // The error that is told is the first one; a leftover is removed at the next start.
        let _ = fs::remove_dir_all(&half);
        return Err(err);
    }
    Ok(whole)
}

/// Removes folder `parent/id` so that, if this is cut short, the next start sees no half of it.
pub(crate) fn remove(parent: &Path, id: &str) -> io::Result<()> {
    let half = parent.join(format!("{HALF}old-{id}"));
    match fs::rename(parent.join(id), &half) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    fs::remove_dir_all(half)
}

/// Makes a folder that only we may look into, with its parents.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The config in a sandbox's folder.
pub(crate) fn read_config<T: DeserializeOwned>(dir: &Path) -> io::Result<Option<T>> {
    read_json(&dir.join(CONFIG))
}

/// Notes that a sandbox was stopped.
pub(crate) fn mark_stopped(sandbox: &Path) -> io::Result<()> {
    private().create(true).truncate(true).open(sandbox.join(STOPPED))?;
    Ok(())
}

/// Whether a sandbox was stopped.
pub(crate) fn is_stopped(sandbox: &Path) -> bool {
    sandbox.join(STOPPED).exists()
}

/// What a file must outlive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// The end of the process that wrote it: enough for what means nothing after the next boot.
    Process,
    /// A power failure.
    Disk,
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

fn write_json(path: &Path, value: &impl Serialize, durability: Durability) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = private().create(true).truncate(true).open(&temporary)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    if durability == Durability::Disk {
        file.sync_all()?;
    }
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(parent) if durability == Durability::Disk => sync_dir(parent),
        _ => Ok(()),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
