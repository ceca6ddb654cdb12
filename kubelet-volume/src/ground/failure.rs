//! Errors that say what was done to which path, and still know what the kernel answered.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// The text of an error with its path; the number that the kernel gave stays.
#[derive(Debug)]
struct Failure {
    text: String,
    errno: Option<i32>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Failure {}

/// The error of doing `what` to `path`.
pub(crate) fn at(what: &str, path: &Path, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    let text = format!("{what} {}: {error}", path.display());
    let errno = errno(&error).map(Errno::raw_os_error);
    io::Error::new(error.kind(), Failure { text, errno })
}

/// An error that is ours and not the kernel's.
pub(crate) fn refused(path: &Path, why: impl fmt::Display) -> io::Error {
    io::Error::other(format!("{} {why}", path.display()))
}

/// An input that can never be right.
pub(crate) fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.into())
}

/// What the kernel answered, if it was the kernel.
pub(crate) fn errno(error: &io::Error) -> Option<Errno> {
    let raw = error
        .raw_os_error()
        .or_else(|| error.get_ref()?.downcast_ref::<Failure>()?.errno)?;
    Some(Errno::from_raw_os_error(raw))
}

/// What is not there needs no removal.
pub(crate) fn ignore_missing(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Whether a file system answers like that although something is mounted: its server or its daemon is gone.
/// Source: mount-utils 1.36, `IsCorruptedMnt`.
pub(crate) fn is_corrupted_mount(errno: Errno) -> bool {
    [
        Errno::NOTCONN,
        Errno::STALE,
        Errno::IO,
        Errno::ACCESS,
        Errno::HOSTDOWN,
        Errno::AGAIN,
        Errno::NODEV,
    ]
    .contains(&errno)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use rustix::io::Errno;

    use super::{at, errno, invalid, is_corrupted_mount};

    #[test]
    fn an_error_names_its_path_and_keeps_its_number() {
        let error = at("cannot open", Path::new("/a"), Errno::STALE);
        let outer = at("cannot mount", Path::new("/b"), error);
        let text = outer.to_string();
        assert!(text.starts_with("cannot mount /b: cannot open /a: "), "{text}");
        assert_eq!(errno(&outer), Some(Errno::STALE));
        assert!(is_corrupted_mount(Errno::STALE) && !is_corrupted_mount(Errno::NOENT));
        assert_eq!(errno(&invalid("no")), None);
        assert_eq!(at("x", Path::new("/"), Errno::NOENT).kind(), io::ErrorKind::NotFound);
    }
}
