//! Images of a registry that wants credentials.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use kubelet_core::k8s_openapi::ByteString;
use kubelet_core::k8s_openapi::api::core::v1::{Pod, Secret};
use kubelet_core::{ExecCredentialProviders, MapObjects};
use kubelet_testing::{OciArchive, PrivateRegistry};
use serde_json::json;

use crate::node::{Node, container, is_running, on_both, pod};

on_both!(a_private_image_runs_once_its_secret_is_there a_plugin_gives_credentials);

/// A pull secret for a registry.
fn pull_secret(registry: &PrivateRegistry) -> Secret {
    let (user, password) = (registry.user(), registry.password());
    let auths =
        json!({"auths": {format!("http://{}/v1/", registry.address()): {"username": user, "password": password}}});
    let mut secret = Secret::default();
    secret.metadata.name = Some("registry".to_owned());
    secret.metadata.namespace = Some("default".to_owned());
    secret.metadata.uid = Some("uid-of-registry".to_owned());
    secret.type_ = Some("kubernetes.io/dockerconfigjson".to_owned());
    secret.data = Some(
        [(
            ".dockerconfigjson".to_owned(),
            ByteString(auths.to_string().into_bytes()),
        )]
        .into(),
    );
    secret
}

/// A pod of one private image.
pub(crate) fn private(name: &str, image: &str, policy: &str, secrets: &[&str]) -> Pod {
    let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
    let forever = "trap 'exit 0' TERM; while :; do sleep 0.2; done";
    pod(
        name,
        json!({
            "imagePullSecrets": secrets,
            "containers": [{
                "name": "app", "image": image, "imagePullPolicy": policy, "command": ["/bin/sh", "-c", forever],
            }],
        }),
    )
}

fn waits_for(node: &crate::node::Agent, pod: &str) -> Option<String> {
    container(&node.statuses(), pod, "app")?
        .state
        .as_ref()?
        .waiting
        .as_ref()?
        .reason
        .clone()
}

async fn a_private_image_runs_once_its_secret_is_there(node: Node) {
    let Some(registry) = PrivateRegistry::start_or_skip("a private image").await else {
        return;
    };
    let image = OciArchive::busybox().unwrap().layer().file("/private", 0o644, "yes");
    let image = registry.push(&image, "team/app", "1").await.unwrap();
    let objects = Arc::new(MapObjects::new());
    let agent = node.start_with(|builder| builder.objects(objects.clone())).await;
    let pods = || {
        vec![
            private("always", &image, "Always", &["registry"]),
            private("later", &image, "IfNotPresent", &["registry"]),
            private("without", &image, "Always", &[]),
        ]
    };
    agent.pods.set(pods()).await.unwrap();
    for reason in ["ErrImagePull", "ImagePullBackOff"] {
        for pod in ["always", "later", "without"] {
            agent
                .until(&format!("{pod} waits"), |_| {
                    waits_for(&agent, pod).as_deref() == Some(reason)
                })
                .await;
        }
    }
    assert!(node.count("FailedToRetrieveImagePullSecret") >= 2);
    objects.set(pull_secret(&registry));
    agent
        .until("they run", |all| {
            is_running(all, "always", "app") && is_running(all, "later", "app")
        })
        .await;
    assert!(
        !is_running(&agent.statuses(), "without", "app"),
        "nobody gave it credentials"
    );
    let status = container(&agent.statuses(), "always", "app").unwrap().clone();
    assert!(status.image_id.contains("sha256:"), "{status:?}");
    // Present by now, and only for those who could pull it.
    let mut more = pods();
    more.push(private("owner", &image, "Never", &["registry"]));
    more.push(private("other", &image, "Never", &[]));
    agent.pods.set(more).await.unwrap();
    agent
        .until("the owner runs", |all| is_running(all, "owner", "app"))
        .await;
    agent
        .until("the other is refused", |_| {
            waits_for(&agent, "other").as_deref() == Some("ErrImageNeverPull")
        })
        .await;
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
    registry.stop().await.unwrap();
}

async fn a_plugin_gives_credentials(node: Node) {
    let Some(registry) = PrivateRegistry::start_or_skip("credentials of a plugin").await else {
        return;
    };
    let image = OciArchive::busybox().unwrap().layer().file("/private", 0o644, "yes");
    let image = registry.push(&image, "team/app", "1").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let answer = json!({
        "kind": "CredentialProviderResponse",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Registry",
        "cacheDuration": "1h",
        "auth": {registry.address(): {"username": registry.user(), "password": registry.password()}},
    });
    let config = json!({
        "kind": "CredentialProviderConfig",
        "apiVersion": "kubelet.config.k8s.io/v1",
        "providers": [{
            "name": "plugin",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "matchImages": ["*.*.*.*:".to_owned() + registry.address().rsplit(':').next().unwrap()],
            "defaultCacheDuration": "0s",
        }],
    });
    let (plugin, file) = (dir.path().join("plugin"), dir.path().join("config.json"));
    std::fs::write(&plugin, format!("#!/bin/sh\ncat > /dev/null\necho '{answer}'\n")).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(&file, config.to_string()).unwrap();
    let plugins = ExecCredentialProviders::load(&file, dir.path()).await.unwrap();
    let agent = node.start_with(|builder| builder.image_credentials(plugins)).await;
    let pods = vec![
        private("app", &image, "Always", &[]),
        private("other", &image, "IfNotPresent", &[]),
    ];
    agent.pods.set(pods).await.unwrap();
    agent
        .until("they run", |all| {
            is_running(all, "app", "app") && is_running(all, "other", "app")
        })
        .await;
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
    registry.stop().await.unwrap();
}
