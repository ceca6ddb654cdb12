//! Relists, looks at one pod, inspections.

use std::num::NonZeroUsize;
use std::sync::Arc;

use kubelet_core::ContainerState::{Exited, Running};
use kubelet_core::{MetricSet, MetricValue, PodLifecycleEventGenerator, PodUid, SandboxState};
use kubelet_pleg::{GenericPleg, GenericPlegSettings};
use tokio::time::{Instant, sleep};

use crate::node::{Node, ms};
use crate::runtime::Scripted;

#[tokio::test(start_paused = true)]
async fn the_first_relist_comes_at_once_and_each_other_a_period_after_the_last_has_ended() {
    let begun = Instant::now();
    let node = Node::start(Scripted::with_pods(1));
    node.runtime.list_takes.send_replace(ms(300));
    sleep(ms(3000)).await;
    let at: Vec<_> = node.runtime.world().lists.iter().map(|list| *list - begun).collect();
    assert_eq!(at, [ms(0), ms(1300), ms(2600)]);
}

#[tokio::test(start_paused = true)]
async fn the_period_can_be_set() {
    let mut settings = GenericPlegSettings::default();
    settings.period = ms(100);
    let node = Node::start_with(Arc::new(Scripted::with_pods(1)), Arc::new(GenericPleg::new(settings)));
    sleep(ms(1050)).await;
    assert_eq!(node.runtime.world().lists.len(), 11);
}

#[tokio::test(start_paused = true)]
async fn a_change_reaches_the_cache_and_wakes_its_pod_alone() {
    let mut node = Node::settled(Scripted::with_pods(3)).await;
    node.runtime.set("p001", 0, Exited);
    sleep(ms(1000)).await;
    assert_eq!(node.states("p001").unwrap(), [Exited]);
    assert_eq!(node.woken().await, ["p001".to_owned()].into());
    assert_eq!(node.runtime.world().inspected, ["p001"]);
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_relist_wakes_nobody_and_asks_for_no_status() {
    let mut node = Node::settled(Scripted::with_pods(100)).await;
    let mark = node.cache.mark();
    sleep(ms(60_000)).await;
    assert!(node.woken().await.is_empty());
    assert!(node.runtime.world().inspected.is_empty());
    assert!(node.runtime.world().pod_lists.is_empty());
    assert!(
        node.since("p042", mark, ms(0)).await.unwrap().is_ok(),
        "and yet all are fresh"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_vanishes_is_absent_and_its_worker_is_woken() {
    let mut node = Node::settled(Scripted::with_pods(2)).await;
    node.runtime.remove("p000");
    let mark = node.cache.mark();
    let seen = node.since("p000", mark, ms(1100)).await.unwrap().unwrap();
    assert!(seen.is_absent());
    assert_eq!(node.woken().await, ["p000".to_owned()].into());
    assert_eq!(node.cache.present(), [PodUid::from("p001")]);
    sleep(ms(5000)).await;
    assert!(node.woken().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_vanishes_while_it_is_inspected_is_gone_at_once_and_stays_so() {
    let mut node = Node::settled(Scripted::with_pods(1)).await;
    node.runtime.world().status_takes.insert("p000".to_owned(), ms(30_000));
    node.runtime.set("p000", 0, Exited);
    sleep(ms(1500)).await;
    assert_eq!(node.runtime.world().busy, ["p000"]);
    node.runtime.remove("p000");
    sleep(ms(1000)).await;
    assert!(node.cache.current(&PodUid::from("p000")).is_none());
    assert_eq!(node.woken().await, ["p000".to_owned()].into());
    // It comes back while the old inspection still waits; only a new one may speak for it.
    node.runtime.start("p000");
    let mark = node.cache.mark();
    let seen = node.since("p000", mark, ms(120_000)).await.unwrap().unwrap();
    assert!(!seen.is_absent());
    assert_eq!(node.runtime.inspections("p000"), 2);
    assert_eq!(node.runtime.world().most_busy, 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_answered_at_once_whether_the_pod_changed_or_not_or_is_not_there() {
    let mut node = Node::settled(Scripted::with_pods(2)).await;
    node.runtime.set("p000", 0, Exited);
    let mark = node.cache.mark();
    for (uid, states) in [
        ("p000", Some(vec![Exited])),
        ("p001", Some(vec![Running])),
        ("none", None),
    ] {
        node.ask.relist(&PodUid::from(uid));
        assert!(node.since(uid, mark, ms(1)).await.unwrap().is_ok(), "{uid}");
        assert_eq!(node.states(uid), states, "{uid}");
    }
    assert_eq!(node.woken().await, ["p000".to_owned()].into());
    assert_eq!(node.runtime.world().lists.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn many_requests_at_once_become_few_looks() {
    let node = Node::settled(Scripted::with_pods(200)).await;
    node.runtime.list_takes.send_replace(ms(20));
    sleep(ms(200)).await;
    let (lists, mark) = (node.runtime.world().lists.len(), node.cache.mark());
    for index in 0..200 {
        node.ask.relist(&PodUid::from(format!("p{index:03}")));
    }
    assert!(node.since("p199", mark, ms(50)).await.unwrap().is_ok());
    let world = node.runtime.world();
    assert_eq!(world.lists.len(), lists + 1);
    assert!(world.pod_lists.len() <= 24, "{}", world.pod_lists.len());
}

#[tokio::test(start_paused = true)]
async fn an_older_list_does_not_undo_a_newer_look() {
    let node = Node::settled(Scripted::with_pods(1)).await;
    sleep(ms(950)).await;
    node.runtime.list_takes.send_replace(ms(500));
    sleep(ms(100)).await;
    // The list of everything has its snapshot and is still under way.
    node.runtime.list_takes.send_modify(|takes| *takes = ms(1));
    node.runtime.set("p000", 0, Exited);
    let mark = node.cache.mark();
    node.ask.relist(&PodUid::from("p000"));
    let seen = node.since("p000", mark, ms(10)).await.unwrap().unwrap();
    assert_eq!(seen.containers[0].state, Exited);
    sleep(ms(600)).await;
    assert_eq!(node.states("p000").unwrap(), [Exited]);
    assert_eq!(node.runtime.inspections("p000"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reinspection_is_done_and_tells_its_pod_even_if_nothing_changed() {
    let mut node = Node::settled(Scripted::with_pods(1)).await;
    node.ask.reinspect(&PodUid::from("p000"));
    let mark = node.cache.mark();
    assert!(node.since("p000", mark, ms(1)).await.unwrap().is_ok());
    assert_eq!(node.runtime.inspections("p000"), 1);
    assert_eq!(node.woken().await, ["p000".to_owned()].into());
    sleep(ms(5000)).await;
    assert_eq!(node.runtime.inspections("p000"), 1, "once is enough");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_changes_while_it_is_inspected_is_inspected_again_afterwards() {
    let node = Node::settled(Scripted::with_pods(1)).await;
    node.runtime.world().status_takes.insert("p000".to_owned(), ms(5000));
    node.runtime.set("p000", 0, Exited);
    sleep(ms(2500)).await;
    node.runtime.set("p000", 1, Running);
    let mark = node.cache.mark();
    let seen = node.since("p000", mark, ms(20_000)).await.unwrap().unwrap();
    assert_eq!(seen.containers.len(), 2);
    assert_eq!(node.runtime.inspections("p000"), 2);
    assert_eq!(node.runtime.world().most_busy, 1);
    sleep(ms(20_000)).await;
    assert_eq!(node.runtime.inspections("p000"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_list_during_an_inspection_that_shows_the_same_needs_no_second_one() {
    let node = Node::settled(Scripted::with_pods(1)).await;
    node.runtime.world().status_takes.insert("p000".to_owned(), ms(5500));
    node.runtime.set("p000", 0, Exited);
    sleep(ms(3500)).await;
    let mark = node.cache.mark();
    assert!(node.since("p000", mark, ms(4000)).await.unwrap().is_ok());
    assert_eq!(node.runtime.inspections("p000"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_goes_between_list_and_status_is_left_out() {
    let mut node = Node::settled(Scripted::with_pods(1)).await;
    node.runtime.world().gone.insert("p000/1".to_owned());
    node.runtime.set("p000", 1, Exited);
    sleep(ms(1000)).await;
    assert_eq!(node.states("p000").unwrap(), [Running]);
    node.runtime
        .world()
        .pods
        .get_mut("p000")
        .unwrap()
        .containers
        .remove("p000/1");
    node.woken().await;
    sleep(ms(5000)).await;
    assert!(node.woken().await.is_empty(), "the next list says what is known");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_whose_lists_and_statuses_disagree_for_good_is_not_inspected_for_ever() {
    let node = Node::settled(Scripted::with_pods(1)).await;
    node.runtime.world().gone.insert("p000/1".to_owned());
    node.runtime.set("p000", 1, Exited);
    sleep(ms(60_000)).await;
    assert_eq!(node.runtime.inspections("p000"), 2);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_nothing_and_a_run_can_be_repeated() {
    let node = Node::settled(Scripted::with_pods(1)).await;
    node.runtime.list_takes.send_replace(ms(60_000));
    node.runtime.world().status_takes.insert("p000".to_owned(), ms(60_000));
    node.ask.reinspect(&PodUid::from("p000"));
    sleep(ms(1500)).await;
    let (runtime, pleg) = (node.runtime.clone(), node.pleg.clone());
    assert_eq!(node.stop().await, ms(0));
    runtime.list_takes.send_replace(ms(0));
    runtime.world().status_takes.clear();
    let again = Node::start_with(runtime, pleg);
    sleep(ms(1)).await;
    assert_eq!(again.states("p000").unwrap(), [Running]);
}

#[tokio::test(start_paused = true)]
async fn metrics_count_pods_containers_and_looks() {
    let mut settings = GenericPlegSettings::default();
    settings.max_parallel = NonZeroUsize::MIN;
    let node = Node::start_with(Arc::new(Scripted::with_pods(3)), Arc::new(GenericPleg::new(settings)));
    sleep(ms(10)).await;
    node.runtime.set("p000", 1, Exited);
    node.runtime.world().pods.get_mut("p001").unwrap().sandbox = SandboxState::NotReady;
    node.runtime.remove("p002");
    sleep(ms(2000)).await;
    let mut metrics = MetricSet::default();
    node.pleg.collect(&mut metrics);
    assert_eq!(metrics.get("kubelet_running_pods"), Some(&MetricValue::Gauge(1.0)));
    let count = |name: &str| match metrics.get(name) {
        Some(MetricValue::Histogram { count, .. }) => *count,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(count("kubelet_pleg_relist_duration_seconds"), 3);
    assert_eq!(count("kubelet_pleg_relist_interval_seconds"), 2);
    assert!(matches!(metrics.get("kubelet_pleg_last_seen_seconds"), Some(MetricValue::Gauge(at)) if *at > 0.0));
    let states: Vec<_> = metrics
        .samples()
        .iter()
        .filter(|sample| sample.name == "kubelet_running_containers")
        .map(|sample| (sample.labels[0].1.as_str(), sample.value.clone()))
        .collect();
    let gauge = MetricValue::Gauge;
    assert_eq!(
        states,
        [
            ("created", gauge(0.0)),
            ("exited", gauge(1.0)),
            ("running", gauge(2.0)),
            ("unknown", gauge(0.0))
        ]
    );
}
