//! Memory limits that go down, which is not done below what is used.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ContainerResizePolicy, Pod};
use kubelet_core::{
    ContainerUsage, MemoryUsage, PodUsage, StateDir, StatsError, StatsProvider, StatsScope, StatsSnapshot, async_trait,
};
use kubelet_testing::{FakeCgroups, FakeRuntime, Op, PodBuilder};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;
use super::resize::{MI, condition, generation, limits, pod};

/// Tells for every container that runs, and for its pod, that they use so many MiB; nothing: that it is not known.
#[derive(Clone, Debug)]
struct Meter {
    runtime: FakeRuntime,
    uses: Arc<Mutex<(Option<u64>, Option<u64>)>>,
}

impl Meter {
    fn of(runtime: &FakeRuntime, container: Option<u64>, pod: Option<u64>) -> Self {
        Self {
            runtime: runtime.clone(),
            uses: Arc::new(Mutex::new((container, pod))),
        }
    }

    fn set(&self, container: Option<u64>, pod: Option<u64>) {
        *self.uses.lock().unwrap() = (container, pod);
    }
}

fn memory(mi: Option<u64>) -> Option<MemoryUsage> {
    mi.map(|mi| {
        let mut memory = MemoryUsage::default();
        memory.usage_bytes = Some(mi << 20);
        memory
    })
}

#[async_trait]
impl StatsProvider for Meter {
    async fn collect(&self, want: &StatsScope) -> Result<StatsSnapshot, StatsError> {
        let (of_container, of_pod) = *self.uses.lock().unwrap();
        let mut snapshot = StatsSnapshot::default();
        let StatsScope::Pod(uid) = want else {
            return Ok(snapshot);
        };
        for container in self.runtime.containers() {
            let mut usage = ContainerUsage::new(container.id, uid.clone(), container.name);
            usage.memory = memory(of_container);
            snapshot.containers.push(usage);
        }
        let mut usage = PodUsage::new(uid.clone());
        usage.memory = memory(of_pod);
        snapshot.pods.push(usage);
        Ok(snapshot)
    }
}

fn start(runtime: &FakeRuntime, meter: &Meter, cgroups: &FakeCgroups) -> Node {
    Node::start_with(runtime, StateDir::in_memory(), |builder| {
        builder.stats(meter.clone()).cgroups(cgroups.clone())
    })
}

fn error(node: &Node) -> Option<String> {
    let condition = condition(node, "web", "PodResizeInProgress")?;
    condition
        .message
        .filter(|_| condition.reason.as_deref() == Some("Error"))
}

/// How often the limits of the pod's cgroup were set.
fn applied(cgroups: &FakeCgroups) -> usize {
    cgroups.calls().iter().filter(|call| call.limits.is_some()).count()
}

#[tokio::test(start_paused = true)]
async fn a_limit_below_what_is_used_fails_as_a_whole_until_less_is_used() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let meter = Meter::of(&runtime, Some(50), Some(51));
    let node = start(&runtime, &meter, &cgroups);
    node.pods
        .set(vec![generation(pod("web", "1", "100Mi"), 1)])
        .await
        .unwrap();
    node.running("web").await;
    node.pods
        .set(vec![generation(pod("web", "2", "50Mi"), 2)])
        .await
        .unwrap();
    node.until("refused", |node| error(node).is_some()).await;
    let message = "cannot decrease memory limits: container app uses as much as the new limit of 52428800 bytes";
    assert_eq!(error(&node).as_deref(), Some(message));
    sleep(Duration::from_secs(100)).await;
    assert_eq!(node.events.messages("ResizeError"), [message]);
    assert_eq!(limits(&runtime, "web"), Some((100_000, 100 * MI)), "also of CPU");
    assert_eq!(applied(&cgroups), 1, "when it was made");

    // Of the pod it is more than of its containers.
    meter.set(Some(49), Some(51));
    let of_pod = "cannot decrease memory limits: the pod uses as much as the new limit of 52428800 bytes";
    node.until("told", |node| error(node).as_deref() == Some(of_pod)).await;
    // What is not known may be too much.
    meter.set(None, Some(20));
    let unknown = "cannot decrease memory limits: how much memory container app uses is not known";
    node.until("told", |node| error(node).as_deref() == Some(unknown)).await;
    assert_eq!(limits(&runtime, "web"), Some((100_000, 100 * MI)));

    meter.set(Some(48), Some(49));
    node.until("resized", |_| limits(&runtime, "web") == Some((200_000, 50 * MI)))
        .await;
    node.until("completed", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    assert_eq!(node.events.count("ResizeError"), 1);
    assert_eq!(node.restarts("web", "app"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_grows_asks_nobody_and_one_that_is_new_is_lower_than_none() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let meter = Meter::of(&runtime, None, None);
    let node = start(&runtime, &meter, &cgroups);
    node.pods.set(vec![pod("web", "1", "100Mi")]).await.unwrap();
    node.running("web").await;
    node.pods.set(vec![pod("web", "500m", "200Mi")]).await.unwrap();
    node.until("resized", |_| limits(&runtime, "web") == Some((50_000, 200 * MI)))
        .await;
    let without = |memory: Option<&str>| {
        PodBuilder::new("other")
            .uid("uid-other")
            .container("app", |c| match memory {
                Some(memory) => c.request("cpu", "1").limit("memory", memory).request("memory", "1Mi"),
                None => c.request("cpu", "1").request("memory", "1Mi"),
            })
            .build()
    };
    node.pods.set(vec![without(None)]).await.unwrap();
    node.running("other").await;
    node.pods.set(vec![without(Some("1Gi"))]).await.unwrap();
    node.until("refused", |node| node.events.count("ResizeError") == 1)
        .await;
    assert_eq!(limits(&runtime, "other"), Some((0, 0)));
    // A wish that is taken back leaves no trace.
    node.pods.set(vec![without(None)]).await.unwrap();
    node.until("forgotten", |node| {
        condition(node, "other", "PodResizeInProgress").is_none()
    })
    .await;
    node.pods.set(vec![without(Some("1Gi"))]).await.unwrap();
    node.until("told anew", |node| node.events.count("ResizeError") == 2)
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_started_anew_uses_nothing_by_then() {
    let (runtime, cgroups) = (fake(), FakeCgroups::new());
    let meter = Meter::of(&runtime, Some(90), Some(200));
    let node = start(&runtime, &meter, &cgroups);
    let pair = |memory: &str| -> Pod {
        let mut pod = pod("web", "1", memory);
        let containers = &mut pod.spec.as_mut().unwrap().containers;
        let mut second = containers[0].clone();
        second.name = "second".to_owned();
        second.resources = pod_of_100().spec.unwrap().containers[0].resources.clone();
        containers[0].resize_policy = Some(vec![ContainerResizePolicy {
            resource_name: "memory".to_owned(),
            restart_policy: "RestartContainer".to_owned(),
        }]);
        containers.push(second);
        pod
    };
    node.pods.set(vec![pair("100Mi")]).await.unwrap();
    node.running("web").await;
    // 200 of 150, of which 90 go.
    node.pods.set(vec![pair("10Mi")]).await.unwrap();
    node.until("refused", |node| error(node).is_some()).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(node.restarts("web", "app"), Some(0), "nothing of it is done");
    meter.set(Some(90), Some(199));
    node.until("restarted", |node| node.restarts("web", "app") == Some(1))
        .await;
    assert_eq!(node.restarts("web", "second"), Some(0));
    node.until("completed", |node| node.events.count("ResizeCompleted") == 1)
        .await;
    assert_eq!(runtime.count(Op::UpdateResources), 0);
    node.stop().await;
}

fn pod_of_100() -> Pod {
    pod("other", "1", "100Mi")
}
