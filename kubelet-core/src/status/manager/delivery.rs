//! Tells one sink what changes, one call at a time per pod.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Numbers;
use crate::ids::PodUid;
use crate::status::journal::{StatusChange, StatusReader};
use crate::status::{Published, StatusSink, StatusUpdate};

/// How often the last version of a pod that left is tried before the sink is told that it left.
const FAREWELL_TRIES: u32 = 3;
/// A sink that asks for no pause gets this one, so that it cannot keep the agent busy.
const LEAST_RETRY: Duration = Duration::from_millis(10);

/// Where a sink stands with one pod.
#[derive(Debug, Default)]
struct Cursor {
    /// The pod's life that this is about.
    life: u64,
    stage: Stage,
    /// The newest version that it does not have.
    pending: Option<StatusUpdate>,
    /// When the oldest change that it does not have was made.
    since: Option<Instant>,
    /// The version that it has.
    accepted: u64,
    /// Nothing more is sent of this life.
    gone: bool,
    leave: Option<Leave>,
}

#[derive(Debug, Default)]
enum Stage {
    /// There is nothing to tell.
    #[default]
    Idle,
    Queued,
    /// A call goes on.
    Busy,
    /// The sink asked for a pause.
    Paused(Instant),
}

/// The pod left the node.
#[derive(Debug, Default)]
struct Leave {
    tries: u32,
    /// It came again meanwhile: told after the leave.
    next: Option<(u64, StatusUpdate)>,
}

enum Outcome {
    /// Of the life that the update was of.
    Published(u64, StatusUpdate, Published),
    Forgotten,
}

pub(super) struct Delivery {
    sink: Arc<dyn StatusSink>,
    reader: StatusReader,
    limit: usize,
    flush_within: Arc<Mutex<Duration>>,
    numbers: Arc<Numbers>,
    cursors: BTreeMap<PodUid, Cursor>,
    queue: VecDeque<PodUid>,
    pauses: BTreeSet<(Instant, PodUid)>,
    calls: FuturesUnordered<BoxFuture<'static, (PodUid, Outcome)>>,
}

impl Delivery {
    pub(super) fn new(
        sink: Arc<dyn StatusSink>,
        reader: StatusReader,
        publish_concurrency: usize,
        flush_within: Arc<Mutex<Duration>>,
        numbers: Arc<Numbers>,
    ) -> Self {
        Self {
            sink,
            reader,
            limit: publish_concurrency.max(1),
            flush_within,
            numbers,
            cursors: BTreeMap::new(),
            queue: VecDeque::new(),
            pauses: BTreeSet::new(),
            calls: FuturesUnordered::new(),
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut flush_until = None;
        let mut writers = true;
        loop {
            while let Some((life, change)) = self.reader.take() {
                self.take(life, change);
            }
            self.end_pauses();
            self.start_calls();
            let flushed = self.calls.is_empty() && self.queue.is_empty();
            if flush_until.is_some() && flushed {
                return;
            }
            let pause = self.pauses.first().map(|(until, _)| *until);
            tokio::select! {
                biased;
                () = stop.cancelled(), if flush_until.is_none() => {
                    let time = *self.flush_within.lock().unwrap_or_else(PoisonError::into_inner);
                    if time.is_zero() {
                        return;
                    }
                    flush_until = Some(Instant::now() + time);
                }
                () = until(flush_until) => return,
                Some((uid, outcome)) = self.calls.next() => self.ended(uid, outcome),
                more = self.reader.changed(), if writers => writers = more,
                () = until(pause) => {}
            }
        }
    }

    /// Takes note of a change.
    fn take(&mut self, life: u64, change: StatusChange) {
        let uid = change.update().pod.uid().clone();
        let cursor = self.cursors.entry(uid.clone()).or_insert_with(|| Cursor {
            life,
            ..Cursor::default()
        });
        match (change, &mut cursor.leave) {
            (StatusChange::Updated(update), Some(leave)) => {
                leave.next = Some((life, update));
                return;
            }
            (StatusChange::Updated(update), None) => {
                if cursor.life != life {
                    cursor.life = life;
                    cursor.gone = false;
                }
                if cursor.gone {
                    return;
                }
                cursor.pending = Some(update);
            }
            (StatusChange::Forgotten(_), Some(leave)) => {
                // It came and left again before the sink was told that it left: once is enough.
                leave.next = None;
                return;
            }
            (StatusChange::Forgotten(update), leave) => {
                *leave = Some(Leave::default());
                if !cursor.gone && update.version > cursor.accepted {
                    cursor.pending = Some(update);
                }
            }
        }
        cursor.since.get_or_insert_with(Instant::now);
        self.enqueue(uid);
    }

    /// Gives a pod its turn, unless it waits for it already or a call goes on.
    fn enqueue(&mut self, uid: PodUid) {
        let Some(cursor) = self.cursors.get_mut(&uid) else {
            return;
        };
        match cursor.stage {
            Stage::Queued | Stage::Busy => return,
            Stage::Paused(until) => {
                self.pauses.remove(&(until, uid.clone()));
            }
            Stage::Idle => {}
        }
        cursor.stage = Stage::Queued;
        self.queue.push_back(uid);
    }

    fn end_pauses(&mut self) {
        let now = Instant::now();
        while let Some((until, uid)) = self.pauses.pop_first() {
            if until > now {
                self.pauses.insert((until, uid));
                return;
            }
            self.enqueue(uid);
        }
    }

    fn start_calls(&mut self) {
        while self.calls.len() < self.limit {
            let Some(uid) = self.queue.pop_front() else { return };
            let Some(cursor) = self.cursors.get_mut(&uid) else {
                continue;
            };
            let sink = self.sink.clone();
            // Of an update whose version the sink has by now, nothing is left to tell.
            let pending = cursor.pending.take().filter(|update| update.version > cursor.accepted);
            if let Some(update) = pending {
                cursor.stage = Stage::Busy;
                let life = cursor.life;
                self.calls.push(Box::pin(async move {
                    let published = sink.publish(&update).await;
                    (uid, Outcome::Published(life, update, published))
                }));
            } else if cursor.leave.is_some() {
                cursor.stage = Stage::Busy;
                self.calls.push(Box::pin(async move {
                    sink.forget(&uid).await;
                    (uid, Outcome::Forgotten)
                }));
            } else {
                cursor.stage = Stage::Idle;
            }
        }
    }

    fn ended(&mut self, uid: PodUid, outcome: Outcome) {
        let Some(cursor) = self.cursors.get_mut(&uid) else {
            return;
        };
        cursor.stage = Stage::Idle;
        match outcome {
            Outcome::Forgotten => {
                let next = cursor.leave.take().and_then(|leave| leave.next);
                self.cursors.remove(&uid);
                if let Some((life, update)) = next {
                    self.take(life, StatusChange::Updated(update));
                }
                return;
            }
            Outcome::Published(_, update, Published::Accepted) => {
                cursor.accepted = update.version;
                if let Some(since) = cursor.since.take() {
                    self.numbers.told.observe(since.elapsed());
                }
                if cursor.pending.is_some() {
                    cursor.since = Some(Instant::now());
                }
            }
            // That it came again meanwhile is not what the sink spoke of.
            Outcome::Published(life, _, Published::Gone) if life != cursor.life => {}
            Outcome::Published(_, _, Published::Gone) => {
                cursor.gone = true;
                cursor.pending = None;
                cursor.since = None;
            }
            Outcome::Published(_, update, Published::Retry(after)) => {
                if cursor.pending.is_none() {
                    let given_up = cursor.leave.as_mut().is_some_and(|leave| {
                        leave.tries += 1;
                        leave.tries >= FAREWELL_TRIES
                    });
                    if given_up {
                        tracing::warn!(pod = %update.pod.key(), pod_uid = %uid, "last status of a pod was not taken");
                    } else {
                        let until = Instant::now() + after.max(LEAST_RETRY);
                        cursor.pending = Some(update);
                        cursor.stage = Stage::Paused(until);
                        self.pauses.insert((until, uid));
                        return;
                    }
                }
            }
        }
        if cursor.pending.is_some() || cursor.leave.is_some() {
            self.enqueue(uid);
        }
    }
}

/// Ends at a time; never without one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
