//! Faults that kubelets have had, and slow or failing runtimes.

use kubelet_core::ContainerState::{Created, Exited, Running};
use kubelet_core::{CacheError, PodUid};
use tokio::time::{Instant, sleep};

use crate::node::{Node, ms};
use crate::runtime::Scripted;

/// kubernetes/kubernetes#95750, #93886, #139788: pods were inspected one after the other.
#[tokio::test(start_paused = true)]
async fn three_hundred_pods_that_change_at_once_are_inspected_several_at_a_time() {
    let mut node = Node::settled(Scripted::with_pods(300)).await;
    node.runtime.world().status_takes.insert(String::new(), ms(200));
    for index in 0..300 {
        node.runtime.set(&format!("p{index:03}"), 0, Exited);
    }
    let (mark, begun) = (node.cache.mark(), Instant::now());
    for index in 0..300 {
        let seen = node
            .since(&format!("p{index:03}"), mark, ms(60_000))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(seen.containers[0].state, Exited);
    }
    let took = begun.elapsed();
    assert!(took <= ms(1000 + 300 * 200 / 8 + 200), "{took:?}");
    assert_eq!(node.woken().await.len(), 300);
    let world = node.runtime.world();
    assert_eq!((world.inspected.len(), world.most_busy), (300, 8));
    assert!(world.lists.len() >= 8, "relists do not wait for inspections");
}

#[tokio::test(start_paused = true)]
async fn a_slow_pod_delays_only_itself() {
    let node = Node::settled(Scripted::with_pods(20)).await;
    node.runtime.world().status_takes.insert("p000".to_owned(), ms(100_000));
    for index in 0..20 {
        node.runtime.set(&format!("p{index:03}"), 0, Exited);
    }
    let mark = node.cache.mark();
    sleep(ms(1001)).await;
    for index in 1..20 {
        let uid = format!("p{index:03}");
        assert!(node.since(&uid, mark, ms(0)).await.unwrap().is_ok(), "{uid}");
    }
    // Relists go on, and do not make fresh what they have not seen.
    sleep(ms(50_000)).await;
    assert!(node.since("p000", mark, ms(0)).await.is_none());
    assert_eq!(node.states("p000").unwrap(), [Running]);
    assert_eq!(node.health.trouble(), None);
    assert!(node.since("p000", mark, ms(60_000)).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_few_stuck_pods_delay_no_other_and_stuck_calls_are_bounded() {
    let node = Node::settled(Scripted::with_pods(100)).await;
    for index in 0..10 {
        let uid = format!("p{index:03}");
        node.runtime.world().status_takes.insert(uid, ms(100_000));
    }
    for index in 0..20 {
        node.runtime.set(&format!("p{index:03}"), 0, Exited);
    }
    let mark = node.cache.mark();
    assert!(node.since("p019", mark, ms(2500)).await.unwrap().is_ok());
    node.runtime.world().status_takes.insert(String::new(), ms(100_000));
    for index in 20..100 {
        node.runtime.set(&format!("p{index:03}"), 0, Exited);
    }
    sleep(ms(60_000)).await;
    assert_eq!(node.runtime.world().most_busy, 32);
}

#[tokio::test(start_paused = true)]
async fn an_asked_pod_overtakes_those_that_a_relist_found() {
    let node = Node::settled(Scripted::with_pods(300)).await;
    node.runtime.world().status_takes.insert(String::new(), ms(200));
    for index in 0..300 {
        node.runtime.set(&format!("p{index:03}"), 0, Exited);
    }
    sleep(ms(1100)).await;
    let mark = node.cache.mark();
    node.ask.relist(&PodUid::from("p299"));
    assert!(node.since("p299", mark, ms(401)).await.unwrap().is_ok());
}

/// kubernetes/kubernetes#45419: a node swung between Ready and NotReady while lists were slow.
#[tokio::test(start_paused = true)]
async fn lists_of_four_minutes_are_named_by_health_and_forgotten_one_period_after() {
    let node = Node::settled(Scripted::with_pods(20)).await;
    node.runtime.list_takes.send_replace(ms(240_000));
    sleep(ms(179_000)).await;
    assert_eq!(node.health.trouble(), None, "the threshold is three minutes");
    sleep(ms(31_000)).await;
    let trouble = node.health.trouble().unwrap();
    assert!(
        trouble.contains("threshold is 180s") && trouble.contains("no answer within 120s"),
        "{trouble}"
    );
    node.runtime.list_takes.send_replace(ms(0));
    sleep(ms(1001)).await;
    assert_eq!(node.health.trouble(), None);
}

#[tokio::test(start_paused = true)]
async fn requests_do_not_wait_for_a_slow_list_of_everything() {
    let node = Node::settled(Scripted::with_pods(2)).await;
    sleep(ms(950)).await;
    node.runtime.list_takes.send_replace(ms(100_000));
    sleep(ms(100)).await;
    node.runtime.list_takes.send_modify(|takes| *takes = ms(5));
    node.runtime.set("p000", 0, Exited);
    let (mark, lists) = (node.cache.mark(), node.runtime.world().lists.len());
    for uid in ["p000", "p001"] {
        node.ask.relist(&PodUid::from(uid));
        assert!(node.since(uid, mark, ms(10)).await.unwrap().is_ok());
    }
    assert_eq!(node.states("p000").unwrap(), [Exited]);
    assert_eq!(
        node.runtime.world().lists.len(),
        lists,
        "the slow one is still under way"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_list_changes_nothing_but_tells_those_who_wait() {
    let mut node = Node::settled(Scripted::with_pods(2)).await;
    node.runtime.world().lists_fail = true;
    node.runtime.remove("p000");
    let mark = node.cache.mark();
    for _ in 0..3 {
        let outcome = node.since("p000", mark, ms(1100)).await.unwrap();
        assert!(matches!(outcome, Err(CacheError::CannotLook { why }) if why.contains("socket closed")));
    }
    assert_eq!(node.cache.present().len(), 2);
    assert_eq!(node.states("p000").unwrap(), [Running]);
    assert!(node.woken().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_was_restarted_and_kept_its_pods_wakes_nobody() {
    let mut node = Node::settled(Scripted::with_pods(5)).await;
    node.runtime.world().lists_fail = true;
    sleep(ms(200_000)).await;
    assert!(node.health.trouble().unwrap().contains("socket closed"));
    node.runtime.world().lists_fail = false;
    node.runtime.set("p003", 0, Exited);
    sleep(ms(1001)).await;
    assert_eq!(node.health.trouble(), None);
    assert_eq!(node.woken().await, ["p003".to_owned()].into());
}

#[tokio::test(start_paused = true)]
async fn a_failed_inspection_is_told_and_repeated_at_the_next_relist() {
    let mut node = Node::settled(Scripted::with_pods(2)).await;
    node.runtime.world().broken.insert("p000".to_owned());
    node.runtime.set("p000", 0, Exited);
    let mark = node.cache.mark();
    let outcome = node.since("p000", mark, ms(1100)).await.unwrap();
    assert!(matches!(outcome, Err(CacheError::CannotLook { .. })));
    assert_eq!(node.states("p000").unwrap(), [Running], "the old record is kept");
    sleep(ms(3100)).await;
    assert!(
        node.since("p000", mark, ms(0)).await.is_none(),
        "and never passes as fresh"
    );
    assert_eq!(node.runtime.inspections("p000"), 4);
    assert!(node.woken().await.is_empty());
    node.runtime.world().broken.clear();
    assert!(node.since("p000", mark, ms(1100)).await.unwrap().is_ok());
    assert_eq!(node.states("p000").unwrap(), [Exited]);
    assert_eq!(node.woken().await, ["p000".to_owned()].into());
    sleep(ms(5000)).await;
    assert_eq!(node.runtime.inspections("p000"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_could_not_be_looked_at_and_is_gone_is_known_to_be_gone() {
    let node = Node::settled(Scripted::with_pods(1)).await;
    let mark = node.cache.mark();
    node.runtime.world().lists_fail = true;
    node.ask.relist(&PodUid::from("none"));
    assert!(node.since("none", mark, ms(10)).await.unwrap().is_err());
    node.runtime.world().lists_fail = false;
    assert!(node.since("none", mark, ms(1100)).await.unwrap().unwrap().is_absent());
    sleep(ms(1001)).await;
    assert_eq!(node.cache.present(), [PodUid::from("p000")]);
}

#[tokio::test(start_paused = true)]
async fn after_a_start_no_pod_passes_as_absent_before_it_was_inspected() {
    let runtime = Scripted::with_pods(20);
    runtime.world().status_takes.insert(String::new(), ms(1000));
    runtime.set("p019", 1, Created);
    let node = Node::start(runtime);
    let mark = node.cache.mark();
    sleep(ms(10)).await;
    assert!(node.cache.has_looked());
    assert_eq!(node.cache.present().len(), 20);
    assert!(node.since("p019", mark, ms(0)).await.is_none());
    let seen = node.since("p019", mark, ms(5000)).await.unwrap().unwrap();
    assert_eq!(seen.containers.len(), 2);
}
