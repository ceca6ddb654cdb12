//! A volume with very many files is removed in little memory, and not by somebody whom nobody waits for.
//!
//! By itself, since the memory that is looked at is that of the process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests: a panic is the failure")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{CancellationToken, PodRecord, SourceKind, VolumeContext, VolumeManager, pod_signals};
use kubelet_testing::PodBuilder;
use kubelet_volume::{VolumeSettings, Volumes};
use serde_json::json;

/// With names as long as they may be: 12 MiB of names alone.
const FILES: usize = 50_000;

/// More than is needed, and much less than all the names.
const AT_MOST_KIB: u64 = 4 * 1024;

/// The most memory that the process had since it was last asked to forget.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

#[tokio::test]
async fn many_entries_are_measured_and_removed_in_little_memory_and_not_in_vain() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let mut settings = VolumeSettings::default();
    settings.measure_every = Duration::from_millis(1);
    let volumes = Volumes::new(settings);
    volumes.open(VolumeContext::new("node-1", &root));
    let scratch = serde_json::from_value(json!([{"name": "scratch", "emptyDir": {}}])).unwrap();
    let mounts = serde_json::from_value(json!([{"name": "scratch", "mountPath": "/scratch"}])).unwrap();
    let pod = PodBuilder::new("a")
        .container("app", |c| c.with(|c| c.volume_mounts = Some(mounts)))
        .spec(|spec| spec.volumes = Some(scratch));
    let pod = Arc::new(PodRecord::new(&pod.build(), "api".into(), SourceKind::Managed).unwrap());
    let stop = CancellationToken::new();
    volumes.mount(&pod, &stop).await.unwrap();
    let uid = pod.uid();
    let place = root
        .join("pods")
        .join(uid.as_str())
        .join("volumes/kubernetes.io~empty-dir/scratch");
    let name = "n".repeat(240);
    for index in 0..FILES {
        fs::write(place.join(format!("{name}-{index}")), "").unwrap();
    }

    forget_peak();
    let before = peak_kib();
    let (wake, _signals) = pod_signals();
    let until = CancellationToken::new();
    let measured = async {
        while !volumes
            .usage(uid)
            .iter()
            .any(|of| of.inodes_used.is_some_and(|used| used > FILES as u64))
        {
            tokio::task::yield_now().await;
        }
        until.cancel();
    };
    let (ran, ()) = tokio::join!(volumes.run(wake, until.clone()), measured);
    ran.unwrap();
    let took = peak_kib().saturating_sub(before);
    assert!(took < AT_MOST_KIB, "{took} KiB to measure");

    // Dropped in the middle: what is left then is not removed, since somebody may want the volume.
    let unmount = async { volumes.unmount(uid, &stop).await.unwrap() };
    let has_begun = async {
        while place.join(format!("{name}-0")).exists() && count(&place) == FILES {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = unmount => panic!("all of it was removed before anybody could look"),
        () = has_begun => {}
    }
    // Its turn comes once the removal has ended.
    volumes.mount(&pod, &stop).await.unwrap();
    let left = count(&place);
    assert!(left > 0 && left < FILES, "{left} are left");
    volumes.mount(&pod, &stop).await.unwrap();
    assert_eq!(count(&place), left, "and nobody goes on");

    forget_peak();
    let before = peak_kib();
    volumes.unmount(uid, &stop).await.unwrap();
    let took = peak_kib().saturating_sub(before);
    assert!(took < AT_MOST_KIB, "{took} KiB to remove");
    assert_eq!(count(&root.join("pods").join(uid.as_str())), 0);
}
