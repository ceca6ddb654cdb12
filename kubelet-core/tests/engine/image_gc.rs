//! Which images go when the disk fills or they are old, and which must not.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ImageVolumeSource, Volume};
use kubelet_core::{
    Backend, ContainerConfig, ContainerRuntime, Containers, CreateContainer, ImageFilesystems, ImageGcPolicy, ImageId,
    ImageRecord, ImageRef, ImageService, ImageSpace, MetricValue, PodKey, PodUid, PullProgress, PullRequest,
    RuntimeError, RuntimeParts, SandboxConfig, StateDir, async_trait,
};
use kubelet_pleg::GenericPleg;
use kubelet_testing::{Action, FakeRuntime, FaultKind, Op, PodBuilder, Script};
use tokio::time::sleep;

use super::harness::Node;

const MINUTE: Duration = Duration::from_secs(60);
const GIB: u64 = 1 << 30;

fn image(name: &str, gib: u64) -> ImageRecord {
    let mut image = ImageRecord::new(ImageId::from(format!("sha256:{name}")));
    image.tags.push(format!("registry.example/{name}:1"));
    image.size_bytes = gib * GIB;
    image
}

/// The names of the images that are left.
fn left(runtime: &FakeRuntime) -> Vec<String> {
    let ids = runtime.images().into_iter().map(|image| image.id.to_string());
    ids.map(|id| id.trim_start_matches("sha256:").to_owned()).collect()
}

/// A disk of 100 GiB with so many left.
fn space(gib: u64) -> Option<ImageSpace> {
    Some(ImageSpace::new(100 * GIB, gib * GIB))
}

fn with_images(images: &[(&str, u64)]) -> FakeRuntime {
    let runtime = FakeRuntime::new();
    for (name, gib) in images {
        runtime.add_image(image(name, *gib));
    }
    runtime
}

fn pod(name: &str, image: &str) -> PodBuilder {
    PodBuilder::new(name).container("app", |c| c.image(format!("registry.example/{image}:1")))
}

fn start(runtime: &FakeRuntime, policy: ImageGcPolicy) -> Node {
    let backend: Backend = Containers::new(runtime.clone(), GenericPleg::default()).into();
    Node::start_backend(backend, StateDir::in_memory(), |builder| builder.image_gc(policy))
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_loses_the_longest_unused_images_until_there_is_room() {
    let runtime = with_images(&[
        ("used", 9),
        ("a-never-1", 2),
        ("a-never-2", 2),
        ("once", 3),
        ("pinned", 9),
    ]);
    let mut pinned = image("pinned", 9);
    pinned.pinned = true;
    runtime.add_image(pinned);
    runtime.set_image_space(space(50));
    let node = start(&runtime, ImageGcPolicy::default());
    node.pods
        .set(vec![pod("p", "used").build(), pod("q", "once").build()])
        .await
        .unwrap();
    node.running("q").await;
    sleep(6 * MINUTE).await;
    node.pods.set(vec![pod("p", "used").build()]).await.unwrap();
    node.until("gone", |_| runtime.containers().len() == 1).await;
    // 84 % is fine.
    runtime.set_image_space(space(16));
    sleep(6 * MINUTE).await;
    assert_eq!(left(&runtime).len(), 5);
    // At 86 % six percent have to go: those that were never used are not enough.
    runtime.set_image_space(space(14));
    node.until("one more than those never used", |_| left(&runtime).len() == 2)
        .await;
    assert_eq!(left(&runtime), ["pinned", "used"]);
    runtime.set_image_space(space(21));
    let metrics = node.handle.metrics();
    let mut removed = metrics
        .samples()
        .iter()
        .filter(|sample| sample.name == "kubelet_image_garbage_collected_total")
        .map(|sample| (sample.labels.clone(), sample.value.clone()));
    assert!(removed.any(|(labels, value)| format!("{labels:?}").contains("space") && value == MetricValue::Counter(3)));
    assert_eq!(node.events.count("FreeDiskSpaceFailed"), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_more_goes_than_has_to() {
    let runtime = with_images(&[("a", 4), ("b", 4), ("c", 4)]);
    runtime.set_image_space(space(14));
    let node = start(&runtime, ImageGcPolicy::default());
    node.pods.set(Vec::new()).await.unwrap();
    node.until("enough is gone", |_| left(&runtime).len() == 1).await;
    assert_eq!(left(&runtime), ["c"]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_there_is_room_nothing_is_asked() {
    let runtime = with_images(&[("a", 4)]);
    let node = start(&runtime, ImageGcPolicy::default());
    node.pods.set(vec![pod("p", "a").build()]).await.unwrap();
    node.running("p").await;
    let asked = |runtime: &FakeRuntime| {
        [Op::ListImages, Op::ImageStatus, Op::Filesystems, Op::RemoveImage].map(|op| runtime.count(op))
    };
    let before = asked(&runtime);
    sleep(60 * MINUTE).await;
    assert_eq!(asked(&runtime), before);
    node.stop().await;
}

/// However many images are in use: only names that are used no longer are a reason to look at the list.
#[tokio::test(start_paused = true)]
async fn while_there_is_room_nothing_is_asked_on_a_node_of_many_images() {
    let runtime = FakeRuntime::builder().all_images_present().build();
    let node = start(&runtime, ImageGcPolicy::default());
    let pods = (0..600).map(|number| pod(&format!("p{number}"), &format!("image-{number}")).build());
    node.pods.set(pods.collect()).await.unwrap();
    node.until("all run", |node| node.phase("p599").as_deref() == Some("Running"))
        .await;
    sleep(MINUTE).await;
    let before = runtime.count(Op::ListImages);
    sleep(60 * MINUTE).await;
    assert_eq!(runtime.count(Op::ListImages), before);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_a_pod_names_stays_although_no_container_has_it_yet() {
    let runtime = with_images(&[("init", 4), ("later", 4), ("unused", 1)]);
    runtime.set_image_space(space(10));
    let node = start(&runtime, ImageGcPolicy::default());
    let waits = pod("p", "later").init("first", |c| c.image("registry.example/init:1").args(["run-for=3600s"]));
    node.pods.set(vec![waits.build()]).await.unwrap();
    node.until("the unused one is gone", |_| left(&runtime) == ["init", "later"])
        .await;
    sleep(20 * MINUTE).await;
    assert_eq!(left(&runtime), ["init", "later"]);
    // That is said, since nothing else can go; a second failure in a row is one of the collector.
    assert!(node.events.count("FreeDiskSpaceFailed") > 1);
    let failed = node.events.messages("ImageGCFailed");
    assert_eq!(failed.len(), node.events.count("FreeDiskSpaceFailed") - 1);
    assert!(failed[0].contains("90 % full"), "{failed:?}");
    // Once the pod has gone they may go too.
    node.pods.set(Vec::new()).await.unwrap();
    node.until("all gone", |_| left(&runtime).is_empty()).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn images_that_have_just_come_stay_for_a_while() {
    let runtime = with_images(&[("old", 1)]);
    runtime.set_image_space(space(10));
    let node = start(&runtime, ImageGcPolicy::default());
    node.pods.set(Vec::new()).await.unwrap();
    sleep(5 * MINUTE - Duration::from_secs(1)).await;
    runtime.add_image(image("new", 1));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(left(&runtime), ["new"]);
    // It is seen at the first pass; the next one comes as soon as it may go.
    sleep(2 * MINUTE).await;
    assert_eq!(left(&runtime), [] as [&str; 0]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_while_it_is_not_known_what_is_used() {
    let runtime = with_images(&[("used", 4), ("a", 4)]);
    let node = start(&runtime, ImageGcPolicy::default());
    node.pods.set(vec![pod("p", "used").build()]).await.unwrap();
    node.running("p").await;
    // The pod leaves, its container stays, and nobody can look at it.
    runtime.script(Script::next(Op::ContainerStatus, Action::Fault(FaultKind::Unavailable)).times(100_000));
    let id = runtime.containers()[0].id.clone();
    runtime.kill_container(&id, 1);
    runtime.set_image_space(space(5));
    sleep(20 * MINUTE).await;
    assert_eq!(left(&runtime), ["a", "used"]);
    node.kill().await;
}

#[tokio::test(start_paused = true)]
async fn one_image_that_cannot_be_removed_holds_up_no_other() {
    let runtime = with_images(&[("a", 4), ("b", 4), ("c", 4)]);
    runtime.set_image_space(space(14));
    runtime.script(Script::next(Op::RemoveImage, Action::Fault(FaultKind::Unavailable)));
    let node = start(&runtime, ImageGcPolicy::default());
    node.pods.set(Vec::new()).await.unwrap();
    node.until("two are gone", |_| left(&runtime).len() == 1).await;
    assert_eq!(left(&runtime), ["a"]);
    // A first failure may be a hiccup.
    assert_eq!(node.events.count("ImageGCFailed"), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn images_that_are_too_old_go_whatever_room_there_is() {
    let runtime = with_images(&[("used", 4), ("unused", 4)]);
    runtime.set_image_space(space(90));
    let mut policy = ImageGcPolicy::default();
    policy.max_age = Some(60 * MINUTE);
    let node = start(&runtime, policy);
    node.pods.set(vec![pod("p", "used").build()]).await.unwrap();
    sleep(59 * MINUTE).await;
    assert_eq!(left(&runtime), ["unused", "used"]);
    sleep(10 * MINUTE).await;
    assert_eq!(left(&runtime), ["used"]);
    node.pods.set(Vec::new()).await.unwrap();
    sleep(59 * MINUTE).await;
    assert_eq!(left(&runtime), ["used"]);
    sleep(15 * MINUTE).await;
    assert_eq!(left(&runtime), [] as [&str; 0]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_may_use_an_image_is_forgotten_with_it() {
    let state = StateDir::in_memory();
    let runtime = FakeRuntime::new();
    runtime.set_image_space(space(50));
    let backend: Backend = Containers::new(runtime.clone(), GenericPleg::default()).into();
    let node = Node::start_backend(backend, state.clone(), |builder| builder);
    let pulled = [pod("p", "kept").build(), pod("q", "removed").build()];
    node.pods.set(pulled.to_vec()).await.unwrap();
    node.running("p").await;
    node.running("q").await;
    assert_eq!(state.list("image_manager/pulled").await.unwrap().len(), 2);
    node.pods.set(vec![pulled[0].clone()]).await.unwrap();
    sleep(6 * MINUTE).await;
    runtime.set_image_space(space(10));
    node.until("one is gone", |_| runtime.images().len() == 1).await;
    sleep(MINUTE).await;
    assert_eq!(state.list("image_manager/pulled").await.unwrap().len(), 1);
    node.stop().await;
}

/// Answers to no name that no image can have.
#[derive(Debug)]
struct Curt(FakeRuntime);

#[async_trait]
impl ImageService for Curt {
    async fn status(&self, image: &ImageRef, handler: &str) -> Result<Option<ImageRecord>, RuntimeError> {
        let answer = self.0.status(image, handler).await;
        answer.map_err(|error| match error {
            RuntimeError::Refused { message, .. } => RuntimeError::unavailable("image_status", message),
            other => other,
        })
    }
    async fn list(&self) -> Result<Vec<ImageRecord>, RuntimeError> {
        ImageService::list(&self.0).await
    }
    async fn pull(&self, req: PullRequest<'_>, progress: &dyn PullProgress) -> Result<ImageId, RuntimeError> {
        self.0.pull(req, progress).await
    }
    async fn remove(&self, id: &ImageId) -> Result<(), RuntimeError> {
        self.0.remove(id).await
    }
    async fn filesystems(&self) -> Result<ImageFilesystems, RuntimeError> {
        self.0.filesystems().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_none_holds_up_no_removal() {
    for name in ["Bad Name", ""] {
        let runtime = with_images(&[("used", 4), ("unused", 4)]);
        runtime.set_image_space(space(5));
        let parts = RuntimeParts::new(Arc::new(runtime.clone()), Arc::new(Curt(runtime.clone())));
        let backend: Backend = Containers::new(parts, GenericPleg::default()).into();
        let node = Node::start_backend(backend, StateDir::in_memory(), |builder| {
            builder.image_gc(ImageGcPolicy::default())
        });
        let volume = Volume {
            name: "bad".to_owned(),
            image: Some(ImageVolumeSource {
                reference: Some(name.to_owned()),
                pull_policy: None,
            }),
            ..Volume::default()
        };
        let bad = pod("p", "used").spec(|spec| spec.volumes = Some(vec![volume]));
        node.pods.set(vec![bad.build()]).await.unwrap();
        node.until("the unused one is gone", |_| left(&runtime) == ["used"])
            .await;
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_containers_of_others_use_is_not_unused() {
    let runtime = with_images(&[("used", 4), ("others", 4), ("unused", 4)]);
    runtime.set_image_space(space(5));
    let sandbox = SandboxConfig::new(PodUid::from("foreign"), PodKey::new("elsewhere", "foreign"), 0);
    let container = ContainerConfig::new("app", 0, ImageRef::new("registry.example/others:1"));
    let id = runtime.run_sandbox(&sandbox, "").await.unwrap();
    let request = CreateContainer::new(&id, &sandbox, &container);
    runtime.create_container(request).await.unwrap();
    // Nothing is removed while nobody can tell.
    runtime.script(Script::next(Op::ListContainers, Action::Fault(FaultKind::Unavailable)).times(3));
    let node = start(&runtime, ImageGcPolicy::default());
    node.pods.set(vec![pod("p", "used").build()]).await.unwrap();
    node.until("the unused one is gone", |_| left(&runtime).len() < 3).await;
    sleep(10 * MINUTE).await;
    let mut left = left(&runtime);
    left.sort();
    assert_eq!(left, ["others", "used"]);
    node.stop().await;
}
