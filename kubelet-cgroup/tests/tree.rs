//! A tree of files that looks like cgroup v2: what is written where.

#![allow(clippy::unwrap_used, reason = "a test: a panic is the failure")]

use std::fs;
use std::path::Path;

use kubelet_cgroup::{CgroupManager, CgroupSettings, Reserved};
use kubelet_core::{
    CgroupContext, CgroupDriver, CgroupError, LinuxResources, NodeLimits, NodeSettings, NodeView, PodCgroups,
    PodLimits, PodRecord, ResourceSettings, SourceKind, SourceName,
};
use kubelet_testing::{ContainerBuilder, PodBuilder};
use tempfile::TempDir;

fn machine() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("cgroup.controllers"),
        "cpuset cpu io memory hugetlb pids\n",
    )
    .unwrap();
    dir
}

fn manager(mount: &Path) -> CgroupManager {
    let mut settings = CgroupSettings::default();
    settings.mount = mount.to_owned();
    settings.root = "/edge".to_owned();
    CgroupManager::new(settings)
}

fn pod(name: &str, shape: impl FnOnce(ContainerBuilder) -> ContainerBuilder) -> PodRecord {
    let pod = PodBuilder::new(name)
        .uid(format!("uid-{name}"))
        .container("app", shape)
        .build();
    PodRecord::new(&pod, SourceName::from("api"), SourceKind::Managed).unwrap()
}

fn node() -> NodeView {
    let mut node = NodeView::new("node-1");
    for (name, amount) in [("cpu", "4"), ("memory", "8Gi"), ("hugepages-2Mi", "64Mi")] {
        node.capacity.insert(name.to_owned(), amount.parse().unwrap());
    }
    node
}

fn limits(pod: &PodRecord) -> PodLimits {
    let mut settings = ResourceSettings::default();
    settings.pod_pids_limit = Some(100);
    PodLimits::of(pod.spec(), pod.facts().qos, &settings, &node())
}

#[tokio::test]
async fn pods_classes_and_the_node_have_their_values() {
    let dir = machine();
    let value = |path: &str| fs::read_to_string(dir.path().join("edge/kubepods").join(path)).unwrap_or_default();
    let manager = manager(dir.path());
    manager
        .open(&CgroupContext::new(CgroupDriver::Cgroupfs, "me"))
        .await
        .unwrap();
    let mut settings = NodeSettings::default();
    settings
        .kube_reserved
        .insert("memory".to_owned(), "1Gi".parse().unwrap());
    manager.enforce(&NodeLimits::of(&settings, &node())).await.unwrap();
    let guaranteed = pod("g", |c| {
        let c = c
            .request("cpu", "250m")
            .limit("cpu", "250m")
            .request("memory", "64Mi")
            .limit("memory", "64Mi");
        c.request("hugepages-2Mi", "4Mi").limit("hugepages-2Mi", "4Mi")
    });
    let burstable = pod("b", |c| c.request("cpu", "500m").request("memory", "64Mi"));
    let best_effort = pod("n", |c| c);
    for pod in [&guaranteed, &burstable, &best_effort] {
        assert!(!manager.exists(pod).await.unwrap());
        manager.apply(pod, &limits(pod)).await.unwrap();
        assert!(manager.exists(pod).await.unwrap());
    }
    assert_eq!(manager.parent(&burstable), "/edge/kubepods/burstable/poduid-b");
    for (file, expected) in [
        ("cpu.weight", "157"),
        ("memory.max", "7516192768"),
        ("hugetlb.2MB.max", "67108864"),
        ("burstable/cpu.weight", "20"),
        ("besteffort/cpu.weight", "1"),
        ("poduid-g/cpu.weight", "10"),
        ("poduid-g/cpu.max", "25000 100000"),
        ("poduid-g/memory.max", "67108864"),
        ("poduid-g/pids.max", "100"),
        ("poduid-g/hugetlb.2MB.max", "4194304"),
        ("burstable/poduid-b/cpu.weight", "20"),
        ("burstable/poduid-b/cpu.max", ""),
        ("burstable/poduid-b/memory.max", ""),
        ("burstable/poduid-b/hugetlb.2MB.max", "0"),
        ("besteffort/poduid-n/cpu.weight", "1"),
        ("besteffort/poduid-n/pids.max", "100"),
        ("cgroup.subtree_control", "+cpu +cpuset +memory +pids +hugetlb +io"),
    ] {
        assert_eq!(value(file), expected, "{file}");
    }
    let mut own = LinuxResources::default();
    (own.cpu_shares, own.memory_limit_bytes) = (512, 32 << 20);
    own.unified.insert("memory.swap.max".to_owned(), "0".to_owned());
    let made = manager.container(&guaranteed, "app", &own).await.unwrap();
    assert_eq!(made.folders, [dir.path().join("edge/kubepods/poduid-g/app")]);
    for (file, expected) in [
        ("cpu.weight", "20"),
        ("memory.max", "33554432"),
        ("memory.swap.max", "0"),
    ] {
        assert_eq!(value(&format!("poduid-g/app/{file}")), expected, "{file}");
    }

    // The next life knows what is there before any pod is known again.
    let later = CgroupManager::new({
        let mut settings = CgroupSettings::default();
        settings.mount = dir.path().to_owned();
        settings.root = "/edge".to_owned();
        settings
    });
    later
        .open(&CgroupContext::new(CgroupDriver::Cgroupfs, "me"))
        .await
        .unwrap();
    later.enforce(&NodeLimits::of(&settings, &node())).await.unwrap();
    assert_eq!(value("burstable/cpu.weight"), "20");
    let mut listed = later.list().await.unwrap();
    listed.sort();
    assert_eq!(listed, ["uid-b", "uid-g", "uid-n"].map(Into::into));
    later
        .open(&CgroupContext::new(CgroupDriver::Cgroupfs, "another"))
        .await
        .unwrap();
    assert_eq!(later.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_limit_without_its_controller_keeps_back_none_of_the_others() {
    let dir = machine();
    fs::write(dir.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
    fs::create_dir(dir.path().join("system")).unwrap();
    fs::write(dir.path().join("system/cgroup.controllers"), "cpu memory\n").unwrap();
    let mut settings = CgroupSettings::default();
    settings.mount = dir.path().to_owned();
    settings.root = "/edge".to_owned();
    settings.enforcement.system_reserved = Some(Reserved::all("/system"));
    let manager = CgroupManager::new(settings);
    manager
        .open(&CgroupContext::new(CgroupDriver::Cgroupfs, "me"))
        .await
        .unwrap();
    let mut node = node();
    node.max_pids = Some(30_000);
    let mut kept = NodeSettings::default();
    kept.system_reserved.insert("memory".to_owned(), "1Gi".parse().unwrap());
    let error = manager.enforce(&NodeLimits::of(&kept, &node)).await.unwrap_err();
    assert!(error.to_string().contains("pids"), "{error}");
    let value = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap_or_default();
    assert_eq!(value("edge/kubepods/memory.max"), "7516192768");
    assert_eq!(value("system/memory.max"), "1073741824");
}

#[tokio::test]
async fn what_may_not_be_written_is_named() {
    let dir = machine();
    // As where the root of a container is read-only.
    fs::write(dir.path().join("edge"), "no folder").unwrap();
    let error = manager(dir.path())
        .open(&CgroupContext::new(CgroupDriver::Cgroupfs, "me"))
        .await
        .unwrap_err();
    let text = kubelet_core::error_chain(&error);
    assert!(
        matches!(error, CgroupError::Failed { .. }) && text.contains("edge"),
        "{text}"
    );
}
