//! The generator that relies on events: how often it looks at everything, and when it stops relying on them.

use std::sync::Arc;

use futures::channel::mpsc;
use kubelet_core::ContainerState::{Exited, Running};
use kubelet_core::{MetricSet, MetricValue, PodLifecycleEventGenerator, PodUid, RuntimeError, RuntimeHint};
use kubelet_pleg::EventedPleg;
use tokio::time::{Instant, sleep};

use crate::hints::with_streams;
use crate::node::{Node, ms};
use crate::runtime::HintResult;

const MINUTE: u64 = 60_000;

/// On a runtime that can be connected to so often, caught up.
async fn evented(pods: usize, streams: usize) -> (Node, Vec<mpsc::Sender<HintResult>>) {
    let (runtime, senders) = with_streams(pods, streams);
    let node = Node::start_with(Arc::new(runtime), Arc::new(EventedPleg::default()));
    sleep(ms(500)).await;
    (node, senders)
}

impl Node {
    fn relists(&self) -> usize {
        self.runtime.world().lists.len()
    }

    /// How many relists there are within so many seconds.
    async fn relists_in(&self, seconds: u64) -> usize {
        let before = self.relists();
        sleep(ms(seconds * 1000)).await;
        self.relists() - before
    }
}

fn counted(pleg: &dyn PodLifecycleEventGenerator, name: &str) -> u64 {
    let mut metrics = MetricSet::default();
    pleg.collect(&mut metrics);
    match metrics.get(name) {
        Some(MetricValue::Counter(count)) => *count,
        other => panic!("{name}: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn it_relists_every_five_minutes_while_events_flow_and_stays_healthy() {
    let (node, _senders) = evented(3, 1).await;
    assert_eq!(node.relists(), 2, "one at the start, one with events");
    assert_eq!(node.relists_in(299).await, 0);
    assert_eq!(node.relists_in(2).await, 1);
    for _ in 0..60 {
        sleep(ms(MINUTE)).await;
        assert_eq!(node.health.trouble(), None);
    }
    assert_eq!(node.relists(), 15);
}

#[tokio::test(start_paused = true)]
async fn an_event_shows_in_the_cache_at_once_and_costs_no_relist() {
    let (mut node, mut senders) = evented(3, 1).await;
    node.woken().await;
    node.runtime.set("p001", 0, Exited);
    senders[0].try_send(Ok(RuntimeHint::Pod(PodUid::from("p001")))).unwrap();
    sleep(ms(1)).await;
    assert_eq!(node.states("p001").unwrap(), [Exited]);
    assert_eq!(node.woken().await, ["p001".to_owned()].into());
    assert_eq!(node.relists_in(60).await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_short_period_holds_while_the_stream_is_broken_however_often_it_breaks() {
    let (node, mut senders) = evented(1, 8).await;
    for sender in &mut senders[..7] {
        assert_eq!(node.relists_in(60).await, 0);
        let broken = Err(RuntimeError::unavailable("events", "connection reset"));
        sender.try_send(broken).unwrap();
        // Connected again after 1 s to 1.5 s: one relist after the short period, one with the new stream.
        let relists = node.relists_in(3).await;
        assert!((1..=2).contains(&relists), "{relists}");
    }
    assert_eq!(counted(&*node.pleg, "kubelet_evented_pleg_connection_success_count"), 8);
    assert_eq!(counted(&*node.pleg, "kubelet_evented_pleg_connection_error_count"), 7);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_events_is_relisted_each_second() {
    let (node, _) = evented(1, 0).await;
    assert_eq!(node.relists_in(60).await, 60);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_misses_a_change_is_not_relied_on_until_it_tells_something() {
    let (node, mut senders) = evented(2, 2).await;
    // A worker asks for its pod, as it does after each of its own calls, and so finds what no event told.
    node.runtime.set("p000", 0, Exited);
    node.ask.relist(&PodUid::from("p000"));
    sleep(ms(9_900)).await;
    assert_eq!(node.relists_in(0).await, 0);
    let relists = node.relists_in(30).await;
    assert!((27..=31).contains(&relists), "{relists}");
    assert_eq!(node.runtime.world().connections.len(), 2);
    // What is missed meanwhile is found within the short period.
    node.runtime.set("p001", 0, Exited);
    sleep(ms(1_100)).await;
    assert_eq!(node.states("p001").unwrap(), [Exited]);
    senders[1].try_send(Ok(RuntimeHint::Pod(PodUid::from("p001")))).unwrap();
    sleep(ms(1_100)).await;
    assert_eq!(node.relists_in(120).await, 0);
}

#[tokio::test(start_paused = true)]
async fn events_that_come_late_or_tell_that_some_were_lost_are_relied_on() {
    let (node, mut senders) = evented(2, 1).await;
    node.runtime.set("p000", 0, Exited);
    node.ask.relist(&PodUid::from("p000"));
    sleep(ms(5_000)).await;
    senders[0].try_send(Ok(RuntimeHint::Pod(PodUid::from("p000")))).unwrap();
    assert_eq!(node.relists_in(60).await, 0);
    node.runtime.set("p001", 0, Exited);
    node.ask.relist(&PodUid::from("p001"));
    sleep(ms(5_000)).await;
    senders[0].try_send(Ok(RuntimeHint::Lost)).unwrap();
    assert_eq!(node.relists_in(60).await, 1);
    assert_eq!(node.runtime.world().connections.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_inspected_is_tried_again_after_the_short_period() {
    let (node, mut senders) = evented(2, 1).await;
    node.runtime.set("p000", 0, Exited);
    node.runtime.world().broken.insert("p000".to_owned());
    senders[0].try_send(Ok(RuntimeHint::Pod(PodUid::from("p000")))).unwrap();
    sleep(ms(3_500)).await;
    assert_eq!(node.states("p000").unwrap(), [Running]);
    node.runtime.world().broken.clear();
    sleep(ms(1_100)).await;
    assert_eq!(node.states("p000").unwrap(), [Exited]);
    assert_eq!(node.relists_in(60).await, 0);
}

/// The relist under way began before that look, so that it cannot stand in for it.
#[tokio::test(start_paused = true)]
async fn a_look_that_fails_during_a_relist_is_made_up_for_after_the_short_period() {
    let (node, mut senders) = evented(2, 1).await;
    node.runtime.list_takes.send_replace(ms(2_000));
    senders[0].try_send(Ok(RuntimeHint::Lost)).unwrap();
    sleep(ms(500)).await;
    node.runtime.list_takes.send_replace(ms(1));
    node.runtime.world().lists_fail = true;
    senders[0].try_send(Ok(RuntimeHint::Pod(PodUid::from("p000")))).unwrap();
    sleep(ms(100)).await;
    node.runtime.world().lists_fail = false;
    sleep(ms(3_000)).await;
    // The one for the hint, and the one after it.
    assert_eq!(node.relists(), 4);
    assert_eq!(node.relists_in(60).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_stops_answering_is_unhealthy_three_minutes_after_its_events_broke_off() {
    let (node, mut senders) = evented(1, 1).await;
    sleep(ms(4 * MINUTE)).await;
    node.runtime.world().lists_fail = true;
    let broken_at = Instant::now();
    for _ in 0..1_000 {
        let (mut sender, receiver) = mpsc::channel(1);
        sender
            .try_send(Err(RuntimeError::unavailable("events", "refused")))
            .unwrap();
        node.runtime.world().streams.push_back(receiver);
    }
    senders[0]
        .try_send(Err(RuntimeError::unavailable("events", "connection reset")))
        .unwrap();
    while node.health.trouble().is_none() {
        sleep(ms(1_000)).await;
    }
    let after = broken_at.elapsed();
    assert!((ms(3 * MINUTE)..ms(3 * MINUTE + 2_000)).contains(&after), "{after:?}");
}
