//! Objects kept as files in a directory of the node.

mod scan;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::ObjectSource;
use super::error::ObjectError;
use super::key::{Freshness, ObjectKey, ObjectQuery};
use super::manifest;
use super::object::{Object, ObjectKind};
use super::watch::{ObjectWatch, Watched};

pub use scan::ObjectFileFault;
use scan::{Ages, Reread, Snapshot};

/// Serves secrets, config maps, services and runtime classes from YAML or JSON files, so that static pods and nodes
/// without a control plane can use them.
///
/// - The directory is read flat, in the order of the file names. Names that begin with `.` are left
///   out, as are things that are not regular files once links are followed.
/// - A file holds one document or several, parted by `---`. Of other kinds in it nothing is read,
///   which is said once in the log. An object without a namespace is in `default`. `stringData` of
///   a secret is merged into `data`. Numbers and booleans are taken for values of a config map as written.
/// - Of two objects with one name the later file, or the later document in a file, wins.
/// - A file that cannot be read or parsed changes nothing: what it held before stays. Until every file
///   could be read, an object that was not found counts as unknown ([`ObjectError::Unavailable`]),
///   not as missing. [`faults`](DirectoryObjects::faults) lists such files.
/// - A missing directory is unavailable, not empty.
///
/// A copy shares the content. Every `get` and `list` looks for changed files first, by size, inode
/// and times; [`Freshness::Live`] reads all files again, and [`Freshness::NotOlderThan`] those that
/// changed within the last two seconds, since their times may not tell of a second write. While there
/// are watches, the directory is looked at once per poll interval, however many they are.
#[derive(Clone)]
pub struct DirectoryObjects {
    inner: Arc<Inner>,
    poll_interval: Duration,
}

struct Inner {
    path: PathBuf,
    /// Held while the directory is read, by blocking threads only.
    scanning: Mutex<Ages>,
    snapshot: Mutex<Arc<Snapshot>>,
    next_poll: Mutex<Option<Instant>>,
    /// Counts the changes of the snapshot.
    version: watch::Sender<u64>,
}

impl DirectoryObjects {
    /// Serves the files in `path`. Nothing is read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            inner: Arc::new(Inner {
                snapshot: Mutex::new(Arc::new(Snapshot::unread(&path))),
                path,
                scanning: Mutex::default(),
                next_poll: Mutex::new(None),
                version: watch::Sender::new(0),
            }),
            poll_interval: Duration::from_secs(1),
        }
    }

    /// Sets how often the directory is looked at while there are watches; 1 s by default.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// How many watches there are.
    #[must_use]
    pub fn watches(&self) -> usize {
        self.inner.version.receiver_count()
    }

    /// The files that could not be read when the directory was last looked at, sorted by name.
    pub fn faults(&self) -> Vec<ObjectFileFault> {
        self.inner.snapshot().faults().cloned().collect()
    }
}

impl fmt::Debug for DirectoryObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryObjects")
            .field("path", &self.inner.path)
            .field("poll_interval", &self.poll_interval)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ObjectSource for DirectoryObjects {
    fn serves(&self, kind: ObjectKind) -> bool {
        manifest::KINDS.contains(&kind)
    }

    fn is_local(&self) -> bool {
        true
    }

    async fn get(&self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError> {
        check(key.kind)?;
        let snapshot = self.inner.look(Reread::wanted(want)).await;
        snapshot.get(key)
    }

    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        check(query.kind)?;
        let snapshot = self.inner.look(Reread::Changed).await;
        snapshot.list(query)
    }

    fn watch(&self, key: &ObjectKey) -> ObjectWatch {
        if check(key.kind).is_err() {
            return ObjectWatch::ended();
        }
        let follower = Follower {
            key: key.clone(),
            reported: None,
            version: self.inner.version.subscribe(),
            inner: Arc::clone(&self.inner),
            poll_interval: self.poll_interval,
        };
        ObjectWatch::new(stream::unfold(follower, Follower::next))
    }
}

impl Inner {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&lock(&self.snapshot))
    }

    /// Looks at the directory. If the caller goes away the look is finished nevertheless.
    async fn look(self: &Arc<Self>, reread: Reread) -> Arc<Snapshot> {
        let inner = Arc::clone(self);
        // A look that did not end (the runtime is going down) leaves the last snapshot.
        let _ended = tokio::task::spawn_blocking(move || inner.look_blocking(reread)).await;
        self.snapshot()
    }

    fn look_blocking(&self, reread: Reread) {
        // One at a time.
        let mut ages = lock(&self.scanning);
        let old = self.snapshot();
        if let Some(new) = old.refreshed(&self.path, reread, &mut ages) {
            *lock(&self.snapshot) = Arc::new(new);
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Gives the poll that is due to one of those who wait for it, and tells the others when the next is.
    fn claim_poll(&self, interval: Duration) -> Poll {
        let now = Instant::now();
        let mut next = lock(&self.next_poll);
        match *next {
            Some(due) if due > now => Poll::At(due),
            _ => {
                *next = Some(now + interval);
                Poll::Now
            }
        }
    }
}

enum Poll {
    Now,
    At(Instant),
}

/// The state of one watch.
struct Follower {
    key: ObjectKey,
    reported: Option<Watched>,
    version: watch::Receiver<u64>,
    inner: Arc<Inner>,
    poll_interval: Duration,
}

impl Follower {
    async fn next(mut self) -> Option<(Watched, Self)> {
        loop {
            self.version.borrow_and_update();
            if let Some(now) = self.inner.snapshot().known(&self.key)
                && self.reported.as_ref() != Some(&now)
            {
                self.reported = Some(now.clone());
                return Some((now, self));
            }
            match self.inner.claim_poll(self.poll_interval) {
                Poll::Now => {
                    self.inner.look(Reread::Unsettled).await;
                }
                Poll::At(due) => {
                    tokio::select! {
                        biased; // what another look has found needs no look of our own
                        changed = self.version.changed() => changed.ok()?,
                        () = sleep_until(due) => {}
                    }
                }
            }
        }
    }
}

fn check(kind: ObjectKind) -> Result<(), ObjectError> {
    if manifest::KINDS.contains(&kind) {
        Ok(())
    } else {
        Err(ObjectError::NotServed { kind })
    }
}

/// What the locks guard is replaced as a whole, so that a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use futures::StreamExt;
    use tempfile::TempDir;
    use tokio::time::timeout;

    use super::super::{
        Freshness, Object, ObjectError, ObjectKey, ObjectKind, ObjectQuery, ObjectSource, ObjectWatch, Watched,
    };
    use super::DirectoryObjects;

    fn map(name: &str, value: &str) -> String {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: {value}}}\n")
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(ObjectKind::ConfigMap, "default", name)
    }

    fn value(object: &Object) -> &str {
        let Object::ConfigMap(map) = object else {
            panic!("{object:?} is no config map");
        };
        &map.data.as_ref().unwrap()["k"]
    }

    /// Replaces a file as an editor does, so that the new one has another inode.
    fn put(dir: &Path, file: &str, text: &str) {
        fs::write(dir.join(".new"), text).unwrap();
        fs::rename(dir.join(".new"), dir.join(file)).unwrap();
    }

    async fn get(objects: &DirectoryObjects, name: &str) -> Result<String, ObjectError> {
        let object = objects.get(&key(name), Freshness::Cached).await?;
        Ok(value(&object).to_owned())
    }

    async fn next(watch: &mut ObjectWatch) -> Option<String> {
        let item = timeout(Duration::from_secs(20), watch.next()).await;
        match item.expect("news within the time").expect("no end") {
            Watched::Present(object) => Some(value(&object).to_owned()),
            Watched::Absent => None,
        }
    }

    #[tokio::test]
    async fn changed_added_and_removed_files_are_seen_at_the_next_get() {
        let dir = TempDir::new().unwrap();
        let objects = DirectoryObjects::new(dir.path());
        put(dir.path(), "a.yaml", &map("a", "old"));
        put(dir.path(), ".hidden.yaml", &map("hidden", "x"));
        fs::create_dir(dir.path().join("folder")).unwrap();
        assert_eq!(get(&objects, "a").await.unwrap(), "old");
        let missing = get(&objects, "hidden").await;
        assert!(matches!(missing, Err(ObjectError::NotFound { .. })));
        put(dir.path(), "a.yaml", &map("a", "new"));
        put(dir.path(), "b.yaml", &map("b", "1"));
        put(dir.path(), "c.yaml", &map("b", "2"));
        assert_eq!(get(&objects, "a").await.unwrap(), "new");
        assert_eq!(get(&objects, "b").await.unwrap(), "2", "the later file wins");
        let query = ObjectQuery::new(ObjectKind::ConfigMap);
        let names: Vec<_> = objects.list(&query).await.unwrap();
        let names: Vec<_> = names.iter().map(|object| object.key().name).collect();
        assert_eq!(names, ["a", "b"]);
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        let missing = get(&objects, "a").await;
        assert!(matches!(missing, Err(ObjectError::NotFound { .. })));
    }

    #[tokio::test]
    async fn a_bad_file_keeps_its_last_good_content_and_names_the_line() {
        let dir = TempDir::new().unwrap();
        let objects = DirectoryObjects::new(dir.path());
        put(dir.path(), "a.yaml", &map("a", "good"));
        assert_eq!(get(&objects, "a").await.unwrap(), "good");
        put(dir.path(), "a.yaml", "apiVersion: v1\nkind: ConfigMap\ndata: [\n");
        assert_eq!(get(&objects, "a").await.unwrap(), "good");
        let fault = objects.faults().remove(0);
        assert_eq!(fault.path(), dir.path().join("a.yaml"));
        assert!(fault.line().is_some_and(|line| line >= 3), "{fault}");
        // The half that could not be read may hold it.
        let unknown = get(&objects, "b").await.unwrap_err();
        assert!(matches!(unknown, ObjectError::Unavailable { .. }));
        let cause = unknown.source().unwrap().to_string();
        assert!(cause.contains("a.yaml:"), "{cause}");
        put(dir.path(), "a.yaml", &map("b", "mended"));
        assert_eq!(get(&objects, "b").await.unwrap(), "mended");
        assert!(objects.faults().is_empty());
    }

    #[tokio::test]
    async fn a_missing_directory_is_unavailable() {
        let dir = TempDir::new().unwrap();
        let objects = DirectoryObjects::new(dir.path().join("later"));
        let answer = get(&objects, "a").await;
        assert!(matches!(answer, Err(ObjectError::Unavailable { .. })));
        let query = ObjectQuery::new(ObjectKind::Secret);
        let answer = objects.list(&query).await;
        assert!(matches!(answer, Err(ObjectError::Unavailable { .. })));
        fs::create_dir(dir.path().join("later")).unwrap();
        let answer = get(&objects, "a").await;
        assert!(matches!(answer, Err(ObjectError::NotFound { .. })));
    }

    #[tokio::test]
    async fn live_reads_even_what_looks_unchanged() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("a.yaml");
        let objects = DirectoryObjects::new(dir.path());
        fs::write(&file, map("a", "one")).unwrap();
        assert_eq!(get(&objects, "a").await.unwrap(), "one");
        fs::write(&file, map("a", "two")).unwrap();
        let object = objects.get(&key("a"), Freshness::Live).await.unwrap();
        assert_eq!(value(&object), "two");
    }

    #[tokio::test]
    async fn watches_follow_the_files() {
        let dir = TempDir::new().unwrap();
        let later = dir.path().join("later");
        let objects = DirectoryObjects::new(&later).poll_interval(Duration::from_millis(20));
        let mut first = objects.watch(&key("a"));
        let early = timeout(Duration::from_millis(60), first.next()).await;
        assert!(early.is_err(), "nothing is known of a missing directory");
        fs::create_dir(&later).unwrap();
        assert_eq!(next(&mut first).await, None);
        let mut second = objects.watch(&key("a"));
        assert_eq!(next(&mut second).await, None);
        put(&later, "a.yaml", &map("a", "1"));
        assert_eq!(next(&mut first).await.as_deref(), Some("1"));
        assert_eq!(next(&mut second).await.as_deref(), Some("1"));
        put(&later, "a.yaml", "kind: [");
        put(&later, "b.yaml", &map("a", "2"));
        assert_eq!(next(&mut first).await.as_deref(), Some("2"));
        fs::remove_file(later.join("a.yaml")).unwrap();
        fs::remove_file(later.join("b.yaml")).unwrap();
        assert_eq!(next(&mut first).await, None);
    }
}
