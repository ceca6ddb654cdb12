//! What systemd is told, and what is in files.

use std::fs;

use kubelet_cgroup::{CgroupManager, Reserved};
use kubelet_core::{LinuxResources, NodeLimits, NodeSettings, NodeView, PodCgroups};

use crate::fake::Unit;
use crate::machine::{Machine, burstable, context, guaranteed, limits, pod};

const GUARANTEED: &str = "edge-kubepods-poduid_g.slice";
const BURSTABLE: &str = "edge-kubepods-burstable-poduid_b.slice";

fn node() -> NodeLimits {
    let mut node = NodeView::new("node-1");
    for (name, amount) in [("cpu", "4"), ("memory", "8Gi")] {
        node.capacity.insert(name.to_owned(), amount.parse().unwrap());
    }
    let mut settings = NodeSettings::default();
    settings
        .system_reserved
        .insert("memory".to_owned(), "1Gi".parse().unwrap());
    NodeLimits::of(&settings, &node)
}

#[tokio::test]
async fn pods_of_each_class_are_slices_with_their_limits() {
    let Some(machine) = Machine::new_or_skip("pods_of_each_class_are_slices").await else {
        return;
    };
    let manager = machine.opened().await;
    let started = ["", "-kubepods", "-kubepods-burstable", "-kubepods-besteffort"];
    let started = started.map(|slice| format!("StartTransientUnit edge{slice}.slice"));
    assert_eq!(machine.calls(), [&["Subscribe".to_owned()][..], &started].concat());
    manager.enforce(&node()).await.unwrap();
    let besteffort = pod("n", |c| c);
    for pod in [&guaranteed(), &burstable(), &besteffort] {
        assert!(!manager.exists(pod).await.unwrap());
        manager.apply(pod, &limits(pod)).await.unwrap();
        assert!(manager.exists(pod).await.unwrap());
    }
    assert_eq!(
        manager.parent(&burstable()),
        format!("/edge.slice/edge-kubepods.slice/edge-kubepods-burstable.slice/{BURSTABLE}")
    );
    for (unit, name, expected) in [
        ("edge.slice", "Wants", r#"["-.slice"]"#),
        (GUARANTEED, "Wants", r#"["edge-kubepods.slice"]"#),
        (BURSTABLE, "Wants", r#"["edge-kubepods-burstable.slice"]"#),
        (BURSTABLE, "DefaultDependencies", "false"),
        (BURSTABLE, "MemoryAccounting", "true"),
        (BURSTABLE, "CPUAccounting", "true"),
        (BURSTABLE, "IOAccounting", "true"),
        (BURSTABLE, "TasksAccounting", "true"),
        (BURSTABLE, "CPUWeight", "20"),
        (BURSTABLE, "MemoryMax", ""),
        (GUARANTEED, "CPUWeight", "10"),
        (GUARANTEED, "CPUQuotaPerSecUSec", "250000"),
        (GUARANTEED, "CPUQuotaPeriodUSec", "100000"),
        (GUARANTEED, "MemoryMax", "67108864"),
        (GUARANTEED, "TasksMax", "100"),
        ("edge-kubepods.slice", "MemoryMax", "7516192768"),
        ("edge-kubepods.slice", "CPUWeight", "157"),
        ("edge-kubepods-burstable.slice", "CPUWeight", "20"),
        ("edge-kubepods-besteffort.slice", "CPUWeight", "1"),
    ] {
        assert_eq!(number(&machine.property(unit, name)), expected, "{name} of {unit}");
    }
    for (file, expected) in [
        ("memory.max", "7516192768"),
        ("cpu.weight", "157"),
        ("edge-kubepods-poduid_g.slice/cpu.max", "25000 100000"),
        ("edge-kubepods-poduid_g.slice/memory.max", "67108864"),
        ("edge-kubepods-poduid_g.slice/pids.max", "100"),
        ("edge-kubepods-burstable.slice/cpu.weight", "20"),
        (
            "edge-kubepods-burstable.slice/edge-kubepods-burstable-poduid_b.slice/cpu.weight",
            "20",
        ),
        ("cgroup.subtree_control", "+cpu +cpuset +memory +pids +hugetlb +io"),
    ] {
        assert_eq!(machine.value(file), expected, "{file}");
    }
    let mut listed = manager.list().await.unwrap();
    listed.sort();
    assert_eq!(listed, ["uid-b", "uid-g", "uid-n"].map(Into::into));
}

/// The digits of a number that has its type before it.
fn number(text: &str) -> &str {
    text.rsplit(' ').next().unwrap_or_default()
}

#[tokio::test]
async fn limits_that_change_are_properties_too() {
    let Some(machine) = Machine::new_or_skip("limits_that_change_are_properties_too").await else {
        return;
    };
    let manager = machine.opened().await;
    let pod = guaranteed();
    let mut wanted = limits(&pod);
    manager.apply(&pod, &wanted).await.unwrap();
    machine.calls();
    wanted.cgroup.cpu_quota = Some(12_345);
    wanted.cgroup.memory_bytes = Some(1 << 27);
    manager.apply(&pod, &wanted).await.unwrap();
    let asked = ["StartTransientUnit", "GetUnit", "SetUnitProperties"];
    assert_eq!(machine.calls(), asked.map(|method| format!("{method} {GUARANTEED}")));
    // systemd counts in hundredths of a processor; the file has what was asked for.
    assert_eq!(number(&machine.property(GUARANTEED, "CPUQuotaPerSecUSec")), "130000");
    assert_eq!(number(&machine.property(GUARANTEED, "MemoryMax")), "134217728");
    assert_eq!(machine.value(&format!("{GUARANTEED}/cpu.max")), "12345 100000");
    assert_eq!(machine.value(&format!("{GUARANTEED}/memory.max")), "134217728");
}

#[tokio::test]
async fn a_unit_that_is_there_is_made_use_of() {
    let Some(machine) = Machine::new_or_skip("a_unit_that_is_there_is_made_use_of").await else {
        return;
    };
    let there = |unit: &str, state: &str, has_file| {
        let unit = (
            unit.to_owned(),
            Unit {
                state: state.to_owned(),
                has_file,
                ..Unit::default()
            },
        );
        machine.systemd.state().units.extend([unit]);
    };
    // Of an administrator, whether it runs or not; and what is left of one that has failed.
    there("edge.slice", "active", true);
    there("edge-kubepods.slice", "inactive", true);
    there("edge-kubepods-burstable.slice", "failed", false);
    let manager = machine.opened().await;
    assert_eq!(
        machine.calls()[1..],
        [
            "StartTransientUnit edge.slice",
            "GetUnit edge.slice",
            "SetUnitProperties edge.slice",
            "StartTransientUnit edge-kubepods.slice",
            "GetUnit edge-kubepods.slice",
            "StartUnit edge-kubepods.slice",
            "SetUnitProperties edge-kubepods.slice",
            "StartTransientUnit edge-kubepods-burstable.slice",
            "GetUnit edge-kubepods-burstable.slice",
            "ResetFailedUnit edge-kubepods-burstable.slice",
            "StartTransientUnit edge-kubepods-burstable.slice",
            "StartTransientUnit edge-kubepods-besteffort.slice",
        ]
    );
    assert_eq!(machine.property("edge-kubepods.slice", "MemoryAccounting"), "true");
    assert_eq!(machine.property("edge-kubepods.slice", "Wants"), "");
    // A class that somebody has stopped is started for its next pod.
    let late = burstable();
    machine.systemd.state().units.remove("edge-kubepods-burstable.slice");
    fs::remove_dir_all(
        machine
            .dir
            .path()
            .join("edge.slice/edge-kubepods.slice/edge-kubepods-burstable.slice"),
    )
    .unwrap();
    manager.apply(&late, &limits(&late)).await.unwrap();
    assert!(machine.has_unit("edge-kubepods-burstable.slice") && machine.has_unit(BURSTABLE));
}

#[tokio::test]
async fn a_pod_goes_with_its_unit() {
    let Some(machine) = Machine::new_or_skip("a_pod_goes_with_its_unit").await else {
        return;
    };
    // Jobs may end before anybody is told of them.
    machine.systemd.state().hurried = true;
    let manager = machine.opened().await;
    manager.enforce(&node()).await.unwrap();
    let (guaranteed, burstable) = (guaranteed(), burstable());
    for pod in [&guaranteed, &burstable] {
        manager.apply(pod, &limits(pod)).await.unwrap();
    }
    assert_eq!(machine.value("edge-kubepods-burstable.slice/cpu.weight"), "20");
    machine.calls();
    manager.destroy(burstable.uid()).await.unwrap();
    assert!(machine.calls().contains(&format!("StopUnit {BURSTABLE}")));
    assert!(!machine.has_unit(BURSTABLE) && machine.has_unit(GUARANTEED));
    assert_eq!(machine.value("edge-kubepods-burstable.slice/cpu.weight"), "1");
    assert_eq!(
        number(&machine.property("edge-kubepods-burstable.slice", "CPUWeight")),
        "1"
    );
    assert_eq!(manager.list().await.unwrap(), [guaranteed.uid().clone()]);
    // What is left of one that has failed is forgotten.
    machine.systemd.state().units.get_mut(GUARANTEED).unwrap().state = "failed".to_owned();
    for file in fs::read_dir(
        machine
            .dir
            .path()
            .join("edge.slice/edge-kubepods.slice")
            .join(GUARANTEED),
    )
    .unwrap()
    {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    manager.destroy(guaranteed.uid()).await.unwrap();
    assert!(!machine.has_unit(GUARANTEED));
    assert_eq!(manager.list().await.unwrap(), []);
    // Another time there is nothing to do.
    machine.calls();
    manager.destroy(guaranteed.uid()).await.unwrap();
    assert!(machine.calls().iter().all(|call| call.starts_with("GetUnit")));
}

#[tokio::test]
async fn a_container_is_a_folder_in_the_slice_of_its_pod() {
    let Some(machine) = Machine::new_or_skip("a_container_is_a_folder_in_the_slice").await else {
        return;
    };
    let manager = machine.opened().await;
    let pod = guaranteed();
    let mut own = LinuxResources::default();
    own.memory_limit_bytes = 32 << 20;
    let made = manager.container(&pod, "app", &own).await.unwrap();
    let folder = machine
        .dir
        .path()
        .join("edge.slice/edge-kubepods.slice")
        .join(GUARANTEED)
        .join("app");
    assert_eq!(made.folders, [folder]);
    assert_eq!(machine.value(&format!("{GUARANTEED}/app/memory.max")), "33554432");
    assert!(machine.has_unit(GUARANTEED));
    assert_eq!(
        machine.property(GUARANTEED, "Delegate"),
        "",
        "systemd refuses it of a slice"
    );
}

#[tokio::test]
async fn what_is_kept_is_told_of_units_alone() {
    let Some(machine) = Machine::new_or_skip("what_is_kept_is_told_of_units_alone").await else {
        return;
    };
    let there = Unit {
        state: "active".to_owned(),
        ..Unit::default()
    };
    machine.systemd.state().units.insert("system.slice".to_owned(), there);
    for folder in ["system.slice", "plain", "lost.slice"] {
        fs::create_dir(machine.dir.path().join(folder)).unwrap();
    }
    for cgroup in ["/system.slice", "/plain", "/lost.slice"] {
        let mut settings = machine.settings();
        settings.enforcement.system_reserved = Some(Reserved::all(cgroup));
        let manager = CgroupManager::new(settings);
        manager.open(&context("me")).await.unwrap();
        manager.enforce(&node()).await.unwrap();
        let file = machine.dir.path().join(&cgroup[1..]).join("memory.max");
        assert_eq!(fs::read_to_string(file).unwrap(), "1073741824", "{cgroup}");
    }
    assert_eq!(number(&machine.property("system.slice", "MemoryMax")), "1073741824");
}
