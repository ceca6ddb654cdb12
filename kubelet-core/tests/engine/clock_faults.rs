//! Faults that kubelets had in public with clocks that are set, each a test of its kind.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use kubelet_core::jiff::{SignedDuration, Timestamp};
use kubelet_core::{Clock, PodUid, StateDir, TokioClock};
use kubelet_testing::{FakeRuntime, Op, PodBuilder};
use tokio::time::{Instant, sleep};

use super::harness::{Node, deleted};

/// A wall clock that somebody sets.
#[derive(Debug)]
struct Jumpy {
    steady: TokioClock,
    off_by_seconds: AtomicI64,
}

impl Clock for Jumpy {
    fn now(&self) -> Timestamp {
        let off = SignedDuration::from_secs(self.off_by_seconds.load(Ordering::SeqCst));
        self.steady.now().checked_add(off).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_is_set_ends_nothing_and_delays_nothing() {
    const DAY: i64 = 86_400;
    let steady = || PodBuilder::new("steady").uid("steady").container("app", |c| c).build();
    for jump in [-2 * DAY, 2 * DAY] {
        let clock = Arc::new(Jumpy {
            steady: TokioClock::starting_at(Timestamp::from_second(1_700_000_000).unwrap()),
            off_by_seconds: AtomicI64::new(0),
        });
        let runtime = FakeRuntime::builder().clock(clock.clone()).all_images_present().build();
        let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.clock(clock.clone()));
        let bounded = PodBuilder::new("bounded")
            .uid("bounded")
            .active_deadline_seconds(1000)
            .container("app", |c| c)
            .build();
        let crash = PodBuilder::new("crash")
            .uid("crash")
            .container("app", |c| c.args(["exit=1", "after=1s"]))
            .build();
        let begun = Instant::now();
        node.pods.set(vec![steady(), bounded, crash]).await.unwrap();
        node.until("crashes", |node| node.restarts("crash", "app") == Some(2))
            .await;
        sleep(Duration::from_millis(500)).await;
        clock.off_by_seconds.store(jump, Ordering::SeqCst);
        node.until("goes on", |node| node.restarts("crash", "app") == Some(5))
            .await;
        let starts: Vec<Duration> = runtime
            .calls()
            .iter()
            .filter(|call| call.op == Op::StartContainer && call.subject.pod == Some(PodUid::from("crash")))
            .map(|call| call.at)
            .collect();
        let pauses: Vec<u64> = starts.windows(2).map(|w| (w[1] - w[0]).as_secs()).collect();
        assert_eq!(pauses, [1, 11, 21, 41, 81], "{jump}");
        assert_eq!(node.phase("steady").as_deref(), Some("Running"), "{jump}");
        assert_eq!(node.phase("bounded").as_deref(), Some("Running"), "{jump}");
        node.until("overdue", |node| node.phase("bounded").as_deref() == Some("Failed"))
            .await;
        let active = begun.elapsed().as_secs();
        assert!((999..=1002).contains(&active), "{jump}: {active} s");
        // One that is new has all its time.
        let bounded = PodBuilder::new("new")
            .uid("new")
            .active_deadline_seconds(100)
            .container("app", |c| c)
            .build();
        node.pods.upsert(bounded).await.unwrap();
        let begun = Instant::now();
        node.until("overdue", |node| node.phase("new").as_deref() == Some("Failed"))
            .await;
        let active = begun.elapsed().as_secs();
        assert!((99..=102).contains(&active), "{jump}: {active} s");
        let asked = Instant::now();
        node.pods.upsert(deleted(steady(), 30)).await.unwrap();
        node.until("ended", |node| node.phase("steady").as_deref() == Some("Succeeded"))
            .await;
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
        node.stop().await;
    }
}
