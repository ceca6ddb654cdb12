//! Objects held in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::stream;
use tokio::sync::watch;

use super::ObjectSource;
use super::error::ObjectError;
use super::key::{Freshness, ObjectKey, ObjectQuery};
use super::object::{Object, ObjectKind};
use super::watch::{ObjectWatch, Watched};

/// Objects that the embedder sets and removes while the node runs; also of use in tests.
///
/// All kinds are served and the source is local, unless said otherwise. A copy shares the content.
///
/// # Examples
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
/// use kubelet_core::MapObjects;
///
/// let objects = MapObjects::new();
/// objects.set(ConfigMap {
///     metadata: ObjectMeta {
///         name: Some("settings".into()),
///         namespace: Some("default".into()),
///         ..ObjectMeta::default()
///     },
///     ..ConfigMap::default()
/// });
/// ```
#[derive(Clone)]
pub struct MapObjects {
    kinds: BTreeSet<ObjectKind>,
    local: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<ObjectKey, Object>,
    watched: BTreeMap<ObjectKey, watch::Sender<Watched>>,
}

impl MapObjects {
    /// Starts empty.
    pub fn new() -> Self {
        Self {
            kinds: ObjectKind::ALL.iter().copied().collect(),
            local: true,
            state: Arc::default(),
        }
    }

    /// Serves these kinds only.
    #[must_use]
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = ObjectKind>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }

    /// Declares that the objects come from elsewhere, so that static pods may not refer to them.
    #[must_use]
    pub fn remote(mut self) -> Self {
        self.local = false;
        self
    }

    /// Adds an object, or replaces the one of the same kind, namespace and name.
    pub fn set(&self, object: impl Into<Object>) {
        let object = object.into();
        let key = object.key();
        let mut state = lock(&self.state);
        state.tell(&key, Watched::Present(object.clone()));
        state.objects.insert(key, object);
    }

    /// Removes an object. Removing one that is not there does nothing.
    pub fn remove(&self, key: &ObjectKey) {
        let mut state = lock(&self.state);
        state.objects.remove(key);
        state.tell(key, Watched::Absent);
    }

    /// How many objects are watched.
    #[must_use]
    pub fn watched(&self) -> usize {
        lock(&self.state).watched.len()
    }

    fn check(&self, kind: ObjectKind) -> Result<(), ObjectError> {
        if self.kinds.contains(&kind) {
            Ok(())
        } else {
            Err(ObjectError::NotServed { kind })
        }
    }
}

impl Default for MapObjects {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MapObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapObjects")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ObjectSource for MapObjects {
    fn serves(&self, kind: ObjectKind) -> bool {
        self.kinds.contains(&kind)
    }

    fn is_local(&self) -> bool {
        self.local
    }

    async fn get(&self, key: &ObjectKey, _want: Freshness) -> Result<Object, ObjectError> {
        self.check(key.kind)?;
        lock(&self.state)
            .objects
            .get(key)
            .cloned()
            .ok_or_else(|| ObjectError::NotFound { key: key.clone() })
    }

    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        self.check(query.kind)?;
        Ok(lock(&self.state)
            .objects
            .iter()
            .filter(|(key, _)| query.matches(key))
            .map(|(_, object)| object.clone())
            .collect())
    }

    fn watch(&self, key: &ObjectKey) -> ObjectWatch {
        if self.check(key.kind).is_err() {
            return ObjectWatch::ended();
        }
        let states = lock(&self.state).subscribe(key);
        let subscription = Subscription {
            states,
            reported: None,
            _lease: Lease {
                key: key.clone(),
                state: Arc::clone(&self.state),
            },
        };
        ObjectWatch::new(stream::unfold(subscription, Subscription::next))
    }
}

impl State {
    fn tell(&self, key: &ObjectKey, now: Watched) {
        if let Some(sender) = self.watched.get(key) {
            sender.send_replace(now);
        }
    }

    fn subscribe(&mut self, key: &ObjectKey) -> watch::Receiver<Watched> {
        let now = match self.objects.get(key) {
            Some(object) => Watched::Present(object.clone()),
            None => Watched::Absent,
        };
        self.watched
            .entry(key.clone())
            .or_insert_with(|| watch::Sender::new(now))
            .subscribe()
    }
}

/// The receiver stands before the lease, and so is dropped before it: the lease counts who is left.
struct Subscription {
    states: watch::Receiver<Watched>,
    reported: Option<Watched>,
    _lease: Lease,
}

impl Subscription {
    async fn next(mut self) -> Option<(Watched, Self)> {
        loop {
            let now = self.states.borrow_and_update().clone();
            if self.reported.as_ref() != Some(&now) {
                self.reported = Some(now.clone());
                return Some((now, self));
            }
            self.states.changed().await.ok()?;
        }
    }
}

struct Lease {
    key: ObjectKey,
    state: Arc<Mutex<State>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if let Some(sender) = state.watched.get(&self.key)
            && sender.receiver_count() == 0
        {
            state.watched.remove(&self.key);
        }
    }
}

/// The state is consistent between any two statements, so that a panic elsewhere does not spoil it.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::{FutureExt, StreamExt};
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::super::{Freshness, ObjectError, ObjectKey, ObjectKind, ObjectQuery, ObjectSource, Watched};
    use super::{MapObjects, lock};

    fn map(namespace: &str, value: &str) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some("settings".into()),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([("key".into(), value.into())])),
            ..ConfigMap::default()
        }
    }

    fn key() -> ObjectKey {
        ObjectKey::new(ObjectKind::ConfigMap, "shop", "settings")
    }

    #[tokio::test]
    async fn what_is_set_is_found_until_it_is_removed() {
        let objects = MapObjects::new();
        objects.set(map("shop", "1"));
        objects.set(map("other", "2"));
        let found = objects.get(&key(), Freshness::Live).await.unwrap();
        assert_eq!(found, map("shop", "1").into());
        let query = ObjectQuery::new(ObjectKind::ConfigMap);
        assert_eq!(objects.list(&query).await.unwrap().len(), 2);
        let query = query.with_namespace("shop");
        assert_eq!(objects.list(&query).await.unwrap().len(), 1);
        objects.remove(&key());
        let missing = objects.get(&key(), Freshness::Cached).await;
        assert!(matches!(missing, Err(ObjectError::NotFound { .. })));
    }

    #[tokio::test]
    async fn a_watch_yields_the_latest_state_and_leaves_out_those_between() {
        let objects = MapObjects::new();
        let mut watch = objects.watch(&key());
        assert_eq!(watch.next().await, Some(Watched::Absent));
        objects.set(map("shop", "1"));
        objects.set(map("shop", "2"));
        let latest = Watched::Present(map("shop", "2").into());
        assert_eq!(watch.next().await, Some(latest));
        objects.set(map("shop", "2"));
        assert_eq!(watch.next().now_or_never(), None, "nothing changed");
        objects.remove(&key());
        assert_eq!(watch.next().await, Some(Watched::Absent));
    }

    #[tokio::test]
    async fn dropping_the_last_watch_leaves_nothing_behind() {
        let objects = MapObjects::new();
        let mut first = objects.watch(&key());
        let second = objects.watch(&key());
        assert!(first.next().await.is_some());
        assert!(first.next().now_or_never().is_none());
        drop(first);
        assert_eq!(lock(&objects.state).watched.len(), 1);
        drop(second);
        assert_eq!(lock(&objects.state).watched.len(), 0);
    }

    #[tokio::test]
    async fn a_kind_that_is_not_served_is_said_to_be_so() {
        let objects = MapObjects::new().kinds([ObjectKind::Secret]);
        let answer = objects.get(&key(), Freshness::Cached).await;
        assert!(matches!(answer, Err(ObjectError::NotServed { .. })));
        assert_eq!(objects.watch(&key()).next().await, None);
    }
}
