//! Pods to be measured.

use std::fs;
use std::time::Duration;

use kubelet_core::{ContainerId, ContainerRuntime, CreateContainer, PodUid, SandboxId, label};
use kubelet_testing::contract::{RuntimeFixture, StatsFixture, TestPod, Workload};

/// What was made, by pod and name.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    running: Vec<(PodUid, String)>,
    ended: (PodUid, String),
    /// The fixture of the pods cannot find its sandbox again.
    pub(crate) unmarked: (SandboxId, ContainerId),
}

impl Measured {
    pub(crate) fn fixture(&self) -> StatsFixture {
        StatsFixture::new(self.running.clone())
            .ended(self.ended.0.clone(), &self.ended.1)
            .unmarked(self.unmarked.1.clone())
    }
}

/// Starts a container in the sandbox of a pod.
async fn start(
    runtime: &impl ContainerRuntime,
    pod: &TestPod,
    name: &str,
    runs: &Workload,
) -> (SandboxId, ContainerId) {
    let sandbox = runtime.run_sandbox(&pod.sandbox, "").await.unwrap();
    let config = pod.container(name, 0, runs);
    let log = pod.sandbox.log_directory.join(&config.log_path);
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    let id = runtime
        .create_container(CreateContainer::new(&sandbox, &pod.sandbox, &config))
        .await
        .unwrap();
    runtime.start_container(&id).await.unwrap();
    (sandbox, id)
}

/// Three pods, of which one has ended, and one without the mark. `forever` ends when it is asked to.
pub(crate) async fn make(runtime: &impl ContainerRuntime, pods: &RuntimeFixture, forever: &Workload) -> Measured {
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut pod = pods.pod();
        // One that it has no more, as after a crash of the sandbox.
        let old = runtime.run_sandbox(&pod.sandbox, "").await.unwrap();
        runtime.stop_sandbox(&old).await.unwrap();
        pod.sandbox.attempt = 1;
        start(runtime, &pod, "app", forever).await;
        running.push((pod.uid().clone(), "app".to_owned()));
    }
    let gone = pods.pod();
    let (_, ended) = start(runtime, &gone, "app", forever).await;
    // It returns once the container has ended.
    runtime.stop_container(&ended, Duration::from_secs(30)).await.unwrap();
    let mut other = pods.pod();
    other.sandbox.labels.remove(label::POD_UID);
    let unmarked = start(runtime, &other, "app", forever).await;
    Measured {
        running,
        ended: (gone.uid().clone(), "app".to_owned()),
        unmarked,
    }
}
