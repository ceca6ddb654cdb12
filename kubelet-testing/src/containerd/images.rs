//! The images that every private containerd has.

use std::fs;
use std::path::{Path, PathBuf};

use crate::containerd::archive::OciArchive;
use crate::containerd::command::{find, run, run_with_input};
use crate::containerd::error::ComponentError;

/// The image of sandboxes: one static program.
pub const PAUSE_IMAGE: &str = "localhost/pause:1";

/// The image of a small system: busybox with links for all that it can be, and the users `root`, `nobody` and `app`
/// (1000).
pub const BUSYBOX_IMAGE: &str = "localhost/busybox:1";

const PAUSE_SOURCE: &str = include_str!("pause.c");

/// The users of [`BUSYBOX_IMAGE`].
const USERS: &str = "root:x:0:0:root:/root:/bin/sh
app:x:1000:1000:app:/home/app:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
";

/// Their groups, and one more that `app` is in.
const GROUPS: &str = "root:x:0:
app:x:1000:
extra:x:2000:app
nogroup:x:65534:
";

/// Writes the archives of [`PAUSE_IMAGE`] and [`BUSYBOX_IMAGE`] into a folder, and answers their paths.
///
/// # Errors
/// [`ComponentError::Missing`] without a C compiler or a static busybox.
pub fn write_base_images(folder: &Path) -> Result<Vec<PathBuf>, ComponentError> {
    fs::create_dir_all(folder).map_err(ComponentError::io(format!("make {}", folder.display())))?;
    let mut written = Vec::new();
    for (file, image) in [("pause.tar", pause(folder)?), ("busybox.tar", OciArchive::busybox()?)] {
        let path = folder.join(file);
        // In one step, since tests of other processes may read it.
        let half = folder.join(format!(".{file}.{}", std::process::id()));
        image
            .write(&half)
            .map_err(ComponentError::io(format!("write {}", half.display())))?;
        fs::rename(&half, &path).map_err(ComponentError::io(format!("write {}", path.display())))?;
        written.push(path);
    }
    Ok(written)
}

impl OciArchive {
    /// [`BUSYBOX_IMAGE`], as a base for others.
    ///
    /// # Errors
    /// [`ComponentError::Missing`] if there is no busybox in `PATH` that is linked statically.
    pub fn busybox() -> Result<Self, ComponentError> {
        let program = find("busybox", "busybox-static")?;
        let binary = fs::read(&program).map_err(ComponentError::io(format!("read {}", program.display())))?;
        if needs_interpreter(&binary) {
            let what = format!(
                "{} is not linked statically; Debian's busybox-static is",
                program.display()
            );
            return Err(ComponentError::missing(what));
        }
        let applets = run(&program, ["--list"])?;
        let mut image = Self::new(BUSYBOX_IMAGE)
            .folder("/root", 0o700)
            .folder("/home/app", 0o755)
            .owned_by("/home/app", 1000)
            .folder("/tmp", 0o1777)
            .folder("/var/tmp", 0o1777)
            .folder("/run", 0o755)
            .file("/etc/passwd", 0o644, USERS)
            .file("/etc/group", 0o644, GROUPS)
            .file("/bin/busybox", 0o755, &binary)
            .env("PATH", "/bin")
            .command(["sh"]);
        for applet in applets.lines().filter(|applet| *applet != "busybox") {
            image = image.link(&format!("/bin/{applet}"), "busybox");
        }
        Ok(image)
    }
}

/// [`PAUSE_IMAGE`]; the program is compiled in `folder`.
fn pause(folder: &Path) -> Result<OciArchive, ComponentError> {
    let compiler = find("cc", "gcc and libc6-dev")?;
    let program = folder.join(format!(".pause.{}", std::process::id()));
    let arguments = ["-static", "-Os", "-s", "-Wall", "-Werror", "-x", "c", "-", "-o"];
    run_with_input(
        &compiler,
        arguments.iter().map(AsRef::as_ref).chain([program.as_os_str()]),
        PAUSE_SOURCE,
    )?;
    let binary = fs::read(&program).map_err(ComponentError::io(format!("read {}", program.display())));
    // What is left of it is only a file among many, so that its removal may fail.
    let _ = fs::remove_file(&program);
    Ok(OciArchive::new(PAUSE_IMAGE)
        .file("/pause", 0o755, binary?)
        .entrypoint(["/pause"]))
}

/// Whether a program names a dynamic linker, without which it does not start.
fn needs_interpreter(elf: &[u8]) -> bool {
    let word = |at: usize, length: usize| {
        let bytes = elf.get(at..at + length)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0_usize, |value, byte| value << 8 | usize::from(*byte)),
        )
    };
    // The program headers of a 64-bit, little-endian file; the type of one that names a linker is 3.
    let (Some(offset), Some(size), Some(count)) = (word(0x20, 8), word(0x36, 2), word(0x38, 2)) else {
        return false;
    };
    (0..count).any(|index| word(offset + index * size, 4) == Some(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_needs_a_linker_and_text_does_not() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needs_interpreter(&own));
        assert!(!needs_interpreter(b"#!/bin/sh\n"));
    }
}
