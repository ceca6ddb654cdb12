//! Checks what a sink's caller has promised.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubelet_core::{PodUid, Published, StatusSink, StatusUpdate, async_trait};

/// A [`StatusSink`] around another one that notes where its caller breaks the caller's promises. A clone shares the notes.
///
/// It notes calls for one pod that overlap, versions that do not grow, what is said of a pod after the sink answered
/// [`Published::Gone`], and versions that come late: after `forget`, and no higher than the last one before it.
#[derive(Clone, Debug)]
pub struct CheckedStatusSink<S> {
    sink: S,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Debug, Default)]
struct Notes {
    pods: BTreeMap<PodUid, Told>,
    forgotten: Vec<PodUid>,
    violations: Vec<String>,
}

#[derive(Debug, Default)]
struct Told {
    busy: bool,
    /// The highest version that was sent, and the highest one that was accepted.
    sent: u64,
    accepted: u64,
    gone: bool,
}

impl<S: StatusSink> CheckedStatusSink<S> {
    /// Hands everything on to `sink`.
    #[must_use]
    pub fn new(sink: S) -> Self {
        Self {
            sink,
            notes: Arc::default(),
        }
    }

    /// What the caller did against the contract, oldest first.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// The pods of which it was told that they left, in that order.
    #[must_use]
    pub fn forgotten(&self) -> Vec<PodUid> {
        self.lock().forgotten.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, uid: &PodUid) -> Call<'_, S> {
        let mut notes = self.lock();
        let overlaps = std::mem::replace(&mut notes.pods.entry(uid.clone()).or_default().busy, true);
        if overlaps {
            notes.violations.push(format!("two calls for pod {uid} overlap"));
        }
        Call {
            checked: self,
            uid: uid.clone(),
        }
    }
}

/// A call that goes on. Dropped, it has ended.
struct Call<'a, S: StatusSink> {
    checked: &'a CheckedStatusSink<S>,
    uid: PodUid,
}

impl<S: StatusSink> Drop for Call<'_, S> {
    fn drop(&mut self) {
        if let Some(told) = self.checked.lock().pods.get_mut(&self.uid) {
            told.busy = false;
        }
    }
}

impl Told {
    /// What is wrong with an update that comes now.
    fn fault(&mut self, version: u64) -> Option<&'static str> {
        let fault = if self.gone {
            Some("comes after the sink said that the pod is gone")
        } else if version < self.sent {
            Some("is older than the one before")
        } else if version == self.accepted {
            Some("was accepted before")
        } else {
            None
        };
        self.sent = self.sent.max(version);
        fault
    }
}

#[async_trait]
impl<S: StatusSink> StatusSink for CheckedStatusSink<S> {
    async fn publish(&self, update: &StatusUpdate) -> Published {
        let uid = update.pod.uid();
        let _call = self.begin(uid);
        {
            let mut notes = self.lock();
            let fault = notes.pods.entry(uid.clone()).or_default().fault(update.version);
            if let Some(fault) = fault {
                let text = format!("version {} of pod {uid} {fault}", update.version);
                notes.violations.push(text);
            }
        }
        let published = self.sink.publish(update).await;
        let mut notes = self.lock();
        let told = notes.pods.entry(uid.clone()).or_default();
        match published {
            Published::Accepted => told.accepted = update.version,
            Published::Gone => told.gone = true,
            _ => {}
        }
        published
    }

    async fn forget(&self, uid: &PodUid) {
        let _call = self.begin(uid);
        self.sink.forget(uid).await;
        let mut notes = self.lock();
        notes.forgotten.push(uid.clone());
        if let Some(told) = notes.pods.get_mut(uid) {
            // Versions go on growing should the pod come again: what was sent before must not come after.
            told.gone = false;
            told.accepted = told.sent;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
    use kubelet_core::{PodRecord, PodUid, Published, SourceKind, SourceName, StatusSink, StatusUpdate, async_trait};

    use super::CheckedStatusSink;
    use crate::PodBuilder;

    #[derive(Debug)]
    struct Says(Published);

    #[async_trait]
    impl StatusSink for Says {
        async fn publish(&self, _: &StatusUpdate) -> Published {
            tokio::task::yield_now().await;
            self.0
        }
        async fn forget(&self, _: &PodUid) {}
    }

    fn update(version: u64) -> StatusUpdate {
        let pod = PodBuilder::new("a").build();
        let pod = PodRecord::new(&pod, SourceName::from("s"), SourceKind::Managed).unwrap();
        StatusUpdate::new(Arc::new(pod), Arc::new(PodStatus::default()), version)
    }

    #[tokio::test]
    async fn each_broken_promise_is_noted() {
        let fine = CheckedStatusSink::new(Says(Published::Accepted));
        fine.publish(&update(3)).await;
        fine.publish(&update(7)).await;
        fine.forget(&PodUid::from("uid-a")).await;
        fine.publish(&update(9)).await;
        assert!(fine.violations().is_empty(), "{:?}", fine.violations());
        fine.publish(&update(8)).await;
        fine.publish(&update(10)).await;
        fine.publish(&update(10)).await;
        fine.forget(&PodUid::from("uid-a")).await;
        fine.publish(&update(10)).await;
        let (one, two) = (update(11), update(12));
        tokio::join!(fine.publish(&one), fine.publish(&two));
        let said = fine.violations().join("; ");
        assert_eq!(fine.violations().len(), 4, "{said}");
        assert!(
            said.contains("older") && said.contains("overlap") && said.contains("accepted before"),
            "{said}"
        );
        let gone = CheckedStatusSink::new(Says(Published::Gone));
        gone.publish(&update(1)).await;
        gone.publish(&update(2)).await;
        assert_eq!(gone.violations().len(), 1);
    }
}
