//! Learns from the state directory what an earlier agent left.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_core::SandboxId;
use kubelet_core::jiff::Timestamp;
use rustix::process::{Signal, pidfd_send_signal};

use crate::process;
use crate::record::{ContainerFile, ExitFile, SandboxFile};
use crate::runtime::container::{Container, Phase};
use crate::runtime::index::{Index, Sandbox};
use crate::runtime::launch::settle_locked;
use crate::settings::OpenError;
use crate::state::{self, ContainerDir, HALF, OnDisk};

/// The folders of a runtime, with the lock that keeps others out.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) lock: File,
    pub(crate) state_dir: PathBuf,
    pub(crate) images_dir: PathBuf,
    pub(crate) boot_id: String,
    pub(crate) index: Index,
    /// Containers whose supervisor is alive.
    pub(crate) alive: Vec<Arc<Container>>,
}

/// The folder of sandboxes in a state directory.
pub(crate) fn sandboxes_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("sandboxes")
}

/// The folder of containers in a state directory.
pub(crate) fn containers_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("containers")
}

/// Opens a state directory. Blocks.
pub(crate) fn open(state_dir: &Path, images_dir: &Path, now: Timestamp) -> Result<Opened, OpenError> {
    let unusable = |err: io::Error| OpenError::StateDir {
        path: state_dir.to_owned(),
        source: err.into(),
    };
    let lock = prepare(state_dir).map_err(unusable)?;
    if !state::try_lock(&lock).map_err(unusable)? {
        return Err(OpenError::InUse {
            path: state_dir.to_owned(),
        });
    }
    load(lock, state_dir, images_dir, now).map_err(unusable)
}

fn prepare(state_dir: &Path) -> io::Result<File> {
    state::private_dir(state_dir)?;
    state::private_dir(&sandboxes_dir(state_dir))?;
    state::private_dir(&containers_dir(state_dir))?;
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(state_dir.join("lock"))
}

fn load(lock: File, state_dir: &Path, images_dir: &Path, now: Timestamp) -> io::Result<Opened> {
    // Supervisors work from another folder.
    let state_dir = state_dir.canonicalize()?;
    let images_dir = images_dir.canonicalize().or_else(|_| std::path::absolute(images_dir))?;
    let boot_id = process::boot_id()?;
    let mut index = Index::default();
    for dir in folders(&sandboxes_dir(&state_dir))? {
        if let Some(sandbox) = load_sandbox(&dir, &boot_id)? {
            index.sandboxes.insert(sandbox.id.clone(), sandbox);
        }
    }
    let mut alive = Vec::new();
    for path in folders(&containers_dir(&state_dir))? {
        let dir = ContainerDir::new(path);
        let Some(file) = config(&dir)? else { continue };
        let (phase, is_alive) = find_phase(&dir, &file, &boot_id, now)?;
        let container = Arc::new(Container::new(file, dir, phase));
        if is_alive {
            alive.push(container.clone());
        }
        index.containers.insert(container.id.clone(), container);
    }
    Ok(Opened {
        lock,
        state_dir,
        images_dir,
        boot_id,
        index,
        alive,
    })
}

/// The folders of whole things; half-made and half-removed ones are cleared away.
fn folders(parent: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let is_half = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(HALF));
        if is_half {
            fs::remove_dir_all(&path)?;
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn load_sandbox(dir: &Path, boot_id: &str) -> io::Result<Option<Sandbox>> {
    let file: SandboxFile = match state::read_config(dir) {
        Ok(Some(file)) => file,
        Ok(None) => {
            fs::remove_dir_all(dir)?;
            return Ok(None);
        }
        Err(err) => {
            tracing::warn!(error = &err as &dyn std::error::Error, dir = %dir.display(), "sandbox record cannot be read");
            return Ok(None);
        }
    };
    let id = dir.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(Some(Sandbox {
        id: SandboxId::from(id.unwrap_or_default()),
        // After a reboot the engine makes a new one, as with a runtime whose sandboxes are processes.
        ready: file.boot_id == boot_id && !state::is_stopped(dir),
        file: Arc::new(file),
        dir: dir.to_owned(),
    }))
}

fn config(dir: &ContainerDir) -> io::Result<Option<ContainerFile>> {
    match dir.config() {
        Ok(Some(file)) => Ok(Some(file)),
        Ok(None) => {
            // Configs come with their folders and go with them, so that this is no container of ours, or never was one.
            if state::try_lock(&dir.open_lock()?)? {
                fs::remove_dir_all(dir.path())?;
            }
            Ok(None)
        }
        Err(err) if is_malformed(&err) => {
            let path = dir.path().display();
            tracing::warn!(error = &err as &dyn std::error::Error, dir = %path, "container record is malformed");
            end_malformed(dir)?;
            Ok(None)
        }
        Err(err) => Err(err),
    }
}

/// Whether a record says nothing and never will, as opposed to one that could not be read just now.
fn is_malformed(err: &io::Error) -> bool {
    let is_nonsense = matches!(err.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
    is_nonsense || err.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Ends what runs of a container whose records say nothing: nobody could stop it or tell its end, and another one would be
/// started beside it.
fn end_malformed(dir: &ContainerDir) -> io::Result<()> {
    // While the lock is held, its supervisor is the one that is noted.
    let is_supervised = !state::try_lock(&dir.open_lock()?)?;
    if let Some(who) = dir.supervisor().ok().flatten().filter(|_| is_supervised)
        && let Some(handle) = who.open()?
        && let Err(err) = pidfd_send_signal(&handle, Signal::KILL)
    {
        // It ends with its container, or has ended.
        tracing::debug!(error = &err as &dyn std::error::Error, "supervisor not killed");
    }
    let id = dir.id();
    let refused = process::sweep(|| process::members(&id, None))?;
    if refused > 0 {
        tracing::warn!(container = %id, refused, "processes of a lost container cannot be killed");
    }
    Ok(())
}

/// Where a container stands, and whether its supervisor is alive. What has lost its supervisor is ended.
fn find_phase(dir: &ContainerDir, file: &ContainerFile, boot_id: &str, now: Timestamp) -> io::Result<(Phase, bool)> {
    let found = match dir.read() {
        Ok(found) => found,
        Err(err) if is_malformed(&err) => {
            let path = dir.path().display();
            tracing::warn!(error = &err as &dyn std::error::Error, dir = %path, "container state is malformed");
            end_malformed(dir)?;
            return Ok((
                Phase::Exited(None, ExitFile::lost("its record cannot be read", now)),
                false,
            ));
        }
        Err(err) => return Err(err),
    };
    if matches!(found, OnDisk::Exited(..)) {
        // Its supervisor may still be about to end, which needs no waiting for.
        return Ok((found.into(), false));
    }
    if file.boot_id != boot_id {
        // Nothing of it can run. Whether it did before is only known for sure where the disk says so: steps before the
        // exit do not outlive a power failure for certain.
        dir.write_exit(&ExitFile::lost("the host was rebooted", now))?;
        return Ok((dir.read()?.into(), false));
    }
    if matches!(found, OnDisk::Created) {
        return Ok((Phase::Created, false));
    }
    let lock = dir.open_lock()?;
    if state::try_lock(&lock)? {
        return Ok((settle_locked(dir, now)?.into(), false));
    }
    Ok((dir.read()?.into(), true))
}
