//! Loop devices, as the disks of tests.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::command::Tools;
use super::failure::at;

const DELETED: &[u8] = b" (deleted)";

/// The loop devices of the machine.
pub(crate) struct LoopDevices<'a> {
    /// `/sys/block`
    sys: PathBuf,
    tools: &'a dyn Tools,
}

impl<'a> LoopDevices<'a> {
    pub(crate) fn new(tools: &'a dyn Tools) -> Self {
        Self {
            sys: PathBuf::from("/sys/block"),
            tools,
        }
    }

    /// The loop device of a file or device, also of one whose name is gone; nothing if it has none.
    pub(crate) fn find(&self, backing: &Path) -> io::Result<Option<PathBuf>> {
        // The kernel tells the path without links. One whose name is gone cannot be resolved any more.
        let real = backing.canonicalize().unwrap_or_else(|_| backing.to_owned());
        let fail = |error| at("cannot read", &self.sys, error);
        for entry in fs::read_dir(&self.sys).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            if !name.as_bytes().starts_with(b"loop") {
                continue;
            }
            let Some(found) = self.backing_of(Path::new(&name))? else {
                continue;
            };
            if found == real.as_os_str().as_bytes() || found == backing.as_os_str().as_bytes() {
                return Ok(Some(Path::new("/dev").join(name)));
            }
        }
        Ok(None)
    }

    /// Gives a file or device a loop device, unless it has one already.
    pub(crate) fn attach(&self, backing: &Path) -> io::Result<PathBuf> {
        if let Some(found) = self.find(backing)? {
            return Ok(found);
        }
        let ended = self.tools.run("losetup", &["--find", "--show", "--", text(backing)?])?;
        let device = ended
            .output
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("/dev/"));
        match device.filter(|_| ended.is_success()) {
            Some(device) => Ok(PathBuf::from(device)),
            None => Err(at(
                "cannot attach a loop device to",
                backing,
                io::Error::other(ended.why()),
            )),
        }
    }

    /// Takes a loop device from its file. One that has none is no error. While something still has it open, the kernel waits
    /// for that to end.
    pub(crate) fn detach(&self, device: &Path) -> io::Result<()> {
        if self.backing_of(device)?.is_none() {
            return Ok(());
        }
        let ended = self.tools.run("losetup", &["--detach", text(device)?])?;
        // Somebody else may have been faster.
        if ended.is_success() || self.backing_of(device)?.is_none() {
            return Ok(());
        }
        Err(at("cannot detach", device, io::Error::other(ended.why())))
    }

    /// What a loop device stands for; nothing if it is free, or gone.
    fn backing_of(&self, device: &Path) -> io::Result<Option<Vec<u8>>> {
        let Some(name) = device.file_name() else {
            return Ok(None);
        };
        let path = self.sys.join(name).join("loop/backing_file");
        let mut bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // Detached between opening and reading it.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => return Ok(None),
            Err(error) => return Err(at("cannot read", &path, error)),
        };
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        if bytes.ends_with(DELETED) {
            bytes.truncate(bytes.len() - DELETED.len());
        }
        Ok(Some(bytes))
    }
}

fn text(path: &Path) -> io::Result<&str> {
    let no_text = || at("cannot tell a program of", path, io::Error::other("it is no text"));
    path.to_str().ok_or_else(no_text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::LoopDevices;
    use crate::ground::command::scripted::ScriptedTools;
    use crate::ground::mounts::testing::Place;

    fn sys(place: &Place) -> PathBuf {
        for (name, backing) in [
            ("loop0", None),
            ("loop7", Some("/pods/a\n")),
            ("loop12", Some("/pods/b (deleted)\n")),
        ] {
            let dir = place.dir(&format!("sys/{name}/loop"));
            if let Some(backing) = backing {
                fs::write(dir.join("backing_file"), backing).unwrap();
            }
        }
        place.dir("sys/vda");
        place.path("sys")
    }

    #[test]
    fn a_device_is_found_by_its_file_also_if_that_is_deleted() {
        let place = Place::without_mounts();
        let tools = ScriptedTools::default()
            .answer(0, "/dev/loop9\n")
            .answer(1, "no free device\n");
        let devices = LoopDevices {
            sys: sys(&place),
            tools: &tools,
        };
        let found = |path: &str| devices.find(Path::new(path)).unwrap();
        assert_eq!(found("/pods/a"), Some(PathBuf::from("/dev/loop7")));
        assert_eq!(found("/pods/b"), Some(PathBuf::from("/dev/loop12")));
        assert_eq!(found("/pods"), None);
        assert_eq!(devices.attach(Path::new("/pods/a")).unwrap(), Path::new("/dev/loop7"));
        assert_eq!(devices.attach(Path::new("/pods/c")).unwrap(), Path::new("/dev/loop9"));
        let error = devices.attach(Path::new("/pods/d")).unwrap_err().to_string();
        assert!(error.contains("/pods/d") && error.contains("no free device"), "{error}");
        assert_eq!(tools.calls.borrow()[0], "losetup --find --show -- /pods/c");
    }

    #[test]
    fn only_what_is_attached_is_detached() {
        let place = Place::without_mounts();
        let tools = ScriptedTools::default().answer(0, "").answer(1, "in use");
        let devices = LoopDevices {
            sys: sys(&place),
            tools: &tools,
        };
        devices.detach(Path::new("/dev/loop0")).unwrap();
        devices.detach(Path::new("/dev/loop99")).unwrap();
        devices.detach(Path::new("/dev/loop7")).unwrap();
        assert_eq!(*tools.calls.borrow(), ["losetup --detach /dev/loop7"]);
        assert!(devices.detach(Path::new("/dev/loop7")).is_err());
    }
}
