//! File systems of disks: one that has none gets one, and none is ever made where anything may be.
//! Source: mount-utils 1.36, `mount_linux.go`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tracing::{debug, warn};

use super::command::Tools;
use super::mounts::{MountOptions, Mounts};

const DEFAULT: &str = "ext4";

/// As much as has to be readable of a disk before it is taken for empty.
const READABLE: u64 = 64 << 10;

/// `blkid` found nothing that it knows.
const NOTHING_KNOWN: i32 = 2;
/// `fsck` corrected the file system.
const CORRECTED: i32 = 1;
/// `fsck` left errors uncorrected.
const UNCORRECTED: i32 = 4;

/// Which disk is to be mounted where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk<'a> {
    pub(crate) device: &'a Path,
    /// There, and empty.
    pub(crate) target: &'a Path,
    /// `ext4` if empty.
    pub(crate) fs_type: &'a str,
    pub(crate) options: &'a MountOptions,
    /// Arguments for making the file system, beside those that are always given.
    pub(crate) format_options: &'a [&'a str],
}

/// Why a disk is not mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    /// Nobody can have meant that: it is empty, and nothing may be written to it.
    #[error("cannot mount the unformatted disk {} read-only", .0.display())]
    UnformattedReadOnly(PathBuf),
    /// Formatting it would destroy something.
    #[error("the disk {} has unknown data, probably partitions", .0.display())]
    UnknownData(PathBuf),
    /// Somebody has to look at it.
    #[error("errors were found on the disk {} and not corrected: {why}", .device.display())]
    Uncorrected { device: PathBuf, why: String },
    /// Neither is the disk formatted anew, nor is what it has mounted instead.
    #[error("the disk {} has {found}, and cannot be mounted as {wanted}", .device.display())]
    Mismatch {
        device: PathBuf,
        found: String,
        wanted: String,
        source: io::Error,
    },
    /// Making the file system failed; the next attempt may find half of one.
    #[error("cannot make {fs_type} on the disk {}: {why}", .device.display())]
    FormatFailed {
        device: PathBuf,
        fs_type: String,
        why: String,
    },
    #[error("cannot {what} the disk {}", .device.display())]
    Io {
        what: &'static str,
        device: PathBuf,
        source: io::Error,
    },
}

/// What a disk has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Nothing,
    FileSystem(String),
    /// Partitions, or what else is not to be overwritten.
    Unknown,
}

/// Mounts a disk, after checking its file system, or making one where it has nothing.
pub(crate) fn format_and_mount(tools: &dyn Tools, mounts: &dyn Mounts, disk: &Disk<'_>) -> Result<(), DiskError> {
    let wanted = if disk.fs_type.is_empty() { DEFAULT } else { disk.fs_type };
    let device = text(disk.device)?;
    let content = content(tools, disk.device)?;
    match &content {
        Content::Unknown => return Err(DiskError::UnknownData(disk.device.to_owned())),
        Content::Nothing if disk.options.read_only => {
            return Err(DiskError::UnformattedReadOnly(disk.device.to_owned()));
        }
        Content::Nothing => format(tools, disk, device, wanted)?,
        Content::FileSystem(found) => {
            if found != wanted {
                warn!(
                    device,
                    found, wanted, "a disk has another file system than it is to be mounted as"
                );
            }
            if !disk.options.read_only {
                check(tools, disk.device, device)?;
            }
        }
    }
    let mounted = mounts.mount(wanted, device, disk.target, disk.options, "");
    mounted.map_err(|source| match content {
        Content::FileSystem(found) if found != wanted => DiskError::Mismatch {
            device: disk.device.to_owned(),
            found,
            wanted: wanted.to_owned(),
            source,
        },
        _ => failed("mount", disk.device)(source),
    })
}

/// Finds out what a disk has.
pub(crate) fn content(tools: &dyn Tools, device: &Path) -> Result<Content, DiskError> {
    let args = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", text(device)?];
    let ended = tools.run("blkid", &args).map_err(failed("look at", device))?;
    match ended.code {
        Some(0) => {}
        Some(NOTHING_KNOWN) => {
            // It says the same of a disk that it cannot read, and that one is not empty.
            let file = File::open(device).map_err(failed("read", device))?;
            io::copy(&mut file.take(READABLE), &mut io::sink()).map_err(failed("read", device))?;
            return Ok(Content::Nothing);
        }
        _ => return Err(failed("look at", device)(io::Error::other(ended.why()))),
    }
    let value = |key: &str| {
        let values = ended
            .output
            .lines()
            .filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
        values.map(str::to_owned).find(|value| !value.is_empty())
    };
    Ok(match (value("TYPE"), value("PTTYPE")) {
        (Some(found), _) => Content::FileSystem(found),
        // What says neither is nothing to build upon.
        (None, _) => Content::Unknown,
    })
}

fn format(tools: &dyn Tools, disk: &Disk<'_>, device: &str, fs_type: &str) -> Result<(), DiskError> {
    let fail = |why: String| DiskError::FormatFailed {
        device: disk.device.to_owned(),
        fs_type: fs_type.to_owned(),
        why,
    };
    // It becomes part of a program's name.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !fs_type.bytes().all(fits) || fs_type.starts_with(['.', '-']) {
        return Err(fail("that is no name of a file system".to_owned()));
    }
    let always: &[&str] = match fs_type {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let args = [disk.format_options, always, &[device]].concat();
    let ended = tools
        .run(&format!("mkfs.{fs_type}"), &args)
        .map_err(|error| fail(error.to_string()))?;
    if ended.is_success() {
        return Ok(());
    }
    Err(fail(ended.why()))
}

fn check(tools: &dyn Tools, path: &Path, device: &str) -> Result<(), DiskError> {
    let ended = match tools.run("fsck", &["-a", device]) {
        Ok(ended) => ended,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            warn!(device, "there is no fsck: the disk is mounted unchecked");
            return Ok(());
        }
        Err(error) => return Err(failed("check", path)(error)),
    };
    match ended.code {
        Some(0) => Ok(()),
        Some(UNCORRECTED) => Err(DiskError::Uncorrected {
            device: path.to_owned(),
            why: ended.why(),
        }),
        Some(CORRECTED) => {
            debug!(device, "errors of a file system were corrected");
            Ok(())
        }
        _ => {
            warn!(device, why = ended.why(), "a disk could not be checked");
            Ok(())
        }
    }
}

fn text(device: &Path) -> Result<&str, DiskError> {
    let no_text = || failed("tell programs of", device)(io::Error::other("its path is no text"));
    device.to_str().ok_or_else(no_text)
}

fn failed(what: &'static str, device: &Path) -> impl FnOnce(io::Error) -> DiskError {
    let device = device.to_owned();
    move |source| DiskError::Io { what, device, source }
}

#[cfg(test)]
mod tests;
