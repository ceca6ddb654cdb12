//! Statuses for the program that embeds the kubelet.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PodStatus;

use crate::ids::PodUid;
use crate::status::journal::{Change, Journal, StatusReader};
use crate::status::{Published, StatusSink, StatusUpdate};

/// Keeps the newest status of each pod for any number of subscribers. A cheap clone: give one to the kubelet and keep one.
///
/// Unlike a subscription to the [`StatusManager`](crate::StatusManager) it outlives the kubelet, and may be shared by several.
#[derive(Clone, Debug, Default)]
pub struct WatchSink {
    journal: Journal,
}

impl WatchSink {
    /// A sink that was told nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads statuses: those of now first, then what changes, each pod's changes coalesced to its newest.
    #[must_use]
    pub fn subscribe(&self) -> StatusReader {
        self.journal.reader()
    }

    /// The newest status of a pod.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.journal.get(uid).map(|update| update.status)
    }

    /// The newest versions of all pods, by UID.
    #[must_use]
    pub fn snapshot(&self) -> Vec<StatusUpdate> {
        self.journal.snapshot()
    }
}

#[async_trait]
impl StatusSink for WatchSink {
    async fn publish(&self, update: &StatusUpdate) -> Published {
        self.journal.modify(update.pod.uid(), |last, _| {
            let change = match last {
                // The number alone does not tell: the next life of the agent counts from the start again.
                Some(last) if says_the_same(last, update) => Change::Keep,
                _ => Change::Put(update.clone()),
            };
            (change, Published::Accepted)
        })
    }

    async fn forget(&self, uid: &PodUid) {
        self.journal.forget(uid);
    }
}

fn says_the_same(last: &StatusUpdate, update: &StatusUpdate) -> bool {
    last.version == update.version
        && last.finished == update.finished
        && last.containers_may_run == update.containers_may_run
        && (Arc::ptr_eq(&last.status, &update.status) || last.status == update.status)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::StreamExt;
    use k8s_openapi::api::core::v1::PodStatus;
    use serde_json::json;

    use super::WatchSink;
    use crate::pod::testing::record;
    use crate::status::{Published, StatusChange, StatusSink, StatusUpdate};

    #[tokio::test]
    async fn subscribers_see_the_newest_and_the_end() {
        let sink = WatchSink::new();
        let pod = Arc::new(record(json!({"spec": {"containers": []}})));
        let update = |version| StatusUpdate::new(pod.clone(), Arc::new(PodStatus::default()), version);
        for version in [1, 2, 2] {
            assert_eq!(sink.publish(&update(version)).await, Published::Accepted);
        }
        let mut changes = Box::pin(sink.subscribe().into_stream());
        assert!(matches!(changes.next().await, Some(StatusChange::Updated(update)) if update.version == 2));
        assert!(sink.get(pod.uid()).is_some());
        sink.forget(pod.uid()).await;
        assert!(matches!(changes.next().await, Some(StatusChange::Forgotten(_))));
        assert!(sink.snapshot().is_empty());
        drop(sink);
        assert!(changes.next().await.is_none());
    }
}
