//! Disks that containers are given as they are.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;

use crate::ground::failure::{at, refused};
use crate::ground::folders::remove_link;

/// Has a link to a device there. One that led elsewhere is replaced.
///
/// Upstream binds the device and takes a loop device on it too, which keeps a device from going that somebody attaches and
/// detaches. Nobody does that with those of a local volume.
pub(super) fn link(device: &Path, link: &Path) -> io::Result<()> {
    let real = device
        .canonicalize()
        .map_err(|error| at("cannot look at", device, error))?;
    let found = fs::metadata(&real).map_err(|error| at("cannot look at", &real, error))?;
    if !found.file_type().is_block_device() {
        return Err(refused(
            device,
            "is no block device, and cannot be given as a volume of mode Block",
        ));
    }
    if fs::read_link(link).is_ok_and(|to| to == real) {
        return Ok(());
    }
    remove_link(link)?;
    symlink(&real, link).map_err(|error| at("cannot make", link, error))
}
