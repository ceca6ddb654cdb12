//! A kubelet on a private containerd.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kubelet_core::{
    CancellationToken, ChannelHandle, ChannelSource, Containers, Event, EventSink, Kubelet, KubeletBuilder,
    KubeletHandle, OnStop, RunError, StopReport,
};
use kubelet_cri::CriRuntime;
use kubelet_pleg::EventedPleg;
use kubelet_testing::{BUSYBOX_IMAGE, PrivateContainerd};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Far more than anything here takes, so that what hangs fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// Events, kept for a look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events(pub(crate) Arc<Mutex<Vec<Event>>>);

impl EventSink for Events {
    fn record(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

/// A node: what outlives the kubelet that runs on it.
pub(crate) struct Node {
    pub(crate) containerd: PrivateContainerd,
    pub(crate) events: Events,
    dir: TempDir,
}

/// A kubelet that runs on a node.
pub(crate) struct Agent {
    pub(crate) handle: KubeletHandle,
    pub(crate) pods: ChannelHandle,
    stop: CancellationToken,
    task: JoinSet<Result<StopReport, RunError>>,
}

impl Node {
    pub(crate) fn new(containerd: PrivateContainerd) -> Self {
        Self {
            containerd,
            events: Events::default(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) async fn runtime(&self) -> CriRuntime {
        CriRuntime::connect(&self.containerd.endpoint()).await.unwrap()
    }

    /// A path in the folder that goes with the node.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a kubelet on it.
    pub(crate) async fn start(&self) -> Agent {
        self.start_with(|builder| builder).await
    }

    /// Starts a kubelet of another shape.
    pub(crate) async fn start_with(&self, shape: impl FnOnce(KubeletBuilder) -> KubeletBuilder) -> Agent {
        let (pods, source) = ChannelSource::new("api");
        let builder = Kubelet::builder("node-1", Containers::new(self.runtime().await, EventedPleg::default()))
            .source(source)
            .events(self.events.clone())
            .root_dir(self.root_dir())
            .pod_logs_dir(self.dir.path().join("logs"))
            .on_stop(OnStop::LeavePods);
        let kubelet = shape(builder).build().unwrap();
        let (handle, stop) = (kubelet.handle(), CancellationToken::new());
        let mut task = JoinSet::new();
        task.spawn(kubelet.run(stop.clone()));
        Agent {
            handle,
            pods,
            stop,
            task,
        }
    }

    pub(crate) fn root_dir(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// The text of a container's first log, without times and streams.
    pub(crate) fn log(&self, pod: &str, container: &str) -> String {
        let logs: PathBuf = self.dir.path().join("logs");
        let folder = std::fs::read_dir(logs)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| {
                path.file_name()
                    .unwrap()
                    .to_string_lossy()
                    .starts_with(&format!("default_{pod}_"))
            })
            .unwrap();
        let text = std::fs::read_to_string(folder.join(container).join("0.log")).unwrap();
        let line = |line: &str| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned();
        text.lines().map(|l| line(l) + "\n").collect()
    }

    /// Whether it is of the network of this node's pods.
    pub(crate) fn is_address_of_pods(&self, ip: &str) -> bool {
        let cidr = self.containerd.pod_cidr();
        ip.starts_with(cidr.split(".0/").next().unwrap())
    }

    pub(crate) fn count(&self, reason: &str) -> usize {
        self.events
            .0
            .lock()
            .unwrap()
            .iter()
            .filter(|event| event.reason == reason)
            .count()
    }
}

impl Agent {
    /// Waits until the statuses of all pods, by name, are as they should be.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&BTreeMap<String, PodStatus>) -> bool) {
        let mut changes = self.handle.statuses();
        let wait = async {
            while !is_so(&self.statuses()) {
                changes.next().await.expect("the kubelet runs");
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("{what}: {:#?}", self.statuses());
        }
    }

    pub(crate) fn statuses(&self) -> BTreeMap<String, PodStatus> {
        let pods = self.handle.pods().into_iter();
        pods.filter_map(|pod| Some((pod.pod.key().name.to_string(), PodStatus::clone(pod.status.as_ref()?))))
            .collect()
    }

    /// Drops it, as a kill does.
    pub(crate) async fn kill(mut self) {
        self.task.shutdown().await;
    }

    /// Ends it, and with it all its pods.
    pub(crate) async fn stop_with_pods(mut self, node: &Node) {
        self.pods.set(Vec::new()).await.unwrap();
        let mut changes = self.handle.statuses();
        let gone = async {
            while !self.handle.pods().is_empty() {
                changes.next().await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.expect("all pods end");
        self.stop.cancel();
        let report = self.task.join_next().await.unwrap().unwrap().unwrap();
        assert!(report.in_flight.is_empty(), "{report:?}");
        let _ = node;
    }
}

/// A pod of the default namespace.
pub(crate) fn pod(name: &str, spec: Value) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}")},
        "spec": spec,
    }))
    .unwrap();
    let spec = pod.spec.as_mut().unwrap();
    spec.termination_grace_period_seconds.get_or_insert(5);
    pod
}

/// A container that runs a script.
pub(crate) fn sh(name: &str, script: &str) -> Value {
    json!({"name": name, "image": BUSYBOX_IMAGE, "command": ["/bin/sh", "-c", script]})
}

/// The same with more fields.
pub(crate) fn with(mut container: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        container[key] = value.clone();
    }
    container
}

/// The status of a container of any kind.
pub(crate) fn container<'a>(
    statuses: &'a BTreeMap<String, PodStatus>,
    pod: &str,
    name: &str,
) -> Option<&'a ContainerStatus> {
    let status = statuses.get(pod)?;
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

pub(crate) fn is_running(statuses: &BTreeMap<String, PodStatus>, pod: &str, name: &str) -> bool {
    container(statuses, pod, name).is_some_and(|c| c.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// What a container waits for, if it does: reason and message.
pub(crate) fn waits_for(statuses: &BTreeMap<String, PodStatus>, pod: &str, name: &str) -> Option<(String, String)> {
    let waits = container(statuses, pod, name)?.state.as_ref()?.waiting.clone()?;
    Some((waits.reason.unwrap_or_default(), waits.message.unwrap_or_default()))
}

/// Makes a test of a function for each line of containerd.
macro_rules! on_both {
    ($($name:ident)*) => { $(
        mod $name {
            use kubelet_testing::{Containerd, PrivateContainerd};

            #[tokio::test(flavor = "multi_thread")]
            async fn containerd_1_6() {
                if let Some(containerd) = PrivateContainerd::start_or_skip(Containerd::V1_6, stringify!($name)).await {
                    super::$name(crate::node::Node::new(containerd)).await;
                }
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn containerd_2() {
                if let Some(containerd) = PrivateContainerd::start_or_skip(Containerd::V2, stringify!($name)).await {
                    super::$name(crate::node::Node::new(containerd)).await;
                }
            }
        }
    )* };
}
pub(crate) use on_both;
