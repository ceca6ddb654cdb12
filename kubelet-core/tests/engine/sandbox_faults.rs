//! What keeps a sandbox from being made, beside the runtime.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::k8s_openapi::api::node::v1::RuntimeClass;
use kubelet_core::{MapObjects, StateDir};
use kubelet_testing::{FakeRuntime, PodBuilder};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;

fn class(name: &str, handler: &str) -> RuntimeClass {
    let mut class = RuntimeClass::default();
    class.metadata.name = Some(name.to_owned());
    class.handler = handler.to_owned();
    class
}

fn of_class(name: &str, class: Option<&str>) -> Pod {
    PodBuilder::new(name)
        .uid(name)
        .container("app", |c| c)
        .spec(|spec| spec.runtime_class_name = class.map(str::to_owned))
        .build()
}

fn handler_of(runtime: &FakeRuntime, uid: &str) -> Option<String> {
    let sandboxes = runtime.sandboxes();
    let sandbox = sandboxes.into_iter().find(|s| s.pod_uid.as_str() == uid)?;
    Some(sandbox.handler)
}

#[tokio::test(start_paused = true)]
async fn a_runtime_class_chooses_the_handler_once_it_exists() {
    let runtime = fake();
    let objects = MapObjects::new();
    objects.set(class("sandboxed", "kata"));
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(objects.clone()));
    let pods = [("plain", None), ("kata", Some("sandboxed")), ("late", Some("late"))];
    let pods = pods.map(|(name, class)| of_class(name, class));
    node.pods.set(pods.to_vec()).await.unwrap();
    node.running("plain").await;
    node.running("kata").await;
    assert_eq!(handler_of(&runtime, "plain").as_deref(), Some(""));
    assert_eq!(handler_of(&runtime, "kata").as_deref(), Some("kata"));
    node.until("the pod says what it waits for", |node| {
        node.waits_for("late", "app").as_deref() == Some("CreatePodSandboxError")
    })
    .await;
    let told = node.events.messages("FailedCreatePodSandBox");
    assert!(told[0].ends_with(r#"runtimeclass "late" not found"#), "{told:?}");
    assert_eq!(node.phase("late").as_deref(), Some("Pending"));
    objects.set(class("late", "gvisor"));
    node.running("late").await;
    assert_eq!(handler_of(&runtime, "late").as_deref(), Some("gvisor"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_source_of_classes_the_pod_is_refused() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![of_class("kata", Some("sandboxed"))]).await.unwrap();
    node.until("refused", |node| node.phase("kata").as_deref() == Some("Failed"))
        .await;
    let status = node.status("kata").unwrap();
    assert_eq!(status.reason.as_deref(), Some("PartMissing"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_no_kernel_takes_is_told_and_the_pod_waits() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.cluster_domain("cluster.local"));
    let pod = PodBuilder::new("web")
        .uid("web")
        .container("app", |c| c)
        .spec(|spec| {
            spec.hostname = Some("h".repeat(40));
            spec.subdomain = Some("s".repeat(20));
            spec.set_hostname_as_fqdn = Some(true);
        })
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("the pod says what it waits for", |node| {
        node.waits_for("web", "app").as_deref() == Some("CreatePodSandboxError")
    })
    .await;
    let told = node.events.messages("FailedCreatePodSandBox");
    assert!(told[0].contains("longer than 64 characters"), "{told:?}");
    sleep(Duration::from_secs(60)).await;
    assert!(runtime.sandboxes().is_empty());
    assert_eq!(node.phase("web").as_deref(), Some("Pending"));
    node.stop().await;
}
