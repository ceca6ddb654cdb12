//! Volumes that are images.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ImageVolumeSource, Volume, VolumeMount};
use kubelet_core::k8s_openapi::api::node::v1::RuntimeClass;
use kubelet_core::{
    ContainerConfig, Freshness, ImageGcPolicy, ImageMounts, ImageSpace, MapObjects, Object, ObjectError, ObjectKey,
    ObjectKind, ObjectQuery, ObjectSource, ObjectWatch, RuntimeInfo, StateDir, async_trait,
};
use kubelet_testing::{Call, ContainerBuilder, FakeImage, FakeRuntime, Op, PodBuilder};

use super::harness::Node;
use super::images::{pull_secret, pullers};

const MODEL: &str = "reg.example/team/model:1";

fn volume(name: &str, reference: &str, policy: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        image: Some(ImageVolumeSource {
            reference: Some(reference.to_owned()),
            pull_policy: Some(policy.to_owned()),
        }),
        ..Volume::default()
    }
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

fn mounting(container: ContainerBuilder, mounts: Vec<VolumeMount>) -> ContainerBuilder {
    container
        .image("reg.example/app:1")
        .with(|container| container.volume_mounts = Some(mounts))
}

/// A pod whose container `reader` mounts the model, beside another that does not.
fn pod(policy: &str) -> PodBuilder {
    let volumes = vec![volume("model", MODEL, policy)];
    PodBuilder::new("p")
        .container("other", |c| c.image("reg.example/app:1"))
        .container("reader", |c| mounting(c, vec![mount("model", "/model")]))
        .spec(|spec| spec.volumes = Some(volumes))
}

fn config(runtime: &FakeRuntime, name: &str) -> std::sync::Arc<ContainerConfig> {
    let found = runtime.containers().into_iter().find(|c| c.name == name).unwrap();
    runtime.container_config(&found.id).unwrap()
}

fn position(calls: &[Call], is_it: impl Fn(&Call) -> bool) -> usize {
    calls.iter().position(is_it).unwrap()
}

fn runs(node: &Node, container: &str) -> bool {
    node.container("p", container)
        .is_some_and(|c| c.state.is_some_and(|state| state.running.is_some()))
}

#[tokio::test(start_paused = true)]
async fn an_image_volume_is_there_before_the_containers_and_mounted_by_its_id() {
    let runtime = FakeRuntime::builder().without_events().build();
    runtime.set_image(MODEL, FakeImage::new().private("me", "hunter2"));
    let objects = MapObjects::new();
    objects.set(pull_secret("registry", "me", "hunter2"));
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(objects));
    let mut part = mount("model", "texts");
    part.sub_path_expr = Some("texts/$(LANGUAGE)".to_owned());
    part.read_only = Some(true);
    part.recursive_read_only = Some("IfPossible".to_owned());
    let wanted = pod("IfNotPresent")
        .annotation("example.com/key", "value")
        .container("partial", |c| mounting(c, vec![part]).env("LANGUAGE", "en"))
        .spec(|spec| spec.image_pull_secrets = Some(vec![Default::default()]))
        .spec(|spec| spec.image_pull_secrets.as_mut().unwrap()[0].name = "registry".to_owned());
    node.pods.set(vec![wanted.build()]).await.unwrap();
    node.running("p").await;
    let of_model = |call: &Call| call.op == Op::Pull && call.subject.image.as_deref() == Some(MODEL);
    let calls = runtime.calls();
    assert!(position(&calls, of_model) < position(&calls, |call| call.op == Op::CreateContainer));
    assert_eq!(calls.iter().filter(|call| of_model(call)).count(), 1);
    assert!(pullers(&runtime).contains(&Some("me".to_owned())));
    let id = runtime.images().into_iter().find(|i| i.tags == [MODEL]).unwrap().id;
    for (container, path, sub_path) in [("reader", "/model", ""), ("partial", "/texts", "texts/en")] {
        let config = config(&runtime, container);
        let made = &config.mounts[0];
        let image = made.image.as_ref().unwrap();
        assert_eq!((made.container_path.as_str(), made.read_only), (path, true));
        assert_eq!(made.host_path, std::path::Path::new(""));
        assert_eq!(
            (image.image.name.as_str(), image.image.asked.as_str()),
            (id.as_str(), MODEL)
        );
        assert_eq!((image.sub_path.as_str(), image.handler.as_str()), (sub_path, ""));
        assert_eq!(image.annotations["example.com/key"], "value");
    }
    assert!(
        config(&runtime, "other")
            .mounts
            .iter()
            .all(|mount| mount.image.is_none())
    );
    let told = node.events.messages("Pulled");
    assert!(
        told.iter()
            .any(|text| text.starts_with(&format!("Successfully pulled image \"{MODEL}\""))),
        "{told:?}"
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_cannot_be_pulled_keeps_only_those_that_mount_it() {
    let runtime = FakeRuntime::builder().without_events().build();
    runtime.set_image(MODEL, FakeImage::refused("no such manifest"));
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![pod("IfNotPresent").build()]).await.unwrap();
    node.until("the other runs", |node| runs(node, "other")).await;
    for reason in ["ErrImagePull", "ImagePullBackOff"] {
        node.until(reason, |node| node.waits_for("p", "reader").as_deref() == Some(reason))
            .await;
    }
    let waiting = node.container("p", "reader").unwrap().state.unwrap().waiting.unwrap();
    assert_eq!(
        waiting.message.unwrap(),
        format!("volume \"model\": Back-off pulling image \"{MODEL}\": ErrImagePull: no such manifest")
    );
    assert!(
        node.events
            .messages("Failed")
            .contains(&"Error: ErrImagePull".to_owned())
    );
    assert_eq!(node.events.count("BackOff"), 1);
    assert_eq!(runtime.containers().len(), 1);
    runtime.set_image(MODEL, FakeImage::new());
    node.running("p").await;
    node.until("both run", |node| runs(node, "reader")).await;
    assert_eq!(node.restarts("p", "other"), Some(0));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_has_a_pull_policy_of_its_own() {
    let runtime = FakeRuntime::builder().without_events().build();
    let node = Node::start(&runtime, StateDir::in_memory());
    let volumes = vec![
        volume("model", MODEL, "Never"),
        volume("odd", "Reg/UPPER", "IfNotPresent"),
    ];
    let pod = pod("Never")
        .container("odd", |c| mounting(c, vec![mount("odd", "/odd")]))
        .spec(|spec| spec.volumes = Some(volumes));
    node.pods.set(vec![pod.build()]).await.unwrap();
    for (container, reason) in [("reader", "ErrImageNeverPull"), ("odd", "InvalidImageName")] {
        node.until(reason, |node| node.waits_for("p", container).as_deref() == Some(reason))
            .await;
    }
    node.until("the other runs", |node| runs(node, "other")).await;
    assert_eq!(pullers(&runtime).len(), 1, "only that of the container");
    node.stop().await;
}

/// Each restart looks at them anew, but none that is put off does.
#[tokio::test(start_paused = true)]
async fn a_container_that_is_held_back_has_nothing_pulled() {
    let runtime = FakeRuntime::builder().without_events().build();
    let node = Node::start(&runtime, StateDir::in_memory());
    let volumes = vec![volume("model", MODEL, "Always")];
    let pod = PodBuilder::new("p")
        .container("reader", |c| {
            mounting(c, vec![mount("model", "/model")]).args(["exit=1"])
        })
        .spec(|spec| spec.volumes = Some(volumes));
    node.pods.set(vec![pod.build()]).await.unwrap();
    node.until("five ends", |node| node.restarts("p", "reader") == Some(4))
        .await;
    let pulls = |call: &Call| call.op == Op::Pull && call.subject.image.as_deref() == Some(MODEL);
    assert_eq!(runtime.calls().iter().filter(|call| pulls(call)).count(), 5);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_part_that_leads_outside_is_no_config() {
    let runtime = FakeRuntime::builder().without_events().build();
    let node = Node::start(&runtime, StateDir::in_memory());
    let mut part = mount("model", "/model");
    part.sub_path_expr = Some("$(WHERE)".to_owned());
    let pod = pod("IfNotPresent").container("partial", |c| mounting(c, vec![part]).env("WHERE", "../etc"));
    node.pods.set(vec![pod.build()]).await.unwrap();
    node.until("refused", |node| {
        node.waits_for("p", "partial").as_deref() == Some("CreateContainerConfigError")
    })
    .await;
    let waiting = node.container("p", "partial").unwrap().state.unwrap().waiting.unwrap();
    assert_eq!(
        waiting.message.unwrap(),
        "volume \"model\": what subPathExpr \"$(WHERE)\" becomes must not contain \"..\""
    );
    node.until("the others run", |node| runs(node, "reader") && runs(node, "other"))
        .await;
    node.stop().await;
}

/// Counts how often a runtime class is looked up.
#[derive(Debug, Default)]
struct Classes {
    objects: MapObjects,
    asked: AtomicUsize,
}

#[async_trait]
impl ObjectSource for Classes {
    fn serves(&self, kind: ObjectKind) -> bool {
        self.objects.serves(kind)
    }
    fn is_local(&self) -> bool {
        self.objects.is_local()
    }
    async fn get(&self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError> {
        if key.kind == ObjectKind::RuntimeClass {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        self.objects.get(key, want).await
    }
    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        self.objects.list(query).await
    }
    fn watch(&self, key: &ObjectKey) -> ObjectWatch {
        self.objects.watch(key)
    }
}

#[tokio::test(start_paused = true)]
async fn the_runtime_class_is_looked_up_once_for_all_volumes_and_its_lack_is_told() {
    let runtime = FakeRuntime::builder().without_events().build();
    let classes = Arc::new(Classes::default());
    let mut class = RuntimeClass::default();
    class.metadata.name = Some("special".to_owned());
    class.handler = "vm".to_owned();
    classes.objects.set(class);
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(classes.clone()));
    let mounts = vec![mount("model", "/model"), mount("texts", "/texts")];
    let volumes = vec![
        volume("model", MODEL, "IfNotPresent"),
        volume("texts", "reg.example/team/texts:1", "IfNotPresent"),
    ];
    let pod = PodBuilder::new("p")
        .container("reader", |c| mounting(c, mounts))
        .spec(|spec| {
            spec.volumes = Some(volumes);
            spec.runtime_class_name = Some("special".to_owned());
        });
    node.pods.set(vec![pod.build()]).await.unwrap();
    node.until("it runs", |node| runs(node, "reader")).await;
    // Once for the sandbox.
    assert_eq!(classes.asked.load(Ordering::SeqCst), 2);
    let mounts = &config(&runtime, "reader").mounts;
    let handlers: Vec<_> = mounts.iter().filter_map(|mount| mount.image.as_ref()).collect();
    assert_eq!(handlers.len(), 2);
    assert!(handlers.iter().all(|image| image.handler == "vm"));

    classes
        .objects
        .remove(&ObjectKey::new(ObjectKind::RuntimeClass, "", "special"));
    let id = runtime.containers()[0].id.clone();
    runtime.kill_container(&id, 1);
    let lacks = "Error: volume \"model\": cannot look up the pod's runtime class: ";
    node.until("it is told", |node| {
        node.events
            .messages("Failed")
            .iter()
            .any(|text| text.starts_with(lacks))
    })
    .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_mounts_no_images_gets_no_pod_with_them() {
    for (can, phase) in [
        (ImageMounts::No, "Failed"),
        (ImageMounts::Whole, "Failed"),
        (ImageMounts::SubPaths, "Running"),
    ] {
        let runtime = FakeRuntime::builder().without_events().build();
        let mut info = RuntimeInfo::new("fake", "1.0.0");
        info.image_mounts = can;
        runtime.set_info(info);
        let node = Node::start(&runtime, StateDir::in_memory());
        let mut part = mount("model", "/model");
        part.sub_path = Some("texts".to_owned());
        let pod = pod("IfNotPresent").container("partial", |c| mounting(c, vec![part]));
        node.pods.set(vec![pod.build()]).await.unwrap();
        node.until(phase, |node| node.phase("p").as_deref() == Some(phase))
            .await;
        let status = node.status("p").unwrap();
        if phase == "Failed" {
            assert_eq!(status.reason.as_deref(), Some("PartMissing"));
            let message = status.message.clone().unwrap();
            assert!(
                message.contains("(\"model\"), and this node has no runtime that mounts"),
                "{message}"
            );
            assert!(runtime.sandboxes().is_empty());
        }
        node.stop().await;
    }
}

/// Also once nobody names it any more: the container that has it mounted is still there.
#[tokio::test(start_paused = true)]
async fn the_image_of_a_volume_is_in_use() {
    let runtime = FakeRuntime::builder().all_images_present().build();
    runtime.set_image_space(Some(ImageSpace::new(100 << 30, 50 << 30)));
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| {
        b.image_gc(ImageGcPolicy::default())
    });
    let has = |name: &str| runtime.images().iter().any(|image| image.tags == [name]);
    let late = PodBuilder::new("late")
        .init("first", |c| c.image("reg.example/app:1").args(["run-for=3600s"]))
        .container("reader", |c| mounting(c, vec![mount("later", "/later")]))
        .spec(|spec| spec.volumes = Some(vec![volume("later", "reg.example/later:1", "IfNotPresent")]));
    runtime.add_image(image("reg.example/later:1"));
    runtime.add_image(image("reg.example/unused:1"));
    node.pods
        .set(vec![pod("IfNotPresent").build(), late.build()])
        .await
        .unwrap();
    node.until("both run", |node| runs(node, "reader")).await;
    let id = runtime.images().into_iter().find(|i| i.tags == [MODEL]).unwrap().id;
    let reader = runtime.containers().into_iter().find(|c| c.name == "reader").unwrap();
    assert_eq!(reader.mounted_images, [id.to_string()]);
    runtime.set_image_space(Some(ImageSpace::new(100 << 30, 1 << 30)));
    node.until("the unused one is gone", |_| !has("reg.example/unused:1"))
        .await;
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert!(has(MODEL) && has("reg.example/later:1") && has("reg.example/app:1"));
    node.stop().await;
}

fn image(name: &str) -> kubelet_core::ImageRecord {
    let mut image = kubelet_core::ImageRecord::new(format!("sha256:{name}").into());
    image.tags.push(name.to_owned());
    image.size_bytes = 1 << 20;
    image
}
