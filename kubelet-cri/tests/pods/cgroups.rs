//! Cgroups of pods around those of a runtime's containers.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use kubelet_cgroup::{CgroupManager, CgroupSettings};
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    CgroupContext, CgroupDriver, ContainerId, ContainerRuntime, ExecRequest, KubeletBuilder, NodeSettings, PodCgroups,
    ResourceSettings,
};
use kubelet_testing::CgroupRoot;
use serde_json::{Value, json};

use crate::node::{Node, container, is_running, on_both, pod, sh, with};

on_both!(pods_of_each_class_are_bound_as_a_whole_and_their_cgroups_go_with_them);

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.2; done";

/// Tells by what a container is bound that asks for it.
const BOUNDS: &str = "cd /sys/fs/cgroup; cat cpu/cpu.shares cpu/cpu.cfs_quota_us memory/memory.limit_in_bytes";

fn shaped(root: &CgroupRoot) -> impl FnOnce(KubeletBuilder) -> KubeletBuilder {
    let mut settings = CgroupSettings::default();
    settings.root = root.path();
    let mut resources = ResourceSettings::default();
    resources.pod_pids_limit = Some(200);
    let mut node = NodeSettings::default();
    node.system_reserved
        .insert("memory".to_owned(), "512Mi".parse().unwrap());
    move |builder| {
        builder
            .cgroups(CgroupManager::new(settings))
            .resources(resources)
            .node(node)
    }
}

fn limited(name: &str, resources: Value) -> Pod {
    let app = with(sh("app", FOREVER), &json!({"resources": resources}));
    pod(name, json!({"containers": [app]}))
}

/// Where the cgroup of each pod is.
const PODS: [(&str, &str); 3] = [
    ("guaranteed", "kubepods/poduid-of-guaranteed"),
    ("burstable", "kubepods/burstable/poduid-of-burstable"),
    ("besteffort", "kubepods/besteffort/poduid-of-besteffort"),
];

async fn pods_of_each_class_are_bound_as_a_whole_and_their_cgroups_go_with_them(node: Node) {
    let Some(root) = CgroupRoot::v1_or_skip("cgroups around those of containers") else {
        return;
    };
    let agent = node.start_with(shaped(&root)).await;
    let amounts = json!({"cpu": "250m", "memory": "64Mi"});
    let pods = || {
        vec![
            limited("guaranteed", json!({"limits": amounts, "requests": amounts})),
            limited(
                "burstable",
                json!({"requests": {"cpu": "500m"}, "limits": {"memory": "96Mi"}}),
            ),
            limited("besteffort", json!({})),
        ]
    };
    agent.pods.set(pods()).await.unwrap();
    let run = || {
        agent.until("all run", |all| {
            PODS.iter().all(|(name, _)| is_running(all, name, "app"))
        })
    };
    run().await;
    assert_eq!(node.count("NodeAllocatableEnforced"), 1);

    let runtime = node.runtime().await;
    let unlimited = (i64::MAX / 4096 * 4096).to_string();
    let mib = |amount: u64| (amount << 20).to_string();
    let expected = [
        ("256", "25000", mib(64), "256", "25000", mib(64)),
        // The pod is bound in memory, since its only container is.
        ("512", "-1", mib(96), "512", "-1", mib(96)),
        ("2", "-1", unlimited.clone(), "2", "-1", unlimited.clone()),
    ];
    for ((name, path), of) in PODS.iter().zip(&expected) {
        let (shares, quota, memory, own_shares, own_quota, own_memory) = of;
        let id = container(&agent.statuses(), name, "app")
            .unwrap()
            .container_id
            .clone()
            .unwrap();
        let inside = format!("{path}/{}", id.strip_prefix("containerd://").unwrap());
        for (path, file, value) in [
            (*path, "cpu.shares", shares.to_string()),
            (*path, "cpu.cfs_quota_us", quota.to_string()),
            (*path, "cpu.cfs_period_us", "100000".to_owned()),
            (*path, "memory.limit_in_bytes", memory.clone()),
            (*path, "pids.max", "200".to_owned()),
            (&*inside, "cpu.shares", own_shares.to_string()),
            (&*inside, "cpu.cfs_quota_us", own_quota.to_string()),
            (&*inside, "memory.limit_in_bytes", own_memory.clone()),
        ] {
            assert_eq!(root.value(path, file), Some(value), "{file} of {path} of {name}");
        }
        let request = ExecRequest::new(["/bin/sh", "-c", BOUNDS].map(str::to_owned));
        let id = ContainerId::from(id.strip_prefix("containerd://").unwrap());
        let seen = runtime.exec(&id, request).await.unwrap();
        let expected = format!("{own_shares}\n{own_quota}\n{own_memory}\n");
        assert_eq!(String::from_utf8_lossy(&seen.stdout), expected, "{name}, from inside");
        let processes = root.value(&inside, "pids.current").unwrap();
        assert!(processes.parse::<u32>().unwrap() > 0, "{name} runs in its cgroup");
    }
    assert_eq!(root.value("kubepods/burstable", "cpu.shares").as_deref(), Some("512"));
    assert_eq!(root.value("kubepods/besteffort", "cpu.shares").as_deref(), Some("2"));
    let all: u64 = root
        .value("kubepods", "memory.limit_in_bytes")
        .unwrap()
        .parse()
        .unwrap();
    let machine = fs::read_to_string("/proc/meminfo").unwrap();
    let kib = machine.lines().next().unwrap().split_whitespace().nth(1).unwrap();
    assert_eq!(all, kib.parse::<u64>().unwrap() * 1024 - (512 << 20));

    // The next life finds a pod that nobody wishes for any more, and another one of an agent that is none of its own.
    agent.kill().await;
    let mut orphan = Command::new("sleep")
        .arg("4717")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let owner = format!("node-1:{}", node.root_dir().display());
    for (owner, uid) in [(&*owner, "orphan"), ("another", "foreign")] {
        let mut settings = CgroupSettings::default();
        settings.root = root.path();
        let other = CgroupManager::new(settings);
        other
            .open(&CgroupContext::new(CgroupDriver::Cgroupfs, owner))
            .await
            .unwrap();
        let mut pod = limited("left", json!({}));
        pod.metadata.uid = Some(uid.to_owned());
        let record = kubelet_core::PodRecord::new(&pod, "api".into(), kubelet_core::SourceKind::Managed).unwrap();
        other.apply(&record, &Default::default()).await.unwrap();
    }
    let left = "kubepods/besteffort/podorphan";
    let procs = root.folder("pids", left).join("cgroup.procs");
    fs::write(&procs, orphan.id().to_string()).unwrap();
    let agent = node.start_with(shaped(&root)).await;
    agent.pods.set(pods()).await.unwrap();
    agent
        .until("taken over", |all| {
            PODS.iter().all(|(name, _)| is_running(all, name, "app"))
        })
        .await;
    let ended = tokio::task::spawn_blocking(move || orphan.wait());
    let ended = tokio::time::timeout(std::time::Duration::from_secs(120), ended).await;
    assert!(!ended.expect("the orphan is killed").unwrap().unwrap().success());
    for (name, path) in PODS {
        assert_eq!(container(&agent.statuses(), name, "app").unwrap().restart_count, 0);
        assert!(root.folder("memory", path).exists());
    }

    agent.stop_with_pods(&node).await;
    for (_, path) in PODS {
        for hierarchy in CgroupRoot::hierarchies() {
            let folder = hierarchy.join(&root.path()[1..]).join(path);
            assert!(!folder.exists(), "{} is left", folder.display());
        }
    }
    assert!(!Path::new(&procs).exists());
    assert!(
        root.folder("memory", "kubepods/besteffort/podforeign").exists(),
        "of another agent"
    );
    node.containerd.stop().await.unwrap();
}
