//! State files on a real disk.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

pub(super) struct Disk {
    root: PathBuf,
    /// Writes of one path share the name of their temporary file. Held by blocking threads only.
    writing: Mutex<()>,
}

impl Disk {
    pub(super) fn new(root: PathBuf) -> Self {
        Self {
            root,
            writing: Mutex::new(()),
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn read(&self, path: &str) -> io::Result<Option<Bytes>> {
        match fs::read(self.root.join(path)) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (folder, name) = self.place(path);
        make_folders(&folder)?;
        let temporary = folder.join(format!(".{name}.tmp"));
        let written = write_synced(&temporary, bytes).and_then(|()| fs::rename(&temporary, folder.join(name)));
        if let Err(error) = written {
            // What cannot be removed either is overwritten by the next write.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        sync_folder(&folder)
    }

    pub(super) fn remove(&self, path: &str) -> io::Result<()> {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (folder, name) = self.place(path);
        match fs::remove_file(folder.join(name)) {
            Ok(()) => sync_folder(&folder),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes all that it can, and then gives the first error with the path that it is about.
    pub(super) fn remove_all(&self, paths: &[String]) -> Result<(), (String, io::Error)> {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = BTreeMap::new();
        let mut outcome = Ok(());
        for path in paths {
            let (folder, name) = self.place(path);
            match fs::remove_file(folder.join(name)) {
                Ok(()) => {
                    changed.insert(folder, path);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => outcome = outcome.and(Err((path.clone(), error))),
            }
        }
        for (folder, path) in changed {
            outcome = outcome.and(sync_folder(&folder).map_err(|error| (path.clone(), error)));
        }
        outcome
    }

    pub(super) fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.root.join(dir)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            // Names that are no text are not ours.
            if let Ok(name) = entry.file_name().into_string()
                && !name.starts_with('.')
                && entry.file_type()?.is_file()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn place<'a>(&self, path: &'a str) -> (PathBuf, &'a str) {
        match path.rsplit_once('/') {
            Some((folder, name)) => (self.root.join(folder), name),
            None => (self.root.clone(), path),
        }
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    // Before the rename: otherwise the new name may reach the disk before the content does.
    file.sync_all()
}

/// Makes a folder and those above it; each new name is durable once its own folder is synced.
fn make_folders(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        make_folders(above)?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => folder.parent().map_or(Ok(()), |above| {
            sync_folder(if above.as_os_str().is_empty() {
                Path::new(".")
            } else {
                above
            })
        }),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
