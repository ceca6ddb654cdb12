//! Whose a cgroup is: an extended attribute of its folder, which goes with it.
//!
//! Names alone would not do: another agent of the same machine, or an upstream kubelet, may have its pods below the same
//! root, and what nobody of this agent knows is killed.

use std::ffi::CStr;
use std::path::Path;

use kubelet_core::PodUid;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

/// The first that the kernel takes: older ones know the second alone, which needs root.
const NAMES: [&CStr; 2] = [c"user.kubelet.pod", c"trusted.kubelet.pod"];
const LONGEST: usize = 4096;

/// What a mark says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// There is none, or none can be read.
    Nobody,
    /// A pod of the owner that asks.
    Own(PodUid),
    /// One of another owner: this one.
    Foreign(String),
}

/// Says whose pod a folder is, unless that was said before: gives what it says then.
pub(crate) fn write(folder: &Path, owner: &str, uid: &PodUid) -> Result<Whose, Errno> {
    let before = whose(folder, owner);
    if before != Whose::Nobody {
        return Ok(before);
    }
    let text = format!("{uid}\n{owner}");
    let mut outcome = Err(Errno::OPNOTSUPP);
    for name in NAMES {
        outcome = match setxattr(folder, name, text.as_bytes(), XattrFlags::CREATE) {
            Ok(()) => Ok(Whose::Own(uid.clone())),
            // Somebody was faster.
            Err(Errno::EXIST) => Ok(whose(folder, owner)),
            Err(error) => Err(error),
        };
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Whose pod a folder is.
pub(crate) fn whose(folder: &Path, owner: &str) -> Whose {
    let mut buffer = vec![0; LONGEST];
    let Some(length) = NAMES
        .iter()
        .find_map(|name| getxattr(folder, *name, buffer.as_mut_slice()).ok())
    else {
        return Whose::Nobody;
    };
    let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned();
    match text.split_once('\n') {
        Some((uid, whose)) if whose == owner => Whose::Own(PodUid::from(uid)),
        Some((_, whose)) => Whose::Foreign(whose.to_owned()),
        None => Whose::Foreign(text),
    }
}

/// The pod of that owner whose folder it is.
pub(crate) fn read(folder: &Path, owner: &str) -> Option<PodUid> {
    match whose(folder, owner) {
        Whose::Own(uid) => Some(uid),
        Whose::Nobody | Whose::Foreign(_) => None,
    }
}
