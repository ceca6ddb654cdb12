//! What is in the files, and what ends.

use std::fs;

use kubelet_cgroup::{CgroupManager, Enforcement, Reserved};
use kubelet_core::{CgroupError, LinuxResources, PodCgroups, PodRecord};
use kubelet_testing::{ContainerBuilder, PodBuilder};

use crate::root::{Root, context, limits, members, node, record};

fn pod(name: &str, shape: impl FnOnce(ContainerBuilder) -> ContainerBuilder) -> PodRecord {
    record(
        &PodBuilder::new(name)
            .uid(format!("uid-{name}"))
            .container("app", shape)
            .build(),
    )
}

fn guaranteed() -> PodRecord {
    pod("guaranteed", |c| {
        let c = c.request("cpu", "500m").limit("cpu", "500m");
        c.request("memory", "64Mi").limit("memory", "64Mi")
    })
}

fn burstable(name: &str, cpu: &str) -> PodRecord {
    pod(name, |c| c.request("cpu", cpu))
}

#[tokio::test]
async fn each_class_has_the_values_of_the_table() {
    let Some(root) = Root::v1("each_class_has_the_values_of_the_table") else {
        return;
    };
    let manager = root.opened().await;
    manager.enforce(&node()).await.unwrap();
    let pods = [guaranteed(), burstable("burstable", "100m"), pod("besteffort", |c| c)];
    for pod in &pods {
        manager.apply(pod, &limits(pod)).await.unwrap();
        assert_eq!(manager.parent(pod), format!("{}{}", root.settings().root, parent(pod)));
    }
    let none = root.value("kubepods", "memory.max_usage_in_bytes");
    assert!(!none.is_empty());
    let unlimited = i64::MAX / 4096 * 4096;
    for (pod, shares, quota, memory) in [
        (&pods[0], "512", "50000", (64 << 20).to_string()),
        (&pods[1], "102", "-1", unlimited.to_string()),
        (&pods[2], "2", "-1", unlimited.to_string()),
    ] {
        let path = parent(pod);
        assert_eq!(root.value(&path[1..], "cpu.shares"), shares, "{path}");
        assert_eq!(root.value(&path[1..], "cpu.cfs_quota_us"), quota, "{path}");
        assert_eq!(root.value(&path[1..], "cpu.cfs_period_us"), "100000", "{path}");
        assert_eq!(root.value(&path[1..], "memory.limit_in_bytes"), memory, "{path}");
        assert_eq!(root.value(&path[1..], "pids.max"), "100", "{path}");
        assert_eq!(
            root.value(&path[1..], "cpuset.cpus"),
            root.value("", "cpuset.cpus"),
            "{path}"
        );
    }
    for (path, file, value) in [
        ("kubepods", "cpu.shares", "3072".to_owned()),
        ("kubepods", "memory.limit_in_bytes", (7_u64 << 30).to_string()),
        ("kubepods", "pids.max", "29000".to_owned()),
        ("kubepods/burstable", "cpu.shares", "102".to_owned()),
        ("kubepods/besteffort", "cpu.shares", "2".to_owned()),
    ] {
        assert_eq!(root.value(path, file), value, "{file} of {path}");
    }
}

/// Where a pod's cgroup is below the root.
fn parent(pod: &PodRecord) -> String {
    let class = match pod.facts().qos.as_str() {
        "Guaranteed" => String::new(),
        class => format!("/{}", class.to_lowercase()),
    };
    format!("/kubepods{class}/pod{}", pod.uid())
}

#[tokio::test]
async fn the_class_of_burstable_pods_has_the_share_of_what_they_request() {
    let Some(root) = Root::v1("the_class_of_burstable_pods") else {
        return;
    };
    let shares = || root.value("kubepods/burstable", "cpu.shares");
    let manager = root.opened().await;
    manager.enforce(&node()).await.unwrap();
    assert_eq!(shares(), "2");
    let (one, two) = (burstable("one", "1"), burstable("two", "500m"));
    manager.apply(&one, &limits(&one)).await.unwrap();
    assert_eq!(shares(), "1024");
    manager.apply(&two, &limits(&two)).await.unwrap();
    assert_eq!(shares(), "1536");

    // A later life knows what is there.
    let later = root.opened().await;
    later.enforce(&node()).await.unwrap();
    assert_eq!(shares(), "1536");
    later.apply(&two, &limits(&two)).await.unwrap();
    assert_eq!(shares(), "1536");
    later.destroy(one.uid()).await.unwrap();
    assert_eq!(shares(), "512");
    // What somebody changed is set right each minute.
    fs::write(root.folder("cpu", "kubepods/burstable").join("cpu.shares"), "7").unwrap();
    later.enforce(&node()).await.unwrap();
    assert_eq!(shares(), "512");
}

#[tokio::test]
async fn limits_of_a_pod_may_be_raised_and_lowered() {
    let Some(root) = Root::v1("limits_of_a_pod_may_be_raised_and_lowered") else {
        return;
    };
    let manager = root.opened().await;
    let pod = guaranteed();
    let path = parent(&pod);
    for (quota, period) in [
        (50_000, 100_000),
        (400_000, 100_000),
        (1_000, 1_000),
        (500_000, 1_000_000),
        (-1, 100_000),
    ] {
        let mut limits = limits(&pod);
        limits.cgroup.cpu_quota = Some(quota);
        limits.cgroup.cpu_period = Some(period);
        limits.cgroup.memory_bytes = Some(period * 4096);
        manager.apply(&pod, &limits).await.unwrap();
        assert_eq!(root.value(&path[1..], "cpu.cfs_quota_us"), quota.to_string());
        assert_eq!(root.value(&path[1..], "cpu.cfs_period_us"), period.to_string());
        assert_eq!(
            root.value(&path[1..], "memory.limit_in_bytes"),
            (period * 4096).to_string()
        );
    }
}

#[tokio::test]
async fn what_is_kept_is_enforced_in_a_cgroup_that_is_there() {
    let Some(root) = Root::v1("what_is_kept_is_enforced") else {
        return;
    };
    let system = format!("{}/system", root.settings().root);
    let with = |reserved| {
        let mut settings = root.settings();
        settings.enforcement = Enforcement::default();
        settings.enforcement.pods = false;
        settings.enforcement.system_reserved = Some(reserved);
        CgroupManager::new(settings)
    };
    let manager = with(Reserved::compressible(&system));
    manager.open(&context("me")).await.unwrap();
    let error = manager.enforce(&node()).await.unwrap_err();
    assert!(error.to_string().contains("system"), "{error}");
    assert_eq!(
        root.value("kubepods", "cpu.shares"),
        "4096",
        "all of the node, where pods are not bound"
    );
    for hierarchy in ["cpu", "cpuacct", "cpuset", "memory", "pids", "freezer"] {
        fs::create_dir(root.folder(hierarchy, "system")).unwrap();
    }
    let unlimited = root.value("system", "memory.limit_in_bytes");
    manager.enforce(&node()).await.unwrap();
    assert_eq!(root.value("system", "cpu.shares"), "1024");
    assert_eq!(root.value("system", "memory.limit_in_bytes"), unlimited);
    let manager = with(Reserved::all(&system));
    manager.open(&context("me")).await.unwrap();
    manager.enforce(&node()).await.unwrap();
    assert_eq!(root.value("system", "memory.limit_in_bytes"), (1_u64 << 30).to_string());
    assert_eq!(root.value("system", "pids.max"), "1000");
}

#[tokio::test]
async fn containers_have_their_limits_inside_of_their_pod() {
    let Some(root) = Root::v1("containers_have_their_limits") else {
        return;
    };
    let manager = root.opened().await;
    let pod = guaranteed();
    manager.apply(&pod, &limits(&pod)).await.unwrap();
    let mut own = LinuxResources::default();
    (own.cpu_shares, own.cpu_quota, own.cpu_period) = (256, 25_000, 100_000);
    (own.memory_limit_bytes, own.memory_swap_limit_bytes) = (32 << 20, 32 << 20);
    let made = manager.container(&pod, "app", &own).await.unwrap();
    let path = format!("{}/app", &parent(&pod)[1..]);
    assert!(made.folders.contains(&root.folder("memory", &path)), "{made:?}");
    for (file, value) in [
        ("cpu.shares", "256"),
        ("cpu.cfs_quota_us", "25000"),
        ("memory.limit_in_bytes", "33554432"),
        ("memory.memsw.limit_in_bytes", "33554432"),
    ] {
        assert_eq!(root.value(&path, file), value, "{file}");
    }
    for name in ["", ".", "..", "../x", "a/b"] {
        assert!(manager.container(&pod, name, &own).await.is_err(), "{name:?}");
    }
    let process = Root::process(&made.folders, "exec sleep 4711");
    assert_eq!(members(&root.folder("memory", &path)).len(), 1);
    manager.destroy(pod.uid()).await.unwrap();
    assert!(!process.is_alive());
}

#[tokio::test]
async fn what_a_crash_left_frozen_or_half_made_is_cleared() {
    let Some(root) = Root::v1("what_a_crash_left") else {
        return;
    };
    let manager = root.opened().await;
    let pod = guaranteed();
    manager.apply(&pod, &limits(&pod)).await.unwrap();
    let process = Root::process(&root.pod_folders(pod.uid()), "sleep 4711 & sleep 4711");
    let path = parent(&pod);
    // In hierarchies of which the agent makes nothing, runtimes do.
    for hierarchy in ["devices", "blkio"] {
        fs::create_dir_all(root.folder(hierarchy, &path[1..]).join("container")).unwrap();
    }
    fs::write(root.folder("freezer", &path[1..]).join("freezer.state"), "FROZEN").unwrap();
    let later = root.opened().await;
    assert_eq!(later.list().await.unwrap(), [pod.uid().clone()]);
    later.destroy(pod.uid()).await.unwrap();
    assert!(!process.is_alive());
    for hierarchy in kubelet_testing::CgroupRoot::hierarchies() {
        let name = hierarchy.file_name().unwrap().to_string_lossy().into_owned();
        assert!(!root.folder(&name, &path[1..]).exists(), "{name}");
    }
    // Half made: marked, and nothing more.
    later.apply(&pod, &limits(&pod)).await.unwrap();
    for folder in root
        .pod_folders(pod.uid())
        .into_iter()
        .filter(|folder| !folder.starts_with("/sys/fs/cgroup/memory"))
    {
        fs::remove_dir(folder).unwrap();
    }
    assert_eq!(later.list().await.unwrap(), [pod.uid().clone()]);
    later.destroy(pod.uid()).await.unwrap();
    assert!(later.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_cannot_be_is_said() {
    let Some(root) = Root::new("what_cannot_be_is_said") else {
        return;
    };
    let manager = root.manager();
    // With the feature a systemd of this machine would be asked: what becomes of that, tests of their own tell.
    #[cfg(not(feature = "systemd"))]
    {
        let systemd = kubelet_core::CgroupContext::new(kubelet_core::CgroupDriver::Systemd, "me");
        let error = manager.open(&systemd).await.unwrap_err();
        assert!(
            matches!(&error, CgroupError::Unsupported { why } if why.contains("its feature `systemd`")),
            "{error}"
        );
    }
    let mut settings = root.settings();
    settings.mount = "/nowhere".into();
    let error = CgroupManager::new(settings).open(&context("me")).await.unwrap_err();
    assert!(
        matches!(&error, CgroupError::Unsupported { why } if why.contains("/nowhere")),
        "{error}"
    );
    let pod = guaranteed();
    assert!(matches!(
        manager.apply(&pod, &limits(&pod)).await,
        Err(CgroupError::NotOpen)
    ));
    assert_eq!(manager.parent(&pod), "");
}

#[tokio::test]
async fn what_another_agent_has_marked_is_left_alone() {
    let Some(root) = Root::new("cgroups of two agents") else {
        return;
    };
    let (me, other) = (root.opened().await, root.manager());
    other.open(&context("another")).await.unwrap();
    let theirs = pod("shared", |c| c);
    other.apply(&theirs, &limits(&theirs)).await.unwrap();
    let process = Root::process(&root.pod_folders(theirs.uid()), "exec sleep 4711");
    let error = me.apply(&theirs, &limits(&theirs)).await.unwrap_err();
    assert!(error.to_string().contains("another agent"), "{error}");
    let error = me
        .container(&theirs, "app", &LinuxResources::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("another agent"), "{error}");
    me.destroy(theirs.uid()).await.unwrap();
    assert!(process.is_alive() && other.exists(&theirs).await.unwrap());
    assert_eq!(other.list().await.unwrap(), [theirs.uid().clone()]);
    assert_eq!(me.list().await.unwrap(), []);

    // One's own in another class goes all the same.
    let own = pod("shared", |c| c.request("cpu", "500m"));
    me.apply(&own, &limits(&own)).await.unwrap();
    me.destroy(own.uid()).await.unwrap();
    assert!(!me.exists(&own).await.unwrap() && process.is_alive());

    other.destroy(theirs.uid()).await.unwrap();
    assert!(!process.is_alive());
    me.apply(&theirs, &limits(&theirs)).await.unwrap();
    me.destroy(theirs.uid()).await.unwrap();
    other.destroy(theirs.uid()).await.unwrap();
}

#[tokio::test]
async fn a_class_that_somebody_has_removed_is_made_anew_for_its_next_pod() {
    let Some(root) = Root::new("cgroups of classes") else {
        return;
    };
    let manager = root.opened().await;
    for folder in root.class_folders("burstable") {
        std::fs::remove_dir(folder).unwrap();
    }
    let late = pod("late", |c| c.request("cpu", "500m"));
    manager.apply(&late, &limits(&late)).await.unwrap();
    assert!(manager.exists(&late).await.unwrap());
    manager.destroy(late.uid()).await.unwrap();
}
