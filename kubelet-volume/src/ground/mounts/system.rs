//! Mounts by system calls; by the `mount` program where a file system has a program of its own.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fstat, fstatvfs, open, statx,
};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind,
    mount_bind_recursive, mount_change, mount_remount, move_mount, open_tree, unmount,
};

use super::{MountOptions, Mounts};
use crate::ground::command;
use crate::ground::failure::{at, invalid, is_corrupted_mount, refused};
use crate::ground::mount_table::MountTable;

/// How long the program of a file system may take, unless told otherwise: less than a pod waits for its volumes.
const PROGRAM_LIMIT: Duration = Duration::from_secs(120);

/// The mounts of the namespace that the agent runs in.
#[derive(Debug, Clone)]
pub struct SystemMounts {
    program_limit: Duration,
    /// Where the programs of file systems are.
    helpers: PathBuf,
    /// With systemd, what a program starts (the daemon of a FUSE file system) has to be in a unit of its own: it would
    /// end with the agent's.
    systemd: bool,
}

impl Default for SystemMounts {
    fn default() -> Self {
        Self {
            program_limit: PROGRAM_LIMIT,
            helpers: PathBuf::from("/sbin"),
            systemd: Path::new("/run/systemd/system").is_dir(),
        }
    }
}

impl SystemMounts {
    /// How long the program of a file system may take before it is killed and the mount has failed; two minutes if not
    /// given.
    #[must_use]
    pub fn program_limit(mut self, limit: Duration) -> Self {
        self.program_limit = limit;
        self
    }

    fn needs_program(&self, fs_type: &str) -> bool {
        let known = matches!(fs_type, "nfs" | "nfs4" | "cifs" | "smb3") || fs_type.starts_with("fuse");
        // A type such as `fuse.sshfs` has a program for what stands before the dot.
        known || self.helpers.join(format!("mount.{fs_type}")).exists()
    }

    fn unmount_with(&self, target: &Path, flags: UnmountFlags) -> io::Result<()> {
        match unmount(target, flags) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(Errno::BUSY) => {
                let error = io::Error::new(io::ErrorKind::ResourceBusy, "busy: something still uses it");
                Err(at("cannot unmount", target, error))
            }
            // What is not mounted, and also what must not be.
            Err(Errno::INVAL) if !self.table()?.is_mount_point(&resolved(target)?) => Ok(()),
            Err(error) => Err(at("cannot unmount", target, error)),
        }
    }

    fn mount_by_program(&self, fs_type: &str, source: &str, target: &Path, options: &str) -> io::Result<()> {
        let place = target
            .to_str()
            .ok_or_else(|| refused(target, "is no text that a program can be told"))?;
        let (program, args) = self.program(fs_type, source, place, options);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ended = command::run(Path::new(program), &args, self.program_limit);
        match ended {
            Ok(ended) if ended.is_success() => Ok(()),
            Ok(ended) => Err(at("cannot mount at", target, io::Error::other(ended.why()))),
            Err(error) => {
                // Killed in the midst of it: what it has done by then is not to stay.
                let _ = self.unmount(target);
                Err(error)
            }
        }
    }

    fn program(&self, fs_type: &str, source: &str, target: &str, options: &str) -> (&'static str, Vec<String>) {
        let mut args = Vec::new();
        if self.systemd {
            let description = format!("--description=Kubernetes transient mount for {target}");
            args.extend([description, "--scope".to_owned(), "--".to_owned(), "mount".to_owned()]);
        }
        args.extend(["-t".to_owned(), fs_type.to_owned()]);
        if !options.is_empty() {
            args.extend(["-o".to_owned(), options.to_owned()]);
        }
        // Whatever a volume names is no option.
        args.extend(["--".to_owned(), source.to_owned(), target.to_owned()]);
        (if self.systemd { "systemd-run" } else { "mount" }, args)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Mounts for SystemMounts {
    fn bind(&self, source: &Path, target: &Path, options: &MountOptions) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = open(source, flags, Mode::empty()).map_err(|error| at("cannot open", source, error))?;
        self.bind_fd(opened.as_fd(), target, options)
    }

    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path, options: &MountOptions) -> io::Result<()> {
        let fail = |error: Errno| at("cannot bind at", target, error);
        let place = open_target(target)?;
        let is_dir = |fd| fstat(fd).map(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        if is_dir(source).map_err(fail)? != is_dir(place.as_fd()).map_err(fail)? {
            return Err(refused(
                target,
                "and what is to be mounted there are not both folders or both files",
            ));
        }
        let mounted = attach(source, &place, options.recursive).map_err(fail)?;
        let adapted = match mounted {
            Attached::Handle(tree) => adapt(&tree, options),
            Attached::ByPath => open_mount_root(target).and_then(|root| adapt(&root, options)),
        };
        adapted.map_err(|error| {
            // As it is, more may be done with it than was asked for.
            let _ = self.unmount(target);
            fail(error)
        })
    }

    fn mount(&self, fs_type: &str, source: &str, target: &Path, options: &MountOptions, data: &str) -> io::Result<()> {
        let place = open_target(target)?;
        if self.needs_program(fs_type) {
            // Its file system may be what the program mounts over.
            drop(place);
            return self.mount_by_program(fs_type, source, target, &options.program_text(data));
        }
        let data = CString::new(options.kernel_data(data)).map_err(|_| invalid("an option of a mount has a NUL"))?;
        mount(
            source,
            proc_path(place.as_fd()),
            fs_type,
            options.flags(),
            data.as_c_str(),
        )
        .map_err(|error| at(&format!("cannot mount {fs_type} at"), target, error))
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        self.unmount_with(target, UnmountFlags::NOFOLLOW)
    }

    fn unmount_forced(&self, target: &Path) -> io::Result<()> {
        self.unmount_with(target, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE)
    }

    fn make_private(&self, target: &Path) -> io::Result<()> {
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change(target, private).map_err(|error| at("cannot keep to itself", target, error))
    }

    fn table(&self) -> io::Result<MountTable> {
        MountTable::read()
    }

    fn make_shared(&self, dir: &Path) -> io::Result<bool> {
        let real = dir.canonicalize().map_err(|error| at("cannot resolve", dir, error))?;
        if self
            .table()?
            .holder(&real)
            .is_some_and(|point| point.peer_group.is_some())
        {
            return Ok(false);
        }
        if !self.is_mount_point(&real)? {
            self.bind(&real, &real, &MountOptions::parse(["rbind"]))?;
        }
        let shared = mount_change(&real, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
        shared.map_err(|error| at("cannot share the mounts below", &real, error))?;
        Ok(true)
    }

    fn is_mount_point(&self, path: &Path) -> io::Result<bool> {
        // A server that does not answer is not waited for.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        match statx(CWD, path, flags, StatxFlags::empty()) {
            Ok(found) if found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
                Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Ok(_) | Err(Errno::NOSYS) => Ok(self.table()?.is_mount_point(&resolved(path)?)),
            // A folder that may not be looked at answers like that as well; the table knows.
            Err(error) if is_corrupted_mount(error) => Ok(self.table()?.is_mount_point(&resolved(path)?)),
            Err(error) => Err(at("cannot look at", path, error)),
        }
    }
}

enum Attached {
    /// The root of the new mount itself.
    Handle(OwnedFd),
    ByPath,
}

fn attach(source: BorrowedFd<'_>, target: &OwnedFd, recursive: bool) -> rustix::io::Result<Attached> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    match open_tree(source, "", flags) {
        Ok(tree) => {
            let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(&tree, "", target, "", both)?;
            Ok(Attached::Handle(tree))
        }
        // Before Linux 5.2, or kept from it by a filter that knows only the old call.
        Err(Errno::NOSYS | Errno::PERM) => {
            attach_by_path(source, target, recursive)?;
            Ok(Attached::ByPath)
        }
        Err(error) => Err(error),
    }
}

fn attach_by_path(source: BorrowedFd<'_>, target: &OwnedFd, recursive: bool) -> rustix::io::Result<()> {
    let (source, target) = (proc_path(source), proc_path(target.as_fd()));
    if recursive {
        return mount_bind_recursive(source, target);
    }
    mount_bind(source, target)
}

/// Gives a new mount its options. Without any it has those of its source.
fn adapt(root: &OwnedFd, options: &MountOptions) -> rustix::io::Result<()> {
    let wanted = options.bind_flags();
    if wanted.is_empty() {
        return Ok(());
    }
    // A remount sets them all: those that the source has would go.
    let flags = MountFlags::BIND | wanted | flags_of(fstatvfs(root)?.f_flag, wanted);
    // By the mount's own descriptor: it cannot be another one.
    mount_remount(proc_path(root.as_fd()), flags, "")
}

fn flags_of(found: StatVfsMountFlags, wanted: MountFlags) -> MountFlags {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
    ];
    let atimes = [
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let has = |(flag, _): &(StatVfsMountFlags, MountFlags)| found.contains(*flag);
    let kept: MountFlags = pairs.into_iter().filter(has).map(|(_, flag)| flag).collect();
    // Of these only one can be.
    if wanted.intersects(MountFlags::NOATIME | MountFlags::RELATIME | MountFlags::STRICTATIME) {
        return kept;
    }
    kept | atimes
        .into_iter()
        .filter(has)
        .map(|(_, flag)| flag)
        .collect::<MountFlags>()
}

fn open_target(target: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(target, flags, Mode::empty()).map_err(|error| at("cannot open", target, error))?;
    let found = fstat(&opened).map_err(|error| at("cannot look at", target, error))?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
        return Err(refused(target, "is a link: nothing is mounted there"));
    }
    Ok(opened)
}

/// The mount that was just made there.
fn open_mount_root(target: &Path) -> rustix::io::Result<OwnedFd> {
    let root = open(target, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = statx(&root, "", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    let told = found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    if told && !found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(Errno::AGAIN);
    }
    Ok(root)
}

/// A path that leads to what the descriptor stands for, and to nothing else.
fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The path as the table of mounts has it: links above the last name resolved, the last itself not.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(path.to_owned());
    };
    let parent = parent
        .canonicalize()
        .map_err(|error| at("cannot resolve", parent, error))?;
    Ok(parent.join(name))
}

#[cfg(test)]
mod tests;
