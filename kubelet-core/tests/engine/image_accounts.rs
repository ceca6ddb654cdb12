//! Images that were pulled for service accounts.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kubelet_core::k8s_openapi::api::core::v1::{LocalObjectReference, Pod};
use kubelet_core::{
    CredentialError, CredentialProvider, CredentialRequest, MapObjects, ProvidedCredential, RegistryAuth,
    ServiceAccountKey, StateDir, async_trait,
};
use kubelet_testing::PodBuilder;

use super::harness::Node;
use super::images::{private, pull_secret, pullers};

/// Has credentials for each service account but `guest`; counts how often it is asked.
#[derive(Clone, Debug, Default)]
struct OfAccounts(Arc<AtomicUsize>);

#[async_trait]
impl CredentialProvider for OfAccounts {
    fn name(&self) -> &str {
        "accounts"
    }
    async fn credentials(&self, req: &CredentialRequest<'_>) -> Result<Vec<ProvidedCredential>, CredentialError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let name = req.pod.spec().service_account_name.as_deref().unwrap_or_default();
        if ["", "guest"].contains(&name) {
            return Ok(Vec::new());
        }
        let account = ServiceAccountKey::new(&*req.pod.key().namespace, name, format!("uid-of-{name}"));
        Ok(vec![ProvidedCredential::of_account(
            RegistryAuth::basic("me", "hunter2"),
            account,
        )])
    }
}

fn pod(name: &str, policy: &str, account: &str) -> Pod {
    PodBuilder::new(name)
        .container("app", |c| c.image("reg.example/team/app:1").pull_policy(policy))
        .spec(|spec| spec.service_account_name = Some(account.to_owned()))
        .build()
}

#[tokio::test(start_paused = true)]
async fn what_an_account_has_pulled_is_for_that_account_also_after_a_restart() {
    let (runtime, state) = (private(), StateDir::in_memory());
    let node = Node::start_with(&runtime, state.clone(), |b| b.image_credentials(OfAccounts::default()));
    let first = pod("first", "IfNotPresent", "builder");
    node.pods.set(vec![first.clone()]).await.unwrap();
    node.running("first").await;
    assert_eq!(pullers(&runtime), [Some("me".to_owned())]);
    let files = state.list("image_manager/pulled").await.unwrap();
    let text = state
        .read(&format!("image_manager/pulled/{}", files[0]))
        .await
        .unwrap()
        .unwrap();
    let record: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let expected = serde_json::json!({
        "kubernetesServiceAccounts": [{"uid": "uid-of-builder", "namespace": "default", "name": "builder"}],
    });
    assert_eq!(record["credentialMapping"]["reg.example/team/app"], expected);
    node.stop().await;

    let node = Node::start_with(&runtime, state, |b| b.image_credentials(OfAccounts::default()));
    let more = vec![
        first,
        pod("same", "Never", "builder"),
        pod("guest", "Never", "guest"),
        pod("nobody", "Never", ""),
        pod("other", "Never", "deployer"),
    ];
    node.pods.set(more).await.unwrap();
    node.running("same").await;
    for name in ["guest", "nobody", "other"] {
        node.until("refused", |node| {
            node.waits_for(name, "app").as_deref() == Some("ErrImageNeverPull")
        })
        .await;
    }
    assert_eq!(pullers(&runtime).len(), 1, "whoever may use it pulls nothing");
    node.stop().await;
}

/// A pod with a pull secret beside its account.
fn with_secret(mut pod: Pod) -> Pod {
    let secret = LocalObjectReference {
        name: "registry".to_owned(),
    };
    pod.spec.as_mut().unwrap().image_pull_secrets = Some(vec![secret]);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_the_same_content_hides_no_account_and_is_enough_by_itself() {
    let (runtime, objects, provider) = (private(), Arc::new(MapObjects::new()), OfAccounts::default());
    objects.set(pull_secret("registry", "me", "hunter2"));
    let asked = Arc::clone(&provider.0);
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| {
        b.image_credentials(provider).objects(objects)
    });
    let mut pods = vec![pod("first", "IfNotPresent", "builder")];
    node.pods.set(pods.clone()).await.unwrap();
    node.running("first").await;
    // The image is for the account alone, whose credentials are the content of the secret too.
    pods.push(with_secret(pod("both", "Never", "builder")));
    node.pods.set(pods.clone()).await.unwrap();
    node.running("both").await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    // Another one pulls it with the secret.
    pods.push(with_secret(pod("puller", "Always", "guest")));
    node.pods.set(pods.clone()).await.unwrap();
    node.running("puller").await;
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    pods.push(with_secret(pod("secret", "Never", "guest")));
    node.pods.set(pods).await.unwrap();
    node.running("secret").await;
    assert_eq!(asked.load(Ordering::SeqCst), 3, "nobody needs to be asked");
    assert_eq!(pullers(&runtime).len(), 2);
    node.stop().await;
}
