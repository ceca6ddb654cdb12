//! Which files changed, as inotify tells.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

/// One change that inotify told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A file was closed by its writer, or moved into place.
    Complete(PathBuf),
    /// A file or a link was created; nobody may ever close it.
    Created(PathBuf),
    /// A file was written to, and is not closed yet.
    Written(PathBuf),
    /// A file was removed or moved away.
    Gone(PathBuf),
    /// Something else that asks for a look.
    Other,
    /// Events were lost: everything is to be read.
    Lost,
}

/// The folders to watch, by the path below which their files are known, with the names that matter; none means all.
pub(super) struct Plan(BTreeMap<PathBuf, Option<BTreeSet<OsString>>>);

impl Plan {
    /// What is to be watched of a folder or file whether it is there or not.
    pub(super) fn of(root: &Path) -> Self {
        let mut plan = Self(BTreeMap::from([(root.to_owned(), None)]));
        // The folder above tells when the path itself comes, goes, or leads elsewhere.
        plan.file(root);
        plan
    }

    /// Watches one file through its folder, which also tells when another file takes its place.
    pub(super) fn file(&mut self, path: &Path) {
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name())
            && let Some(names) = self.0.entry(folder.to_owned()).or_insert_with(|| Some(BTreeSet::new()))
        {
            names.insert(name.to_owned());
        }
    }
}

/// An open inotify instance.
pub(super) struct Watch {
    events: EventStream<Vec<u8>>,
    set: WatchSet,
}

impl Watch {
    pub(super) fn open() -> io::Result<Self> {
        let events = Inotify::init()?.into_event_stream(vec![0; 4096])?;
        let set = WatchSet {
            watches: events.watches(),
            watched: Vec::new(),
        };
        Ok(Self { events, set })
    }

    /// What the next event means. Cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Vec<Change>> {
        match self.events.next().await {
            Some(event) => Ok(self.set.changes(&event?)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Lends the watches to a look on another thread. Meanwhile events mean nothing; none are taken then.
    pub(super) fn take_set(&mut self) -> WatchSet {
        WatchSet {
            watches: self.set.watches.clone(),
            watched: std::mem::take(&mut self.set.watched),
        }
    }

    pub(super) fn put_set(&mut self, set: WatchSet) {
        self.set = set;
    }
}

/// The folders that are watched.
pub(super) struct WatchSet {
    watches: Watches,
    watched: Vec<Watched>,
}

struct Watched {
    descriptor: WatchDescriptor,
    folder: PathBuf,
    /// Device and inode: a path may lead elsewhere later.
    id: (u64, u64),
    names: Option<BTreeSet<OsString>>,
}

impl WatchSet {
    /// Watches what `plan` says beside what is watched already. Says whether something new is watched.
    ///
    /// What is not there is not watched. The last other failure is returned once all has been tried.
    pub(super) fn add(&mut self, plan: &Plan) -> io::Result<bool> {
        let mut outcome = Ok(false);
        for (folder, names) in &plan.0 {
            let place = place(folder);
            let Some(id) = id_of(place).filter(|_| names.is_some() || place.is_dir()) else {
                continue;
            };
            let known = |watched: &&mut Watched| watched.folder == *folder && watched.id == id;
            if let Some(watched) = self.watched.iter_mut().find(known) {
                match (&mut watched.names, names) {
                    (Some(old), Some(new)) => old.extend(new.iter().cloned()),
                    (old, None) => *old = None,
                    (None, Some(_)) => {}
                }
                continue;
            }
            match self.watches.add(place, mask()) {
                Ok(descriptor) => {
                    self.watched.push(Watched {
                        descriptor,
                        folder: folder.clone(),
                        id,
                        names: names.clone(),
                    });
                    outcome = outcome.map(|_| true);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                // The folder above may be closed to us; then the path is found by looking.
                Err(error) if names.is_some() && error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Watches what `plan` says, and nothing else.
    pub(super) fn follow(&mut self, plan: &Plan) -> io::Result<bool> {
        let outcome = self.add(plan);
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.watched).into_iter().partition(|watched| {
            plan.0.contains_key(&watched.folder) && id_of(place(&watched.folder)) == Some(watched.id)
        });
        self.watched = kept;
        for watched in &mut self.watched {
            watched.names = plan.0.get(&watched.folder).cloned().flatten();
        }
        for gone in gone {
            if !self.watched.iter().any(|watched| watched.descriptor == gone.descriptor) {
                // It fails if the folder is gone, and the watch with it.
                let _ = self.watches.remove(gone.descriptor);
            }
        }
        outcome
    }

    fn changes(&mut self, event: &EventOwned) -> Vec<Change> {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return vec![Change::Lost];
        }
        if event.mask.contains(EventMask::IGNORED) {
            self.watched.retain(|watched| watched.descriptor != event.wd);
            return vec![Change::Other];
        }
        let watched = self.watched.iter().filter(|watched| watched.descriptor == event.wd);
        watched.filter_map(|watched| watched.change(event)).collect()
    }
}

impl Watched {
    fn change(&self, event: &EventOwned) -> Option<Change> {
        let Some(name) = &event.name else {
            // The folder itself was changed, moved or removed.
            return Some(Change::Other);
        };
        if self.names.as_ref().is_some_and(|names| !names.contains(name)) {
            return None;
        }
        let mask = event.mask;
        let written = mask.intersects(EventMask::MODIFY | EventMask::CLOSE_WRITE);
        if self.names.is_none() && name.as_encoded_bytes().starts_with(b".") {
            // Of hidden things only links matter, such as the `..data` of a mounted config map.
            return (!written).then_some(Change::Other);
        }
        let path = self.folder.join(name);
        if mask.contains(EventMask::ISDIR) {
            Some(Change::Other)
        } else if mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
            Some(Change::Complete(path))
        } else if mask.contains(EventMask::CREATE) {
            Some(Change::Created(path))
        } else if mask.contains(EventMask::MODIFY) {
            Some(Change::Written(path))
        } else if mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM) {
            Some(Change::Gone(path))
        } else {
            Some(Change::Other)
        }
    }
}

/// The folder of a file named without one.
fn place(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    }
}

fn id_of(place: &Path) -> Option<(u64, u64)> {
    fs::metadata(place).ok().map(|found| (found.dev(), found.ino()))
}

fn mask() -> WatchMask {
    WatchMask::CREATE
        | WatchMask::MODIFY
        | WatchMask::CLOSE_WRITE
        | WatchMask::ATTRIB
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR
}
