//! One look at the manifests, on a blocking thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::{InvalidManifest, Origin, RawPod, SourceError, SourceItem};
use super::watch::{Plan, WatchSet};
use crate::manifest::{MAX_MANIFEST_BYTES, decode_pod};

/// Files by path, which is also their order. A file that did not change is the same allocation.
pub(super) type Files = BTreeMap<PathBuf, Arc<Seen>>;

/// Why a file is not to be read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is being written.
    Writing,
    /// It went away a moment ago, and may come back.
    Away,
}

/// A file as it was read.
pub(super) struct Seen {
    /// Taken before the file was read, so that a write in between shows the next time.
    marks: Option<Marks>,
    text: Option<Arc<[u8]>>,
    outcome: Result<RawPod, InvalidManifest>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Marks {
    bytes: u64,
    device: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What a look needs to know.
pub(super) struct Request {
    pub(super) path: PathBuf,
    /// Every file is read, even those that look unchanged.
    pub(super) full: bool,
    pub(super) before: Files,
    pub(super) touched: BTreeSet<PathBuf>,
    pub(super) held: BTreeMap<PathBuf, Hold>,
    pub(super) watches: Option<WatchSet>,
}

/// What a look found.
pub(super) struct Look {
    pub(super) outcome: io::Result<Files>,
    pub(super) watches: Option<WatchSet>,
    /// Why something could not be watched.
    pub(super) unwatched: Option<io::Error>,
    /// Something is watched only since it was read: it has to be read again.
    pub(super) again: bool,
}

pub(super) fn look(mut request: Request) -> Look {
    let mut plan = Plan::of(&request.path);
    // Before anything is read, so that no change falls between.
    let early = request.watches.as_mut().and_then(|set| set.add(&plan).err());
    let mut targets = BTreeSet::new();
    let outcome = read(&request, &mut targets);
    targets.iter().for_each(|target| plan.file(target));
    let followed = request.watches.as_mut().map(|set| set.follow(&plan));
    let (again, late) = match followed {
        Some(Ok(added)) => (added && outcome.is_ok(), None),
        Some(Err(error)) => (false, Some(error)),
        None => (false, None),
    };
    Look {
        outcome,
        watches: request.watches,
        unwatched: early.or(late),
        again,
    }
}

/// Whether two looks found the same.
pub(super) fn same(one: &Files, other: &Files) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1))
}

pub(super) fn snapshot(files: &Files) -> SourceItem {
    let mut pods = Vec::new();
    let mut invalid = Vec::new();
    for seen in files.values() {
        match &seen.outcome {
            Ok(raw) => pods.push(raw.clone()),
            Err(bad) => invalid.push(bad.clone()),
        }
    }
    SourceItem::Snapshot {
        pods,
        invalid,
        remembered: false,
    }
}

fn read(request: &Request, targets: &mut BTreeSet<PathBuf>) -> io::Result<Files> {
    let root = &request.path;
    let found = fs::metadata(root);
    if request.held.contains_key(root) && !request.before.is_empty() && request.before.keys().eq([root]) {
        // One file, which is just being replaced.
        let mut files = Files::new();
        read_into(&mut files, root, request, targets);
        return Ok(files);
    }
    let found = found?;
    let mut files = Files::new();
    if found.is_dir() {
        for entry in fs::read_dir(root)? {
            let name = entry?.file_name();
            if !is_left_out(name.as_encoded_bytes()) {
                read_into(&mut files, &root.join(name), request, targets);
            }
        }
        for (path, hold) in &request.held {
            // What went away a moment ago is not listed any more.
            if *hold == Hold::Away
                && !files.contains_key(path)
                && let Some(before) = request.before.get(path)
            {
                files.insert(path.clone(), Arc::clone(before));
            }
        }
    } else if found.is_file() {
        read_into(&mut files, root, request, targets);
    } else {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "neither a folder nor a regular file",
        ));
    }
    Ok(files)
}

fn is_left_out(name: &[u8]) -> bool {
    let backup = name.ends_with(b"~") || (name.starts_with(b"#") && name.ends_with(b"#"));
    name.starts_with(b".") || backup
}

fn read_into(files: &mut Files, path: &Path, request: &Request, targets: &mut BTreeSet<PathBuf>) {
    let before = request.before.get(path);
    let link = match fs::symlink_metadata(path) {
        Ok(itself) => itself.is_symlink(),
        // Removed since the folder was listed; if it may come back it is added with the others that are held.
        Err(error) if error.kind() == ErrorKind::NotFound && request.held.get(path) != Some(&Hold::Away) => return,
        Err(_) => false,
    };
    let target = if link { fs::canonicalize(path).ok() } else { None };
    let place = target.as_deref().unwrap_or(path);
    targets.extend(target.clone());
    let marks = match fs::metadata(path) {
        Ok(found) if found.is_dir() => return,
        // Opening a pipe would wait for a writer.
        Ok(found) if !found.is_file() => return,
        Ok(found) => {
            // A second name for a finished file is created, but nobody writes to it.
            let writing = request.held.get(place) == Some(&Hold::Writing) && found.nlink() == 1;
            if writing {
                files.extend(before.map(|seen| (path.to_owned(), Arc::clone(seen))));
                return;
            }
            Ok(Marks::of(&found))
        }
        Err(_) if request.held.contains_key(place) => {
            files.extend(before.map(|seen| (path.to_owned(), Arc::clone(seen))));
            return;
        }
        Err(error) => Err(error),
    };
    let touched = request.full || request.touched.contains(path) || request.touched.contains(place);
    let unchanged =
        before.filter(|seen| !touched && matches!((seen.marks, &marks), (Some(then), Ok(now)) if then == *now));
    let seen = match unchanged {
        Some(seen) => Arc::clone(seen),
        None => Seen::read(path, marks, before),
    };
    files.insert(path.to_owned(), seen);
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

impl Seen {
    fn read(path: &Path, marks: io::Result<Marks>, before: Option<&Arc<Self>>) -> Arc<Self> {
        let origin = Origin::File(Arc::from(path));
        let read = marks.and_then(|marks| Ok((marks, read_text(path)?)));
        let (marks, text) = match read {
            Ok(read) => read,
            Err(error) => {
                let error = SourceError::unreadable(path.display().to_string(), error);
                let outcome = Err(InvalidManifest::new(origin, None, error));
                return Self::unless_known(before, None, None, outcome);
            }
        };
        // Other marks with the same content are no news; the file is then compared again at each look.
        if let Some(before) = before.filter(|before| before.text.as_deref() == Some(&text)) {
            return Arc::clone(before);
        }
        let text: Arc<[u8]> = Arc::from(text);
        let outcome = match decode_pod(&text) {
            Ok(decoded) => {
                let mut raw = RawPod::new(decoded.pod);
                raw.origin = Some(origin);
                raw.text = Some(Arc::clone(&text));
                raw.unknown_fields = decoded.unknown_fields;
                raw.locator = Some(decoded.locator);
                Ok(raw)
            }
            Err(error) => {
                let error = SourceError::invalid(path.display().to_string(), error.to_string());
                Err(InvalidManifest::new(origin, None, error))
            }
        };
        Self::unless_known(before, Some(marks), Some(text), outcome)
    }

    /// The same error as before is no news.
    fn unless_known(
        before: Option<&Arc<Self>>,
        marks: Option<Marks>,
        text: Option<Arc<[u8]>>,
        outcome: Result<RawPod, InvalidManifest>,
    ) -> Arc<Self> {
        let known = |before: &&Arc<Self>| match (&before.outcome, &outcome) {
            (Err(old), Err(new)) => {
                text.is_none() && crate::error::error_chain(&old.error) == crate::error::error_chain(&new.error)
            }
            _ => false,
        };
        match before.filter(known) {
            Some(before) => Arc::clone(before),
            None => Arc::new(Self { marks, text, outcome }),
        }
    }
}

/// One byte more than is allowed is enough to tell that a file is too large.
fn read_text(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?
        .take(MAX_MANIFEST_BYTES as u64)
        .read_to_end(&mut text)?;
    Ok(text)
}
