//! The suite of `StatsProvider`, on processes in cgroups.

use std::sync::{Arc, Mutex};

use kubelet_cgroup::CgroupStats;
use kubelet_core::{
    ContainerConfig, ContainerRuntime, CreateContainer, ImageRef, LinuxResources, PodCgroups, PodRecord, PodUid,
    SandboxConfig, StatsProvider, StatsScope, label,
};
use kubelet_testing::contract::StatsFixture;
use kubelet_testing::{FakeRuntime, PodBuilder};

use crate::root::{Process, Root, limits, record};

/// A shell that has used some of everything.
const BUSY: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 4711 & sleep 4711";

/// Cgroups, with what must not be dropped before them.
#[derive(Debug)]
struct Bench {
    stats: CgroupStats,
    _processes: Mutex<Vec<Process>>,
    _root: Root,
}

#[kubelet_core::async_trait]
impl StatsProvider for Bench {
    async fn collect(&self, want: &StatsScope) -> Result<kubelet_core::StatsSnapshot, kubelet_core::StatsError> {
        self.stats.collect(want).await
    }
}

/// What the runtime of a pod would do: a sandbox, and containers that run; the last of them has ended.
async fn containers(runtime: &FakeRuntime, pod: &PodRecord, names: &[&str]) -> Vec<String> {
    let sandbox = SandboxConfig::new(pod.uid().clone(), pod.key().clone(), 0);
    let id = runtime.run_sandbox(&sandbox, "").await.unwrap();
    let mut ids = Vec::new();
    for name in names {
        let mut config = ContainerConfig::new(*name, 0, ImageRef::new("fake/forever"));
        config.labels = [
            (label::POD_UID.to_owned(), pod.uid().to_string()),
            (label::CONTAINER_NAME.to_owned(), (*name).to_owned()),
        ]
        .into();
        let made = runtime
            .create_container(CreateContainer::new(&id, &sandbox, &config))
            .await
            .unwrap();
        runtime.start_container(&made).await.unwrap();
        if *name == "ended" {
            runtime.kill_container(&made, 1);
        }
        ids.push(made.to_string());
    }
    ids
}

async fn bench() -> Option<(Bench, StatsFixture)> {
    let root = Root::new("usage of cgroups")?;
    let manager = root.opened().await;
    let runtime = FakeRuntime::builder().all_images_present().build();
    let mut processes = Vec::new();
    for (name, shape) in [("one", "500m"), ("two", "0")] {
        let pod = PodBuilder::new(name)
            .uid(name)
            .container("app", |c| c.request("cpu", shape))
            .build();
        let pod = record(&pod);
        manager.apply(&pod, &limits(&pod)).await.unwrap();
        let names = ["app", "side", "ended"];
        for (name, id) in names.iter().zip(containers(&runtime, &pod, &names).await) {
            // As runtimes call it, or as the agent itself does.
            let folder = if *name == "app" { id } else { (*name).to_owned() };
            let made = manager
                .container(&pod, &folder, &LinuxResources::default())
                .await
                .unwrap();
            if *name != "ended" {
                processes.push(Root::process(&made.folders, BUSY));
            }
        }
    }
    let pair = |pod: &str, name: &str| (PodUid::from(pod), name.to_owned());
    let running = [pair("one", "app"), pair("one", "side"), pair("two", "app")];
    let fixture = StatsFixture::new(running)
        .ended(PodUid::from("one"), "ended")
        .nothing_unmarked();
    let bench = Bench {
        stats: CgroupStats::new(manager, Arc::new(runtime)),
        _processes: Mutex::new(processes),
        _root: root,
    };
    Some((bench, fixture))
}

kubelet_testing::stats_contract!(bench);

#[tokio::test]
async fn a_pod_uses_what_its_containers_do_and_one_in_which_nothing_runs_is_not_told_of() {
    let Some((bench, _)) = bench().await else { return };
    let root = &bench._root;
    let manager = root.opened().await;
    let idle = record(&PodBuilder::new("idle").uid("idle").container("app", |c| c).build());
    manager.apply(&idle, &limits(&idle)).await.unwrap();
    // Each of the two containers has a shell and two others, once they have come so far.
    let snapshot = loop {
        let snapshot = bench.collect(&StatsScope::All).await.unwrap();
        if snapshot.pods.iter().all(|pod| pod.process_count == Some(6)) {
            break snapshot;
        }
        tokio::task::yield_now().await;
    };
    let uids: Vec<_> = snapshot.pods.iter().map(|pod| pod.uid.as_str()).collect();
    assert_eq!(uids, ["one", "two"]);
    for pod in &snapshot.pods {
        let of_pod = snapshot
            .containers
            .iter()
            .filter(|container| container.pod_uid == pod.uid);
        let cpu = |usage: &Option<kubelet_core::CpuUsage>| usage.as_ref().unwrap().usage_core_nanoseconds.unwrap();
        let sum: u64 = of_pod.map(|container| cpu(&container.cpu)).sum();
        assert!(sum > 0 && cpu(&pod.cpu) >= sum / 2, "{} of {sum}", cpu(&pod.cpu));
        let memory = pod.memory.as_ref().unwrap();
        assert!(memory.working_set_bytes <= memory.usage_bytes && memory.usage_bytes > Some(0));
    }
}
