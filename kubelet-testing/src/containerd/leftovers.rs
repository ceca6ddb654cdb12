//! Removal of an instance and of all that it has on the machine, whether it still runs or was killed at any point.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::geteuid;
use serde_json::Value;

use crate::containerd::command::{find, run};
use crate::containerd::config::{RUNC, STATE};
use crate::containerd::error::ComponentError;
use crate::containerd::folder::Lock;
use crate::containerd::network::{Network, remove_shared_chains};
use crate::containerd::processes::kill_all_of;

/// Where runc keeps what it knows of containers that were not given another place.
const SHARED_RUNC: &str = "/run/containerd/runc";

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
    remove_cgroups(folder);
    let network = Network::of(folder).map_or(Ok(()), Network::remove);
    remove_shim_sockets(folder);
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

/// Lets runc forget its containers, which removes their cgroups.
fn remove_containers(folder: &Path) -> Result<(), ComponentError> {
    let own = folder.join(RUNC);
    let mut known: BTreeSet<(PathBuf, OsString)> = BTreeSet::new();
    for root in children(&own) {
        known.extend(
            children(&root)
                .into_iter()
                .filter_map(|path| Some((root.clone(), path.file_name()?.into()))),
        );
    }
    for bundle in bundles(folder) {
        let (Some(namespace), Some(id)) = (bundle.parent().and_then(Path::file_name), bundle.file_name()) else {
            continue;
        };
        let root = Path::new(SHARED_RUNC).join(namespace);
        // The same name may be another's there.
        let state = fs::read_to_string(root.join(id).join("state.json")).unwrap_or_default();
        if state.contains(&format!("{}/", folder.display())) {
            known.insert((root, id.into()));
        }
    }
    if known.is_empty() {
        return Ok(());
    }
    let runc = find("runc", "runc")?;
    let mut first = Ok(());
    for (root, id) in known {
        let result = run(
            &runc,
            [
                "--root".as_ref(),
                root.as_os_str(),
                "delete".as_ref(),
                "--force".as_ref(),
                &id,
            ],
        );
        first = first.and(result.map(drop));
    }
    first
}

/// Removes the cgroups that runc made and was killed before it noted them.
fn remove_cgroups(folder: &Path) {
    for bundle in bundles(folder) {
        let config = fs::read_to_string(bundle.join("config.json")).unwrap_or_default();
        let config: Value = serde_json::from_str(&config).unwrap_or_default();
        // A path of the systemd driver has colons, and such a cgroup goes by itself.
        let path = config["linux"]["cgroupsPath"]
            .as_str()
            .map(|path| path.trim_start_matches('/'));
        let Some(path) = path.filter(|path| !path.is_empty() && !path.contains(':')) else {
            continue;
        };
        let hierarchies = Path::new("/sys/fs/cgroup");
        for hierarchy in children(hierarchies).into_iter().chain([hierarchies.to_owned()]) {
            // Only an empty cgroup can be removed, so that nothing of another's is lost. Mostly there is none.
            let _ = fs::remove_dir(hierarchy.join(path));
        }
    }
}

/// Removes the sockets of shims that were killed, which are in one place for all instances.
fn remove_shim_sockets(folder: &Path) {
    for bundle in bundles(folder) {
        // 1.6 has the address alone, 2.x among others.
        let address = fs::read_to_string(bundle.join("address")).ok().or_else(|| {
            let text = fs::read_to_string(bundle.join("bootstrap.json")).ok()?;
            let parameters: Value = serde_json::from_str(&text).ok()?;
            parameters["address"].as_str().map(str::to_owned)
        });
        if let Some(path) = address.as_deref().and_then(|address| address.strip_prefix("unix://")) {
            // A shim in order removes it itself, and a file in that place hurts nobody.
            let _ = fs::remove_file(path);
        }
    }
}

/// The folders of tasks, by namespace.
fn bundles(folder: &Path) -> Vec<PathBuf> {
    let tasks = folder.join(STATE).join("io.containerd.runtime.v2.task");
    children(&tasks)
        .iter()
        .flat_map(|namespace| children(namespace))
        .collect()
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
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
