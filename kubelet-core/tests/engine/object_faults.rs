//! Faults that kubelets had in public with what pods refer to, and with backends that run whole pods.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, ConfigMapEnvSource, EnvFromSource, Pod};
use kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_core::{
    Freshness, MapObjects, Object, ObjectError, ObjectKey, ObjectKind, ObjectQuery, ObjectSource, ObjectWatch,
    PodObservation, PodProvider, PodUid, ProvidedPod, ProviderError, ProviderHint, ResolvedPod, StateDir, Watched,
    WholePods, async_trait,
};
use kubelet_testing::{FakeProvider, FakeRuntime, PodBuilder};
use tokio::time::{sleep, timeout};

use super::harness::{Cluster, Node};
use super::images;
use super::life::fake;

fn colour(value: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some("settings".to_owned());
    map.metadata.namespace = Some("default".to_owned());
    map.data = Some([("COLOUR".to_owned(), value.to_owned())].into());
    map
}

fn settings() -> ObjectKey {
    ObjectKey::new(ObjectKind::ConfigMap, "default", "settings")
}

fn referring(name: &str, created: i64) -> Pod {
    let from = EnvFromSource {
        config_map_ref: Some(ConfigMapEnvSource {
            name: "settings".to_owned(),
            optional: None,
        }),
        ..EnvFromSource::default()
    };
    PodBuilder::new(name)
        .uid(name)
        .metadata(|m| m.creation_timestamp = Some(Time(Timestamp::from_second(created).unwrap())))
        .container("app", |c| c.with(|c| c.env_from = Some(vec![from])))
        .build()
}

fn colour_of(runtime: &FakeRuntime, uid: &str) -> Option<String> {
    let sandboxes = runtime.sandboxes();
    let sandbox = sandboxes.into_iter().find(|s| s.pod_uid.as_str() == uid)?;
    let container = sandbox.containers?.pop()?;
    let config = runtime.container_config(&container.id)?;
    config
        .env
        .iter()
        .find(|(name, _)| name == "COLOUR")
        .map(|(_, value)| value.clone())
}

/// A source with a cache that lags behind: it shows what was true then, unless it is asked for something newer.
#[derive(Clone, Debug)]
struct Lagging {
    cached: MapObjects,
    as_of: Timestamp,
    now: MapObjects,
}

#[async_trait]
impl ObjectSource for Lagging {
    fn serves(&self, kind: ObjectKind) -> bool {
        self.now.serves(kind)
    }
    fn is_local(&self) -> bool {
        false
    }
    async fn get(&self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError> {
        match want {
            Freshness::Cached => self.cached.get(key, want).await,
            Freshness::NotOlderThan(time) if time <= self.as_of => self.cached.get(key, want).await,
            _ => self.now.get(key, want).await,
        }
    }
    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        self.now.list(query).await
    }
    fn watch(&self, key: &ObjectKey) -> ObjectWatch {
        self.now.watch(key)
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_never_sees_values_that_were_replaced_before_it_was_made() {
    let (cached, now) = (MapObjects::new(), MapObjects::new());
    cached.set(colour("old"));
    now.set(colour("new"));
    let objects = Lagging {
        cached,
        as_of: Timestamp::from_second(1_700_000_000).unwrap(),
        now,
    };
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(objects));
    let pods = vec![referring("before", 1_700_000_000), referring("after", 1_700_000_001)];
    node.pods.set(pods).await.unwrap();
    node.running("before").await;
    node.running("after").await;
    assert_eq!(colour_of(&runtime, "after").as_deref(), Some("new"));
    // Nobody is asked for more than is needed.
    assert_eq!(colour_of(&runtime, "before").as_deref(), Some("old"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_is_pulled_with_the_secret_as_it_was_when_the_pod_was_made_or_later() {
    let (cached, now) = (MapObjects::new(), MapObjects::new());
    cached.set(images::pull_secret("registry", "me", "changed-since"));
    now.set(images::pull_secret("registry", "me", "hunter2"));
    let objects = Lagging {
        cached,
        as_of: Timestamp::from_second(1_700_000_000).unwrap(),
        now,
    };
    let runtime = images::private();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(objects));
    let mut pod = images::pod("after", "IfNotPresent", &["registry"]);
    pod.metadata.creation_timestamp = Some(Time(Timestamp::from_second(1_700_000_001).unwrap()));
    node.pods.set(vec![pod]).await.unwrap();
    node.running("after").await;
    assert_eq!(images::pullers(&runtime).len(), 1, "the old one is not tried first");
    node.stop().await;
}

/// A provider that follows the map that its pods refer to.
#[derive(Debug)]
struct Following {
    provider: FakeProvider,
    watches: Mutex<Vec<ObjectWatch>>,
}

#[async_trait]
impl PodProvider for Following {
    fn name(&self) -> &str {
        self.provider.name()
    }
    async fn list(&self) -> Result<Vec<ProvidedPod>, ProviderError> {
        self.provider.list().await
    }
    async fn create(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        if let Some(objects) = &pod.objects {
            self.watches.lock().unwrap().push(objects.watch(&settings()));
        }
        self.provider.create(pod).await
    }
    async fn update(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        self.provider.update(pod).await
    }
    async fn delete(&self, uid: &PodUid, grace: Duration) -> Result<(), ProviderError> {
        self.provider.delete(uid, grace).await
    }
    async fn status(&self, uid: &PodUid) -> Result<Option<PodObservation>, ProviderError> {
        self.provider.status(uid).await
    }
    fn changes(&self) -> BoxStream<'static, ProviderHint> {
        self.provider.changes()
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_is_told_when_a_map_that_its_pod_refers_to_changes() {
    let objects = MapObjects::new();
    objects.set(colour("blue"));
    let provider = Arc::new(Following {
        provider: FakeProvider::new(),
        watches: Mutex::default(),
    });
    let shared: Arc<dyn PodProvider> = provider.clone();
    let node = Node::start_backend(WholePods::new(shared), StateDir::in_memory(), |b| {
        b.objects(objects.clone())
    });
    node.pods.set(vec![referring("p", 1_700_000_000)]).await.unwrap();
    node.running("p").await;
    let env = provider.provider.env(&PodUid::from("p"), "app");
    assert!(env.contains(&("COLOUR".to_owned(), "blue".to_owned())), "{env:?}");
    let mut watch = provider.watches.lock().unwrap().pop().unwrap();
    let soon = Duration::from_secs(1);
    for colour in ["blue", "red"] {
        objects.set(self::colour(colour));
        let Some(Watched::Present(Object::ConfigMap(map))) = timeout(soon, watch.next()).await.unwrap() else {
            panic!("the map is there");
        };
        assert_eq!(map.data.as_ref().unwrap()["COLOUR"], colour);
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_provider_says_before_it_was_looked_at_is_not_lost() {
    let (provider, state) = (FakeProvider::new(), StateDir::in_memory());
    let job = || {
        PodBuilder::new("job")
            .uid("u")
            .restart_policy("Never")
            .container("app", |c| c)
    };
    let node = Node::start_backend(WholePods::new(provider.clone()), state.clone(), |b| b);
    node.pods.set(vec![job().build()]).await.unwrap();
    node.running("job").await;
    node.kill().await;
    provider.set_latency(Duration::from_secs(3));
    let cluster = Cluster::default();
    let node = Node::start_backend(WholePods::new(provider.clone()), state, |b| {
        b.status_sink(cluster.clone())
    });
    // The first list is under way, and no source has spoken.
    sleep(Duration::from_secs(1)).await;
    provider.end_container(&PodUid::from("u"), "app", 7);
    sleep(Duration::from_millis(500)).await;
    node.pods.set(vec![job().build()]).await.unwrap();
    node.until("its end is told", |_| {
        cluster
            .last()
            .is_some_and(|last| last.status.phase.as_deref() == Some("Failed"))
    })
    .await;
    let status = cluster.last().unwrap().status;
    let state = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap();
    assert_eq!(state.terminated.unwrap().exit_code, 7);
    node.stop().await;
}
