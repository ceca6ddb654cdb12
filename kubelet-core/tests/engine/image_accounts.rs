//! Images that were pulled for service accounts.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    CredentialError, CredentialProvider, CredentialRequest, ProvidedCredential, RegistryAuth, ServiceAccountKey,
    StateDir, async_trait,
};
use kubelet_testing::PodBuilder;

use super::harness::Node;
use super::images::{private, pullers};

/// Has credentials for each service account but `guest`.
#[derive(Debug)]
struct OfAccounts;

#[async_trait]
impl CredentialProvider for OfAccounts {
    fn name(&self) -> &str {
        "accounts"
    }
    async fn credentials(&self, req: &CredentialRequest<'_>) -> Result<Vec<ProvidedCredential>, CredentialError> {
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
    let node = Node::start_with(&runtime, state.clone(), |b| b.image_credentials(OfAccounts));
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

    let node = Node::start_with(&runtime, state, |b| b.image_credentials(OfAccounts));
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
