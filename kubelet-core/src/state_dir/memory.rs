//! A simulated disk: what is written is lost in a crash unless it was synced.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// A disk in memory for crash tests of whatever keeps state in a [`StateDir`](super::StateDir).
///
/// A write is made of primitive steps, as on a real disk: create the temporary file, write half of it, write the rest,
/// sync it, rename it, sync the folder. A removal unlinks and syncs the folder. What was not synced is lost by
/// [`crash`](MemoryDisk::crash). Copies share the disk.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    inner: Arc<Mutex<Inner>>,
    released: Arc<Notify>,
}

#[derive(Default)]
struct Inner {
    /// Names as the running system sees them, and as they are on the medium.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    files: BTreeMap<usize, Content>,
    next_file: usize,
    steps: u64,
    crash_at: Option<u64>,
    full: bool,
    holds_removals: bool,
}

#[derive(Clone, Default)]
struct Content {
    seen: Bytes,
    durable: Bytes,
}

impl MemoryDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The primitive steps carried out so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Lets `steps` more primitive steps happen. After them every call fails and changes nothing, until
    /// [`restart`](Self::restart) or a crash.
    pub fn crash_after(&self, steps: u64) {
        let mut inner = self.lock();
        inner.crash_at = Some(inner.steps + steps);
    }

    /// The process ended and begins anew: what it did stays, synced or not.
    pub fn restart(&self) {
        self.lock().crash_at = None;
    }

    /// The power failed: whatever was not synced is gone.
    pub fn crash(&self) {
        let mut inner = self.lock();
        inner.names = inner.durable_names.clone();
        inner.lose_contents();
    }

    /// The power failed when all names had reached the medium, but only those contents that were synced: what a
    /// journal of names allows.
    pub fn crash_keeping_names(&self) {
        let mut inner = self.lock();
        inner.durable_names = inner.names.clone();
        inner.lose_contents();
    }

    /// Fills the disk up: writes fail for want of room.
    pub fn fill(&self) {
        self.lock().full = true;
    }

    /// Ends what [`fill`](Self::fill) began.
    pub fn make_room(&self) {
        self.lock().full = false;
    }

    /// Lets every removal wait, as a slow disk does, until [`release_removals`](Self::release_removals).
    pub fn hold_removals(&self) {
        self.lock().holds_removals = true;
    }

    /// Ends what [`hold_removals`](Self::hold_removals) began.
    pub fn release_removals(&self) {
        self.lock().holds_removals = false;
        self.released.notify_waiters();
    }

    /// Waits while removals are held.
    pub(super) async fn removes(&self) {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // Before looking, so that no release goes by in between.
            released.as_mut().enable();
            if !self.lock().holds_removals {
                return;
            }
            released.await;
        }
    }

    pub(super) fn read(&self, path: &str) -> io::Result<Option<Bytes>> {
        let inner = self.lock();
        inner.alive()?;
        Ok(inner.content(path))
    }

    pub(super) fn write(&self, path: &str, bytes: Bytes) -> io::Result<()> {
        let mut inner = self.lock();
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let temporary = format!("{folder}/.{name}.tmp");
        inner.step()?;
        let file = inner.next_file;
        inner.next_file += 1;
        inner.names.insert(temporary.clone(), file);
        if inner.full {
            inner.names.remove(&temporary);
            return Err(ErrorKind::StorageFull.into());
        }
        for written in [bytes.len() / 2, bytes.len()] {
            inner.step()?;
            inner.files.entry(file).or_default().seen = bytes.slice(..written);
        }
        inner.step()?;
        inner.files.entry(file).or_default().durable = bytes;
        inner.step()?;
        inner.names.remove(&temporary);
        let displaced = inner.names.insert(path.to_owned(), file);
        inner.step()?;
        inner.sync_name(path);
        inner.sync_name(&temporary);
        // It may never have become durable.
        inner.drop_file(displaced);
        Ok(())
    }

    pub(super) fn remove(&self, path: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.step()?;
        inner.names.remove(path);
        inner.step()?;
        inner.sync_name(path);
        Ok(())
    }

    pub(super) fn remove_all(&self, paths: &[String]) -> Result<(), (String, io::Error)> {
        let mut inner = self.lock();
        for path in paths {
            inner.step().map_err(|error| (path.clone(), error))?;
            inner.names.remove(path);
        }
        if let Some(first) = paths.first() {
            inner.step().map_err(|error| (first.clone(), error))?;
        }
        for path in paths {
            inner.sync_name(path);
        }
        Ok(())
    }

    pub(super) fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let inner = self.lock();
        inner.alive()?;
        let below = inner
            .names
            .keys()
            .filter_map(|path| path.strip_prefix(dir)?.strip_prefix('/'));
        Ok(below
            .filter(|name| !name.contains('/') && !name.starts_with('.'))
            .map(str::to_owned)
            .collect())
    }

    /// What is guarded is valid between any two statements, so that a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn alive(&self) -> io::Result<()> {
        if self.crash_at.is_some_and(|at| self.steps >= at) {
            return Err(io::Error::other("the simulated disk has crashed"));
        }
        Ok(())
    }

    fn content(&self, path: &str) -> Option<Bytes> {
        let file = self.names.get(path)?;
        Some(
            self.files
                .get(file)
                .map(|content| content.seen.clone())
                .unwrap_or_default(),
        )
    }

    fn step(&mut self) -> io::Result<()> {
        self.alive()?;
        self.steps += 1;
        Ok(())
    }

    fn sync_name(&mut self, path: &str) {
        let now = self.names.get(path).copied();
        let before = match now {
            Some(file) => self.durable_names.insert(path.to_owned(), file),
            None => self.durable_names.remove(path),
        };
        if before != now {
            self.drop_file(before);
        }
    }

    /// A file that has lost a name. It had no other: a temporary one is gone before the real one is durable.
    fn drop_file(&mut self, file: Option<usize>) {
        if let Some(file) = file {
            self.files.remove(&file);
        }
    }

    fn lose_contents(&mut self) {
        self.crash_at = None;
        for content in self.files.values_mut() {
            content.seen = content.durable.clone();
        }
    }
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        f.debug_struct("MemoryDisk")
            .field("files", &inner.names.len())
            .field("steps", &inner.steps)
            .field("full", &inner.full)
            .finish_non_exhaustive()
    }
}
