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

/// Says whose pod a folder is.
pub(crate) fn write(folder: &Path, owner: &str, uid: &PodUid) -> Result<(), Errno> {
    let text = format!("{uid}\n{owner}");
    let mut outcome = Err(Errno::OPNOTSUPP);
    for name in NAMES {
        outcome = setxattr(folder, name, text.as_bytes(), XattrFlags::empty());
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// The pod of that owner whose folder it is.
pub(crate) fn read(folder: &Path, owner: &str) -> Option<PodUid> {
    let mut buffer = vec![0; LONGEST];
    let length = NAMES
        .iter()
        .find_map(|name| getxattr(folder, *name, buffer.as_mut_slice()).ok())?;
    let text = std::str::from_utf8(buffer.get(..length)?).ok()?;
    let (uid, whose) = text.split_once('\n')?;
    (whose == owner).then(|| PodUid::from(uid))
}
