//! Mounting and unmounting: the seam that volume plugins use, so that their tests need neither root nor devices.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::mount_table::MountTable;

mod options;
pub(crate) mod scripted;
mod system;
#[cfg(test)]
pub(crate) mod testing;

pub use options::MountOptions;
pub use system::SystemMounts;

/// Mounts and unmounts for volume plugins. All calls block.
///
/// # Contract
/// - A target that is a link is refused, never followed.
/// - What fails leaves nothing mounted.
/// - Unmounting what is not mounted, or not there, succeeds.
/// - Nothing is ever unmounted while it is in use.
pub trait Mounts: fmt::Debug + Send + Sync {
    /// Mounts a folder or a file once more, at `target`, which is there and is of the same kind. Links in `source` are
    /// followed. The options of the mount that `source` is on stay, those given come in addition.
    ///
    /// # Errors
    /// If either is not there, or the kernel refuses.
    fn bind(&self, source: &Path, target: &Path, options: &MountOptions) -> io::Result<()>;

    /// Mounts what an open file descriptor, be it opened with `O_PATH`, stands for: nobody can put anything else in its
    /// place meanwhile.
    ///
    /// # Errors
    /// Like [`Mounts::bind`].
    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path, options: &MountOptions) -> io::Result<()>;

    /// Mounts a file system. `data` are options of the file system, separated by commas, beside those in `options`.
    ///
    /// # Errors
    /// If the target is not there, or the kernel or the file system's own program refuses or takes too long.
    fn mount(&self, fs_type: &str, source: &str, target: &Path, options: &MountOptions, data: &str) -> io::Result<()>;

    /// Unmounts the uppermost of what is mounted at `target`.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if it is in use; whatever else keeps it mounted.
    fn unmount(&self, target: &Path) -> io::Result<()>;

    /// The same for a file system whose server does not answer: calls that wait for it are given up, also an [`Mounts::unmount`] in
    /// another thread. By default an ordinary unmount.
    ///
    /// # Errors
    /// Like [`Mounts::unmount`].
    fn unmount_forced(&self, target: &Path) -> io::Result<()> {
        self.unmount(target)
    }

    /// Lets nothing that is mounted or unmounted below `target` show elsewhere any more: what was mounted there from a folder of
    /// the host may share its later mounts with it, and these must outlive what is undone here. By default nothing, for those who
    /// share nothing.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn make_private(&self, target: &Path) -> io::Result<()> {
        let _ = target;
        Ok(())
    }

    /// What is mounted.
    ///
    /// # Errors
    /// If that cannot be read.
    fn table(&self) -> io::Result<MountTable>;

    /// Lets what is mounted below a folder later on be seen at all other places where the folder is mounted: binds the folder onto
    /// itself, unless something is mounted there, or what it is on is shared already. Tells whether it was not. Does nothing,
    /// unless an implementation says more.
    ///
    /// # Errors
    /// If it is not there, or the kernel refuses.
    fn make_shared(&self, dir: &Path) -> io::Result<bool> {
        let _ = dir;
        Ok(false)
    }

    /// Whether something is mounted at `path`, be it one whose server is gone. What is not there is no mount point.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn is_mount_point(&self, path: &Path) -> io::Result<bool> {
        Ok(self.table()?.is_mount_point(path))
    }
}

const _: Option<&dyn Mounts> = None;

impl<T: Mounts + ?Sized> Mounts for std::sync::Arc<T> {
    fn bind(&self, source: &Path, target: &Path, options: &MountOptions) -> io::Result<()> {
        (**self).bind(source, target, options)
    }

    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path, options: &MountOptions) -> io::Result<()> {
        (**self).bind_fd(source, target, options)
    }

    fn mount(&self, fs_type: &str, source: &str, target: &Path, options: &MountOptions, data: &str) -> io::Result<()> {
        (**self).mount(fs_type, source, target, options, data)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        (**self).unmount(target)
    }

    fn unmount_forced(&self, target: &Path) -> io::Result<()> {
        (**self).unmount_forced(target)
    }

    fn make_private(&self, target: &Path) -> io::Result<()> {
        (**self).make_private(target)
    }

    fn table(&self) -> io::Result<MountTable> {
        (**self).table()
    }

    fn make_shared(&self, dir: &Path) -> io::Result<bool> {
        (**self).make_shared(dir)
    }

    fn is_mount_point(&self, path: &Path) -> io::Result<bool> {
        (**self).is_mount_point(path)
    }
}

/// Unmounts all that is mounted at `target`, however often.
pub(crate) fn unmount_all(mounts: &dyn Mounts, target: &Path) -> io::Result<()> {
    /// Nobody mounts at one place as often as that.
    const DEEPEST: usize = 64;
    for _ in 0..DEEPEST {
        if !mounts.is_mount_point(target)? {
            return Ok(());
        }
        mounts.unmount(target)?;
    }
    Err(super::failure::refused(
        target,
        "is mounted again as often as it is unmounted",
    ))
}
