//! Makes a folder the root of what is started next, with its mounts. Needs root.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind_recursive, mount_change, mount_remount};
use rustix::thread::UnshareFlags;

use crate::record::{MountSpec, ProcessSpec};

/// Shown in every root folder, as the host has them: its processes and network are shared as well.
const HOST_FOLDERS: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Gives the calling thread mounts of its own, in which the root folder holds what it should. What it starts later
/// inherits them. Returns the root folder.
pub(crate) fn enter(root: &Path, spec: &ProcessSpec) -> io::Result<OwnedFd> {
    unshare_mounts().map_err(|err| explain(err, "cannot make a mount namespace", root))?;
    // Later mounts of the host still show; ours do not show there.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|err| explain(err.into(), "cannot change propagation of", Path::new("/")))?;
    // A mount of its own, so that it can be made read-only.
    mount_bind_recursive(root, root).map_err(|err| explain(err.into(), "cannot bind", root))?;
    for folder in HOST_FOLDERS {
        let mount = MountSpec {
            container_path: folder.to_owned(),
            host_path: folder.into(),
            read_only: false,
        };
        bind(root, &mount)?;
    }
    for mount in &spec.mounts {
        bind(root, mount)?;
    }
    if spec.read_only_root {
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        mount_remount(root, flags, "").map_err(|err| explain(err.into(), "cannot make read-only", root))?;
    }
    // Opened last: what is opened before a mount lies under it.
    Ok(rustix::fs::open(
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn bind(root: &Path, mount: &MountSpec) -> io::Result<()> {
    let wrong = |err| explain(err, "cannot mount at", Path::new(&mount.container_path));
    let kind = std::fs::metadata(&mount.host_path).map_err(|err| explain(err, "cannot mount", &mount.host_path))?;
    let target = place(root, &mount.container_path, kind.is_dir()).map_err(wrong)?;
    mount_bind_recursive(&mount.host_path, &target).map_err(|err| wrong(err.into()))?;
    if mount.read_only {
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        mount_remount(&target, flags, "").map_err(|err| wrong(err.into()))?;
    }
    Ok(())
}

/// Finds, or makes, the place of a mount. Links in the root folder are followed within it, never out of it.
fn place(root: &Path, container_path: &str, is_dir: bool) -> io::Result<PathBuf> {
    let root = File::open(root)?;
    let mut parts = container_path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .peekable();
    let mut so_far = PathBuf::from("/");
    let mut at = within(&root, &so_far)?;
    while let Some(part) = parts.next() {
        so_far.push(part);
        at = match within(&root, &so_far) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                make(&at, part, is_dir || parts.peek().is_some())?;
                within(&root, &so_far)?
            }
            other => other?,
        };
    }
    // The real path of what was opened, free of links.
    std::fs::read_link(format!("/proc/self/fd/{}", at.as_fd().as_raw_fd()))
}

fn within(root: &File, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(
        root,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?)
}

fn make(parent: &OwnedFd, name: &str, is_dir: bool) -> io::Result<()> {
    if is_dir {
        return Ok(rustix::fs::mkdirat(parent, name, Mode::from(0o755))?);
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::from(0o644))?;
    Ok(())
}

#[expect(
    unsafe_code,
    reason = "unsharing can invalidate descriptors that other threads use; mounts do not"
)]
fn unshare_mounts() -> io::Result<()> {
    // SAFETY: only the mounts, and with them root and working directory, of this thread become its own. Descriptors
    // stay shared and valid, and nothing in this crate relies on threads sharing a working directory.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?)
}

fn explain(err: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(err.kind(), format!("{what} {}: {err}", path.display()))
}
