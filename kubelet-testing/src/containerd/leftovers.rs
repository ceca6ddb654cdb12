//! Removal of an instance and of all that it has on the machine, whether it still runs or was killed at any point.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::geteuid;

use crate::containerd::containers::remove_containers;
use crate::containerd::error::ComponentError;
use crate::containerd::folder::Lock;
use crate::containerd::network::{Network, remove_shared_chains};
use crate::containerd::processes::kill_all_of;

/// Removes what processes that live no more have left: containerds and registries with all they had on the machine.
///
/// Each start of a private containerd does this first. It answers the folders that were removed.
///
/// # Errors
/// [`ComponentError::Failed`] if something is still there. The rest is removed nevertheless.
pub fn remove_leftovers() -> Result<Vec<PathBuf>, ComponentError> {
    let lock = Lock::take()?;
    let mut removed = Vec::new();
    let mut first = Ok(());
    for folder in lock.abandoned() {
        let result = remove(&folder);
        if result.is_ok() {
            removed.push(folder);
        }
        first = first.and(result);
    }
    if lock.all().is_empty() && geteuid().is_root() {
        remove_shared_chains();
    }
    first.map(|()| removed)
}

/// Ends all that belongs to a folder, and removes it. What fails does not keep the rest from being removed.
///
/// Nothing is asked of containerd: what has to work after a crash is enough for an orderly end too.
pub(crate) fn remove(folder: &Path) -> Result<(), ComponentError> {
    // In this order: who could start something, what runs, what it ran in, what it ran on.
    let ended = kill_all_of(folder);
    let containers = remove_containers(folder);
    let network = Network::of(folder).map_or(Ok(()), |network| network.remove(folder));
    let unmounted = unmount_all(folder);
    // Nothing is removed through a mount that is still there: it may show a part of the machine.
    let gone = unmounted.and_then(|()| match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(ComponentError::failed(format!("remove {}", folder.display()), error))
        }
        _ => Ok(()),
    });
    ended.and(containers).and(network).and(gone)
}

/// Unmounts all that is mounted below a folder, the last that was mounted first.
fn unmount_all(folder: &Path) -> Result<(), ComponentError> {
    let table = "/proc/self/mountinfo";
    let mounts = fs::read(table).map_err(ComponentError::io(format!("read {table}")))?;
    let mut first = Ok(());
    for point in mount_points(&mounts)
        .into_iter()
        .rev()
        .filter(|point| point.starts_with(folder))
    {
        let result = unmount(&point, UnmountFlags::DETACH);
        first =
            first.and(result.map_err(|error| ComponentError::failed(format!("unmount {}", point.display()), error)));
    }
    first
}

/// The mount points of a table, in its order.
fn mount_points(table: &[u8]) -> Vec<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n');
    let fields = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    fields
        .map(|field| PathBuf::from(OsString::from_vec(unescaped(field))))
        .collect()
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        match (byte, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_they_are() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n23 22 0:5 / /a\\040b\\134c rw - tmpfs none rw\n";
        assert_eq!(mount_points(table), [PathBuf::from("/"), PathBuf::from("/a b\\c")]);
    }
}
