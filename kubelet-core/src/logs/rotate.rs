//! Rotation: bounds what one container's log takes of the disk.

use std::error::Error;
use std::fmt;
use std::fs;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";

/// Writes compressed copies of rotated logs. Without one, rotated logs stay as they are.
pub trait LogCompressor: fmt::Debug + Send + Sync + 'static {
    /// Writes `from` to `to` as gzip, with the same file mode. Runs where blocking is allowed.
    ///
    /// # Errors
    /// What the system says. `to` is removed then and tried again at the next rotation.
    fn compress(&self, from: &Path, to: &Path) -> io::Result<()>;
}

/// When logs are rotated and how much is kept.
///
/// Source: kubelet 1.36, `containerLogMaxSize` and `containerLogMaxFiles`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogRotation {
    /// A log of so many bytes or more is rotated. Default 10 MiB.
    pub max_size_bytes: u64,
    /// So many files are kept for each container instance, the current one included. Default 5;
    /// less than 2 counts as 2.
    pub max_files: usize,
    /// Compresses all rotated logs but the newest. Default none.
    pub compressor: Option<Arc<dyn LogCompressor>>,
}

impl Default for LogRotation {
    fn default() -> Self {
        Self {
            max_size_bytes: 10 << 20,
            max_files: 5,
            compressor: None,
        }
    }
}

/// What [`LogRotation::rotate_if_due`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rotated {
    /// The log is small enough.
    NotDue,
    /// The log was missing, so the runtime was asked to open it again.
    Reopened,
    /// The log has this name now, and a new one was begun.
    To(PathBuf),
    /// It was rotated within the same second already; next time.
    TooSoon,
}

/// Why a log was not rotated. It goes on as it was and is tried again at the next period.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RotateError {
    /// A file operation failed.
    #[error("failed to {op} {path:?}")]
    Files {
        /// What was attempted.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The runtime did not open a new log. The old one has its name back, unless a new one is there
    /// after all.
    #[error("failed to make the runtime reopen {path:?}")]
    Reopen {
        /// The log.
        path: PathBuf,
        /// What the runtime said.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl LogRotation {
    /// Rotates the log of one running container if it has grown too large.
    ///
    /// Older files are cleaned up and compressed first, then the log is renamed to
    /// `<log>.<YYYYMMDD-HHMMSS>` and the runtime made to `reopen` it. The time in the name is UTC,
    /// so that names sort by age through any change of clocks (upstream takes local time). `reopen`
    /// is polled only when it is needed.
    ///
    /// # Errors
    /// See [`RotateError`]. A rotated file that cannot be compressed is no error: it is kept as it
    /// is.
    ///
    /// # Cancellation
    /// Dropped during `reopen`, the log has its new name already: the next call finds it missing
    /// and reopens it.
    pub async fn rotate_if_due<E: Into<Box<dyn Error + Send + Sync>>>(
        &self,
        log: &Path,
        now: Timestamp,
        reopen: impl Future<Output = Result<(), E>> + Send,
    ) -> Result<Rotated, RotateError> {
        let size = match tokio::fs::metadata(log).await {
            Ok(meta) => meta.len(),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                reopen.await.map_err(|err| reopen_error(log, err))?;
                return Ok(Rotated::Reopened);
            }
            Err(err) => return Err(files("look at", log)(err)),
        };
        if size < self.max_size_bytes {
            return Ok(Rotated::NotDue);
        }
        let target = with_suffix(log, &format!(".{}", now.strftime("%Y%m%d-%H%M%S")));
        let (rotation, from, to) = (self.clone(), log.to_owned(), target.clone());
        if !blocking(log, move || rotation.move_away(&from, &to)).await? {
            return Ok(Rotated::TooSoon);
        }
        if let Err(err) = reopen.await {
            let (from, to) = (target, log.to_owned());
            blocking(log, move || move_back(&from, &to)).await?;
            return Err(reopen_error(log, err));
        }
        Ok(Rotated::To(target))
    }

    /// False if the name is taken.
    fn move_away(&self, log: &Path, target: &Path) -> Result<bool, RotateError> {
        let taken = [target.to_owned(), with_suffix(target, COMPRESSED)]
            .iter()
            .any(|path| path.exists());
        if taken {
            return Ok(false);
        }
        let older = clean_up(log, self.max_files.saturating_sub(2))?;
        if let Some(compressor) = &self.compressor {
            for path in older.iter().filter(|path| !has_suffix(path, COMPRESSED)) {
                if let Err(err) = compress(&**compressor, path) {
                    tracing::warn!(error = &err as &dyn Error, ?path, "rotated log could not be compressed");
                }
            }
        }
        fs::rename(log, target).map_err(files("rename", log))?;
        Ok(true)
    }
}

/// Removes a log and everything rotated from it. What is gone already is no error.
///
/// Blocks on the file system.
///
/// # Errors
/// The first file that cannot be removed; the others are still tried.
pub fn remove_logs(log: &Path) -> io::Result<()> {
    let mut outcome = Ok(());
    for path in rotated(log)?.iter().map(PathBuf::as_path).chain([log]) {
        match fs::remove_file(path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => outcome = outcome.and(Err(err)),
            _ => {}
        }
    }
    outcome
}

/// Removes leftovers and all but the newest `keep` rotated files; returns those, oldest first.
fn clean_up(log: &Path, keep: usize) -> Result<Vec<PathBuf>, RotateError> {
    let all = rotated(log).map_err(files("list the rotated files of", log))?;
    // An unfinished copy is started anew. An original whose copy is finished was left by a crash
    // just after.
    let (useless, mut kept): (Vec<_>, Vec<_>) = all
        .iter()
        .cloned()
        .partition(|path| has_suffix(path, UNFINISHED) || all.contains(&with_suffix(path, COMPRESSED)));
    let surplus = kept.len().saturating_sub(keep);
    for path in useless.into_iter().chain(kept.drain(..surplus)) {
        fs::remove_file(&path).map_err(files("remove", &path))?;
    }
    Ok(kept)
}

fn compress(compressor: &dyn LogCompressor, path: &Path) -> io::Result<()> {
    let unfinished = with_suffix(path, UNFINISHED);
    let outcome = compressor.compress(path, &unfinished).and_then(|()| {
        fs::rename(&unfinished, with_suffix(path, COMPRESSED))?;
        fs::remove_file(path)
    });
    if outcome.is_err() {
        // The error in hand says more than one about a copy that may not even exist.
        let _ = fs::remove_file(&unfinished);
    }
    outcome
}

/// Gives a log its name back, unless the runtime has begun a new one: a link, unlike a rename,
/// replaces nothing.
fn move_back(from: &Path, log: &Path) -> Result<(), RotateError> {
    match fs::hard_link(from, log) {
        Ok(()) => fs::remove_file(from).map_err(files("remove", from)),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(err) => Err(files("give its name back to", log)(err)),
    }
}

/// `<log>.*`, oldest first, by the times in their names.
fn rotated(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a log has a name and a directory",
        ));
    };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(err),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry
            .file_name()
            .to_str()
            .and_then(|other| other.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with('.'))
        {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(suffix.as_bytes())
}

fn files(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RotateError + use<> {
    let path = path.to_owned();
    move |source| RotateError::Files { op, path, source }
}

fn reopen_error<E: Into<Box<dyn Error + Send + Sync>>>(log: &Path, err: E) -> RotateError {
    RotateError::Reopen {
        path: log.to_owned(),
        source: err.into(),
    }
}

async fn blocking<T: Send + 'static>(
    log: &Path,
    call: impl FnOnce() -> Result<T, RotateError> + Send + 'static,
) -> Result<T, RotateError> {
    tokio::task::spawn_blocking(call)
        .await
        .unwrap_or_else(|err| Err(files("rotate", log)(io::Error::other(err))))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;

    use super::{LogCompressor, LogRotation, RotateError, Rotated, remove_logs};

    #[derive(Debug)]
    struct Marker;

    impl LogCompressor for Marker {
        fn compress(&self, from: &Path, to: &Path) -> io::Result<()> {
            fs::write(to, format!("gz of {}", fs::read_to_string(from)?))
        }
    }

    fn rotation() -> LogRotation {
        LogRotation {
            max_size_bytes: 3,
            max_files: 4,
            compressor: Some(Arc::new(Marker)),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::new(1_767_323_045 + second, 0).unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    async fn rotate(log: &Path, second: i64) -> Rotated {
        let reopen = log.to_owned();
        rotation()
            .rotate_if_due(log, at(second), async move { fs::write(reopen, "") })
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn rotation_keeps_the_newest_files() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        fs::write(dir.path().join("10.log.x"), "not ours").unwrap();
        fs::write(&log, "ab").unwrap();
        assert_eq!(rotate(&log, 0).await, Rotated::NotDue);
        for second in 0..6 {
            fs::write(&log, format!("log {second}")).unwrap();
            assert!(matches!(rotate(&log, second).await, Rotated::To(_)));
        }
        assert_eq!(
            names(dir.path()),
            [
                "0.log",
                "0.log.20260102-030408.gz",
                "0.log.20260102-030409.gz",
                "0.log.20260102-030410",
                "10.log.x"
            ]
        );
        assert_eq!(
            fs::read_to_string(dir.path().join("0.log.20260102-030409.gz")).unwrap(),
            "gz of log 4"
        );
        fs::write(&log, "again").unwrap();
        assert_eq!(rotate(&log, 5).await, Rotated::TooSoon);
        assert_eq!(fs::read_to_string(&log).unwrap(), "again");

        remove_logs(&log).unwrap();
        remove_logs(&log).unwrap();
        assert_eq!(names(dir.path()), ["10.log.x"]);
    }

    #[tokio::test]
    async fn leftovers_of_a_crash_are_cleaned_up() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        for name in ["0.log.1.gz", "0.log.1", "0.log.2.tmp", "0.log.2", "0.log"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        rotate(&log, 0).await;
        assert_eq!(
            names(dir.path()),
            ["0.log", "0.log.1.gz", "0.log.2.gz", "0.log.20260102-030405"]
        );
        assert_eq!(
            fs::read_to_string(dir.path().join("0.log.2.gz")).unwrap(),
            "gz of 0.log.2"
        );

        fs::remove_file(&log).unwrap();
        assert_eq!(rotate(&log, 1).await, Rotated::Reopened);
        assert!(log.exists());
    }

    #[tokio::test]
    async fn a_failed_reopen_leaves_the_log_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let log: PathBuf = dir.path().join("0.log");
        fs::write(&log, "content").unwrap();
        let failed = rotation()
            .rotate_if_due(&log, at(0), async { Err("no runtime") })
            .await
            .unwrap_err();
        assert!(matches!(failed, RotateError::Reopen { .. }));
        assert_eq!(names(dir.path()), ["0.log"]);
        assert_eq!(fs::read_to_string(&log).unwrap(), "content");

        // The runtime did open a new log, only its answer was lost.
        let new = log.clone();
        let reopen = async move { fs::write(new, "new").and(Err(io::Error::other("timed out"))) };
        rotation().rotate_if_due(&log, at(0), reopen).await.unwrap_err();
        assert_eq!(names(dir.path()), ["0.log", "0.log.20260102-030405"]);
        assert_eq!(fs::read_to_string(&log).unwrap(), "new");
    }
}
