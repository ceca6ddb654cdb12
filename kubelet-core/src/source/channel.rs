//! Pods that an embedder pushes.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{PodSource, RawPod, Removed, SourceContext, SourceError, SourceItem, SourceKind};
use crate::ids::{PodUid, SourceName};

/// What the embedder may be ahead of the kubelet.
const CAPACITY: usize = 16;

/// Why a pod could not be handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The pod has no UID. The embedder must give it one: it is what tells a pod from a later one of the same name.
    #[error("pod {pod} has no metadata.uid")]
    NoUid {
        /// Namespace and name, as far as they are set.
        pod: String,
    },
    /// Two pods of one set have the same UID.
    #[error("pod {pod} has the metadata.uid {uid} of another pod")]
    SameUid {
        /// Namespace and name, as far as they are set.
        pod: String,
        /// The UID.
        uid: PodUid,
    },
    /// The kubelet has ended, or will never open the source; nothing takes pods any more.
    #[error("the pod source {name} is closed")]
    Closed {
        /// The source's name.
        name: SourceName,
    },
}

/// A source whose pods an embedder pushes through a [`ChannelHandle`].
///
/// Pods need a UID that never changes and is not used again. They are defaulted and validated like any others. The
/// source is ready after the first [`ChannelHandle::set`]. When all handles are dropped the last pods stay.
pub struct ChannelSource {
    name: SourceName,
    kind: SourceKind,
    items: Arc<Mutex<Option<mpsc::Receiver<SourceItem>>>>,
}

impl ChannelSource {
    /// A source and the handle that fills it. Its pods are [`SourceKind::Managed`].
    pub fn new(name: impl Into<SourceName>) -> (ChannelHandle, Self) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let name = name.into();
        let source = Self {
            name: name.clone(),
            kind: SourceKind::Managed,
            items: Arc::new(Mutex::new(Some(receiver))),
        };
        (ChannelHandle { name, sender }, source)
    }

    /// Says whose word the source is; with [`SourceKind::Static`] its pods are decorated as static pods.
    #[must_use]
    pub fn kind(mut self, kind: SourceKind) -> Self {
        self.kind = kind;
        self
    }
}

impl fmt::Debug for ChannelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelSource")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl PodSource for ChannelSource {
    fn name(&self) -> &SourceName {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        self.kind
    }

    fn open(&self, cx: SourceContext) -> BoxStream<'static, SourceItem> {
        let taken = self.items.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(items) = taken else {
            let again = SourceError::invalid(self.name.as_str(), "this source was opened before");
            let trouble = stream::iter([SourceItem::Trouble(again)]);
            let until_stop = stream::once(cx.stop.cancelled_owned()).filter_map(async |()| None);
            return trouble.chain(until_stop).boxed();
        };
        stream::unfold((items, cx.stop), next).boxed()
    }
}

type Open = (mpsc::Receiver<SourceItem>, CancellationToken);

async fn next((mut items, stop): Open) -> Option<(SourceItem, Open)> {
    let received = tokio::select! {
        biased; // stopping wins over items that wait
        () = stop.cancelled() => None,
        item = items.recv() => item,
    };
    match received {
        Some(item) => Some((item, (items, stop))),
        // That nobody can push any more is no word about the pods that are there.
        None => {
            stop.cancelled().await;
            None
        }
    }
}

/// Pushes pods into a [`ChannelSource`]. A clone pushes into the same source.
///
/// Each call waits while the kubelet is behind, and takes effect in the order of the calls.
#[derive(Clone)]
#[must_use = "without the handle the source has no pods"]
pub struct ChannelHandle {
    name: SourceName,
    sender: mpsc::Sender<SourceItem>,
}

impl ChannelHandle {
    /// Replaces all pods: those that are not named are no longer wished for. The first call makes the source ready.
    ///
    /// # Errors
    /// [`ChannelError`]; nothing has changed then.
    ///
    /// # Cancellation
    /// A dropped call has no effect.
    pub async fn set(&self, pods: Vec<Pod>) -> Result<(), ChannelError> {
        let mut seen = BTreeSet::new();
        for pod in &pods {
            let uid = uid_of(pod)?;
            if !seen.insert(uid) {
                let (pod, uid) = (describe(pod), PodUid::from(uid));
                return Err(ChannelError::SameUid { pod, uid });
            }
        }
        let pods = pods.into_iter().map(RawPod::new).collect();
        self.send(SourceItem::snapshot(pods)).await
    }

    /// Adds or changes one pod. To ask for its graceful end, give it a `deletionTimestamp`.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    ///
    /// # Cancellation
    /// As [`set`](Self::set).
    pub async fn upsert(&self, pod: Pod) -> Result<(), ChannelError> {
        uid_of(&pod)?;
        self.send(SourceItem::Upsert(Box::new(RawPod::new(pod)))).await
    }

    /// Removes one pod; it is no error if it is not there.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    ///
    /// # Cancellation
    /// As [`set`](Self::set).
    pub async fn remove(&self, uid: PodUid) -> Result<(), ChannelError> {
        self.send(SourceItem::Remove(Removed::Uid(uid))).await
    }

    async fn send(&self, item: SourceItem) -> Result<(), ChannelError> {
        self.sender.send(item).await.map_err(|_closed| ChannelError::Closed {
            name: self.name.clone(),
        })
    }
}

impl fmt::Debug for ChannelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelHandle")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn uid_of(pod: &Pod) -> Result<&str, ChannelError> {
    let uid = pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty());
    uid.ok_or_else(|| ChannelError::NoUid { pod: describe(pod) })
}

fn describe(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    format!(
        "{namespace}/{}",
        pod.metadata.name.as_deref().unwrap_or("without a name")
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::StreamExt;
    use k8s_openapi::api::core::v1::Pod;
    use tokio::time::timeout;
    use tokio_util::sync::CancellationToken;

    use super::{CAPACITY, ChannelError, ChannelHandle, ChannelSource};
    use crate::clock::SystemClock;
    use crate::ids::PodUid;
    use crate::source::{PodSource, Removed, SourceContext, SourceItem};

    fn pod(uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    fn context(stop: &CancellationToken) -> SourceContext {
        SourceContext::new("node".into(), Arc::new(SystemClock), stop.clone())
    }

    async fn waits(handle: &ChannelHandle) -> bool {
        timeout(Duration::from_secs(1), handle.set(Vec::new())).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_pushed_comes_out_in_order_and_a_full_channel_waits() {
        let (handle, source) = ChannelSource::new("mine");
        handle.set(vec![pod("a")]).await.unwrap();
        handle.upsert(pod("b")).await.unwrap();
        handle.remove(PodUid::from("a")).await.unwrap();
        for _ in 3..CAPACITY {
            assert!(!waits(&handle).await);
        }
        assert!(waits(&handle).await);
        let stop = CancellationToken::new();
        let mut items = source.open(context(&stop));
        let first = items.next().await.unwrap();
        assert!(matches!(first, SourceItem::Snapshot { pods, remembered: false, .. } if pods.len() == 1));
        assert!(matches!(items.next().await.unwrap(), SourceItem::Upsert(_)));
        let third = items.next().await.unwrap();
        assert!(matches!(third, SourceItem::Remove(Removed::Uid(uid)) if uid.as_str() == "a"));
        assert!(!waits(&handle).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_stream_ends_with_stop_and_not_with_the_handles() {
        let (handle, source) = ChannelSource::new("mine");
        let stop = CancellationToken::new();
        let mut items = source.open(context(&stop));
        drop(handle);
        assert!(timeout(Duration::from_secs(1), items.next()).await.is_err());
        let mut second = source.open(context(&stop));
        assert!(matches!(second.next().await, Some(SourceItem::Trouble(_))));
        assert!(timeout(Duration::from_secs(1), second.next()).await.is_err());
        stop.cancel();
        assert!(items.next().await.is_none() && second.next().await.is_none());
    }

    #[tokio::test]
    async fn pods_need_uids_and_somebody_who_takes_them() {
        let (handle, source) = ChannelSource::new("mine");
        let refused = handle.upsert(Pod::default()).await;
        assert!(matches!(refused, Err(ChannelError::NoUid { .. })));
        let refused = handle.set(vec![pod("a"), pod("a")]).await;
        assert!(matches!(refused, Err(ChannelError::SameUid { .. })));
        drop(source);
        let refused = handle.upsert(pod("a")).await;
        assert!(matches!(refused, Err(ChannelError::Closed { .. })));
    }
}
