//! One look at the manifests, on a blocking thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::{InvalidManifest, Origin, RawPod, SourceError};
use super::watch::{Plan, WatchSet};
use crate::error::error_chain;
use crate::fnv::fnv1a_128;
use crate::manifest::{MAX_MANIFEST_BYTES, decode_pod};

/// Files by path, which is also their order.
pub(super) type Files = BTreeMap<PathBuf, Arc<Seen>>;

/// What became of a file that is new or changed.
pub(super) type News = Result<RawPod, InvalidManifest>;

/// Why a file is not to be read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is being written.
    Writing,
    /// It went away a moment ago, and may come back.
    Away,
}

/// What is remembered of a file. Its pod is not: the mux keeps that.
pub(super) struct Seen {
    /// Taken before the file was read, so that a write in between shows the next time.
    marks: Option<Marks>,
    /// Hash of its text, or why it could not be read.
    content: Result<u128, Arc<str>>,
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
    pub(super) extent: Extent,
    /// Every file is news, also one that is known.
    pub(super) afresh: Option<Afresh>,
    pub(super) before: Files,
    pub(super) touched: BTreeSet<PathBuf>,
    pub(super) held: BTreeMap<PathBuf, Hold>,
    pub(super) watches: Option<WatchSet>,
}

/// What is told of as a whole has to be there as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Afresh {
    /// Known files that are being written are waited for. No longer for one to which somebody writes all the time.
    pub(super) waits: bool,
}

/// How much a look takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Every file is read, even those that look unchanged.
    Full,
    /// Every file is looked at, and read if it looks changed.
    Marks,
    /// Only files that were touched. Of a [plain](Ground::Plain) folder, all of whose events are known.
    Touched,
}

/// What lies at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// A folder without links.
    Plain,
    /// Anything else.
    Other,
}

/// What a look found.
pub(super) struct Look {
    pub(super) outcome: io::Result<Found>,
    pub(super) watches: Option<WatchSet>,
    /// Why something could not be watched.
    pub(super) unwatched: Option<io::Error>,
    /// Something is watched only since it was read: it has to be read again.
    pub(super) again: bool,
}

pub(super) struct Found {
    pub(super) files: Files,
    pub(super) ground: Ground,
    /// New and changed files, in their order.
    pub(super) news: Vec<News>,
    /// Known files are missing among the news of a look afresh, since they are held.
    pub(super) is_partial: bool,
}

pub(super) fn look(mut request: Request) -> Look {
    let mut watches = request.watches.take();
    let mut reading = Reading {
        request: &request,
        files: Files::new(),
        news: Vec::new(),
        has_links: false,
        targets: BTreeSet::new(),
        is_partial: false,
    };
    if request.extent == Extent::Touched {
        reading.read_touched();
        // Where a new link leads nobody watches yet.
        let again = reading.has_links;
        return Look {
            outcome: Ok(reading.found(true)),
            watches,
            unwatched: None,
            again,
        };
    }
    let mut plan = Plan::of(&request.path);
    // Before anything is read, so that no change falls between.
    let early = watches.as_mut().and_then(|set| set.add(&plan).err());
    let outcome = reading.read_all();
    reading.targets.iter().for_each(|target| plan.file(target));
    let followed = watches.as_mut().map(|set| set.follow(&plan));
    let (again, late) = match followed {
        Some(Ok(added)) => (added && outcome.is_ok(), None),
        Some(Err(error)) => (false, Some(error)),
        None => (false, None),
    };
    Look {
        outcome: outcome.map(|is_folder| reading.found(is_folder)),
        watches,
        unwatched: early.or(late),
        again,
    }
}

/// A look under way.
struct Reading<'a> {
    request: &'a Request,
    files: Files,
    news: Vec<News>,
    has_links: bool,
    /// Where links lead, or would.
    targets: BTreeSet<PathBuf>,
    is_partial: bool,
}

impl Reading<'_> {
    fn found(self, is_folder: bool) -> Found {
        let is_plain = is_folder && !self.has_links;
        Found {
            files: self.files,
            ground: if is_plain { Ground::Plain } else { Ground::Other },
            news: self.news,
            is_partial: self.is_partial,
        }
    }

    fn read_touched(&mut self) {
        let request = self.request;
        self.files.clone_from(&request.before);
        let paths: BTreeSet<&PathBuf> = request.touched.iter().chain(request.held.keys()).collect();
        for path in paths {
            let name = path.file_name().unwrap_or_default();
            if path.parent() == Some(&*request.path) && !is_left_out(name.as_encoded_bytes()) {
                self.files.remove(path);
                self.read_into(path);
            }
        }
    }

    /// Says whether the path is a folder.
    fn read_all(&mut self) -> io::Result<bool> {
        let request = self.request;
        let root = &request.path;
        let found = fs::metadata(root);
        if request.held.contains_key(root) && !request.before.is_empty() && request.before.keys().eq([root]) {
            // One file, which is just being replaced.
            self.read_into(root);
            return Ok(false);
        }
        let found = found?;
        if found.is_file() {
            self.read_into(root);
            return Ok(false);
        }
        if !found.is_dir() {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "neither a folder nor a regular file",
            ));
        }
        let mut paths = BTreeSet::new();
        for entry in fs::read_dir(root)? {
            let name = entry?.file_name();
            if !is_left_out(name.as_encoded_bytes()) {
                paths.insert(root.join(name));
            }
        }
        // What went away a moment ago is not listed any more.
        let away = request.held.iter().filter(|(_, hold)| **hold == Hold::Away);
        paths.extend(
            away.filter(|(path, _)| request.before.contains_key(*path))
                .map(|(path, _)| path.clone()),
        );
        for path in paths {
            self.read_into(&path);
        }
        Ok(true)
    }

    fn read_into(&mut self, path: &Path) {
        let request = self.request;
        let before = request.before.get(path);
        let link = match fs::symlink_metadata(path) {
            Ok(itself) => itself.is_symlink(),
            // Removed since the folder was listed, and not held.
            Err(error) if error.kind() == ErrorKind::NotFound && request.held.get(path) != Some(&Hold::Away) => return,
            Err(_) => false,
        };
        self.has_links |= link;
        let target = if link { target_of(path) } else { None };
        let place = target.as_deref().unwrap_or(path);
        self.targets.extend(target.clone());
        let marks = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return,
            // Opening a pipe would wait for a writer.
            Ok(found) if !found.is_file() => return,
            Ok(found) => {
                // A second name for a finished file is created, but nobody writes to it.
                let writing = request.held.get(place) == Some(&Hold::Writing) && found.nlink() == 1;
                let may_wait = before.is_none() || request.afresh.is_none_or(|afresh| afresh.waits);
                if writing && may_wait {
                    self.keep(path, before);
                    return;
                }
                Ok(Marks::of(&found))
            }
            Err(_) if request.held.contains_key(place) => {
                self.keep(path, before);
                return;
            }
            Err(error) => Err(error),
        };
        let touched = request.extent == Extent::Full
            || request.afresh.is_some()
            || request.touched.contains(path)
            || request.touched.contains(place);
        let unchanged =
            before.filter(|seen| !touched && matches!((seen.marks, &marks), (Some(then), Ok(now)) if then == *now));
        if unchanged.is_some() {
            self.keep(path, unchanged);
            return;
        }
        let read = marks.and_then(|marks| Ok((marks, read_text(path)?)));
        let seen = Seen::of(&read);
        let is_known = request.afresh.is_none() && before.is_some_and(|before| before.content == seen.content);
        if !is_known {
            self.news.push(decode(path, read.map(|(_, text)| text)));
        }
        self.files.insert(path.to_owned(), Arc::new(seen));
    }

    /// Leaves a file as it was known.
    fn keep(&mut self, path: &Path, before: Option<&Arc<Seen>>) {
        self.is_partial |= self.request.afresh.is_some() && before.is_some();
        self.files
            .extend(before.map(|seen| (path.to_owned(), Arc::clone(seen))));
    }
}

/// Where a link leads, or would if there were anything.
fn target_of(link: &Path) -> Option<PathBuf> {
    fs::canonicalize(link).ok().or_else(|| {
        let target = fs::read_link(link).ok()?;
        Some(link.parent()?.join(target))
    })
}

fn is_left_out(name: &[u8]) -> bool {
    let backup = name.ends_with(b"~") || (name.starts_with(b"#") && name.ends_with(b"#"));
    name.starts_with(b".") || backup
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
    fn of(read: &io::Result<(Marks, Vec<u8>)>) -> Self {
        match read {
            Ok((marks, text)) => Self {
                marks: Some(*marks),
                content: Ok(fnv1a_128(text)),
            },
            Err(error) => Self {
                marks: None,
                content: Err(Arc::from(error_chain(error))),
            },
        }
    }
}

/// Makes a pod of a file's text.
fn decode(path: &Path, text: io::Result<Vec<u8>>) -> News {
    let origin = Origin::File(Arc::from(path));
    let place = || path.display().to_string();
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            let error = SourceError::unreadable(place(), error);
            return Err(InvalidManifest::new(origin, None, error));
        }
    };
    match decode_pod(&text) {
        Ok(decoded) => {
            let mut raw = RawPod::new(decoded.pod);
            raw.origin = Some(origin);
            raw.text = Some(Arc::from(text));
            raw.unknown_fields = decoded.unknown_fields;
            raw.locator = Some(decoded.locator);
            Ok(raw)
        }
        Err(error) => {
            let error = SourceError::invalid(place(), error.to_string());
            Err(InvalidManifest::new(origin, None, error))
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
