//! Reading and writing the files of cgroups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kubelet_core::CgroupError;

/// The text of a file, without the end of its line; nothing if it is not there.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        // A cgroup that goes away while its file is read answers with ENODEV.
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    // In one piece, as the kernel wants it; a kernel has no file to truncate.
    fs::write(path, text)
}

/// Writes unless that is what is there: the kernel does more than needed for a value that it has.
pub(crate) fn set(path: &Path, text: &str) -> io::Result<()> {
    if read(path)?.as_deref() == Some(text) {
        return Ok(());
    }
    write(path, text)
}

/// Whether a file or a cgroup is not there.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

/// Whether the user may not do that, or nobody may here.
pub(crate) fn is_forbidden(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// The folders in a folder; none if it is not there.
pub(crate) fn folders(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = match entry {
            Err(error) if is_gone(&error) => return Ok(Vec::new()),
            entry => entry?,
        };
        // Never a link: what is removed must be a cgroup's own.
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// A failure about a file.
pub(crate) fn failed(what: &str, path: &Path, error: io::Error) -> CgroupError {
    CgroupError::failed(format!("{what} {}", path.display()), error)
}
