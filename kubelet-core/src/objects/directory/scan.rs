//! What a directory of objects held when it was last looked at.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::error::ObjectError;
use super::super::key::{Freshness, ObjectKey, ObjectQuery};
use super::super::manifest::{self, Manifest};
use super::super::object::Object;
use super::super::watch::Watched;

/// Largest file that is read, as for files with pods.
const MAX_FILE_BYTES: u64 = 10 * 1024 * 1024;

/// Why a file with objects, or the directory itself, could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFileFault {
    path: PathBuf,
    line: Option<usize>,
    message: String,
}

impl ObjectFileFault {
    /// The file or directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The line, counted from 1, if the content is what is wrong.
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    fn new(path: &Path, message: impl ToString) -> Self {
        Self {
            path: path.to_owned(),
            line: None,
            message: message.to_string(),
        }
    }
}

impl fmt::Display for ObjectFileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl Error for ObjectFileFault {}

/// Which files a look reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reread {
    /// Those whose marks changed. What a later write within the same tick made of them is found a little later.
    Changed,
    /// Those too whose marks may not tell of a later write.
    Unsettled,
    All,
}

impl Reread {
    pub(super) fn wanted(want: Freshness) -> Self {
        match want {
            Freshness::Live => Reread::All,
            Freshness::NotOlderThan(_) => Reread::Unsettled,
            Freshness::Cached => Reread::Changed,
        }
    }
}

/// Two writes within one tick of a file system's clock leave the same marks on a file. No tick is longer than this.
const TICK: Duration = Duration::from_secs(2);

/// How long files have had their marks, so that it is known what the marks tell.
#[derive(Debug, Default)]
pub(super) struct Ages(BTreeMap<OsString, Age>);

#[derive(Debug)]
struct Age {
    marks: Marks,
    /// When they were first seen.
    since: Instant,
    /// The file was read a tick later: what has the same marks is the same content.
    settled: bool,
}

impl Ages {
    /// Whether a file with these marks is to be read, even if it had the same ones when it was read last.
    fn must_read(&mut self, name: &OsStr, marks: &Marks, reread: Reread, now: Instant) -> bool {
        match self.0.get_mut(name) {
            Some(age) if age.marks == *marks => {
                let passed = now.duration_since(age.since) >= TICK;
                let unsettled = !age.settled && (passed || reread == Reread::Unsettled);
                // It is read now, after all that could leave these marks.
                age.settled |= passed;
                unsettled || reread == Reread::All
            }
            _ => {
                let age = Age {
                    marks: marks.clone(),
                    since: now,
                    settled: false,
                };
                self.0.insert(name.to_owned(), age);
                true
            }
        }
    }
}

/// One look at the directory. `trouble` says why there was none; the files are then those of the last.
pub(super) struct Snapshot {
    files: BTreeMap<OsString, Arc<FileContent>>,
    trouble: Option<ObjectFileFault>,
}

#[derive(PartialEq)]
struct FileContent {
    /// The marks taken before the file was read, so that a write in between shows the next time.
    marks: Option<Marks>,
    /// The last good content.
    objects: BTreeMap<ObjectKey, Object>,
    /// The kinds in it that are not served.
    skipped: Vec<String>,
    fault: Option<ObjectFileFault>,
}

#[derive(Clone, Debug, PartialEq)]
struct Marks {
    bytes: u64,
    device: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Marks {
    fn of(file: &Metadata) -> Self {
        Self {
            bytes: file.len(),
            device: file.dev(),
            inode: file.ino(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

impl Snapshot {
    /// Before the first look.
    pub(super) fn unread(path: &Path) -> Self {
        Self {
            files: BTreeMap::new(),
            trouble: Some(ObjectFileFault::new(path, "not read yet")),
        }
    }

    pub(super) fn faults(&self) -> impl Iterator<Item = &ObjectFileFault> {
        let files = self.files.values();
        self.trouble.iter().chain(files.filter_map(|file| file.fault.as_ref()))
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Result<Object, ObjectError> {
        let unavailable = |fault: &ObjectFileFault| ObjectError::Unavailable {
            what: key.to_string(),
            source: Box::new(fault.clone()),
        };
        if let Some(trouble) = &self.trouble {
            return Err(unavailable(trouble));
        }
        match (self.find(key), self.faults().next()) {
            (Some(object), _) => Ok(object.clone()),
            (None, Some(fault)) => Err(unavailable(fault)),
            (None, None) => Err(ObjectError::NotFound { key: key.clone() }),
        }
    }

    pub(super) fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        if let Some(trouble) = &self.trouble {
            return Err(ObjectError::Unavailable {
                what: query.to_string(),
                source: Box::new(trouble.clone()),
            });
        }
        let mut found = BTreeMap::new();
        for (key, object) in self.files.values().flat_map(|file| &file.objects) {
            if query.matches(key) {
                found.insert(key, object.clone());
            }
        }
        Ok(found.into_values().collect())
    }

    /// What a watch may say: the last good content even while the directory cannot be read.
    pub(super) fn known(&self, key: &ObjectKey) -> Option<Watched> {
        match self.find(key) {
            Some(object) => Some(Watched::Present(object.clone())),
            None if self.faults().next().is_none() => Some(Watched::Absent),
            None => None,
        }
    }

    fn find(&self, key: &ObjectKey) -> Option<&Object> {
        let files = self.files.values().rev();
        files.filter_map(|file| file.objects.get(key)).next()
    }

    /// Looks again, and returns what is there now if anything is different.
    pub(super) fn refreshed(&self, dir: &Path, reread: Reread, ages: &mut Ages) -> Option<Self> {
        let new = match self.read_files(dir, reread, ages) {
            Ok(files) => Self { files, trouble: None },
            Err(error) => {
                let trouble = Some(ObjectFileFault::new(dir, error));
                if trouble != self.trouble {
                    tracing::warn!(path = %dir.display(), "directory with objects cannot be read");
                }
                Self {
                    files: self.files.clone(),
                    trouble,
                }
            }
        };
        self.differs(&new).then_some(new)
    }

    /// Content that did not change is the same allocation, so that nothing is compared in depth.
    fn differs(&self, new: &Self) -> bool {
        let same = |(old, new): (_, _)| {
            let (old_name, old_file): (&OsString, &Arc<FileContent>) = old;
            let (new_name, new_file): (&OsString, &Arc<FileContent>) = new;
            old_name == new_name && Arc::ptr_eq(old_file, new_file)
        };
        self.trouble != new.trouble
            || self.files.len() != new.files.len()
            || !self.files.iter().zip(&new.files).all(same)
    }

    fn read_files(
        &self,
        dir: &Path,
        reread: Reread,
        ages: &mut Ages,
    ) -> io::Result<BTreeMap<OsString, Arc<FileContent>>> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = dir.join(&name);
            let marks = match fs::metadata(&path) {
                // Opening a pipe would wait for a writer.
                Ok(metadata) if !metadata.is_file() => continue,
                Ok(metadata) => Ok(Marks::of(&metadata)),
                // Removed since the directory was listed, or a link to nowhere.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => Err(error),
            };
            let old = self.files.get(&name);
            let must_read = match &marks {
                Ok(marks) => ages.must_read(&name, marks, reread, Instant::now()),
                Err(_) => true,
            };
            let marked_alike = |old: &&Arc<FileContent>| match (&old.marks, &marks) {
                (Some(then), Ok(now)) => then == now,
                _ => false,
            };
            let content = match old.filter(marked_alike) {
                Some(old) if !must_read => Arc::clone(old),
                _ => FileContent::read(&path, marks, old),
            };
            files.insert(name, content);
        }
        ages.0.retain(|name, _| files.contains_key(name));
        Ok(files)
    }
}

impl FileContent {
    /// Reads a file, keeping what `old` has if that is still right or the file is wrong now.
    fn read(path: &Path, marks: io::Result<Marks>, old: Option<&Arc<Self>>) -> Arc<Self> {
        let (marks, read) = match marks {
            Ok(marks) => (Some(marks), read_manifest(path)),
            Err(error) => (None, Err(ObjectFileFault::new(path, error))),
        };
        let new = match read {
            Ok(manifest) => Self {
                marks,
                objects: manifest
                    .objects
                    .into_iter()
                    .map(|object| (object.key(), object))
                    .collect(),
                skipped: manifest.skipped,
                fault: None,
            },
            Err(fault) => Self {
                // Only content that is wrong stays so until the file changes; one that could not be read may be next time.
                marks: marks.filter(|_| fault.line.is_some()),
                objects: old.map(|old| old.objects.clone()).unwrap_or_default(),
                skipped: old.map(|old| old.skipped.clone()).unwrap_or_default(),
                fault: Some(fault),
            },
        };
        match old {
            Some(old) if **old == new => return Arc::clone(old),
            _ => new.report(path, old),
        }
        Arc::new(new)
    }

    /// Logs what was not so before.
    fn report(&self, path: &Path, old: Option<&Arc<Self>>) {
        if let Some(fault) = &self.fault
            && old.and_then(|old| old.fault.as_ref()) != Some(fault)
        {
            tracing::warn!(
                error = fault as &dyn Error,
                "file with objects cannot be used, its last good content stays"
            );
        }
        if !self.skipped.is_empty() && old.is_none_or(|old| old.skipped != self.skipped) {
            tracing::warn!(
                path = %path.display(),
                kinds = ?self.skipped,
                "documents skipped, their kinds are not served"
            );
        }
    }
}

fn read_manifest(path: &Path) -> Result<Manifest, ObjectFileFault> {
    let text = read_text(path).map_err(|error| ObjectFileFault::new(path, error))?;
    manifest::parse(&text).map_err(|fault| ObjectFileFault {
        path: path.to_owned(),
        line: Some(fault.line),
        message: fault.message,
    })
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {MAX_FILE_BYTES} bytes"),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Ages, Marks, Reread, TICK};

    #[test]
    fn marks_tell_of_all_writes_once_the_file_was_read_a_tick_after_them() {
        let mut ages = Ages::default();
        let (name, start) = (OsStr::new("a.yaml"), Instant::now());
        let marks = |seconds| Marks {
            bytes: 1,
            device: 1,
            inode: 1,
            modified: (seconds, 0),
            changed: (seconds, 0),
        };
        let mut must = |seconds, reread, after: Duration| ages.must_read(name, &marks(seconds), reread, start + after);
        let soon = Duration::from_millis(1);
        assert!(must(7, Reread::Changed, Duration::ZERO), "a new file");
        assert!(!must(7, Reread::Changed, soon), "whatever is at hand will do");
        assert!(
            must(7, Reread::Unsettled, soon),
            "another write may have left the same marks"
        );
        assert!(must(7, Reread::Changed, TICK), "and is found a tick later by any look");
        assert!(
            !must(7, Reread::Unsettled, TICK + soon),
            "nothing can leave these marks any more"
        );
        assert!(must(7, Reread::All, TICK + soon));
        assert!(must(8, Reread::Changed, TICK * 2), "a later write");
        assert!(must(8, Reread::Unsettled, TICK * 2 + soon));
    }
}
