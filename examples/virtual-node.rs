//! A virtual node: pods handed as wholes to some other system, here a map in memory.
//!
//! Run: `cargo run -p kubelet-examples --bin virtual-node -- examples/manifests`

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use kubelet_core::jiff::Timestamp;
use kubelet_core::{
    CancellationToken, ContainerId, ContainerState, FileSource, Kubelet, NodeView, ObservedContainer, PodObservation,
    PodProvider, PodUid, ProvidedPod, ProviderError, ProviderHint, ResolvedPod, StateDir, WholePods, async_trait,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: virtual-node FOLDER")?;
    let mut node = NodeView::new("virtual");
    node.allocatable.insert("pods".to_owned(), "100".parse()?);
    let kubelet = Kubelet::builder("virtual", WholePods::new(InMemory::default()))
        .source(FileSource::new(std::path::absolute(folder)?))
        .node_view(node)
        .state_only(StateDir::in_memory())
        .build()?;
    let mut statuses = kubelet.handle().statuses();
    let watch = async {
        while let Some(change) = statuses.next().await {
            let update = change.update();
            println!("{} {}", update.pod.key(), update.status.phase.as_deref().unwrap_or("-"));
        }
    };
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {}
        run = kubelet.run(CancellationToken::new()) => drop(run?),
        () = watch => {}
    }
    Ok(())
}

/// The other system: everything that it is given runs at once and for ever.
#[derive(Debug, Default)]
pub struct InMemory(Mutex<BTreeMap<PodUid, PodObservation>>);

#[async_trait]
impl PodProvider for InMemory {
    fn name(&self) -> &str {
        "memory"
    }
    async fn list(&self) -> Result<Vec<ProvidedPod>, ProviderError> {
        let pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(pods.values().cloned().map(ProvidedPod::new).collect())
    }
    async fn create(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        let mut seen = PodObservation::absent(pod.pod.uid().clone());
        for view in pod.pod.containers() {
            let id = ContainerId::new(format!("{}-{}", pod.pod.uid(), view.name()));
            seen.containers.push(ObservedContainer::new(
                id,
                view.name(),
                ContainerState::Running,
                Timestamp::UNIX_EPOCH,
            ));
        }
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(seen.uid.clone(), seen);
        Ok(())
    }
    async fn update(&self, _pod: &ResolvedPod) -> Result<(), ProviderError> {
        Ok(())
    }
    async fn delete(&self, uid: &PodUid, _grace: Duration) -> Result<(), ProviderError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        Ok(())
    }
    async fn status(&self, uid: &PodUid) -> Result<Option<PodObservation>, ProviderError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned())
    }
    fn changes(&self) -> BoxStream<'static, ProviderHint> {
        stream::pending().boxed()
    }
}
