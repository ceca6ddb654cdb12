use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{CacheError, pod_status_cache, relist_requests};
use crate::ids::{ContainerId, PodKey, PodUid, SandboxId};
use crate::observation::{ObservedContainer, ObservedSandbox, PodObservation};
use crate::runtime::{ContainerState, RuntimeError};

fn running(uid: &PodUid, id: &str) -> PodObservation {
    let mut seen = PodObservation::absent(uid.clone());
    seen.containers.push(ObservedContainer::new(
        ContainerId::from(id),
        "app",
        ContainerState::Running,
        Timestamp::UNIX_EPOCH,
    ));
    seen
}

async fn waits<F: Future>(wait: F) -> Result<F::Output, tokio::time::error::Elapsed> {
    tokio::time::timeout(Duration::from_secs(1), wait).await
}

#[tokio::test(start_paused = true)]
async fn a_look_begun_before_the_mark_is_not_fresh() {
    let (writer, cache) = pod_status_cache();
    let uid = PodUid::from("u");
    let before = writer.begin();
    let mark = cache.mark();
    writer.put(&uid, before, Ok(running(&uid, "old")));
    writer.looked_at_all(before);
    assert!(waits(cache.since(&uid, mark)).await.is_err());
    let after = writer.begin();
    writer.put(&uid, after, Ok(running(&uid, "new")));
    let seen = waits(cache.since(&uid, mark)).await.unwrap().unwrap();
    assert_eq!(seen.containers[0].id.as_str(), "new");
}

#[tokio::test(start_paused = true)]
async fn a_look_at_everything_makes_unchanged_and_absent_pods_fresh() {
    let (writer, cache) = pod_status_cache();
    let (here, gone) = (PodUid::from("here"), PodUid::from("gone"));
    let first = writer.begin();
    writer.put(&here, first, Ok(running(&here, "c")));
    writer.looked_at_all(first);
    let mark = cache.mark();
    let second = writer.begin();
    writer.looked_at_all(second);
    assert!(!waits(cache.since(&here, mark)).await.unwrap().unwrap().is_absent());
    assert!(waits(cache.since(&gone, mark)).await.unwrap().unwrap().is_absent());
}

#[tokio::test(start_paused = true)]
async fn a_pod_still_being_inspected_is_not_made_fresh_by_the_list() {
    let (writer, cache) = pod_status_cache();
    let uid = PodUid::from("u");
    let first = writer.begin();
    writer.put(&uid, first, Ok(running(&uid, "old")));
    writer.looked_at_all(first);
    let mark = cache.mark();
    let second = writer.begin();
    writer.stale(&uid, second, None);
    writer.looked_at_all(second);
    assert!(waits(cache.since(&uid, mark)).await.is_err());
    writer.put(&uid, second, Ok(running(&uid, "new")));
    let seen = waits(cache.since(&uid, mark)).await.unwrap().unwrap();
    assert_eq!(seen.containers[0].id.as_str(), "new");
}

#[tokio::test(start_paused = true)]
async fn an_older_look_never_replaces_a_newer_one() {
    let (writer, cache) = pod_status_cache();
    let uid = PodUid::from("u");
    let (older, newer) = (writer.begin(), writer.begin());
    writer.put(&uid, newer, Ok(running(&uid, "new")));
    writer.put(&uid, older, Ok(PodObservation::absent(uid.clone())));
    assert_eq!(cache.current(&uid).unwrap().containers[0].id.as_str(), "new");
}

#[tokio::test(start_paused = true)]
async fn waiters_get_an_error_when_nobody_can_look() {
    let (writer, cache) = pod_status_cache();
    let uid = PodUid::from("u");
    let mark = cache.mark();
    let wait = cache.since(&uid, mark);
    tokio::pin!(wait);
    assert!(waits(&mut wait).await.is_err());
    writer.cannot_look(&RuntimeError::unavailable("list_containers", "socket closed"));
    assert!(matches!(waits(&mut wait).await, Ok(Err(CacheError::CannotLook { .. }))));
    let again = cache.since(&uid, mark);
    drop(writer);
    assert!(matches!(waits(again).await, Ok(Err(CacheError::Closed))));
}

#[tokio::test(start_paused = true)]
async fn a_failed_inspection_keeps_the_last_good_look_and_never_passes_as_fresh() {
    let (writer, cache) = pod_status_cache();
    let uid = PodUid::from("u");
    let first = writer.begin();
    writer.put(&uid, first, Ok(running(&uid, "c")));
    let mark = cache.mark();
    let second = writer.begin();
    writer.put(&uid, second, Err(RuntimeError::unavailable("container_status", "slow")));
    writer.looked_at_all(second);
    assert!(waits(cache.since(&uid, mark)).await.is_err());
    assert!(cache.current(&uid).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_second_change_stays_stale_when_the_first_is_brought() {
    let (writer, cache) = pod_status_cache();
    let uid = PodUid::from("u");
    let first = writer.begin();
    writer.stale(&uid, first, None);
    writer.looked_at_all(first);
    let mark = cache.mark();
    let second = writer.begin();
    writer.stale(&uid, second, None);
    writer.looked_at_all(second);
    writer.put(&uid, first, Ok(running(&uid, "old")));
    assert!(waits(cache.since(&uid, mark)).await.is_err());
    writer.put(&uid, second, Ok(running(&uid, "new")));
    let seen = waits(cache.since(&uid, mark)).await.unwrap().unwrap();
    assert_eq!(seen.containers[0].id.as_str(), "new");
}

#[tokio::test(start_paused = true)]
async fn a_look_at_one_pod_that_finds_it_unchanged_makes_it_fresh() {
    let (writer, cache) = pod_status_cache();
    let (here, gone, changing) = (PodUid::from("here"), PodUid::from("gone"), PodUid::from("changing"));
    let first = writer.begin();
    writer.put(&here, first, Ok(running(&here, "c")));
    writer.put(&changing, first, Ok(running(&changing, "c")));
    writer.looked_at_all(first);
    let mark = cache.mark();
    let second = writer.begin();
    writer.stale(&changing, second, None);
    for uid in [&here, &gone, &changing] {
        writer.unchanged(uid, second);
    }
    assert!(!waits(cache.since(&here, mark)).await.unwrap().unwrap().is_absent());
    assert!(waits(cache.since(&gone, mark)).await.unwrap().unwrap().is_absent());
    assert!(waits(cache.since(&changing, mark)).await.is_err());
    // An older look never takes freshness back.
    writer.unchanged(&here, first);
    assert!(waits(cache.since(&here, mark)).await.is_ok());
}

#[test]
fn a_pod_that_is_still_to_be_inspected_counts_as_present() {
    let (writer, cache) = pod_status_cache();
    let (listed, failed) = (PodUid::from("listed"), PodUid::from("failed"));
    let at = writer.begin();
    writer.stale(&listed, at, Some(&PodKey::new("default", "web")));
    writer.put(&failed, at, Err(RuntimeError::unavailable("sandbox_status", "slow")));
    writer.looked_at_all(at);
    assert_eq!(cache.present(), [failed, listed.clone()]);
    assert!(cache.current(&listed).is_none());
    assert_eq!(cache.key(&listed), Some(PodKey::new("default", "web")));
    assert!(cache.images_in_use().is_none(), "what they use is not known");
}

#[test]
fn a_pod_without_a_ready_sandbox_keeps_its_addresses() {
    let (writer, cache) = pod_status_cache();
    let uid = PodUid::from("u");
    let ip = "10.0.0.1".parse().unwrap();
    let mut seen = running(&uid, "c");
    seen.ips = vec![ip];
    writer.put(&uid, writer.begin(), Ok(seen));
    writer.put(&uid, writer.begin(), Ok(running(&uid, "d")));
    assert_eq!(cache.current(&uid).unwrap().ips, [ip]);
    let mut ready = running(&uid, "d");
    ready.sandboxes = vec![ObservedSandbox::ready(SandboxId::from("s"), 1, Timestamp::UNIX_EPOCH)];
    writer.put(&uid, writer.begin(), Ok(ready));
    assert!(cache.current(&uid).unwrap().ips.is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_are_a_set_in_order_of_arrival() {
    let (ask, mut requests) = relist_requests();
    let (a, b) = (PodUid::from("a"), PodUid::from("b"));
    ask.relist(&b);
    ask.relist(&a);
    ask.reinspect(&b);
    let all = requests.drain();
    assert_eq!(all.iter().map(|r| r.uid.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    assert!(all[0].reinspect && !all[1].reinspect);
    assert!(waits(requests.next()).await.is_err());
}

#[test]
fn a_name_takes_the_place_of_nothing_that_is_known() {
    let (writer, cache) = pod_status_cache();
    let uid = PodUid::from("u");
    let mut seen = PodObservation::absent(uid.clone());
    let (id, made) = (ContainerId::from("c"), Timestamp::UNIX_EPOCH);
    seen.containers = vec![ObservedContainer::new(id, "app", ContainerState::Running, made)];
    writer.put(&uid, writer.begin(), Ok(seen));
    writer.stale(&uid, writer.begin(), Some(&PodKey::new("default", "web")));
    assert!(cache.current(&uid).is_some_and(|seen| seen.may_run()));
}
