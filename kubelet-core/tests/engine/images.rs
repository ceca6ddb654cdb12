//! Images: credentials, pulls and why there is none.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::ByteString;
use kubelet_core::k8s_openapi::api::core::v1::{LocalObjectReference, Pod, Secret};
use kubelet_core::{
    ChannelSource, CredentialError, CredentialProvider, CredentialRequest, ImageRecord, ImageVerification, MapObjects,
    ProvidedCredential, RegistryAuth, Settings, SourceKind, StateDir, async_trait,
};
use kubelet_testing::{Call, FakeImage, FakeRuntime, Op, PodBuilder};

use super::harness::Node;

const IMAGE: &str = "reg.example/team/app:1";

pub(crate) fn secret(name: &str, kind: &str, field: &str, text: &str) -> Secret {
    let mut secret = Secret::default();
    secret.metadata.name = Some(name.to_owned());
    secret.metadata.namespace = Some("default".to_owned());
    secret.metadata.uid = Some(format!("uid-of-{name}"));
    secret.type_ = Some(kind.to_owned());
    secret.data = Some([(field.to_owned(), ByteString(text.as_bytes().to_vec()))].into());
    secret
}

/// A pull secret for `reg.example`.
pub(crate) fn pull_secret(name: &str, user: &str, password: &str) -> Secret {
    let text = format!(r#"{{"auths": {{"reg.example": {{"username": "{user}", "password": "{password}"}}}}}}"#);
    secret(name, "kubernetes.io/dockerconfigjson", ".dockerconfigjson", &text)
}

/// A pod with pull secrets.
pub(crate) fn pod(name: &str, policy: &str, secrets: &[&str]) -> Pod {
    let named = |name: &&str| LocalObjectReference {
        name: (*name).to_owned(),
    };
    let secrets: Vec<_> = secrets.iter().map(named).collect();
    PodBuilder::new(name)
        .container("app", |c| c.image(IMAGE).pull_policy(policy))
        .spec(|spec| spec.image_pull_secrets = Some(secrets))
        .build()
}

/// A runtime whose image takes `me` and `hunter2`.
pub(crate) fn private() -> FakeRuntime {
    let runtime = FakeRuntime::builder().without_events().build();
    runtime.set_image(IMAGE, FakeImage::new().private("me", "hunter2"));
    runtime
}

fn pulls(runtime: &FakeRuntime) -> Vec<Call> {
    let calls = runtime.calls().into_iter();
    calls.filter(|call| call.op == Op::Pull).collect()
}

pub(crate) fn pullers(runtime: &FakeRuntime) -> Vec<Option<String>> {
    pulls(runtime).into_iter().map(|call| call.subject.puller).collect()
}

fn some(names: &[&str]) -> Vec<Option<String>> {
    names.iter().map(|name| Some((*name).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_private_image_runs_once_its_secret_is_there() {
    let (runtime, objects) = (private(), Arc::new(MapObjects::new()));
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(objects.clone()));
    node.pods
        .set(vec![pod("app", "IfNotPresent", &["registry"])])
        .await
        .unwrap();
    node.until("refused", |node| {
        node.waits_for("app", "app").as_deref() == Some("ErrImagePull")
    })
    .await;
    node.until("held back", |node| {
        node.waits_for("app", "app").as_deref() == Some("ImagePullBackOff")
    })
    .await;
    assert_eq!(
        pullers(&runtime),
        [None],
        "a missing secret stops no pull: {:?} {:?}",
        runtime.calls(),
        node.events.reasons()
    );
    assert_eq!(
        node.events.messages("FailedToRetrieveImagePullSecret"),
        ["Unable to retrieve some image pull secrets (registry); attempting to pull the image may not succeed."]
    );
    let waiting = node.container("app", "app").unwrap().state.unwrap().waiting.unwrap();
    let message = waiting.message.unwrap();
    assert!(
        message.contains("401") && message.contains("pull secret \"registry\""),
        "{message}"
    );
    objects.set(pull_secret("registry", "me", "hunter2"));
    node.running("app").await;
    assert_eq!(pullers(&runtime).last().unwrap().as_deref(), Some("me"));
    assert_eq!(node.events.count("FailedToRetrieveImagePullSecret"), 1);
    assert!(!format!("{:?}", node.events).contains("hunter2"));
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_has_the_pull_secret_that_a_local_source_serves() {
    let (runtime, objects) = (private(), MapObjects::new());
    objects.set(pull_secret("registry", "me", "hunter2"));
    let (files, source) = ChannelSource::new("file");
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| {
        b.objects(objects).source(source.kind(SourceKind::Static))
    });
    files
        .set(vec![pod("app", "IfNotPresent", &["registry"])])
        .await
        .unwrap();
    node.running("app-node-1").await;
    assert_eq!(pullers(&runtime), some(&["me"]));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn credentials_are_tried_in_order_and_the_same_ones_once() {
    let (runtime, objects) = (private(), MapObjects::new());
    let cfg = r#"{"reg.example/team": {"username": "narrow"}, "reg.example": {"auth": "d2lkZTp4"}, "other.example": {"username": "x"}}"#;
    objects.set(secret("first", "kubernetes.io/dockercfg", ".dockercfg", cfg));
    objects.set(pull_secret("second", "wide", "x"));
    objects.set(pull_secret("third", "me", "hunter2"));
    objects.set(pull_secret("fourth", "never", "asked"));
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(objects));
    let secrets = ["first", "second", "third", "fourth"];
    node.pods.set(vec![pod("app", "Always", &secrets)]).await.unwrap();
    node.running("app").await;
    assert_eq!(pullers(&runtime), some(&["narrow", "wide", "me"]));
}

#[tokio::test(start_paused = true)]
async fn secrets_of_no_use_are_named_and_keep_no_other_from_being_used() {
    let (runtime, objects) = (private(), MapObjects::new());
    objects.set(secret(
        "broken",
        "kubernetes.io/dockerconfigjson",
        ".dockerconfigjson",
        "hunter2",
    ));
    objects.set(secret("opaque", "Opaque", "password", "hunter2"));
    objects.set(secret("empty", "kubernetes.io/dockercfg", "other", "hunter2"));
    objects.set(pull_secret("wrong", "you", "guess"));
    let objects = Arc::new(objects);
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(objects.clone()));
    let secrets = ["broken", "opaque", "empty", "wrong", "right"];
    node.pods.set(vec![pod("app", "IfNotPresent", &secrets)]).await.unwrap();
    node.until("refused", |node| {
        node.waits_for("app", "app").as_deref() == Some("ErrImagePull")
    })
    .await;
    let waiting = node.container("app", "app").unwrap().state.unwrap().waiting.unwrap();
    let message = waiting.message.unwrap();
    for part in [
        "\"broken\" is of no use: field \".dockerconfigjson\": not a docker configuration: no valid JSON at line 1",
        "\"opaque\" is of no use: its type \"Opaque\" is neither",
        "\"empty\" is of no use: it has no field \".dockercfg\"",
        "\"right\" is of no use: secret \"right\" not found",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("hunter2") && !message.contains("guess"), "{message}");
    assert_eq!(pullers(&runtime), some(&["you"]), "credentials leave no way without");
    objects.set(pull_secret("right", "me", "hunter2"));
    node.running("app").await;
}

/// Answers with what it was made with.
#[derive(Debug)]
struct Scripted(Result<&'static str, &'static str>);

#[async_trait]
impl CredentialProvider for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }
    async fn credentials(&self, req: &CredentialRequest<'_>) -> Result<Vec<ProvidedCredential>, CredentialError> {
        assert_eq!(req.repository, "reg.example/team/app");
        match self.0 {
            Ok(user) => Ok(vec![RegistryAuth::basic(user, "hunter2").into()]),
            Err(why) => Err(CredentialError::new(why)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_nodes_credentials_come_after_those_of_the_pod() {
    let (runtime, objects) = (private(), MapObjects::new());
    objects.set(pull_secret("registry", "you", "guess"));
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| {
        b.objects(objects)
            .image_credentials(Scripted(Err("the plugin is ill")))
            .image_credentials(Scripted(Ok("them")))
            .image_credentials(Scripted(Ok("me")))
    });
    node.pods.set(vec![pod("app", "Always", &["registry"])]).await.unwrap();
    node.running("app").await;
    assert_eq!(pullers(&runtime), some(&["you", "them", "me"]));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_fails_is_named_where_the_pull_fails_too() {
    let runtime = private();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| {
        b.image_credentials(Scripted(Err("the plugin is ill")))
    });
    node.pods.set(vec![pod("app", "Always", &[])]).await.unwrap();
    node.until("refused", |node| {
        node.waits_for("app", "app").as_deref() == Some("ErrImagePull")
    })
    .await;
    let waiting = node.container("app", "app").unwrap().state.unwrap().waiting.unwrap();
    assert!(
        waiting
            .message
            .unwrap()
            .ends_with("; no credentials from scripted: the plugin is ill")
    );
    assert_eq!(pullers(&runtime), [None]);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_source_of_secrets_refuses_pods_that_name_one() {
    let runtime = private();
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods
        .set(vec![pod("app", "IfNotPresent", &["registry"])])
        .await
        .unwrap();
    node.until("refused", |node| node.phase("app").as_deref() == Some("Failed"))
        .await;
    let message = node.status("app").unwrap().message.clone().unwrap();
    assert!(message.contains("image pull secrets (\"registry\")"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_no_image_can_have_is_told_so() {
    let runtime = FakeRuntime::builder().without_events().build();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = |policy: &str| {
        PodBuilder::new(policy.to_lowercase())
            .container("app", |c| c.image("reg.example/Team/app").pull_policy(policy))
            .build()
    };
    node.pods.set(vec![pod("Always"), pod("Never")]).await.unwrap();
    for name in ["always", "never"] {
        node.until("told", |node| {
            node.waits_for(name, "app").as_deref() == Some("InvalidImageName")
        })
        .await;
    }
    assert_eq!(runtime.count(Op::Pull), 0);
    let message = &node.events.messages("InspectFailed")[0];
    assert!(message.contains("repository name must be lowercase"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn pulls_are_bounded_in_number_and_pace() {
    for (parallel, qps, burst, expected) in [
        (1, 0, 1, [0, 10, 20, 30]),
        (2, 0, 1, [0, 0, 10, 10]),
        (usize::MAX, 0, 1, [0, 0, 0, 0]),
        (usize::MAX, 1, 2, [0, 0, 1, 2]),
    ] {
        let runtime = FakeRuntime::builder().without_events().build();
        let mut settings = Settings::default();
        (
            settings.parallel_image_pulls,
            settings.registry_pull_qps,
            settings.registry_burst,
        ) = (parallel, qps, burst);
        let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.settings(settings));
        let pods = (0..4).map(|i| {
            runtime.set_image(
                format!("app:{i}"),
                FakeImage::new().pull_latency(Duration::from_secs(10)),
            );
            PodBuilder::new(format!("pod-{i}"))
                .container("app", |c| c.image(format!("app:{i}")))
                .build()
        });
        node.pods.set(pods.collect()).await.unwrap();
        for i in 0..4 {
            node.running(&format!("pod-{i}")).await;
        }
        let pulls = pulls(&runtime);
        let mut begun: Vec<u64> = pulls.iter().map(|call| (call.at - pulls[0].at).as_secs()).collect();
        begun.sort_unstable();
        assert_eq!(begun, expected, "{parallel} {qps} {burst}");
        node.stop().await;
    }
}

/// A node on which `owner` runs, which has pulled the image with its secret; and the objects of the cluster.
async fn pulled_by_owner(runtime: &FakeRuntime, state: &StateDir) -> (Node, Arc<MapObjects>) {
    let objects = Arc::new(MapObjects::new());
    objects.set(pull_secret("owners", "me", "hunter2"));
    objects.set(pull_secret("same", "me", "hunter2"));
    objects.set(pull_secret("guess", "me", "guess"));
    let node = verifying(runtime, state, &objects);
    node.pods
        .set(vec![pod("owner", "IfNotPresent", &["owners"])])
        .await
        .unwrap();
    node.running("owner").await;
    (node, objects)
}

fn verifying(runtime: &FakeRuntime, state: &StateDir, objects: &Arc<MapObjects>) -> Node {
    Node::start_with(runtime, state.clone(), |b| b.objects(objects.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_present_image_is_for_those_who_could_pull_it() {
    let (runtime, state) = (private(), StateDir::in_memory());
    let (mut node, objects) = pulled_by_owner(&runtime, &state).await;
    for restarted in [false, true] {
        if restarted {
            node.kill().await;
            node = verifying(&runtime, &state, &objects);
        }
        let all = |also: &[Pod]| {
            let mut pods = vec![pod("owner", "IfNotPresent", &["owners"])];
            pods.extend_from_slice(also);
            pods
        };
        runtime.clear_calls();
        node.pods
            .set(all(&[
                pod(&format!("same-{restarted}"), "IfNotPresent", &["same"]),
                pod(&format!("never-{restarted}"), "Never", &["owners"]),
            ]))
            .await
            .unwrap();
        node.running(&format!("same-{restarted}")).await;
        node.running(&format!("never-{restarted}")).await;
        assert_eq!(pullers(&runtime), [], "who may use it need not pull it");
        let (nobody, guess, hidden) = (
            format!("nobody-{restarted}"),
            format!("guess-{restarted}"),
            format!("hidden-{restarted}"),
        );
        node.pods
            .set(all(&[
                pod(&nobody, "IfNotPresent", &[]),
                pod(&guess, "IfNotPresent", &["guess"]),
                pod(&hidden, "Never", &["guess"]),
            ]))
            .await
            .unwrap();
        for (name, reason) in [
            (&nobody, "ErrImagePull"),
            (&guess, "ErrImagePull"),
            (&hidden, "ErrImageNeverPull"),
        ] {
            node.until(name, |node| node.waits_for(name, "app").as_deref() == Some(reason))
                .await;
        }
        let mut tried = pullers(&runtime);
        tried.sort();
        assert_eq!(tried, [None, Some("me".to_owned())]);
        assert_eq!(node.phase("owner").as_deref(), Some("Running"));
        node.pods.set(all(&[])).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_was_there_before_is_for_all_unless_all_are_verified() {
    for (policy, runs) in [
        (ImageVerification::NeverVerify, true),
        (ImageVerification::NeverVerifyPreloadedImages, true),
        (
            ImageVerification::NeverVerifyAllowlistedImages(vec!["reg.example/team/*".to_owned()]),
            true,
        ),
        (
            ImageVerification::NeverVerifyAllowlistedImages(vec!["reg.example/other".to_owned()]),
            false,
        ),
        (ImageVerification::AlwaysVerify, false),
    ] {
        let runtime = private();
        let mut image = ImageRecord::new("sha256:00".into());
        image.tags = vec![IMAGE.to_owned()];
        runtime.add_image(image);
        let shown = format!("{policy:?}");
        let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.image_verification(policy));
        node.pods.set(vec![pod("app", "Never", &[])]).await.unwrap();
        if runs {
            node.running("app").await;
        } else {
            let refused = |node: &Node| node.waits_for("app", "app").as_deref() == Some("ErrImageNeverPull");
            node.until(&shown, refused).await;
        }
        assert_eq!(pullers(&runtime), []);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_pull_that_was_cut_off_has_brought_is_for_nobody_else() {
    let (runtime, state) = (private(), StateDir::in_memory());
    runtime.set_image(
        IMAGE,
        FakeImage::new()
            .private("me", "hunter2")
            .pull_latency(Duration::from_secs(10)),
    );
    let objects = Arc::new(MapObjects::new());
    objects.set(pull_secret("owners", "me", "hunter2"));
    let node = verifying(&runtime, &state, &objects);
    node.pods
        .set(vec![pod("owner", "IfNotPresent", &["owners"])])
        .await
        .unwrap();
    node.until("pulls", |_| runtime.in_flight(Op::Pull) == 1).await;
    node.kill().await;
    // The runtime has finished what the agent never heard of.
    let mut image = ImageRecord::new("sha256:00".into());
    image.tags = vec![IMAGE.to_owned()];
    runtime.add_image(image);
    let node = verifying(&runtime, &state, &objects);
    node.pods.set(vec![pod("other", "Never", &[])]).await.unwrap();
    node.until("refused", |node| {
        node.waits_for("other", "app").as_deref() == Some("ErrImageNeverPull")
    })
    .await;
    node.pods
        .set(vec![pod("owner", "IfNotPresent", &["owners"])])
        .await
        .unwrap();
    node.running("owner").await;
    assert!(state.list("image_manager/pulling").await.unwrap().is_empty());
}
