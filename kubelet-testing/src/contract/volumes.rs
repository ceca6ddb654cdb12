//! The promises of [`VolumeManager`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

mod fixture;

use std::path::PathBuf;

use futures::FutureExt;
use futures::future::join;
use kubelet_core::{CancellationToken, PodRecord, PodUid, VolumeError, VolumeManager, error_chain, made_volumes};

pub use fixture::{Unmakeable, VolumeFixture};

use crate::contract::check::{eventually, within};
use fixture::record;

/// After `mount` has succeeded all volumes of the pod that its containers mount are there.
///
/// # Panics
/// If the promise is broken.
pub async fn mounted_volumes_are_there(volumes: &dyn VolumeManager, fixture: &VolumeFixture) {
    let pods = fixture.open(volumes);
    for pod in &pods {
        for _ in 0..2 {
            fixture.mount(volumes, pod).await;
            check_given(volumes, fixture, pod).await;
            fixture
                .look("mounted_volumes_are_there", volumes, pod, "after mount")
                .await;
        }
        fixture.unmount(volumes, pod.uid()).await;
    }
}

/// Each container has a place for each volume that it mounts, in their order, and a device for each that it is given as one.
async fn check_given(volumes: &dyn VolumeManager, fixture: &VolumeFixture, pod: &PodRecord) {
    let made: Vec<&str> = made_volumes(pod.spec()).map(|volume| volume.name.as_str()).collect();
    for (view, given) in fixture.given(volumes, pod).await {
        let mounts = view.volume_mounts().iter().enumerate();
        let wanted: Vec<usize> = mounts
            .filter(|(_, mount)| made.contains(&mount.name.as_str()))
            .map(|(index, _)| index)
            .collect();
        let has: Vec<usize> = given.places.iter().map(|place| place.index).collect();
        let name = view.name();
        assert_eq!(
            has,
            wanted,
            "the mounts that container {name} of {} has places for",
            pod.key()
        );
        for wanted in view.volume_devices() {
            let path = &wanted.device_path;
            let is_given = given.devices.iter().any(|device| device.container_path == *path);
            assert!(is_given, "container {name} of {} has no device {path}", pod.key());
        }
    }
}

/// `mount` may be repeated, and loses nothing that was written into a volume; so does one in a later life.
///
/// # Panics
/// If the promise is broken.
pub async fn mounting_again_loses_nothing(volumes: &dyn VolumeManager, fixture: &VolumeFixture) {
    let promise = "mounting_again_loses_nothing";
    let pods = fixture.open(volumes);
    let mut all = Vec::new();
    for pod in &pods {
        let before = fixture.mount(volumes, pod).await;
        let places = fixture.places(volumes, pod).await;
        let written = fixture.write_all(promise, volumes, pod).await;
        for _ in 0..2 {
            let after = fixture.mount(volumes, pod).await;
            assert_eq!(after.groups, before.groups, "the groups of {} changed", pod.key());
            fixture.find(pod, &written, "after another mount").await;
            let again = fixture.places(volumes, pod).await;
            assert_eq!(again, places, "the places of {} changed", pod.key());
        }
        all.push((pod, places, written));
    }
    let later = fixture.live_again(promise).await;
    for (pod, places, written) in &all {
        if let Some(later) = &later {
            fixture.mount(&**later, pod).await;
            fixture.find(pod, written, "after a mount in a later life").await;
            let again = fixture.places(&**later, pod).await;
            assert_eq!(again, *places, "the places of {} changed in a later life", pod.key());
        }
        fixture.unmount(later.as_deref().unwrap_or(volumes), pod.uid()).await;
    }
}

/// A volume that cannot be made is named, with what it waits for, and others of the pod are made all the same.
///
/// # Panics
/// If the promise is broken.
pub async fn what_cannot_be_made_is_named(volumes: &dyn VolumeManager, fixture: &VolumeFixture) {
    let promise = "what_cannot_be_made_is_named";
    fixture.open(volumes);
    let lacks = "the fixture has no volume that cannot be made";
    let Some(unmakeable) = fixture.unmakeable.or_skip(promise, lacks) else {
        return;
    };
    let pod = record(&unmakeable.pod);
    for _ in 0..2 {
        let stop = CancellationToken::new();
        let mounted = within("mount", fixture.patience, volumes.mount(&pod, &stop)).await;
        let mut missing = unmakeable.missing.clone();
        missing.sort_unstable();
        match mounted {
            Err(VolumeError::Waiting { unmounted, detail, .. }) => {
                assert_eq!(unmounted, missing, "the volumes that are named");
                assert!(!detail.is_empty(), "nothing says what is waited for");
            }
            Err(error) => panic!("mount names no volume: {}", error_chain(&error)),
            Ok(_) => panic!("mount succeeds without {missing:?}"),
        }
        if let Some(made) = fixture.made.or_skip(promise, "the fixture cannot tell what was made") {
            for name in &unmakeable.others {
                assert!(
                    made((pod.uid().clone(), name.clone())).await,
                    "{name} was not made, although it could be"
                );
            }
        }
    }
    if let Some(mend) = fixture.mend.or_skip(promise, "the fixture cannot mend the volume") {
        mend(()).await;
        // It may be put off for a while after it has failed.
        eventually("mount of what was mended", fixture.patience, async || {
            volumes.mount(&pod, &CancellationToken::new()).await.ok()
        })
        .await;
        check_given(volumes, fixture, &pod).await;
        fixture.look(promise, volumes, &pod, "after mount").await;
    }
    fixture.unmount(volumes, pod.uid()).await;
    fixture.find_nothing(promise, pod.uid(), "after unmount").await;
}

/// `mount` and `unmount` return soon after `stop` is cancelled, and may be repeated then.
///
/// # Panics
/// If the promise is broken.
pub async fn stopped_calls_return_soon(volumes: &dyn VolumeManager, fixture: &VolumeFixture) {
    let promise = "stopped_calls_return_soon";
    let pods = fixture.open(volumes);
    let stopped = CancellationToken::new();
    stopped.cancel();
    for pod in &pods {
        // What it says does not matter: it may have been done by then.
        let _ = within("a stopped mount", fixture.patience, volumes.mount(pod, &stopped)).await;
        fixture.mount(volumes, pod).await;
        fixture.look(promise, volumes, pod, "after a stopped mount").await;
        let call = volumes.unmount(pod.uid(), &stopped);
        let _ = within("a stopped unmount", fixture.patience, call).await;
        fixture.unmount(volumes, pod.uid()).await;
        fixture
            .find_nothing(promise, pod.uid(), "after a stopped unmount")
            .await;
    }
    let lacks = "the fixture lets nothing hang";
    let Some((block, free)) = fixture.block.or_skip(promise, lacks) else {
        return;
    };
    for pod in &pods {
        block(()).await;
        stop_while_it_hangs("mount", fixture, async |stop| volumes.mount(pod, stop).await.is_ok()).await;
        free(()).await;
        fixture.mount(volumes, pod).await;
        fixture.look(promise, volumes, pod, "after a stopped mount").await;
        block(()).await;
        let unmount = async |stop: &CancellationToken| volumes.unmount(pod.uid(), stop).await.is_ok();
        stop_while_it_hangs("unmount", fixture, unmount).await;
        free(()).await;
        fixture.unmount(volumes, pod.uid()).await;
        fixture
            .find_nothing(promise, pod.uid(), "after a stopped unmount")
            .await;
    }
}

async fn stop_while_it_hangs(what: &str, fixture: &VolumeFixture, call: impl AsyncFn(&CancellationToken) -> bool) {
    let stop = CancellationToken::new();
    let later = async {
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    // It may have had nothing to do that hangs.
    let what = format!("{what}, after it was stopped");
    within(&what, fixture.patience, join(call(&stop), later)).await;
}

/// A place is in the folder of its pod, or is a path of the host that the pod names.
///
/// # Panics
/// If the promise is broken.
pub async fn places_are_inside_of_their_pods(volumes: &dyn VolumeManager, fixture: &VolumeFixture) {
    let pods = fixture.open(volumes);
    for pod in &pods {
        fixture.mount(volumes, pod).await;
    }
    for pod in &pods {
        for place in fixture.places(volumes, pod).await {
            fixture.check_place(pod, &place);
        }
        fixture.unmount(volumes, pod.uid()).await;
    }
}

/// After `unmount` has succeeded nothing of the pod is mounted, and none of its volumes' folders is left.
///
/// # Panics
/// If the promise is broken.
pub async fn unmounted_pods_leave_nothing(volumes: &dyn VolumeManager, fixture: &VolumeFixture) {
    let promise = "unmounted_pods_leave_nothing";
    let pods = fixture.open(volumes);
    for pod in &pods {
        for _ in 0..2 {
            fixture.mount(volumes, pod).await;
            // Parts of volumes may be made only now.
            fixture.write_all(promise, volumes, pod).await;
            fixture.unmount(volumes, pod.uid()).await;
            fixture.find_nothing(promise, pod.uid(), "after unmount").await;
        }
    }
    for pod in &pods {
        fixture.mount(volumes, pod).await;
        fixture.write_all(promise, volumes, pod).await;
    }
    let later = fixture.live_again(promise).await;
    for pod in &pods {
        // Nothing was said of it in that life.
        fixture.unmount(later.as_deref().unwrap_or(volumes), pod.uid()).await;
        fixture
            .find_nothing(promise, pod.uid(), "after unmount in a later life")
            .await;
    }
}

/// Unmounting what is not there succeeds, also for pods that were never seen.
///
/// # Panics
/// If the promise is broken.
pub async fn unmounting_nothing_succeeds(volumes: &dyn VolumeManager, fixture: &VolumeFixture) {
    let promise = "unmounting_nothing_succeeds";
    let pods = fixture.open(volumes);
    for pod in &pods {
        fixture.unmount(volumes, pod.uid()).await;
    }
    fixture.mount(volumes, &pods[0]).await;
    let written = fixture.write_all(promise, volumes, &pods[0]).await;
    let other = pods[0].uid();
    // Whoever makes a container says what UID its pod has.
    let roundabout = format!("suite-unseen/../{other}");
    for uid in ["suite-unseen", "", ".", "..", "../pods", "a/b", &roundabout] {
        fixture.unmount(volumes, &PodUid::from(uid)).await;
        let when = format!("after unmount of {uid:?}");
        fixture.find(&pods[0], &written, &when).await;
        fixture.look(promise, volumes, &pods[0], &when).await;
    }
    for pod in &pods {
        for _ in 0..2 {
            fixture.unmount(volumes, pod.uid()).await;
        }
    }
}

/// Nothing of one pod's volumes is changed by calls about another.
///
/// # Panics
/// If the promise is broken.
pub async fn other_pods_are_left_alone(volumes: &dyn VolumeManager, fixture: &VolumeFixture) {
    let promise = "other_pods_are_left_alone";
    let pods = fixture.open(volumes);
    let (kept, others) = (&pods[0], &pods[1..]);
    fixture.mount(volumes, kept).await;
    let places: Vec<PathBuf> = fixture.places(volumes, kept).await;
    let written = fixture.write_all(promise, volumes, kept).await;
    for other in others {
        for _ in 0..2 {
            // Also while something is done about this one.
            join(fixture.mount(volumes, other), fixture.mount(volumes, kept)).await;
            fixture.write_all(promise, volumes, other).await;
            join(fixture.unmount(volumes, other.uid()), fixture.mount(volumes, kept)).await;
            let when = format!("after calls about {}", other.key());
            fixture.find(kept, &written, &when).await;
            fixture.look(promise, volumes, kept, &when).await;
            let after = fixture.places(volumes, kept).await;
            assert_eq!(after, places, "the places of {} changed {when}", kept.key());
        }
    }
    fixture.unmount(volumes, kept.uid()).await;
}

/// A call that was dropped may be repeated.
///
/// # Panics
/// If the promise is broken.
pub async fn a_dropped_call_may_be_repeated(volumes: &dyn VolumeManager, fixture: &VolumeFixture) {
    let promise = "a_dropped_call_may_be_repeated";
    let pods = fixture.open(volumes);
    for polls in 0..6 {
        for pod in &pods {
            let stop = CancellationToken::new();
            drop_after(polls, volumes.mount(pod, &stop)).await;
            fixture.mount(volumes, pod).await;
            fixture.look(promise, volumes, pod, "after a dropped mount").await;
            drop_after(polls, volumes.unmount(pod.uid(), &stop)).await;
            fixture.unmount(volumes, pod.uid()).await;
            fixture
                .find_nothing(promise, pod.uid(), "after a dropped unmount")
                .await;
            // Who dropped one of them may want the other.
            drop_after(polls, volumes.mount(pod, &stop)).await;
            fixture.unmount(volumes, pod.uid()).await;
            fixture.find_nothing(promise, pod.uid(), "after a dropped mount").await;
        }
    }
}

/// Polls a call that often, and drops it.
async fn drop_after<T>(polls: u32, mut call: impl Future<Output = T> + Unpin) {
    for _ in 0..polls {
        if (&mut call).now_or_never().is_some() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Makes one `#[test]` of each promise of [`VolumeManager`].
///
/// Takes an async function without arguments that answers `Some((volumes, fixture))` with a
/// [`VolumeFixture`](crate::contract::VolumeFixture), or nothing. It is called once per promise. The suite runs in real time.
///
/// ```
/// # mod example {
/// use std::sync::Arc;
///
/// use kubelet_core::VolumeContext;
/// use kubelet_testing::contract::{VolumeFixture, now};
/// use kubelet_testing::{FakeVolumes, PodBuilder};
///
/// async fn mine() -> Option<(FakeVolumes, VolumeFixture)> {
///     let volumes = FakeVolumes::new();
///     let next = volumes.clone();
///     let pods = ["a", "b"].map(|name| {
///         // … with the volumes to check.
///         PodBuilder::new(name).container("app", |c| c).build()
///     });
///     let fixture = VolumeFixture::new(VolumeContext::new("node-1", "/tmp/mine"), pods)
///         .on_disk()
///         .next_life(move || now(|| Arc::new(next.next_life()) as _))
///         .never_waits()
///         .never_hangs();
///     Some((volumes, fixture))
/// }
///
/// kubelet_testing::volume_contract!(mine);
/// # }
/// ```
#[macro_export]
macro_rules! volume_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, volumes:
            a_dropped_call_may_be_repeated
            mounted_volumes_are_there
            mounting_again_loses_nothing
            other_pods_are_left_alone
            places_are_inside_of_their_pods
            stopped_calls_return_soon
            unmounted_pods_leave_nothing
            unmounting_nothing_succeeds
            what_cannot_be_made_is_named
        }
    };
}
