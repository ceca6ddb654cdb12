//! Static pods from a folder, or from one file.

mod scan;
#[cfg(test)]
mod tests;
#[cfg_attr(not(target_os = "linux"), path = "file/unwatched.rs")]
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::scan::{Afresh, Extent, Files, Found, Ground, Hold, Look, News, Request};
use self::watch::{Change, Watch};
use super::{Origin, PodSource, Removed, SourceContext, SourceError, SourceItem, SourceKind};
use crate::error::error_chain;
use crate::ids::SourceName;

/// From a look that has to be repeated to the next.
const REPEAT: Duration = Duration::from_millis(10);

/// How long a file that went away is still taken for there: editors move the old one away before they write the new.
const AWAY: Duration = Duration::from_millis(200);

/// How long a file that is being written, and was not closed, is left alone after its last change.
const WRITING: Duration = Duration::from_secs(2);

/// More events than this do not put off a look.
const MAX_EVENTS: usize = 4096;

/// How often a missing path is looked for. Source: kubelet 1.36, `file_linux.go`.
const MISSING: Duration = Duration::from_secs(1);

/// Reads static pods from the files of a folder, or from one file. Its name is `file`.
///
/// - A folder is read flat, in the order of the names. Names that begin with a dot, editors' backups (`a.yaml~`,
///   `#a.yaml#`), folders and whatever is no regular file once links are followed are left out. Any extension will do.
/// - A file holds one Pod as YAML or JSON, of less than 10 MiB. A bad or unreadable file is reported as invalid and
///   hurts no other.
/// - Changes are followed with inotify, and all files are read again every period. A file that is being written is
///   read when it is closed, or has not changed for 2 s; one that went away counts as gone after 200 ms. Links are
///   followed to the folder of the file that they lead to.
/// - A missing path is [`SourceItem::Trouble`], and is looked for every second.
/// - Where nothing can be watched, a warning says so and the periodic reads go on.
///
/// The first good look gives a [`SourceItem::Snapshot`], and so does the one that ends a trouble; else it says what became of each file
/// that changed. There is none without a change. No pod is kept here beside those that are handed out.
///
/// Source: kubelet 1.36, `config/file.go` and `file_linux.go`, which take a missing path for "no pods" and drop the pod
/// of a bad file.
#[derive(Clone, Debug)]
pub struct FileSource {
    name: SourceName,
    path: PathBuf,
    period: Duration,
    watch: bool,
}

impl FileSource {
    /// Reads `path`, every 20 s and when it changes.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            name: SourceName::from("file"),
            // Collecting the parts drops a trailing slash, which would become part of every static UID.
            path: path.into().components().collect(),
            period: Duration::from_secs(20),
            watch: true,
        }
    }

    /// Sets the time from one full read to the next.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Watches nothing: for file systems that tell nobody of their changes.
    #[must_use]
    pub fn rescan_only(mut self) -> Self {
        self.watch = false;
        self
    }
}

impl PodSource for FileSource {
    fn name(&self) -> &SourceName {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Static
    }

    fn open(&self, cx: SourceContext) -> BoxStream<'static, SourceItem> {
        let now = Instant::now();
        let follower = Follower {
            source: self.clone(),
            stop: cx.stop,
            watch: None,
            warned: false,
            files: Files::new(),
            ground: Ground::Other,
            waiting: VecDeque::new(),
            told: false,
            afresh_until: None,
            trouble: None,
            due: now,
            not_before: now,
            next_full: now,
            touched: BTreeSet::new(),
            held: BTreeMap::new(),
        };
        stream::unfold(follower, Follower::next).boxed()
    }
}

struct Follower {
    source: FileSource,
    stop: CancellationToken,
    watch: Option<Watch>,
    /// Whether it was said that nothing can be watched.
    warned: bool,
    /// What was told of.
    files: Files,
    /// What lay at the path when all of it was last looked at, if only files have changed there since.
    ground: Ground,
    /// Items that are ready.
    waiting: VecDeque<SourceItem>,
    /// Whether a snapshot was told since the last trouble.
    told: bool,
    /// Until when a snapshot waits for files that are held.
    afresh_until: Option<Instant>,
    /// The last trouble, so that it is not told again and again.
    trouble: Option<String>,
    due: Instant,
    /// No event makes the next look come earlier.
    not_before: Instant,
    next_full: Instant,
    /// Files that events named: their marks may not show a change within one tick of the file system's clock.
    touched: BTreeSet<PathBuf>,
    /// Files that are not to be read yet, and until when.
    held: BTreeMap<PathBuf, (Hold, Instant)>,
}

impl Follower {
    async fn next(mut self) -> Option<(SourceItem, Self)> {
        loop {
            if let Some(item) = self.waiting.pop_front() {
                return Some((item, self));
            }
            self.wait().await?;
            self.look().await;
        }
    }

    /// Waits until it is time to look; nothing once the source is to stop.
    async fn wait(&mut self) -> Option<()> {
        for _ in 0..MAX_EVENTS {
            let changes = async {
                match &mut self.watch {
                    Some(watch) => watch.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased; // stopping wins; all events that wait are taken in before a look
                () = self.stop.cancelled() => return None,
                change = changes => match change {
                    Ok(changes) => changes.into_iter().for_each(|change| self.note(change)),
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "manifest watch broke off");
                        self.watch = None;
                        self.ground = Ground::Other;
                        self.due = Instant::now();
                    }
                },
                () = sleep_until(self.due) => return Some(()),
            }
        }
        Some(())
    }

    fn note(&mut self, change: Change) {
        let now = Instant::now();
        if let Change::Complete(path) | Change::Created(path) | Change::Written(path) | Change::Gone(path) = &change
            && path.parent() != Some(&*self.source.path)
        {
            // The path itself leads elsewhere, or a file that a link leads to has changed.
            self.ground = Ground::Other;
        }
        match change {
            Change::Complete(path) => {
                self.held.remove(&path);
                self.touched.insert(path);
            }
            Change::Created(path) => {
                self.hold(path, Hold::Writing, now + WRITING);
            }
            Change::Written(path) => {
                self.hold(path, Hold::Writing, now + WRITING);
                return;
            }
            Change::Gone(path) => {
                self.hold(path, Hold::Away, now + AWAY);
                return;
            }
            Change::Other => self.ground = Ground::Other,
            Change::Lost => self.next_full = now,
        }
        self.due = self.due.min(self.not_before.max(now));
    }

    /// Leaves a file alone for now; a look follows then at the latest.
    fn hold(&mut self, path: PathBuf, hold: Hold, until: Instant) {
        self.touched.insert(path.clone());
        self.held.insert(path, (hold, until));
        self.due = self.due.min(until);
    }

    async fn look(&mut self) {
        let begun = Instant::now();
        let full = begun >= self.next_full;
        // What may have waited for its end of being held is looked at now.
        let (held, released) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|(_, (_, until))| *until > begun);
        self.held = held;
        self.touched.extend(BTreeMap::into_keys(released));
        let afresh = !self.told;
        let patience = afresh.then(|| *self.afresh_until.get_or_insert(begun + WRITING));
        if self.source.watch && self.watch.is_none() && full {
            self.open_watch();
        }
        let extent = match self.ground {
            _ if full => Extent::Full,
            Ground::Plain if self.watch.is_some() && !afresh => Extent::Touched,
            _ => Extent::Marks,
        };
        let request = Request {
            path: self.source.path.clone(),
            extent,
            afresh: patience.map(|until| Afresh { waits: begun < until }),
            before: self.files.clone(),
            touched: std::mem::take(&mut self.touched),
            held: self
                .held
                .iter()
                .map(|(path, (hold, _))| (path.clone(), *hold))
                .collect(),
            watches: self.watch.as_mut().map(Watch::take_set),
        };
        let looked = tokio::task::spawn_blocking(|| scan::look(request)).await;
        let Ok(Look {
            outcome,
            watches,
            unwatched,
            again,
        }) = looked
        else {
            // The runtime is going down, or we have a bug; the watches went with the look.
            self.watch = None;
            self.ground = Ground::Other;
            self.next_full = Instant::now() + self.source.period;
            self.due = self.next_full;
            return;
        };
        if let (Some(watch), Some(set)) = (&mut self.watch, watches) {
            watch.put_set(set);
        }
        if let Some(error) = unwatched {
            self.warn_unwatched(&error);
        }
        let now = Instant::now();
        if full {
            self.next_full = now + self.source.period;
        }
        let held_until = self.held.values().map(|(_, until)| *until).min();
        self.due = held_until.map_or(self.next_full, |until| until.min(self.next_full));
        // Events during a burst must not make it do nothing but look.
        self.not_before = now + (now - begun) * 2;
        if again {
            self.due = self.due.min(now + REPEAT);
            self.next_full = self.due;
        }
        match outcome {
            Ok(found) if found.is_partial => {
                self.due = [held_until, patience]
                    .into_iter()
                    .flatten()
                    .fold(self.due, Instant::min);
            }
            Ok(found) => self.tell(found),
            Err(error) => {
                self.due = self.due.min(now + MISSING);
                self.next_full = self.due;
                self.tell_trouble(SourceError::unreadable(self.source.path.display().to_string(), error));
            }
        }
    }

    fn tell(&mut self, found: Found) {
        let before = std::mem::replace(&mut self.files, found.files);
        self.ground = found.ground;
        self.trouble = None;
        self.afresh_until = None;
        if !std::mem::replace(&mut self.told, true) {
            self.waiting.push_back(snapshot(found.news));
            return;
        }
        let gone = before.keys().filter(|path| !self.files.contains_key(*path));
        let removals = gone.map(|path| SourceItem::Remove(Removed::Origin(origin(path))));
        let changes = found.news.into_iter().map(|outcome| match outcome {
            Ok(raw) => SourceItem::Upsert(Box::new(raw)),
            Err(bad) => SourceItem::Invalid(bad),
        });
        self.waiting.extend(removals.chain(changes));
    }

    fn tell_trouble(&mut self, trouble: SourceError) {
        self.ground = Ground::Other;
        self.afresh_until = None;
        let text = error_chain(&trouble);
        if self.trouble.as_ref() == Some(&text) {
            return;
        }
        self.trouble = Some(text);
        // The next good look is told even if it finds the same as before: it ends the trouble.
        self.told = false;
        self.waiting.push_back(SourceItem::Trouble(trouble));
    }

    fn open_watch(&mut self) {
        match Watch::open() {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => self.warn_unwatched(&error),
        }
    }

    fn warn_unwatched(&mut self, error: &std::io::Error) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                path = %self.source.path.display(),
                period = ?self.source.period,
                "manifests cannot be watched, they are only read every period"
            );
        }
    }
}

fn origin(path: &Path) -> Origin {
    Origin::File(Arc::from(path))
}

fn snapshot(news: Vec<News>) -> SourceItem {
    let (mut pods, mut invalid) = (Vec::new(), Vec::new());
    for outcome in news {
        match outcome {
            Ok(raw) => pods.push(raw),
            Err(bad) => invalid.push(bad),
        }
    }
    SourceItem::Snapshot {
        pods,
        invalid,
        remembered: false,
    }
}
