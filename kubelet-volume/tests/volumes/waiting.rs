//! What pods wait for, and what they are told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::ConfigMap;
use kubelet_core::{
    CancellationToken, Freshness, MapObjects, Object, ObjectError, ObjectKey, ObjectKind, ObjectQuery, ObjectSource,
    ObjectWatch, VolumeError, VolumeManager, async_trait,
};
use kubelet_volume::VolumeSettings;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::harness::{Node, pod, record};

fn config_map() -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "settings", "namespace": "default"}, "data": {"color": "red"}}))
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_what_is_missing_and_is_woken_when_it_is_there() {
    let mut node = Node::start();
    let pod = pod(
        "a",
        &[json!({"emptyDir": {}}), json!({"configMap": {"name": "settings"}})],
    );
    let began = Instant::now();
    let error = node.mount(&pod).await.unwrap_err();
    let VolumeError::Waiting {
        unmounted,
        unattached,
        unprocessed,
        detail,
        retry_at,
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(*unmounted, ["b"]);
    assert!(unattached.is_empty() && unprocessed.is_empty(), "{error}");
    assert_eq!(detail, r#"volume "b": configmap "settings" not found"#);
    assert_eq!(*retry_at, Some(began + Duration::from_millis(500)));
    let told = r#"MountVolume.SetUp failed for volume "b" : configmap "settings" not found"#;
    assert_eq!(node.messages("FailedMount"), [told]);

    // Sooner nobody is asked, and each time it takes longer.
    assert!(node.waits(&pod).await.contains("not found"));
    let mut until = retry_at.unwrap();
    for pause in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 122_000, 122_000] {
        tokio::time::sleep_until(until).await;
        let Err(VolumeError::Waiting { retry_at, .. }) = node.mount(&pod).await else {
            panic!("it is still not there")
        };
        assert_eq!(retry_at, Some(until + Duration::from_millis(pause)));
        until = retry_at.unwrap();
    }
    assert_eq!(
        node.messages("FailedMount"),
        [told],
        "once for as long as it is the same"
    );
    node.objects.set(config_map());
    node.woken(&pod).await;
    node.ready(&pod).await;
    assert!(Instant::now() < until, "not at the end of the pause");
    node.gone(&pod).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changes_all_the_time_is_no_reason_to_try_all_the_time() {
    let mut node = Node::start();
    let items = json!([{"key": "none", "path": "x"}]);
    let pod = pod("a", &[json!({"configMap": {"name": "settings", "items": items}})]);
    node.objects.set(config_map());
    // So often that the pause is long.
    let mut tried = Instant::now();
    for _ in 0..6 {
        tried = Instant::now();
        let Err(VolumeError::Waiting { retry_at, .. }) = node.mount(&pod).await else {
            panic!("its key is missing")
        };
        tokio::time::sleep_until(retry_at.unwrap()).await;
    }
    assert_eq!(Instant::now() - tried, Duration::from_secs(16));
    node.waits(&pod).await;
    tried = Instant::now();
    for color in ["green", "blue", "white"] {
        let mut other = config_map();
        other
            .data
            .as_mut()
            .unwrap()
            .insert("color".to_owned(), color.to_owned());
        node.objects.set(other);
        node.told(&pod).await;
        let failed = node.mount(&pod).await;
        let Err(VolumeError::Waiting { retry_at, .. }) = failed else {
            panic!("its key is missing")
        };
        assert_eq!(retry_at, Some(tried + Duration::from_millis(500)), "{color}");
    }
    let mut whole = config_map();
    whole.data.as_mut().unwrap().insert("none".to_owned(), "x".to_owned());
    node.objects.set(whole);
    node.woken(&pod).await;
    node.ready(&pod).await;
    node.gone(&pod).await;
}

#[tokio::test]
async fn what_is_not_known_is_named() {
    let node = Node::start();
    let pod = pod(
        "a",
        &[
            json!({"iscsi": {"targetPortal": "x", "iqn": "y", "lun": 0}}),
            json!({"emptyDir": {}}),
        ],
    );
    let lack = node.volumes.lacks(&pod).unwrap();
    assert!(
        lack.contains("volume plugin matched") && lack.contains(r#"("a")"#),
        "{lack}"
    );
    let text = node.waits(&pod).await;
    assert!(
        text.contains("no volume plugin matched") && text.contains("iscsi"),
        "{text}"
    );
    node.gone(&pod).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_does_not_answer_holds_nobody_for_ever() {
    #[derive(Debug)]
    struct Silent;
    #[async_trait]
    impl ObjectSource for Silent {
        fn serves(&self, _kind: ObjectKind) -> bool {
            true
        }
        fn is_local(&self) -> bool {
            true
        }
        async fn get(&self, _key: &ObjectKey, _want: Freshness) -> Result<Object, ObjectError> {
            std::future::pending().await
        }
        async fn list(&self, _query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
            std::future::pending().await
        }
        fn watch(&self, _key: &ObjectKey) -> ObjectWatch {
            ObjectWatch::ended()
        }
    }
    let node = Node::start_with(Default::default(), |context| {
        context.objects = Some(Arc::new(Silent));
    });
    let pod = pod("a", &[json!({"configMap": {"name": "settings"}})]);
    let text = node.waits(&pod).await;
    assert!(text.contains("no answer within 10s"), "{text}");

    // Whoever is asked to stop does not wait for that.
    sleep(Duration::from_secs(1)).await;
    let stop = CancellationToken::new();
    let asked = stop.clone();
    let began = Instant::now();
    let (ended, ()) = tokio::join!(node.volumes.mount(&pod, &stop), async move {
        sleep(Duration::from_millis(100)).await;
        asked.cancel();
    });
    assert!(matches!(ended, Err(VolumeError::Stopped)), "{ended:?}");
    assert_eq!(Instant::now() - began, Duration::from_millis(100));
    node.gone(&pod).await;
}

/// A source of objects that says how new each was asked for.
#[derive(Debug, Default)]
struct Asked {
    objects: MapObjects,
    wanted: Mutex<Vec<Freshness>>,
}

#[async_trait]
impl ObjectSource for Asked {
    fn serves(&self, kind: ObjectKind) -> bool {
        self.objects.serves(kind)
    }
    fn is_local(&self) -> bool {
        self.objects.is_local()
    }
    async fn get(&self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError> {
        self.wanted.lock().unwrap().push(want);
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
async fn a_pod_never_gets_an_object_older_than_itself() {
    let asked = Arc::new(Asked::default());
    let source = asked.clone();
    let mut node = Node::start_with(VolumeSettings::default(), move |context| context.objects = Some(source));
    let created = "2026-01-01T00:00:00Z";
    let spec = json!({
        "containers": [{"name": "app", "image": "app:1", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
        "volumes": [{"name": "a", "configMap": {"name": "settings"}}],
    });
    let pod = record("a", json!({"creationTimestamp": created}), spec);
    asked.objects.set(config_map());
    node.ready(&pod).await;
    let mut other = config_map();
    other.data = None;
    asked.objects.set(other);
    node.woken(&pod).await;
    node.ready(&pod).await;
    let wanted = asked.wanted.lock().unwrap().clone();
    let newer = Freshness::NotOlderThan(created.parse().unwrap());
    assert_eq!(wanted, [newer, newer], "later on too: a watch may lag behind");
    node.gone(&pod).await;
}
