use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file of a socket that this process listens on, removed when dropped unless another file has taken its place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Which file it is. It stays the same, and nobody else's, for as long as the socket is open: that keeps the inode in use.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// The socket that was just bound to a path.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            identity: Identity::of(&fs::symlink_metadata(path)?),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let removed = match fs::symlink_metadata(&self.path) {
            Ok(found) if self.identity == Identity::of(&found) => fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(error = &error as &dyn std::error::Error, path = %self.path.display(), "socket left behind");
        }
    }
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}
