//! Reads env files out of the volumes of a pod.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Largest env file that is read. It sits in memory while a container starts.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Why an env file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvFileAccessError {
    /// The path is absolute or has a `..`. The pod must be changed.
    #[error("path is not a plain path inside the volume")]
    Path,
    /// A link leads out of the volume.
    #[error("path leads out of the volume")]
    Outside,
    /// It is a directory, pipe or device.
    #[error("not a regular file")]
    NotAFile,
    /// It is too large.
    #[error("larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// The file system refused.
    #[error("cannot be read")]
    Io {
        /// Its answer.
        source: io::Error,
    },
}

/// Reads `path` inside the volume mounted at `root`; nothing if it is not there.
///
/// The content of a volume belongs to the pod, whose containers may run while this looks: a link must
/// not make the agent read a file of the host. So what was opened is checked, not only what was named.
pub(super) fn read_env_file(root: &Path, path: &str) -> Result<Option<String>, EnvFileAccessError> {
    match read(root, path) {
        Ok(text) => Ok(Some(text)),
        Err(EnvFileAccessError::Io { source }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(root: &Path, path: &str) -> Result<String, EnvFileAccessError> {
    let path = Path::new(path);
    let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if path.as_os_str().is_empty() || !path.components().all(plain) {
        return Err(EnvFileAccessError::Path);
    }
    let root = root.canonicalize().map_err(io_error)?;
    let full = root.join(path).canonicalize().map_err(io_error)?;
    if !full.starts_with(&root) {
        return Err(EnvFileAccessError::Outside);
    }
    // Opening a pipe would wait for a writer.
    if !full.symlink_metadata().map_err(io_error)?.is_file() {
        return Err(EnvFileAccessError::NotAFile);
    }
    let file = File::open(&full).map_err(io_error)?;
    if !opened_path(&file, full).map_err(io_error)?.starts_with(&root) {
        return Err(EnvFileAccessError::Outside);
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(io_error)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(EnvFileAccessError::TooLarge);
    }
    Ok(text)
}

/// Where the open file is now, whatever its name leads to by now.
#[cfg(target_os = "linux")]
fn opened_path(file: &File, _named: PathBuf) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// There is no such question to ask here.
#[cfg(not(target_os = "linux"))]
fn opened_path(_file: &File, named: PathBuf) -> io::Result<PathBuf> {
    Ok(named)
}

fn io_error(source: io::Error) -> EnvFileAccessError {
    EnvFileAccessError::Io { source }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::{EnvFileAccessError, MAX_FILE_BYTES, read_env_file};

    #[test]
    fn files_inside_the_volume_are_read() {
        let volume = TempDir::new().unwrap();
        fs::create_dir(volume.path().join("..data-1")).unwrap();
        fs::write(volume.path().join("..data-1/app.env"), "A='1'").unwrap();
        symlink("..data-1", volume.path().join("..data")).unwrap();
        symlink("..data/app.env", volume.path().join("app.env")).unwrap();
        let text = read_env_file(volume.path(), "app.env").unwrap();
        assert_eq!(text.as_deref(), Some("A='1'"));
        assert_eq!(read_env_file(volume.path(), "none").unwrap(), None);
        let gone = volume.path().join("gone");
        assert_eq!(read_env_file(&gone, "app.env").unwrap(), None);
    }

    #[test]
    fn nothing_else_is_read() {
        let outer = TempDir::new().unwrap();
        fs::write(outer.path().join("secret"), "S='1'").unwrap();
        let volume = outer.path().join("volume");
        fs::create_dir(&volume).unwrap();
        fs::create_dir(volume.join("folder")).unwrap();
        symlink("../secret", volume.join("link")).unwrap();
        symlink("..", volume.join("up")).unwrap();
        let large = "x".repeat(usize::try_from(MAX_FILE_BYTES).unwrap() + 1);
        fs::write(volume.join("large"), large).unwrap();
        let error = |path: &str| read_env_file(&volume, path).unwrap_err();
        for path in ["", "../secret", "/etc/passwd", "folder/../../secret"] {
            assert!(matches!(error(path), EnvFileAccessError::Path), "{path:?}");
        }
        for path in ["link", "up/secret"] {
            assert!(matches!(error(path), EnvFileAccessError::Outside), "{path:?}");
        }
        assert!(matches!(error("folder"), EnvFileAccessError::NotAFile));
        assert!(matches!(error("large"), EnvFileAccessError::TooLarge));
    }
}
