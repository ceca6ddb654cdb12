//! A generator that runs over the fake, and what a kubelet would hold of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{
    CancellationToken, ContainerConfig, ContainerId, ContainerRuntime, ContainerState, CreateContainer, ImageRef,
    PlegContext, PlegHealth, PodKey, PodLifecycleEventGenerator, PodSignalReceiver, PodStatusCache, PodUid,
    RelistRequester, SandboxConfig, SandboxId, SeededRandom, Seq, label, pod_signals, pod_status_cache,
    relist_requests,
};

use crate::FakeRuntime;
use crate::contract::check::{eventually, must, within};
use crate::contract::generators::held::HeldRuntime;

/// What the kubelet has of a generator.
pub(super) struct Bench {
    pub(super) runtime: Arc<HeldRuntime>,
    pub(super) cache: PodStatusCache,
    pub(super) ask: RelistRequester,
    pub(super) health: PlegHealth,
    woken: PodSignalReceiver,
    patience: Duration,
}

/// A pod with one container.
pub(super) struct Pod {
    pub(super) uid: PodUid,
    pub(super) sandbox: SandboxId,
    pub(super) container: ContainerId,
}

/// A runtime that has all images. Without hints a generator must look for itself.
pub(super) fn runtime(hints: bool) -> FakeRuntime {
    let builder = FakeRuntime::builder().all_images_present();
    let builder = if hints { builder } else { builder.without_events() };
    builder.build()
}

/// Makes a pod that runs.
pub(super) async fn start_pod(runtime: &FakeRuntime, name: &str) -> Pod {
    let uid = PodUid::from(format!("uid-{name}"));
    let mut sandbox = SandboxConfig::new(uid.clone(), PodKey::new("default", name), 0);
    let labels = [
        (label::POD_UID, uid.as_str()),
        (label::POD_NAME, name),
        (label::POD_NAMESPACE, "default"),
    ];
    sandbox
        .labels
        .extend(labels.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let made = must("run a sandbox", runtime.run_sandbox(&sandbox, "").await);
    let mut container = ContainerConfig::new("app", 0, ImageRef::new("fake/forever"));
    container.labels = sandbox.labels.clone();
    container
        .labels
        .insert(label::CONTAINER_NAME.to_owned(), "app".to_owned());
    let req = CreateContainer::new(&made, &sandbox, &container);
    let id = must("create a container", runtime.create_container(req).await);
    must("start a container", runtime.start_container(&id).await);
    Pod {
        uid,
        sandbox: made,
        container: id,
    }
}

/// Lets a generator run while `steps` are done, and stops it then.
pub(super) async fn with(
    generator: &dyn PodLifecycleEventGenerator,
    patience: Duration,
    runtime: FakeRuntime,
    steps: impl AsyncFnOnce(&mut Bench),
) {
    let (writer, cache) = pod_status_cache();
    let (ask, requests) = relist_requests();
    let (signals, woken) = pod_signals();
    let runtime = Arc::new(HeldRuntime::new(runtime));
    let health = PlegHealth::new(generator.health_threshold());
    let random = Arc::new(SeededRandom::new(1));
    let cx = PlegContext::new(runtime.clone(), writer, requests, signals, random, health.clone());
    let stop = CancellationToken::new();
    let mut bench = Bench {
        runtime,
        cache,
        ask,
        health,
        woken,
        patience,
    };
    let run = generator.run(cx, stop.clone());
    tokio::pin!(run);
    tokio::select! {
        biased;
        ended = &mut run => panic!("the generator ended before it was stopped: {ended:?}"),
        () = steps(&mut bench) => {}
    }
    stop.cancel();
    if let Err(error) = within("the end of a generator that was stopped", patience, run).await {
        panic!("the generator was stopped, and gives {error}");
    }
}

impl Bench {
    pub(super) async fn start_pod(&self, name: &str) -> Pod {
        start_pod(&self.runtime.fake, name).await
    }

    /// The state of a pod's container as the cache has it.
    pub(super) fn state(&self, pod: &Pod) -> Option<ContainerState> {
        let seen = self.cache.current(&pod.uid)?;
        seen.containers.first().map(|container| container.state)
    }

    /// Waits until the cache shows that, looked up only when the pod is woken: whoever waits for a signal must not wait
    /// in vain.
    pub(super) async fn woken_to(&mut self, pod: &Pod, state: Option<ContainerState>) {
        let what = format!("a signal after which pod {} shows {state:?}", pod.uid);
        within(&what, self.patience, async {
            loop {
                let woken: BTreeSet<_> = self.woken.next().await.into_keys().collect();
                if woken.contains(&pod.uid) && self.state(pod) == state {
                    return;
                }
            }
        })
        .await;
    }

    /// Waits until the cache shows that.
    pub(super) async fn shows(&self, pod: &Pod, state: Option<ContainerState>) {
        let what = format!("the cache shows pod {} as {state:?}", pod.uid);
        eventually(&what, self.patience, async || (self.state(pod) == state).then_some(())).await;
    }

    /// What a look begun after the mark shows; nothing of it where the pod is absent.
    pub(super) async fn since(&self, pod: &PodUid, mark: Seq) -> Option<ContainerState> {
        let what = format!("a look at pod {pod} begun later");
        eventually(&what, self.patience, async || {
            // A look that failed is followed by another one.
            let look = tokio::time::timeout(self.patience, self.cache.since(pod, mark)).await;
            let seen = look.ok()?.ok()?;
            Some(seen.containers.first().map(|container| container.state))
        })
        .await
    }
}
