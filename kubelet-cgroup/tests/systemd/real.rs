//! On a real systemd, with the cgroups that it makes.

use std::fs;
use std::sync::Arc;

use kubelet_cgroup::CgroupManager;
use kubelet_core::{CgroupDriver, NodeLimits, NodeSettings, NodeView, PodCgroups, PodUid};
use kubelet_testing::contract::{CgroupFixture, now};

use crate::contract::{Process, pod_folders};
use crate::machine::{burstable, context, guaranteed, limits, pod};
use crate::nested::Nested;

const GUARANTEED: &str = "edge-kubepods-poduid_g.slice";
const BURSTABLE: &str = "edge-kubepods-burstable-poduid_b.slice";
const BESTEFFORT: &str = "edge-kubepods-besteffort-poduid_n.slice";

#[tokio::test]
async fn pods_are_slices_of_a_real_systemd() {
    let Some(nested) = Nested::new_or_say("pods_are_slices_of_a_real_systemd").await else {
        return;
    };
    let manager = nested.opened().await;
    let mut node = NodeView::new("node-1");
    for (name, amount) in [("cpu", "4"), ("memory", "8Gi")] {
        node.capacity.insert(name.to_owned(), amount.parse().unwrap());
    }
    let node = NodeLimits::of(&NodeSettings::default(), &node);
    manager.enforce(&node).await.unwrap();
    let (guaranteed, burstable, besteffort) = (guaranteed(), burstable(), pod("n", |c| c));
    let mut wanted = limits(&guaranteed);
    wanted.cgroup.cpu_quota = Some(12_345);
    manager.apply(&guaranteed, &wanted).await.unwrap();
    for pod in [&burstable, &besteffort] {
        manager.apply(pod, &limits(pod)).await.unwrap();
        assert!(manager.exists(pod).await.unwrap());
    }
    let told = [
        ("edge-kubepods.slice", "Slice", "CPUShares", "uint64 4096"),
        ("edge-kubepods.slice", "Slice", "MemoryLimit", "uint64 8589934592"),
        ("edge-kubepods-burstable.slice", "Slice", "CPUShares", "uint64 512"),
        (GUARANTEED, "Unit", "ActiveState", r#""active""#),
        (GUARANTEED, "Unit", "DefaultDependencies", "false"),
        (GUARANTEED, "Slice", "CPUAccounting", "true"),
        (GUARANTEED, "Slice", "BlockIOAccounting", "true"),
        (GUARANTEED, "Slice", "CPUShares", "uint64 256"),
        (GUARANTEED, "Slice", "CPUQuotaPerSecUSec", "uint64 130000"),
        (GUARANTEED, "Slice", "CPUQuotaPeriodUSec", "uint64 100000"),
        (GUARANTEED, "Slice", "MemoryLimit", "uint64 67108864"),
        (GUARANTEED, "Slice", "TasksMax", "uint64 100"),
        (BURSTABLE, "Slice", "CPUShares", "uint64 512"),
        (BESTEFFORT, "Slice", "CPUShares", "uint64 2"),
    ];
    let written = [
        ("edge-kubepods.slice", "cpu.shares", "4096"),
        ("edge-kubepods.slice", "memory.limit_in_bytes", "8589934592"),
        ("edge-kubepods-burstable.slice", "cpu.shares", "512"),
        (GUARANTEED, "cpu.shares", "256"),
        (GUARANTEED, "memory.limit_in_bytes", "67108864"),
        (GUARANTEED, "pids.max", "100"),
        (BESTEFFORT, "cpu.shares", "2"),
    ];
    // Another time after a reload, which would have undone what it was not told.
    for when in ["at first", "after a reload"] {
        for (unit, of, name, expected) in told {
            let value = nested.property(unit, of, name).await;
            assert_eq!(value.as_deref(), Some(expected), "{name} of {unit} {when}");
        }
        for (unit, file, expected) in written {
            assert_eq!(
                nested.value(unit, file).as_deref(),
                Some(expected),
                "{file} of {unit} {when}"
            );
        }
        nested.reload().await;
    }
    // Where systemd has made nothing, folders are made all the same.
    assert!(
        nested
            .value(GUARANTEED, "cpuset.cpus")
            .is_some_and(|cpus| !cpus.is_empty())
    );

    let changed = limits(&guaranteed);
    manager.apply(&guaranteed, &changed).await.unwrap();
    let quota = nested.property(GUARANTEED, "Slice", "CPUQuotaPerSecUSec").await;
    assert_eq!(quota.as_deref(), Some("uint64 250000"));
    assert_eq!(nested.value(GUARANTEED, "cpu.cfs_quota_us").as_deref(), Some("25000"));

    let later = nested.opened().await;
    assert_eq!(later.list().await.unwrap().len(), 3);
    let process = Process::new(&pod_folders(&nested.hierarchies(), "edge", burstable.uid()));
    later.destroy(burstable.uid()).await.unwrap();
    assert!(!process.is_alive());
    assert_eq!(nested.property(BURSTABLE, "Unit", "ActiveState").await, None);
    for hierarchy in nested.hierarchies() {
        let folder = hierarchy.join(crate::fake::folder(BURSTABLE));
        assert!(!folder.exists(), "{}", folder.display());
    }
    // What a crash may leave: a unit without its folder with the mark, and a mark without its unit.
    later.destroy(guaranteed.uid()).await.unwrap();
    let marked = nested.mount().join("memory").join(crate::fake::folder(BESTEFFORT));
    fs::remove_dir(&marked).unwrap();
    later.apply(&besteffort, &limits(&besteffort)).await.unwrap();
    assert!(marked.exists());
    later.destroy(besteffort.uid()).await.unwrap();
    assert_eq!(nested.property(BESTEFFORT, "Unit", "ActiveState").await, None);
    assert_eq!(later.list().await.unwrap(), []);
}

/// One for each promise.
async fn cgroups() -> Option<(CgroupManager, CgroupFixture)> {
    let nested = Arc::new(Nested::new_or_say("slices of a real systemd").await?);
    let folders = {
        let nested = nested.clone();
        move |uid: &PodUid| pod_folders(&nested.hierarchies(), "edge", uid)
    };
    let (next, stranger, of_process, of_lost) = (nested.clone(), nested.clone(), folders.clone(), folders);
    let fixture = CgroupFixture::new()
        .driver(CgroupDriver::Systemd)
        .next_life(move || now(|| Arc::new(next.manager()) as Arc<dyn PodCgroups>))
        .process(move |uid| {
            let child = Process::new(&of_process(&uid));
            now(move || move || child.is_alive())
        })
        .stranger(move || {
            let other = stranger.manager();
            async move {
                other.open(&context("another")).await.unwrap();
                let pod = pod("stranger", |c| c);
                other.apply(&pod, &limits(&pod)).await.unwrap();
                pod.uid().clone()
            }
        })
        .lost(move |uid| now(|| fs::remove_dir(of_lost(&uid).last().unwrap()).unwrap()));
    Some((nested.manager(), fixture))
}

kubelet_testing::cgroup_contract!(cgroups);
