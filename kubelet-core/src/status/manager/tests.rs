use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{SetOutcome, SetStatus, StatusManager, StatusSettings};
use crate::clock::TokioClock;
use crate::ids::PodUid;
use crate::metrics::{MetricSet, MetricSource, MetricValue};
use crate::pod::PodRecord;
use crate::pod::testing::record;
use crate::status::{Published, StatusSink, StatusUpdate};

/// Answers as told, `Accepted` by default, and writes down what it is told and when.
#[derive(Debug)]
struct Script {
    answers: Mutex<VecDeque<Published>>,
    takes: Duration,
    start: Instant,
    log: Mutex<Vec<String>>,
    busy: Mutex<(usize, usize)>,
}

impl Script {
    fn new(takes: Duration, answers: &[Published]) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(answers.iter().copied().collect()),
            takes,
            start: Instant::now(),
            log: Mutex::default(),
            busy: Mutex::default(),
        })
    }

    fn note(&self, text: &str) {
        let line = format!("{}: {text}", self.start.elapsed().as_secs());
        self.log.lock().unwrap().push(line);
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

#[async_trait]
impl StatusSink for Script {
    async fn publish(&self, update: &StatusUpdate) -> Published {
        self.note(&format!(
            "{} {}",
            update.pod.uid(),
            update.status.reason.as_deref().unwrap_or("-")
        ));
        {
            let mut busy = self.busy.lock().unwrap();
            busy.0 += 1;
            busy.1 = busy.1.max(busy.0);
        }
        sleep(self.takes).await;
        self.busy.lock().unwrap().0 -= 1;
        self.answers.lock().unwrap().pop_front().unwrap_or(Published::Accepted)
    }

    async fn forget(&self, uid: &PodUid) {
        self.note(&format!("{uid} forgotten"));
    }
}

fn manager(settings: StatusSettings) -> StatusManager {
    StatusManager::new(Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH)), settings)
}

fn pod(uid: &str) -> Arc<PodRecord> {
    Arc::new(record(
        json!({"metadata": {"uid": uid}, "spec": {"containers": [{"name": "app", "image": "i"}]}}),
    ))
}

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn said(reason: &str) -> PodStatus {
    status(json!({"phase": "Running", "reason": reason}))
}

/// Runs `work` beside the manager, whose clock is simulated.
async fn beside<F: Future<Output = ()>>(manager: &StatusManager, sink: &Arc<Script>, work: F) {
    let stop = CancellationToken::new();
    tokio::join!(manager.run(vec![sink.clone()], stop.clone()), async {
        work.await;
        stop.cancel();
    });
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[test]
fn a_status_only_moves_forward() {
    let manager = manager(StatusSettings::default());
    let pod = pod("a");
    let with = |phase: &str, count: i32, generation: i64| {
        status(
            json!({"phase": phase, "observedGeneration": generation, "startTime": "2024-01-01T00:00:00Z",
            "containerStatuses": [{"name": "app", "image": "", "imageID": "", "ready": false, "restartCount": count}]}),
        )
    };
    assert_eq!(
        manager.set(&pod, with("Running", 3, 5), SetStatus::live()),
        SetOutcome::Changed
    );
    let mut later = with("Failed", 1, 4);
    later.start_time = None;
    assert_eq!(manager.set(&pod, later, SetStatus::live()), SetOutcome::Changed);
    let now = manager.get(pod.uid()).unwrap();
    assert_eq!(now.container_statuses.as_ref().unwrap()[0].restart_count, 3);
    assert_eq!(now.observed_generation, Some(5));
    assert_eq!(now.start_time.as_ref().unwrap().0.to_string(), "2024-01-01T00:00:00Z");
    assert_eq!(
        manager.set(&pod, with("Running", 3, 5), SetStatus::live()),
        SetOutcome::Unchanged
    );
    assert_eq!(manager.get(pod.uid()).unwrap().phase.as_deref(), Some("Failed"));
}

#[test]
fn only_what_is_new_is_a_version() {
    let manager = manager(StatusSettings::default());
    let pod = pod("a");
    let version = || manager.latest(pod.uid()).unwrap().version;
    for (how, outcome, expected) in [
        (SetStatus::live(), SetOutcome::Changed, 1),
        (SetStatus::live(), SetOutcome::Unchanged, 1),
        (SetStatus::live().forced(), SetOutcome::Changed, 2),
        (SetStatus::stopped(), SetOutcome::Changed, 3),
        (SetStatus::stopped(), SetOutcome::Unchanged, 3),
        (SetStatus::finished(), SetOutcome::Changed, 4),
        (SetStatus::stopped(), SetOutcome::Unchanged, 4),
    ] {
        assert_eq!(manager.set(&pod, said("x"), how), outcome, "{how:?}");
        assert_eq!(version(), expected, "{how:?}");
    }
    assert!(manager.latest(pod.uid()).unwrap().finished);
    manager.forget(pod.uid());
    assert!(manager.get(pod.uid()).is_none());
}

#[test]
fn a_container_that_ended_for_good_is_not_said_to_run() {
    let manager = manager(StatusSettings::default());
    let container = json!({"name": "app", "image": "i"});
    let pod = Arc::new(record(
        json!({"spec": {"restartPolicy": "Never", "containers": [container]}}),
    ));
    let with = |state: Value| {
        status(json!({"containerStatuses": [
            {"name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ]}))
    };
    manager.set(&pod, with(json!({"terminated": {"exitCode": 0}})), SetStatus::live());
    let outcome = manager.set(&pod, with(json!({"running": {}})), SetStatus::live());
    assert_eq!(outcome, SetOutcome::Refused);
    assert!(
        manager.get(pod.uid()).unwrap().container_statuses.as_ref().unwrap()[0]
            .state
            .as_ref()
            .unwrap()
            .terminated
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_sink_gets_the_newest_and_one_call_at_a_time_per_pod() {
    let manager = manager(StatusSettings::default());
    let sink = Script::new(Duration::from_secs(10), &[]);
    beside(&manager, &sink, async {
        let (a, b) = (pod("a"), pod("b"));
        manager.set(&a, said("one"), SetStatus::live());
        manager.set(&b, said("one"), SetStatus::live());
        seconds(1).await;
        manager.set(&a, said("two"), SetStatus::live());
        manager.set(&a, said("three"), SetStatus::live());
        seconds(100).await;
    })
    .await;
    assert_eq!(sink.log(), ["0: a one", "0: b one", "10: a three"]);
    let mut metrics = MetricSet::default();
    manager.collect(&mut metrics);
    let told = metrics.get("kubelet_pod_status_sync_duration_seconds");
    assert!(
        matches!(told, Some(MetricValue::Histogram { count: 3, .. })),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_retry_comes_when_asked_or_at_the_next_change() {
    let manager = manager(StatusSettings::default());
    let later = Published::Retry(Duration::from_secs(30));
    let sink = Script::new(Duration::ZERO, &[later, later, later]);
    beside(&manager, &sink, async {
        let a = pod("a");
        manager.set(&a, said("one"), SetStatus::live());
        seconds(40).await;
        manager.set(&a, said("two"), SetStatus::live());
        seconds(100).await;
    })
    .await;
    assert_eq!(sink.log(), ["0: a one", "30: a one", "40: a two", "70: a two"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_told_no_more_until_it_comes_again() {
    let manager = manager(StatusSettings::default());
    let sink = Script::new(Duration::ZERO, &[Published::Gone]);
    beside(&manager, &sink, async {
        let a = pod("a");
        manager.set(&a, said("one"), SetStatus::live());
        seconds(1).await;
        manager.set(&a, said("two"), SetStatus::live());
        seconds(1).await;
        manager.forget(a.uid());
        manager.set(&a, said("three"), SetStatus::live());
        seconds(1).await;
        manager.forget(a.uid());
        seconds(1).await;
    })
    .await;
    assert_eq!(sink.log(), ["0: a one", "2: a three", "3: a forgotten"]);
}

#[tokio::test(start_paused = true)]
async fn forgetting_comes_last() {
    let manager = manager(StatusSettings::default());
    let later = Published::Retry(Duration::from_secs(5));
    let sink = Script::new(Duration::from_secs(1), &[Published::Accepted, later, later, later]);
    beside(&manager, &sink, async {
        let a = pod("a");
        manager.set(&a, said("one"), SetStatus::live());
        sleep(Duration::from_millis(500)).await;
        // The last version is told first; three times refused, it is given up.
        manager.set(&a, said("last"), SetStatus::finished());
        manager.forget(a.uid());
        seconds(1).await;
        manager.set(&a, said("again"), SetStatus::live());
        seconds(100).await;
    })
    .await;
    assert_eq!(
        sink.log(),
        [
            "0: a one",
            "1: a last",
            "7: a last",
            "13: a last",
            "14: a forgotten",
            "14: a again"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn calls_are_bounded_and_idle_costs_nothing() {
    let settings = StatusSettings {
        publish_concurrency: 3,
        ..StatusSettings::default()
    };
    let manager = manager(settings);
    let sink = Script::new(Duration::from_secs(1), &[]);
    beside(&manager, &sink, async {
        for i in 0..10 {
            manager.set(&pod(&format!("p{i}")), said("x"), SetStatus::live());
        }
        seconds(3600).await;
    })
    .await;
    assert_eq!((sink.log().len(), sink.busy.lock().unwrap().1), (10, 3));
}

#[tokio::test(start_paused = true)]
async fn a_stop_drops_what_goes_on_unless_it_may_be_flushed() {
    for (flush, ends, expected) in [
        (0, 1, vec!["0: a one"]),
        (30, 20, vec!["0: a one", "10: a two"]),
        (5, 6, vec!["0: a one"]),
    ] {
        let manager = manager(StatusSettings {
            flush_within: Duration::from_secs(flush),
            ..StatusSettings::default()
        });
        let sink = Script::new(Duration::from_secs(10), &[]);
        let start = Instant::now();
        beside(&manager, &sink, async {
            let a = pod("a");
            manager.set(&a, said("one"), SetStatus::live());
            seconds(1).await;
            manager.set(&a, said("two"), SetStatus::live());
        })
        .await;
        assert_eq!(sink.log(), expected, "{flush}");
        assert_eq!(start.elapsed().as_secs(), ends, "{flush}");
    }
}
