//! Files that outlive a crash of the machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use super::{ignore_missing, named};
use crate::ids::PodUid;

/// More than any such file has.
const MAX_BYTES: u64 = 1 << 16;

/// The text of a file; nothing if it is not there.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(named(path, &error)),
    }
}

/// Writes a file that only the agent may read, as a whole or not at all; its folder is made. Writes beside the file and then takes its place; a crash in between leaves `.<name>.tmp`.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("no place for a file"));
    };
    fs::create_dir_all(folder)?;
    let beside = folder.join(format!(".{}.tmp", name.to_string_lossy()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        // Before the rename: otherwise the new name may reach the disk before the content does.
        file.sync_all()?;
        fs::rename(&beside, path)?;
        sync(folder)
    });
    written.map_err(|error| named(path, &error))
}

/// Removes a file for good. One that is not there is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => path.parent().map_or(Ok(()), sync),
        error => ignore_missing(error),
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The texts of the files of that name in the folders of all pods, whoever named the folders.
pub(crate) fn of_all_pods(pods: &Path, name: &str) -> io::Result<Vec<(PodUid, String)>> {
    let folders = match fs::read_dir(pods) {
        Ok(folders) => folders,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(named(pods, &error)),
    };
    let mut found = Vec::new();
    for folder in folders {
        let folder = folder.map_err(|error| named(pods, &error))?;
        if let Some(text) = read(&folder.path().join(name))? {
            let uid = PodUid::from(folder.file_name().to_string_lossy().into_owned());
            found.push((uid, text));
        }
    }
    found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}
