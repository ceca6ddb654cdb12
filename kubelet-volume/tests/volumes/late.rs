//! Work that does not end, or ends when nobody waits for it any more.

use std::fs;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use futures::FutureExt as _;
use kubelet_core::{CancellationToken, PodRecord, VolumeError, VolumeManager, async_trait, error_chain};
use kubelet_volume::{Placed, PluginFeatures, Refresh, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec};
use serde_json::json;
use tokio::time::Instant;

use crate::harness::{Node, pod};

fn is_iscsi(volume: &VolumeSpec<'_>) -> bool {
    matches!(volume, VolumeSpec::Inline(volume) if volume.iscsi.is_some())
}

fn iscsi_and_scratch() -> std::sync::Arc<PodRecord> {
    let iscsi = json!({"iscsi": {"targetPortal": "x", "iqn": "y", "lun": 0}});
    pod("a", &[iscsi, json!({"emptyDir": {}})])
}

/// Comes to an end so many times.
#[derive(Debug)]
struct Hanging(AtomicU32);

#[async_trait]
impl VolumePlugin for Hanging {
    fn name(&self) -> &str {
        "example.com/hanging"
    }
    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        is_iscsi(volume)
    }
    fn features(&self) -> PluginFeatures {
        PluginFeatures::default()
    }
    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let dir = cx.dir.to_owned();
        cx.blocking(move |_| fs::create_dir_all(dir)).await?;
        if self.0.load(Ordering::Relaxed) == 0 {
            std::future::pending::<()>().await;
        }
        self.0.fetch_sub(1, Ordering::Relaxed);
        let mut placed = Placed::at(cx.dir);
        placed.refresh = Refresh::Pod;
        Ok(placed)
    }
    async fn tear_down(&self, _cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_hangs_is_told_of_and_the_others_are_made_and_gone() {
    let node = Node::start_also_with(Hanging(AtomicU32::new(0)));
    let pod = iscsi_and_scratch();
    let stop = CancellationToken::new();
    let began = Instant::now();
    let scratch = node.pod_dir("uid-of-a").join("volumes/kubernetes.io~empty-dir/b");
    let asked = async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(scratch.exists());
        stop.cancel();
    };
    let (mounted, ()) = tokio::join!(node.volumes.mount(&pod, &stop), asked);
    assert!(matches!(mounted, Err(VolumeError::Stopped)), "{mounted:?}");
    assert_eq!(began.elapsed(), Duration::from_secs(600));
    let told = r#"MountVolume.SetUp failed for volume "a" : not done within 123s, and goes on"#;
    assert_eq!(node.messages("FailedMount"), [told]);

    let began = Instant::now();
    let gone = node.volumes.unmount(pod.uid(), &CancellationToken::new()).await;
    let text = error_chain(&gone.unwrap_err());
    assert!(text.ends_with(": not done within 123s"), "{text}");
    assert_eq!(began.elapsed(), Duration::from_secs(123));
    assert!(!scratch.exists(), "the other one is gone");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_hangs_when_it_is_brought_up_to_date_holds_no_container_up() {
    let node = Node::start_also_with(Hanging(AtomicU32::new(1)));
    let pod = iscsi_and_scratch();
    node.ready(&pod).await;
    let began = Instant::now();
    let ready = node.ready(&pod).await;
    assert_eq!(began.elapsed(), Duration::from_secs(123));
    assert_eq!(ready.again_at, Some(Instant::now() + Duration::from_millis(500)));
    let told = r#"MountVolume.SetUp failed for volume "a" : not done within 123s"#;
    assert_eq!(node.messages("FailedMount"), [told]);
}

/// Makes its folder when a test says so.
#[derive(Debug)]
struct Slow {
    began: Sender<()>,
    go: Mutex<Option<Receiver<()>>>,
}

#[async_trait]
impl VolumePlugin for Slow {
    fn name(&self) -> &str {
        "example.com/slow"
    }
    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        is_iscsi(volume)
    }
    fn features(&self) -> PluginFeatures {
        PluginFeatures::default()
    }
    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let (dir, began) = (cx.dir.to_owned(), self.began.clone());
        let go = self.go.lock().unwrap().take().unwrap();
        cx.blocking(move |_| {
            began.send(()).map_err(io::Error::other)?;
            go.recv().map_err(io::Error::other)?;
            fs::create_dir_all(dir)
        })
        .await?;
        Ok(Placed::at(cx.dir))
    }
    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        let dir = cx.dir.to_owned();
        cx.blocking(move |_| fs::remove_dir(dir)).await
    }
}

#[tokio::test]
async fn what_a_dropped_call_makes_later_is_gone_with_the_pod() {
    let ((began, has_begun), (let_go, go)) = (channel(), channel());
    let node = Node::start_also_with(Slow {
        began,
        go: Mutex::new(Some(go)),
    });
    let pod = iscsi_and_scratch();
    {
        let mut mount = Box::pin(node.mount(&pod));
        while has_begun.try_recv().is_err() {
            assert!((&mut mount).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
    }
    let volumes = node.pod_dir("uid-of-a").join("volumes");
    let late = async {
        // All that is there by now is gone.
        while volumes.exists() {
            tokio::task::yield_now().await;
        }
        let_go.send(()).unwrap();
    };
    tokio::join!(node.gone(&pod), late);
}
