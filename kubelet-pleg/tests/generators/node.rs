//! A generator at work, and the ends that the rest of a kubelet would hold.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{
    CacheError, CancellationToken, ContainerState, PlegContext, PlegHealth, PodLifecycleEventGenerator, PodObservation,
    PodSignalReceiver, PodStatusCache, PodUid, RelistRequester, SeededRandom, Seq, pod_signals, pod_status_cache,
    relist_requests,
};
use kubelet_pleg::GenericPleg;
use tokio::task::JoinSet;

use crate::runtime::Scripted;

pub(crate) struct Node {
    pub(crate) runtime: Arc<Scripted>,
    pub(crate) pleg: Arc<dyn PodLifecycleEventGenerator>,
    pub(crate) cache: PodStatusCache,
    pub(crate) ask: RelistRequester,
    pub(crate) health: PlegHealth,
    woken: PodSignalReceiver,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Node {
    pub(crate) fn start(runtime: Scripted) -> Self {
        Self::start_with(Arc::new(runtime), Arc::new(GenericPleg::default()))
    }

    pub(crate) fn start_with(runtime: Arc<Scripted>, pleg: Arc<dyn PodLifecycleEventGenerator>) -> Self {
        let (writer, cache) = pod_status_cache();
        let (ask, requests) = relist_requests();
        let (signals, woken) = pod_signals();
        let health = PlegHealth::new(pleg.health_threshold());
        let random = Arc::new(SeededRandom::new(1));
        let cx = PlegContext::new(runtime.clone(), writer, requests, signals, random, health.clone());
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let (of_task, stopped) = (pleg.clone(), stop.clone());
        tasks.spawn(async move { of_task.run(cx, stopped).await.unwrap() });
        Self {
            runtime,
            pleg,
            cache,
            ask,
            health,
            woken,
            stop,
            tasks,
        }
    }

    /// Started, and all pods of the runtime inspected and forgotten as news.
    pub(crate) async fn settled(runtime: Scripted) -> Self {
        let mut node = Self::start(runtime);
        tokio::time::sleep(Duration::from_millis(10)).await;
        node.woken().await;
        node.runtime.world().inspected.clear();
        node
    }

    /// Ends the run; says how long that took.
    pub(crate) async fn stop(mut self) -> Duration {
        let begun = tokio::time::Instant::now();
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        begun.elapsed()
    }

    /// The pods woken since the last call.
    pub(crate) async fn woken(&mut self) -> BTreeSet<String> {
        let woken = tokio::time::timeout(Duration::ZERO, self.woken.next()).await;
        let woken = woken.unwrap_or_default();
        woken.into_keys().map(|uid| uid.as_str().to_owned()).collect()
    }

    /// Waits at most `within` for a look begun after the mark; nothing if there was none.
    pub(crate) async fn since(
        &self,
        uid: &str,
        mark: Seq,
        within: Duration,
    ) -> Option<Result<Arc<PodObservation>, CacheError>> {
        let uid = PodUid::from(uid);
        tokio::time::timeout(within, self.cache.since(&uid, mark)).await.ok()
    }

    /// The states of a pod's containers as last seen, by id.
    pub(crate) fn states(&self, uid: &str) -> Option<Vec<ContainerState>> {
        let seen = self.cache.current(&PodUid::from(uid))?;
        let mut containers: Vec<_> = seen.containers.iter().collect();
        containers.sort_by(|a, b| a.id.cmp(&b.id));
        Some(containers.iter().map(|container| container.state).collect())
    }
}

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
