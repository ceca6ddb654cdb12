//! What pods wait for, and what they are told.

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::ConfigMap;
use kubelet_core::{CancellationToken, VolumeError, VolumeManager};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::harness::{Node, pod};

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
        detail,
        retry_at,
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(*unmounted, ["b"]);
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
    #[kubelet_core::async_trait]
    impl kubelet_core::ObjectSource for Silent {
        fn serves(&self, _kind: kubelet_core::ObjectKind) -> bool {
            true
        }
        fn is_local(&self) -> bool {
            true
        }
        async fn get(
            &self,
            _key: &kubelet_core::ObjectKey,
            _want: kubelet_core::Freshness,
        ) -> Result<kubelet_core::Object, kubelet_core::ObjectError> {
            std::future::pending().await
        }
        async fn list(
            &self,
            _query: &kubelet_core::ObjectQuery,
        ) -> Result<Vec<kubelet_core::Object>, kubelet_core::ObjectError> {
            std::future::pending().await
        }
        fn watch(&self, _key: &kubelet_core::ObjectKey) -> kubelet_core::ObjectWatch {
            kubelet_core::ObjectWatch::ended()
        }
    }
    let node = Node::start_with(Default::default(), |context| {
        context.objects = Some(std::sync::Arc::new(Silent));
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
