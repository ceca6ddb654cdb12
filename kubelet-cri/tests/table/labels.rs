//! The labels and annotations that upstream writes, as a table, and one pod whose containers have each of them.
//!
//! Source: kubelet 1.36, `kuberuntime/labels.go`. Read over CRI alone, so that any runtime can be asked.

use std::collections::BTreeMap;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{ContainerResources, PodUid};
use kubelet_proto::cri::{runtime_client, v1};
use kubelet_proto::tonic::transport::Channel;
use kubelet_testing::FakeAllocator;
use serde_json::{Value, json};

pub(crate) type Map = BTreeMap<String, String>;

/// The name of the pod.
pub(crate) const POD: &str = "marked";
/// Its container that ends again and again.
pub(crate) const CRASHES: &str = "crash";
const UID: &str = "uid-of-marked";
const ALL_ELSE: [&str; 3] = ["prep", "app", "bare"];

pub(crate) fn map<const N: usize>(pairs: [(&str, &str); N]) -> Map {
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into_iter()
        .collect()
}

/// The hash that upstream gives a container: see `container_hash` in the spec.
pub(crate) fn hash(name: &str, image: &str) -> String {
    let json = format!("{{\"image\":\"{image}\",\"name\":\"{name}\"}}");
    let bytes: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    let text = format!("([]uint8)[{}]", bytes.join(" "));
    let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!("{:x}", text.bytes().fold(0x811c_9dc5, fold))
}

fn hook() -> Value {
    json!({"exec": {"command": ["sh", "-c", "echo '<bye>' & true"]}})
}

fn ports() -> Value {
    json!([
        {"name": "http", "containerPort": 80, "protocol": "TCP"},
        {"name": "dns", "containerPort": 53, "protocol": "UDP"},
    ])
}

/// A pod of that image, which has a shell. Two of its labels are of the kubelet's own keys.
pub(crate) fn marked_pod(image: &str) -> Pod {
    let sh = |name: &str, script: &str| json!({"name": name, "image": image, "command": ["/bin/sh", "-c", script]});
    let forever = "trap 'exit 0' TERM; while :; do sleep 1; done";
    let mut app = sh("app", forever);
    app["terminationMessagePath"] = json!("/tmp/said");
    app["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    app["ports"] = ports();
    app["lifecycle"] = json!({"preStop": hook()});
    let mut pod: Value = json!({
        "metadata": {
            "name": POD, "namespace": "default", "uid": UID, "deletionGracePeriodSeconds": 9,
            "labels": {"app.example/kind": "web", "io.kubernetes.pod.name": "other", "io.kubernetes.pod.uid": "other"},
            "annotations": {"example.com/team": "edge", "text": "two\nlines <&> \"quoted\""},
        },
        "spec": {"terminationGracePeriodSeconds": 7, "initContainers": [sh("prep", "exit 0")]},
    });
    pod["spec"]["containers"] = json!([app, sh("bare", forever), sh(CRASHES, "exit 3")]);
    serde_json::from_value(pod).unwrap()
}

/// What gives annotations to the container `app`; one has a key of the kubelet's own.
pub(crate) fn allocator() -> FakeAllocator {
    let mut given = ContainerResources::default();
    given.annotations = map([
        ("devices.example/claim", "claim-7"),
        ("io.kubernetes.container.restartCount", "99"),
    ]);
    let allocator = FakeAllocator::default();
    allocator.give(&PodUid::from(UID), "app", given);
    allocator
}

fn identity() -> Map {
    map([
        ("io.kubernetes.pod.name", POD),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", UID),
    ])
}

/// What a container of [`marked_pod`] has, as the table says.
fn of_container(name: &str, image: &str, restarts: u32) -> (Map, Map) {
    let mut labels = identity();
    labels.insert("io.kubernetes.container.name".to_owned(), name.to_owned());
    let mut annotations = map([
        ("io.kubernetes.container.hash", &hash(name, image)),
        ("io.kubernetes.container.restartCount", &restarts.to_string()),
        ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
        ("io.kubernetes.container.terminationMessagePolicy", "File"),
        ("io.kubernetes.pod.deletionGracePeriod", "9"),
        ("io.kubernetes.pod.terminationGracePeriod", "7"),
    ]);
    if name == "app" {
        annotations.extend(map([
            ("devices.example/claim", "claim-7"),
            ("io.kubernetes.container.terminationMessagePath", "/tmp/said"),
            (
                "io.kubernetes.container.terminationMessagePolicy",
                "FallbackToLogsOnError",
            ),
            ("io.kubernetes.container.preStopHandler", &hook().to_string()),
            ("io.kubernetes.container.ports", &ports().to_string()),
        ]));
    }
    (labels, annotations)
}

fn same_sandbox(what: &str, labels: &Map, annotations: &Map) {
    let mut wanted = identity();
    wanted.insert("app.example/kind".to_owned(), "web".to_owned());
    assert_eq!(*labels, wanted, "{what}");
    let mut annotations = annotations.clone();
    let seen = annotations.remove("kubernetes.io/config.seen");
    assert!(seen.is_some_and(|time| time.contains('T')), "{what}");
    let wanted = map([
        ("kubernetes.io/config.source", "api"),
        ("example.com/team", "edge"),
        ("text", "two\nlines <&> \"quoted\""),
    ]);
    assert_eq!(annotations, wanted, "{what}");
}

fn same_container(what: &str, image: &str, metadata: Option<&v1::ContainerMetadata>, labels: &Map, said: &Map) {
    let metadata = metadata.unwrap();
    let name = metadata.name.as_str();
    let (wanted_labels, wanted) = of_container(name, image, metadata.attempt);
    assert_eq!(*labels, wanted_labels, "{what} of {name}");
    let mut said = said.clone();
    // What this kubelet adds to find a message again.
    said.retain(|key, _| !key.starts_with("io.kubelet-sdk."));
    let keys = |map: &Map| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&said), keys(&wanted), "{what} of {name}");
    for (key, value) in &wanted {
        // The order of fields in JSON is nobody's business.
        let is_json = |json: &Value| json.is_object() || json.is_array();
        let parse = |text: &str| serde_json::from_str::<Value>(text).ok().filter(is_json);
        let is_same = match parse(value) {
            Some(json) => parse(&said[key]) == Some(json) && said[key].len() == value.len(),
            None => said[key] == *value,
        };
        assert!(is_same, "{what} of {name}: {key} is {}, not {value}", said[key]);
    }
}

/// Asks a runtime that runs [`marked_pod`], once [`CRASHES`] was started again, what everything has.
pub(crate) async fn check(channel: Channel, image: &str) {
    let mut client = runtime_client(channel);
    let sandboxes = client.list_pod_sandbox(v1::ListPodSandboxRequest::default());
    let sandboxes = sandboxes.await.unwrap().into_inner().items;
    let [sandbox] = &sandboxes[..] else {
        panic!("{sandboxes:?}")
    };
    same_sandbox("the list", &sandbox.labels, &sandbox.annotations);
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: sandbox.id.clone(),
        ..v1::PodSandboxStatusRequest::default()
    };
    let status = client.pod_sandbox_status(request).await.unwrap().into_inner();
    let status = status.status.unwrap();
    same_sandbox("the status", &status.labels, &status.annotations);
    let metadata = status.metadata.unwrap();
    let named = [&metadata.name, &metadata.namespace, &metadata.uid].map(String::as_str);
    assert_eq!((named, metadata.attempt), ([POD, "default", UID], 0));

    let list = client.list_containers(v1::ListContainersRequest::default());
    let list = list.await.unwrap().into_inner().containers;
    for container in &list {
        let metadata = container.metadata.as_ref();
        same_container("the list", image, metadata, &container.labels, &container.annotations);
    }
    let of_name = |name: &str| {
        list.iter()
            .filter(move |c| c.metadata.as_ref().is_some_and(|metadata| metadata.name == name))
            .collect::<Vec<_>>()
    };
    let restarted = of_name(CRASHES);
    let attempt = |c: &&v1::Container| c.metadata.as_ref().map(|metadata| metadata.attempt);
    assert!(restarted.iter().filter_map(attempt).max() >= Some(1), "{restarted:?}");
    for name in ALL_ELSE {
        let [container] = of_name(name)[..] else {
            panic!("{list:?}")
        };
        // Those that end again and again may be gone before they are asked about.
        let request = v1::ContainerStatusRequest {
            container_id: container.id.clone(),
            verbose: false,
        };
        let status = client.container_status(request).await.unwrap().into_inner();
        let status = status.status.unwrap();
        let metadata = status.metadata.as_ref();
        same_container("the status", image, metadata, &status.labels, &status.annotations);
    }
    assert_eq!(restarted.len() + ALL_ELSE.len(), list.len(), "{list:?}");
}
