//! Stands in where there is no inotify: nothing can be watched.

use std::io;
use std::path::{Path, PathBuf};

/// One change that was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(dead_code, reason = "nobody tells of changes here")]
pub(super) enum Change {
    Complete(PathBuf),
    Created(PathBuf),
    Written(PathBuf),
    Gone(PathBuf),
    Other,
    Lost,
}

pub(super) struct Plan;

impl Plan {
    pub(super) fn of(_root: &Path) -> Self {
        Self
    }

    pub(super) fn file(&mut self, _path: &Path) {}
}

/// Never made.
pub(super) enum Watch {}

/// Never made.
pub(super) enum WatchSet {}

impl Watch {
    pub(super) fn open() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn next(&mut self) -> std::future::Pending<io::Result<Vec<Change>>> {
        match *self {}
    }

    pub(super) fn take_set(&mut self) -> WatchSet {
        match *self {}
    }

    pub(super) fn put_set(&mut self, set: WatchSet) {
        match set {}
    }
}

impl WatchSet {
    pub(super) fn add(&mut self, _plan: &Plan) -> io::Result<bool> {
        match *self {}
    }

    pub(super) fn follow(&mut self, _plan: &Plan) -> io::Result<bool> {
        match *self {}
    }
}
