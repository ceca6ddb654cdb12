//! Containers in cgroups: their limits hold, and a status says when the kernel has killed for lack of memory.

use kubelet_cgroup::{CgroupManager, CgroupSettings};
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    CgroupContext, CgroupDriver, ContainerConfig, ContainerRuntime, ExecRequest, PodCgroups, PodLimits, PodRecord,
    SourceKind, SourceName,
};
use kubelet_testing::{CgroupRoot, PodBuilder};

use crate::harness::{BOTH, HOUR, Node};

/// Cgroups of a pod, with room for 20 processes.
struct Bench {
    root: CgroupRoot,
    cgroups: CgroupManager,
    pod: PodRecord,
}

impl Bench {
    async fn new(test: &str) -> Option<Self> {
        let root = CgroupRoot::v1_or_skip(test)?;
        let mut settings = CgroupSettings::default();
        settings.root = root.path();
        let cgroups = CgroupManager::new(settings);
        let context = CgroupContext::new(CgroupDriver::Cgroupfs, "me");
        cgroups.open(&context).await.expect("cgroups open");
        let pod: Pod = PodBuilder::new("limited")
            .uid("limited")
            .container("app", |c| c)
            .build();
        let pod = PodRecord::new(&pod, SourceName::from("api"), SourceKind::Managed).expect("a pod");
        let mut limits = PodLimits::default();
        limits.cgroup.pids = Some(20);
        cgroups.apply(&pod, &limits).await.expect("a cgroup of the pod");
        Some(Self { root, cgroups, pod })
    }

    /// A script in a cgroup with 16 MiB.
    async fn limited(&self, node: &Node, script: &str) -> ContainerConfig {
        let mut config = node.script(script);
        config.resources.memory_limit_bytes = 16 << 20;
        config.resources.memory_swap_limit_bytes = 16 << 20;
        config.resources.cpu_shares = 512;
        config.resources.cpu_period = 100_000;
        config.resources.cpu_quota = 50_000;
        let made = self.cgroups.container(&self.pod, &config.name, &config.resources).await;
        config.cgroup = Some(made.expect("a cgroup of the container"));
        config
    }
}

#[tokio::test]
async fn a_container_beyond_its_memory_is_killed_and_its_status_says_so() {
    let Some(bench) = Bench::new("a_container_beyond_its_memory").await else {
        return;
    };
    for mode in BOTH {
        let node = Node::start(mode).await;
        for (script, code, reason) in [
            ("exec tail /dev/zero", 137, "OOMKilled"),
            // Only a child was killed: what the container made of it counts.
            ("tail /dev/zero; exit 143", 143, "Error"),
            ("tail /dev/zero; exit 0", 0, "Completed"),
            // Counted anew for each container, although the cgroup has the same name.
            ("kill -9 $$", 137, "Error"),
        ] {
            let config = bench.limited(&node, script).await;
            let id = node.run_config(&config).await.expect("started");
            let status = node.exited(&id).await;
            assert_eq!((status.exit_code, &*status.reason), (code, reason), "{script} {mode:?}");
        }
    }
}

#[tokio::test]
async fn a_container_killed_at_the_end_of_its_grace_was_not_out_of_memory() {
    let Some(bench) = Bench::new("a_container_killed_at_the_end_of_its_grace").await else {
        return;
    };
    for mode in BOTH {
        let node = Node::start(mode).await;
        let ready = node.pipe("ready");
        let script = "tail /dev/zero; echo > $T/ready; while :; do sleep 1000 & wait; done";
        let id = node
            .run_config(&bench.limited(&node, script).await)
            .await
            .expect("started");
        ready.read().await;
        node.runtime()
            .stop_container(&id, std::time::Duration::ZERO)
            .await
            .expect("stopped");
        let status = node.status(&id).await;
        assert_eq!((status.exit_code, &*status.reason), (137, "Error"), "{mode:?}");
    }
}

#[tokio::test]
async fn all_of_a_container_is_in_its_cgroup() {
    for mode in BOTH {
        let Some(bench) = Bench::new("all_of_a_container_is_in_its_cgroup").await else {
            return;
        };
        let node = Node::start(mode).await;
        let ready = node.pipe("ready");
        let script = "sleep 4711 & echo > $T/ready; sleep 4711";
        let id = node
            .run_config(&bench.limited(&node, script).await)
            .await
            .expect("started");
        ready.read().await;
        let path = "kubepods/besteffort/podlimited/app";
        for (file, value) in [
            ("cpu.shares", "512"),
            ("cpu.cfs_quota_us", "50000"),
            ("memory.limit_in_bytes", "16777216"),
        ] {
            assert_eq!(bench.root.value(path, file).as_deref(), Some(value), "{file}");
        }
        for controller in ["cpu", "cpuacct", "cpuset", "memory", "pids", "freezer"] {
            let procs = bench.root.folder(controller, path).join("cgroup.procs");
            let text = std::fs::read_to_string(procs).expect("there is a cgroup");
            assert!(text.lines().count() >= 2, "{controller}: {text}");
        }
        // What is run in it is too, and the pod has room for 20 processes.
        let command = [
            "sh",
            "-c",
            "cat /proc/self/cgroup; i=0; while [ $i -lt 30 ]; do sleep 4711 & i=$((i+1)); done",
        ];
        let output = node.runtime().exec(&id, ExecRequest::new(command)).await.expect("run");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.contains(&format!(":memory:{}/{path}\n", bench.root.path())),
            "{text}"
        );
        assert_ne!(output.exit_code, 0, "more than 20 processes");
        node.runtime().stop_container(&id, HOUR).await.expect("stopped");
        // Those that init has not taken out yet still count as members.
        bench
            .cgroups
            .destroy(bench.pod.uid())
            .await
            .expect("nothing is left in it");
    }
}

#[tokio::test]
async fn a_container_whose_cgroup_is_gone_is_not_started() {
    let Some(bench) = Bench::new("a_container_whose_cgroup_is_gone").await else {
        return;
    };
    for mode in BOTH {
        let node = Node::start(mode).await;
        let config = bench.limited(&node, "exit 0").await;
        bench.cgroups.destroy(bench.pod.uid()).await.expect("destroyed");
        let error = node.run_config(&config).await.expect_err("it has no cgroup");
        let text = kubelet_core::error_chain(&error);
        assert!(text.contains("cannot open its cgroup"), "{text}");
    }
}
