//! Small files that must survive a crash: on disk, or in memory for tests.

mod disk;
mod memory;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::BoxError;

use self::disk::Disk;
pub use self::memory::MemoryDisk;

/// Why a file of a [`StateDir`] could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The path is not one that a state folder may hold; repeating the call is no use.
    #[error("cannot {op} state file {path:?}: not a plain relative path")]
    BadPath {
        /// What was attempted.
        op: &'static str,
        /// The path, as given.
        path: String,
    },
    /// The disk refused. What was there before is still there.
    #[error("cannot {op} state file {path}")]
    Failed {
        /// What was attempted.
        op: &'static str,
        /// The path, below the folder.
        path: String,
        /// The cause.
        source: BoxError,
    },
}

/// A folder of small files, each replaced as a whole. Cheap to clone: clones share the folder.
///
/// - A write is atomic and durable once it returns: a crash at any moment leaves the old content or the new one, and
///   an error leaves the old one.
/// - Paths are relative, with `/` between their elements; no element is empty or begins with a dot.
/// - Files are readable by their owner only: manifests hold secrets.
/// - Calls on one path are to be made one after the other; of overlapping writes either may be the last.
#[derive(Clone)]
pub struct StateDir {
    backend: Backend,
}

#[derive(Clone)]
enum Backend {
    Disk(Arc<Disk>),
    Memory(MemoryDisk),
}

impl StateDir {
    /// Keeps files below `path`, which is made at the first write. One process at a time may use it.
    pub fn on_disk(path: impl Into<PathBuf>) -> Self {
        Self {
            backend: Backend::Disk(Arc::new(Disk::new(path.into()))),
        }
    }

    /// Keeps files in memory, for tests and for nodes that need not remember. Every call is answered at once.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::simulated(&MemoryDisk::new())
    }

    /// Keeps files on a simulated disk that can crash and fill up.
    #[must_use]
    pub fn simulated(disk: &MemoryDisk) -> Self {
        Self {
            backend: Backend::Memory(disk.clone()),
        }
    }

    /// The content of a file; nothing if there is none.
    ///
    /// # Errors
    /// [`StateError`]. A missing file is no error.
    pub async fn read(&self, path: &str) -> Result<Option<Bytes>, StateError> {
        check("read", path)?;
        match &self.backend {
            Backend::Memory(disk) => disk.read(path).map_err(|source| failed("read", path, source)),
            Backend::Disk(disk) => on_blocking_thread("read", path, disk, Disk::read).await,
        }
    }

    /// Replaces a file, making the folders above it.
    ///
    /// # Errors
    /// [`StateError`]; the old content then stays.
    ///
    /// # Cancellation
    /// A dropped call may still write; the file then has the old content or the new one.
    pub async fn write(&self, path: &str, bytes: impl Into<Bytes>) -> Result<(), StateError> {
        check("write", path)?;
        let bytes = bytes.into();
        match &self.backend {
            Backend::Memory(disk) => disk.write(path, bytes).map_err(|source| failed("write", path, source)),
            Backend::Disk(disk) => {
                on_blocking_thread("write", path, disk, move |disk, path| disk.write(path, &bytes)).await
            }
        }
    }

    /// Removes a file, durably.
    ///
    /// # Errors
    /// [`StateError`]. A missing file is no error.
    ///
    /// # Cancellation
    /// A dropped call may still remove it.
    pub async fn remove(&self, path: &str) -> Result<(), StateError> {
        check("remove", path)?;
        match &self.backend {
            Backend::Memory(disk) => {
                disk.removes().await;
                disk.remove(path).map_err(|source| failed("remove", path, source))
            }
            Backend::Disk(disk) => on_blocking_thread("remove", path, disk, Disk::remove).await,
        }
    }

    /// Removes files, durably once it returns, and at little more cost than one.
    ///
    /// # Errors
    /// [`StateError`] with the first file that could not be removed; the others are all the same. A missing file is no
    /// error.
    ///
    /// # Cancellation
    /// A dropped call may still remove them, or some of them.
    pub async fn remove_all(&self, paths: Vec<String>) -> Result<(), StateError> {
        const OP: &str = "remove";
        paths.iter().try_for_each(|path| check(OP, path))?;
        let of_path = |(path, source): (String, std::io::Error)| failed(OP, &path, source);
        match &self.backend {
            Backend::Memory(disk) => {
                disk.removes().await;
                disk.remove_all(&paths).map_err(of_path)
            }
            Backend::Disk(disk) => {
                let (disk, first) = (Arc::clone(disk), paths.first().cloned().unwrap_or_default());
                tokio::task::spawn_blocking(move || disk.remove_all(&paths))
                    .await
                    .map_err(|source| failed(OP, &first, source))?
                    .map_err(of_path)
            }
        }
    }

    /// The names of the files in a folder, sorted, without folders. A missing folder has none.
    ///
    /// # Errors
    /// [`StateError`].
    pub async fn list(&self, dir: &str) -> Result<Vec<String>, StateError> {
        check("list", dir)?;
        match &self.backend {
            Backend::Memory(disk) => disk.list(dir).map_err(|source| failed("list", dir, source)),
            Backend::Disk(disk) => on_blocking_thread("list", dir, disk, Disk::list).await,
        }
    }
}

impl fmt::Debug for StateDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("StateDir");
        match &self.backend {
            Backend::Disk(disk) => debug.field("path", &disk.root()),
            Backend::Memory(_) => debug.field("path", &"in memory"),
        };
        debug.finish_non_exhaustive()
    }
}

async fn on_blocking_thread<T: Send + 'static>(
    op: &'static str,
    path: &str,
    disk: &Arc<Disk>,
    work: impl FnOnce(&Disk, &str) -> std::io::Result<T> + Send + 'static,
) -> Result<T, StateError> {
    let (disk, owned) = (Arc::clone(disk), path.to_owned());
    tokio::task::spawn_blocking(move || work(&disk, &owned))
        .await
        .map_err(|source| failed(op, path, source))?
        .map_err(|source| failed(op, path, source))
}

fn failed(op: &'static str, path: &str, source: impl Into<BoxError>) -> StateError {
    StateError::Failed {
        op,
        path: path.to_owned(),
        source: source.into(),
    }
}

/// Names that begin with a dot are ours, for files that are being written.
fn check(op: &'static str, path: &str) -> Result<(), StateError> {
    let plain = |element: &str| !element.is_empty() && !element.starts_with('.') && !element.contains('\0');
    if path.split('/').all(plain) {
        Ok(())
    } else {
        Err(StateError::BadPath {
            op,
            path: path.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{MemoryDisk, StateDir, StateError};

    async fn both(test: impl AsyncFn(StateDir)) {
        let dir = tempfile::tempdir().unwrap();
        test(StateDir::on_disk(dir.path().join("not/yet"))).await;
        test(StateDir::in_memory()).await;
    }

    #[tokio::test]
    async fn files_are_replaced_listed_and_removed() {
        both(async |state| {
            assert_eq!(state.read("a/b").await.unwrap(), None);
            assert!(state.list("a").await.unwrap().is_empty());
            state.write("a/c", "1").await.unwrap();
            state.write("a/b", "2").await.unwrap();
            state.write("a/b", "3").await.unwrap();
            state.write("a/d/e", "4").await.unwrap();
            assert_eq!(state.read("a/b").await.unwrap().as_deref(), Some(&b"3"[..]));
            assert_eq!(state.list("a").await.unwrap(), ["b", "c"]);
            state.remove("a/b").await.unwrap();
            state.remove("a/b").await.unwrap();
            state.remove("x/y").await.unwrap();
            assert_eq!(state.list("a").await.unwrap(), ["c"]);
            let all = ["a/c", "a/b", "x/y", "a/d/e"].map(str::to_owned);
            state.remove_all(all.to_vec()).await.unwrap();
            state.remove_all(Vec::new()).await.unwrap();
            assert!(state.list("a").await.unwrap().is_empty());
            assert_eq!(state.read("a/d/e").await.unwrap(), None);
        })
        .await;
    }

    #[tokio::test]
    async fn paths_cannot_leave_the_folder() {
        both(async |state| {
            for path in [
                "",
                "/etc/passwd",
                "a/../b",
                "..",
                ".",
                "a//b",
                "a/",
                ".hidden",
                "a/.b",
                "a\0b",
            ] {
                let refused = state.write(path, "x").await;
                assert!(matches!(refused, Err(StateError::BadPath { .. })), "{path:?}");
                assert!(state.read(path).await.is_err() && state.remove(path).await.is_err());
            }
        })
        .await;
    }

    #[tokio::test]
    async fn an_error_names_operation_and_path() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        let state = StateDir::on_disk(dir.path());
        let error = state.write("file/below", "x").await.unwrap_err();
        assert_eq!(error.to_string(), "cannot write state file file/below");
        assert!(std::error::Error::source(&error).is_some());
    }

    #[tokio::test]
    async fn an_old_unfinished_write_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".a.tmp"), "half of something much longer").unwrap();
        let state = StateDir::on_disk(dir.path());
        state.write("b", "1").await.unwrap();
        assert_eq!(state.list("..").await.ok(), None);
        state.write("a", "new").await.unwrap();
        assert_eq!(state.read("a").await.unwrap().as_deref(), Some(&b"new"[..]));
        assert!(!dir.path().join(".a.tmp").exists());
    }

    /// Ends the machine or the process after each primitive step of a write in turn.
    #[tokio::test]
    async fn a_write_cut_off_anywhere_leaves_the_old_or_the_new_content() {
        let restarts: [fn(&MemoryDisk); 3] = [MemoryDisk::restart, MemoryDisk::crash, MemoryDisk::crash_keeping_names];
        for restart in restarts {
            for old in [None, Some("the old content")] {
                let mut finished = false;
                let mut after = 0;
                while !finished {
                    let disk = MemoryDisk::new();
                    let state = StateDir::simulated(&disk);
                    if let Some(old) = old {
                        state.write("a/b", old).await.unwrap();
                    }
                    disk.crash_after(after);
                    finished = state.write("a/b", "the new content").await.is_ok();
                    restart(&disk);
                    let found = state.read("a/b").await.unwrap();
                    let found = found.as_deref().map(|bytes| std::str::from_utf8(bytes).unwrap());
                    assert!(
                        found == old || found == Some("the new content"),
                        "{found:?} after {after}"
                    );
                    assert!(
                        !finished || found == Some("the new content"),
                        "a finished write is durable"
                    );
                    assert!(state.list("a").await.unwrap().len() <= 1);
                    after += 1;
                }
                assert!(after > 4, "a write has steps");
            }
        }
    }

    #[tokio::test]
    async fn a_removal_cut_off_anywhere_leaves_all_or_nothing() {
        for after in 0..4 {
            let disk = MemoryDisk::new();
            let state = StateDir::simulated(&disk);
            state.write("a", "1").await.unwrap();
            disk.crash_after(after);
            let removed = state.remove("a").await;
            disk.crash();
            let found = state.read("a").await.unwrap();
            assert!(found.is_none() || found.as_deref() == Some(b"1"));
            assert!(removed.is_err() || found.is_none(), "a finished removal is durable");
        }
    }

    #[tokio::test]
    async fn a_removal_of_many_cut_off_anywhere_leaves_each_whole_or_not_at_all() {
        let names = ["a/1", "a/2", "b/1"].map(str::to_owned);
        for after in 0..5 {
            let disk = MemoryDisk::new();
            let state = StateDir::simulated(&disk);
            for name in &names {
                state.write(name, "1").await.unwrap();
            }
            disk.crash_after(after);
            let removed = state.remove_all(names.to_vec()).await;
            disk.crash();
            for name in &names {
                let found = state.read(name).await.unwrap();
                assert!(found.is_none() || found.as_deref() == Some(b"1"));
                assert!(removed.is_err() || found.is_none(), "a finished removal is durable");
            }
            assert_eq!(removed.is_ok(), after == 4);
        }
    }

    #[tokio::test]
    async fn a_full_disk_leaves_the_old_content() {
        let disk = MemoryDisk::new();
        let state = StateDir::simulated(&disk);
        state.write("a", "old").await.unwrap();
        disk.fill();
        assert!(state.write("a", "new").await.is_err());
        assert!(state.write("b", "new").await.is_err());
        assert_eq!(state.read("a").await.unwrap().as_deref(), Some(&b"old"[..]));
        disk.make_room();
        state.write("a", "new").await.unwrap();
        assert_eq!(state.list("x").await.unwrap(), Vec::<String>::new());
    }
}
