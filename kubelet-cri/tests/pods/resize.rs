//! Other CPU and memory for containers that run.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use kubelet_core::NodeView;
use kubelet_core::k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_testing::CgroupRoot;
use serde_json::{Value, json};

use crate::node::{Node, container, is_running, on_both, pod, sh, with};

on_both!(a_running_container_gets_other_resources_in_its_cgroup a_resize_waits_until_there_is_room);

fn wanting(cpu: &str, memory: &str) -> Pod {
    of_size("web", cpu, memory)
}

fn of_size(name: &str, cpu: &str, memory: &str) -> Pod {
    let amounts = json!({"cpu": cpu, "memory": memory});
    let app = with(
        sh("app", "trap 'exit 0' TERM; while :; do sleep 0.2; done"),
        &json!({"resources": {"requests": amounts, "limits": amounts}}),
    );
    pod(name, json!({"containers": [app]}))
}

/// The folder of a container's cgroup in a hierarchy.
fn cgroup_of(id: &str, controller: &str) -> PathBuf {
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    let found = processes.find_map(|process| {
        let text = fs::read_to_string(process.path().join("cgroup")).ok()?;
        let line = text.lines().find(|line| {
            let mut controllers = line.split(':').nth(1).unwrap_or_default().split(',');
            line.contains(id) && controllers.any(|one| one == controller)
        })?;
        line.splitn(3, ':').nth(2).map(str::to_owned)
    });
    PathBuf::from(format!("/sys/fs/cgroup/{controller}{}", found.unwrap()))
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a str> {
    let found = status.conditions.iter().flatten().find(|c| c.type_ == kind)?;
    Some(found.reason.as_deref().unwrap_or_default())
}

async fn a_running_container_gets_other_resources_in_its_cgroup(node: Node) {
    // Its files are read here, and nothing is made.
    let Some(_root) = CgroupRoot::v1_or_skip("resources that change while a container runs") else {
        return;
    };
    let agent = node.start().await;
    agent.pods.set(vec![wanting("200m", "64Mi")]).await.unwrap();
    agent.until("runs", |all| is_running(all, "web", "app")).await;
    let id = |status: &PodStatus| {
        status.container_statuses.as_ref().unwrap()[0]
            .container_id
            .clone()
            .unwrap()
    };
    let before = agent.statuses()["web"].clone();
    let full = id(&before);
    let own = full.strip_prefix("containerd://").unwrap();
    let limits = || {
        let read = |controller: &str, file: &str| -> i64 {
            let text = fs::read_to_string(cgroup_of(own, controller).join(file)).unwrap();
            text.trim().parse().unwrap()
        };
        (
            read("cpu", "cpu.cfs_quota_us"),
            read("memory", "memory.limit_in_bytes") >> 20,
        )
    };
    assert_eq!(limits(), (20_000, 64));

    // Both grow, both shrink, and one of each.
    for (cpu, memory, expected) in [
        ("500m", "128Mi", (50_000, 128)),
        ("100m", "32Mi", (10_000, 32)),
        ("300m", "24Mi", (30_000, 24)),
    ] {
        agent.pods.set(vec![wanting(cpu, memory)]).await.unwrap();
        let amounts: Value = json!({"cpu": cpu, "memory": memory});
        agent
            .until("told", |all| {
                let of = container(all, "web", "app").unwrap();
                let has = of.resources.as_ref().and_then(|has| has.limits.as_ref());
                json!(has) == amounts && json!(of.allocated_resources) == amounts
            })
            .await;
        assert_eq!(limits(), expected);
        agent
            .until("done", |all| condition(&all["web"], "PodResizeInProgress").is_none())
            .await;
    }
    let after = agent.statuses()["web"].clone();
    assert_eq!(id(&after), id(&before));
    assert_eq!(after.container_statuses.as_ref().unwrap()[0].restart_count, 0);
    // The event comes after the status.
    let told = async {
        while node.count("ResizeCompleted") < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told)
        .await
        .expect("each is told of");
    assert_eq!(node.count("ResizeCompleted"), 3);

    agent.pods.set(vec![wanting("9000", "24Mi")]).await.unwrap();
    agent
        .until("refused", |all| {
            condition(&all["web"], "PodResizePending") == Some("Infeasible")
        })
        .await;
    assert_eq!(limits(), (30_000, 24));
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}

async fn a_resize_waits_until_there_is_room(node: Node) {
    let Some(_root) = CgroupRoot::v1_or_skip("a resize that waits") else {
        return;
    };
    let mut view = NodeView::new("node-1");
    for (name, amount) in [("cpu", "2"), ("memory", "2Gi"), ("pods", "10")] {
        view.capacity.insert(name.to_owned(), amount.parse().unwrap());
        view.allocatable.insert(name.to_owned(), amount.parse().unwrap());
    }
    let agent = node.start_with(|builder| builder.node_view(view)).await;
    let other = of_size("other", "1500m", "64Mi");
    agent
        .pods
        .set(vec![wanting("200m", "64Mi"), other.clone()])
        .await
        .unwrap();
    agent
        .until("both run", |all| {
            is_running(all, "web", "app") && is_running(all, "other", "app")
        })
        .await;
    agent.pods.set(vec![wanting("1", "64Mi"), other]).await.unwrap();
    agent
        .until("it waits", |all| {
            condition(&all["web"], "PodResizePending") == Some("Deferred")
        })
        .await;
    let full = container(&agent.statuses(), "web", "app")
        .unwrap()
        .container_id
        .clone()
        .unwrap();
    let quota = || {
        let folder = cgroup_of(full.strip_prefix("containerd://").unwrap(), "cpu");
        fs::read_to_string(folder.join("cpu.cfs_quota_us"))
            .unwrap()
            .trim()
            .to_owned()
    };
    assert_eq!(quota(), "20000");
    assert_eq!(node.count("ResizeDeferred"), 1);
    agent.pods.set(vec![wanting("1", "64Mi")]).await.unwrap();
    agent
        .until("there is room", |all| {
            let of = container(all, "web", "app").unwrap();
            json!(of.resources.as_ref().unwrap().limits)["cpu"] == "1"
        })
        .await;
    assert_eq!(quota(), "100000");
    let after = container(&agent.statuses(), "web", "app").unwrap().clone();
    assert_eq!((after.container_id, after.restart_count), (Some(full.clone()), 0));
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}
