//! What the runtime's own events bring about.

use futures::channel::mpsc;
use kubelet_core::ContainerState::{Created, Exited};
use kubelet_core::{PodUid, RuntimeError, RuntimeHint};
use tokio::time::{Instant, sleep};

use crate::node::{Node, ms};
use crate::runtime::{HintResult, Scripted};

/// A runtime that can be connected to this often, with the ends that send.
pub(crate) fn with_streams(pods: usize, streams: usize) -> (Scripted, Vec<mpsc::Sender<HintResult>>) {
    let runtime = Scripted::with_pods(pods);
    let mut senders = Vec::new();
    for _ in 0..streams {
        let (mut send, receive) = mpsc::channel(16);
        send.try_send(Ok(RuntimeHint::Ready)).unwrap();
        runtime.world().streams.push_back(receive);
        senders.push(send);
    }
    (runtime, senders)
}

#[tokio::test(start_paused = true)]
async fn a_hint_makes_it_look_at_that_pod_at_once() {
    let (runtime, mut senders) = with_streams(3, 1);
    let mut node = Node::settled(runtime).await;
    node.runtime.set("p001", 0, Exited);
    senders[0].try_send(Ok(RuntimeHint::Pod(PodUid::from("p001")))).unwrap();
    sleep(ms(1)).await;
    assert_eq!(node.states("p001").unwrap(), [Exited]);
    assert_eq!(node.woken().await, ["p001".to_owned()].into());
    assert_eq!(node.runtime.world().pod_lists, ["p001"]);
}

/// kubernetes/kubernetes#121003: containers were created twice because the cache passed as fresh before it was.
#[tokio::test(start_paused = true)]
async fn a_hint_that_comes_before_lists_show_the_change_makes_nothing_fresh() {
    let (runtime, mut senders) = with_streams(1, 1);
    let node = Node::settled(runtime).await;
    node.runtime.list_takes.send_replace(ms(50));
    senders[0].try_send(Ok(RuntimeHint::Pod(PodUid::from("p000")))).unwrap();
    sleep(ms(10)).await;
    // The look that the hint caused has its lists. Only now is the container there, and the worker goes on.
    assert_eq!(node.runtime.world().pod_lists.len(), 1);
    node.runtime.set("p000", 1, Created);
    let mark = node.cache.mark();
    assert!(node.since("p000", mark, ms(100)).await.is_none());
    node.ask.relist(&PodUid::from("p000"));
    let seen = node.since("p000", mark, ms(60)).await.unwrap().unwrap();
    assert_eq!(seen.containers.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn lost_hints_bring_a_relist_at_once_but_not_one_after_the_other() {
    let (runtime, mut senders) = with_streams(1, 1);
    let node = Node::settled(runtime).await;
    sleep(ms(490)).await;
    for _ in 0..10 {
        senders[0].try_send(Ok(RuntimeHint::Lost)).unwrap();
    }
    sleep(ms(10)).await;
    assert_eq!(node.runtime.world().lists.len(), 2);
    for _ in 0..100 {
        senders[0].try_send(Ok(RuntimeHint::Lost)).unwrap();
        sleep(ms(10)).await;
    }
    assert!(node.runtime.world().lists.len() <= 13);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_is_opened_again_with_back_off_and_followed_by_a_relist() {
    let (runtime, mut senders) = with_streams(1, 2);
    let node = Node::settled(runtime).await;
    senders[0]
        .try_send(Err(RuntimeError::unavailable("events", "connection reset")))
        .unwrap();
    sleep(ms(450)).await;
    assert_eq!(node.runtime.world().connections.len(), 1);
    // The first wait is at least a second and at most half as long again; then everything is looked at, and then hints
    // work as before.
    let mut lists = node.runtime.world().lists.len();
    while node.runtime.world().connections.len() < 2 {
        lists = node.runtime.world().lists.len();
        sleep(ms(1)).await;
    }
    sleep(ms(101)).await;
    assert_eq!(node.runtime.world().lists.len(), lists + 1);
    node.runtime.set("p000", 0, Exited);
    senders[1].try_send(Ok(RuntimeHint::Pod(PodUid::from("p000")))).unwrap();
    sleep(ms(1)).await;
    assert_eq!(node.states("p000").unwrap(), [Exited]);
}

#[tokio::test(start_paused = true)]
async fn reconnecting_backs_off_to_half_a_minute() {
    let runtime = Scripted::with_pods(1);
    for _ in 0..12 {
        let (mut send, receive) = mpsc::channel(1);
        send.try_send(Err(RuntimeError::unavailable("events", "refused")))
            .unwrap();
        runtime.world().streams.push_back(receive);
    }
    let begun = Instant::now();
    let node = Node::start(runtime);
    sleep(ms(600_000)).await;
    let at = node.runtime.world().connections.clone();
    assert_eq!(at[0], begun);
    for (gap, seconds) in at
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .zip([1, 2, 4, 8, 16, 30, 30, 30])
    {
        assert!(
            gap >= ms(seconds * 1000) && gap <= ms(seconds * 1500 + 1),
            "{gap:?} for {seconds} s"
        );
    }
    // The thirteenth answer is that events are not supported, which ends it.
    assert_eq!(at.len(), 13);
}
