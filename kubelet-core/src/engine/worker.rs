//! One pod's worker: a task that brings its pod to its wish, one step at a time.
//!
//! A turn of the loop reads the wish, waits for a look at the pod that is later than all it has done, decides, and runs
//! at most one step. Whatever happens meanwhile changes the wish, which ends every wait.

mod publish;
mod step;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) use publish::status_at_start;

use super::checkpoint::Essence;
use super::names::NameGuard;
use super::shared::{Shared, Stage, WorkerLink};
use crate::cache::{CacheError, Seq};
use crate::event::{Event, EventSubject, EventType};
use crate::ids::{ContainerId, PodUid};
use crate::observation::PodObservation;
use crate::pod::PodRecord;
use crate::status::{StatusOverride, is_resizing, pod_is_terminal};
use crate::syncer::{
    AcquireError, Doomed, KillCause, PodWish, PodWork, Remains, Standing, StepNotes, SyncError, Synced, Termination,
};

/// The least time between a step that failed and the next one that only a hint asks for, so that a failure which itself
/// changes what the runtime holds does not spin.
const HINT_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// What a worker is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Wait for admission and for the pod's name.
    Waiting,
    /// Bring the pod to its wish.
    Syncing,
    /// Stop its containers.
    Terminating,
    /// Clear up.
    Terminated,
}

impl From<State> for Stage {
    fn from(state: State) -> Self {
        match state {
            State::Waiting => Self::Waiting,
            State::Syncing => Self::Syncing,
            State::Terminating => Self::Terminating,
            State::Terminated => Self::Terminated,
        }
    }
}

/// What comes after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The next one, at once.
    Again,
    /// The next one, once the wish has changed or a time has come.
    Idle(Option<Instant>),
    /// Nothing: the worker ends.
    End,
}

const AGAIN: Turn = Turn::Again;

/// A worker that has ended.
#[derive(Debug)]
pub(crate) struct WorkerEnd {
    pub(super) uid: PodUid,
    /// Whether nothing is left to do for the pod; otherwise the kubelet is stopping.
    pub(super) finished: bool,
    /// The wish that it ended with: a later one is yet to be dealt with.
    pub(super) taken: PodWish,
}

#[derive(Debug)]
pub(super) struct Worker {
    uid: PodUid,
    shared: Arc<Shared>,
    wisher: Arc<watch::Sender<PodWish>>,
    wish: watch::Receiver<PodWish>,
    stage: watch::Sender<Stage>,
    notes: Arc<StepNotes>,
    stop: CancellationToken,
    state: State,
    /// The wish that the present turn works for.
    taken: PodWish,
    name: Option<Arc<NameGuard>>,
    /// Looks begun later than this show all that this worker has done.
    mark: Seq,
    /// The pod's status before this life of the agent, where one is known.
    restored: Option<Arc<PodStatus>>,
    saved: Essence,
    /// The last status says what the checkpoint on disk does not.
    unsaved: bool,
    /// Termination messages of the ended containers that are there, by id.
    messages: BTreeMap<ContainerId, Option<String>>,
    acquired: bool,
    /// A wish arrived while a step ran.
    dirty: bool,
    /// Hints alone wake nobody before this.
    hold_until: Option<Instant>,
    /// Since the last good look somebody was told that there is none.
    told_blind: bool,
    told_deadline: bool,
    /// When this worker began, by the wall and by a clock that nobody sets.
    began: (Timestamp, Instant),
}

impl Worker {
    /// A worker for a wish, and the engine's side of it.
    pub(super) fn new(
        uid: PodUid,
        shared: Arc<Shared>,
        wish: PodWish,
        name: Option<Arc<NameGuard>>,
        restored: Option<Arc<PodStatus>>,
        stop: CancellationToken,
    ) -> (Self, WorkerLink) {
        let taken = wish.clone();
        let began = (shared.clock.now(), Instant::now());
        let (wisher, wish) = watch::channel(wish);
        let wisher = Arc::new(wisher);
        let (stage, stages) = watch::channel(Stage::Waiting);
        let notes = Arc::new(StepNotes::default());
        if restored.as_ref().is_some_and(|status| is_resizing(status)) {
            // The last life may have done it without telling.
            notes.resize_begun();
        }
        let link = WorkerLink {
            wish: wisher.clone(),
            stage: stages,
            notes: notes.clone(),
        };
        let worker = Self {
            uid,
            shared,
            wisher,
            wish,
            stage,
            notes,
            stop,
            state: State::Waiting,
            taken,
            name,
            mark: Seq::default(),
            restored,
            saved: Essence::default(),
            unsaved: false,
            messages: BTreeMap::new(),
            acquired: false,
            dirty: false,
            hold_until: None,
            told_blind: false,
            told_deadline: false,
            began,
        };
        (worker, link)
    }

    /// Works until nothing is left to do for the pod, or the kubelet stops.
    pub(super) async fn run(mut self) -> WorkerEnd {
        self.shared.metrics.workers_started.increment();
        let mut finished = true;
        loop {
            // Boxed, so that an idle worker is small. A panic is a bug, in the engine or in a part that somebody else wrote;
            // it must not cost other pods anything.
            let turn = match Box::pin(AssertUnwindSafe(self.turn()).catch_unwind()).await {
                Ok(turn) => turn,
                Err(_) => {
                    tracing::error!("a pod worker panicked and goes on");
                    // Nobody knows what the step did before.
                    self.mark = self.shared.cache.mark();
                    self.shared.relist.relist(&self.uid);
                    self.hold_until = Some(Instant::now() + self.shared.settings.error_backoff);
                    Turn::Idle(self.hold_until)
                }
            };
            match turn {
                Turn::Again => {}
                Turn::Idle(until) => self.idle(until).await,
                Turn::End => break,
            }
            if self.stop.is_cancelled() {
                finished = false;
                break;
            }
        }
        if finished {
            self.enter(Stage::Finished);
        }
        WorkerEnd {
            uid: self.uid,
            finished,
            taken: self.taken,
        }
    }

    /// Wall time as if nobody had set the clock since this worker began: a pod's active time is no longer or shorter for
    /// that.
    fn active_now(&self) -> Timestamp {
        let (wall, since) = self.began;
        let elapsed = SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX);
        wall.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    fn enter(&self, stage: Stage) {
        self.stage.send_if_modified(|current| {
            let changed = *current != stage;
            if changed {
                self.shared.count_transition(*current, stage);
                *current = stage;
            }
            changed
        });
    }

    fn go(&mut self, state: State) {
        self.state = state;
        self.hold_until = None;
        self.enter(state.into());
    }

    /// Takes a wish in that this worker came to by itself.
    fn end_pod(&mut self, termination: Termination) {
        self.wisher.send_modify(|wish| wish.end(termination));
        self.shared.ledger.mark_leaving(&self.uid);
        self.go(State::Terminating);
    }

    async fn turn(&mut self) -> Turn {
        self.dirty = false;
        let wish = self.wish.borrow_and_update().clone();
        self.taken = wish.clone();
        if wish.terminate.is_some() && matches!(self.state, State::Waiting | State::Syncing) {
            self.go(State::Terminating);
        }
        match self.state {
            State::Waiting => self.wait_turn(wish).await,
            State::Syncing => self.sync_turn(wish).await,
            State::Terminating => self.terminate_turn(wish).await,
            State::Terminated => self.finish_turn(wish).await,
        }
    }

    /// Waits for admission, then for the name.
    async fn wait_turn(&mut self, wish: PodWish) -> Turn {
        let Some(pod) = wish.pod else {
            // Orphans are made with a termination.
            return Turn::End;
        };
        let cache = &self.shared.cache;
        // It may run: nothing is told of it before it is known how it is.
        if cache.is_present(&self.uid) && cache.current(&self.uid).is_none() && self.observe().await.is_none() {
            return AGAIN;
        }
        if let Standing::NotYet { reason, message } = &wish.standing {
            let runs = self
                .shared
                .cache
                .current(&self.uid)
                .is_some_and(|observed| observed.may_run());
            // What runs goes on, whatever admission waits for.
            if !runs {
                let status = self.waiting_status(&pod, reason, message);
                if self.is_overdue(&pod, &status) {
                    self.end_overdue(&pod);
                    return AGAIN;
                }
                let wake = self.deadline(&pod, &status);
                self.publish(&pod, status).await;
                return Turn::Idle(wake);
            }
        }
        if pod.is_static() && self.name.is_none() {
            self.show_pending(&pod).await;
            let shared = self.shared.clone();
            let full_name = pod.key().full_name();
            let claim = shared.names.claim(&full_name, &self.uid);
            tokio::pin!(claim);
            // The claim is kept over changes of the wish, so that the pod keeps its place in the queue.
            self.name = loop {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return AGAIN,
                    guard = &mut claim => break Some(Arc::new(guard)),
                    changed = self.wish.changed() => {
                        if changed.is_err() || self.wish.borrow().terminate.is_some() {
                            return AGAIN;
                        }
                    }
                }
            };
        }
        self.go(State::Syncing);
        AGAIN
    }

    /// Waits until the backend can be asked, and for a look at the pod later than all that this worker has done.
    /// Nothing means: something changed meanwhile.
    async fn observe(&mut self) -> Option<Arc<PodObservation>> {
        let was_closed = self.shared.gate.borrow().status().is_none();
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return None,
            () = self.shared.gate.opened() => {}
            changed = self.wish.changed() => {
                changed.ok()?;
                return None;
            }
        }
        if was_closed {
            // What was seen before the backend was away says little of what is there now.
            self.mark = self.shared.cache.mark();
            self.shared.relist.relist(&self.uid);
        }
        let seen = tokio::select! {
            biased;
            () = self.stop.cancelled() => return None,
            changed = self.wish.changed() => {
                changed.ok()?;
                self.dirty = true;
                return None;
            }
            seen = self.shared.cache.since(&self.uid, self.mark) => seen,
        };
        match seen {
            Ok(seen) => {
                self.told_blind = false;
                Some(seen)
            }
            Err(CacheError::Closed) => {
                // The generator ends only with the kubelet.
                self.stop.cancelled().await;
                None
            }
            Err(error) => {
                if !self.told_blind {
                    self.told_blind = true;
                    if let Some(pod) = &self.wish.borrow().pod {
                        self.shared
                            .warn_pod(pod, "FailedSync", format!("error determining status: {error}"));
                    }
                }
                self.shared.relist.reinspect(&self.uid);
                let again = Instant::now() + self.shared.jittered(HINT_PAUSE);
                // No wish is a reason to look again at once: a runtime that fails at once would be asked without a pause.
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => {}
                    () = tokio::time::sleep_until(again) => {}
                }
                None
            }
        }
    }

    async fn sync_turn(&mut self, wish: PodWish) -> Turn {
        let Some(pod) = wish.pod else {
            return Turn::End;
        };
        let Some(observed) = self.observe().await else {
            return AGAIN;
        };
        let observed = self.with_termination_messages(&pod, observed).await;
        let status = self.status_of(&pod, &observed);
        if self.is_overdue(&pod, &status) {
            self.end_overdue(&pod);
            return AGAIN;
        }
        let is_final = pod_is_terminal(&status);
        let deadline = self.deadline(&pod, &status);
        let status = self.publish(&pod, status).await;
        if is_final {
            self.end_pod(Termination::new(KillCause::Completed, pod.facts().termination_grace));
            return AGAIN;
        }
        let work = PodWork::new(pod.clone(), observed.clone(), status);
        if !self.acquired {
            match self.acquire(&work).await {
                Ok(()) => self.acquired = true,
                Err(AcquireError::Stopped) => return AGAIN,
                Err(AcquireError::Refused { reason, message }) => {
                    self.reject(&pod, reason, message);
                    return AGAIN;
                }
                Err(AcquireError::NotYet { reason, message }) => {
                    let status = self.waiting_status(&pod, &reason, &message);
                    self.publish(&pod, status).await;
                    let again = Instant::now() + self.shared.jittered(self.shared.settings.error_backoff);
                    return Turn::Idle(Some(again));
                }
            }
        }
        let reasons_before = self.notes.reasons();
        let outcome = self.sync_step(&work).await;
        self.show_new_notes(&pod, &observed, &reasons_before).await;
        let next = match outcome {
            Ok(Synced::Settled) => self.next_resync(),
            Ok(Synced::SettledUntil(at)) => self.next_resync().min(at),
            Ok(Synced::Again(at)) => at,
            Ok(Synced::Terminal) => {
                self.end_pod(Termination::new(KillCause::Completed, pod.facts().termination_grace));
                return AGAIN;
            }
            Err(SyncError::Rejected { reason, message }) => {
                self.reject(&pod, reason, message);
                return AGAIN;
            }
            Err(error) => self.after_error(&pod, &error),
        };
        let next = deadline.map_or(next, |deadline| deadline.min(next));
        Turn::Idle(Some(next))
    }

    fn next_resync(&self) -> Instant {
        Instant::now() + self.shared.jittered(self.shared.settings.resync_period)
    }

    /// The pod can never run here.
    fn reject(&mut self, pod: &PodRecord, reason: String, message: String) {
        self.shared.warn_pod(pod, reason.clone(), message.clone());
        let status = StatusOverride::new(reason, message);
        self.end_pod(Termination::new(KillCause::Rejected, crate::syncer::ORPHAN_GRACE).with_status(status));
    }

    /// Says when to go on after a step that failed.
    fn after_error(&mut self, pod: &PodRecord, error: &SyncError) -> Instant {
        let settings = &self.shared.settings;
        let now = Instant::now();
        match error {
            // Whatever asked it to stop has changed the wish, or the kubelet ends.
            SyncError::Stopped => now + HINT_PAUSE,
            SyncError::NetworkNotReady { why } => {
                self.shared
                    .warn_pod(pod, "NetworkNotReady", format!("network is not ready: {why}"));
                now + self.shared.jittered(settings.network_backoff)
            }
            // A rejection ends the pod before it comes here.
            SyncError::Rejected { .. } => now,
            SyncError::Failed { retry_at, .. } => {
                self.shared.metrics.sync_errors.increment();
                tracing::debug!(pod = %pod.key(), error = error as &dyn std::error::Error, "pod step failed");
                self.hold_until = Some(now + HINT_PAUSE);
                // A time that is known to be of use is kept exactly; it never lies beyond the resync.
                retry_at.map_or_else(
                    || now + self.shared.jittered(settings.error_backoff),
                    |at| at.min(now + settings.resync_period.max(settings.crash_backoff.1)),
                )
            }
        }
    }

    async fn terminate_turn(&mut self, wish: PodWish) -> Turn {
        let Some(observed) = self.observe().await else {
            return AGAIN;
        };
        let observed = match &wish.pod {
            Some(pod) => self.with_termination_messages(pod, observed).await,
            None => observed,
        };
        let work = match &wish.pod {
            Some(pod) => {
                let status = self.ending_status(pod, &observed, &wish);
                let status = self.publish(pod, status).await;
                Some(PodWork::new(pod.clone(), observed.clone(), status))
            }
            None => None,
        };
        let doomed = match &work {
            Some(work) => Doomed::Pod(work),
            None => Doomed::Orphan(&observed),
        };
        if let Err(error) = self.terminate_step(doomed).await {
            self.failed_to_end(wish.pod.as_deref(), "FailedKillPod", "error killing pod", &error)
                .await;
            return AGAIN;
        }
        // Only a look that is later than the stops says that nothing runs.
        let observed = loop {
            if let Some(observed) = self.observe().await {
                break observed;
            }
            if self.stop.is_cancelled() {
                return AGAIN;
            }
        };
        if observed.may_run() {
            let error = SyncError::Failed {
                what: "a container may still run although it was stopped".to_owned(),
                retry_at: None,
                source: None,
            };
            self.failed_to_end(wish.pod.as_deref(), "FailedKillPod", "error killing pod", &error)
                .await;
            return AGAIN;
        }
        let wish = self.wish.borrow_and_update().clone();
        if let Some(pod) = &wish.pod {
            let observed = self.with_termination_messages(pod, observed).await;
            let status = self.ended_status(pod, &observed, &wish);
            self.publish_down(pod, status).await;
        }
        self.shared.release(&self.uid);
        self.go(State::Terminated);
        AGAIN
    }

    async fn finish_turn(&mut self, wish: PodWish) -> Turn {
        let Some(observed) = self.observe().await else {
            return AGAIN;
        };
        let evicted = wish.terminate.as_ref().is_some_and(|termination| termination.evicted);
        let remains = if wish.left || evicted {
            Remains::Remove
        } else {
            Remains::Keep
        };
        let work = wish.pod.as_ref().map(|pod| {
            let status = self.last_status(pod);
            PodWork::new(pod.clone(), observed.clone(), status)
        });
        let doomed = match &work {
            Some(work) => Doomed::Pod(work),
            None => Doomed::Orphan(&observed),
        };
        if let Err(error) = self.finish_step(doomed, remains).await {
            self.failed_to_end(wish.pod.as_deref(), "FailedKillPod", "error cleaning up pod", &error)
                .await;
            return AGAIN;
        }
        // What came meanwhile may ask for more to be cleared up, or for another last word.
        if !self.wish.borrow().is_as_before(&self.taken) {
            return AGAIN;
        }
        if let Some(pod) = &wish.pod {
            self.publish_finished(pod, &wish).await;
        }
        Turn::End
    }

    async fn failed_to_end(&mut self, pod: Option<&PodRecord>, reason: &'static str, what: &str, error: &SyncError) {
        if matches!(error, SyncError::Stopped) {
            return;
        }
        self.shared.metrics.sync_errors.increment();
        let text = crate::error::error_chain(error);
        match pod {
            Some(pod) => self.shared.warn_pod(pod, reason, format!("{what}: {text}")),
            None => tracing::warn!(pod_uid = %self.uid, error = text, "could not end a pod that nobody wishes for"),
        }
        self.hold_until = Some(Instant::now() + HINT_PAUSE);
        self.idle(Some(
            Instant::now() + self.shared.jittered(self.shared.settings.error_backoff),
        ))
        .await;
    }

    /// Waits for a new wish or for a time; for neither if a wish arrived during the last step.
    async fn idle(&mut self, until: Option<Instant>) {
        // More than a wake-up is never put off.
        if !self.wish.borrow().is_as_before(&self.taken) {
            return;
        }
        // What could not be written is tried again.
        let until = match (until, self.unsaved) {
            (until, false) => until,
            (until, true) => {
                let again = Instant::now() + self.shared.settings.error_backoff;
                Some(until.map_or(again, |until| until.min(again)))
            }
        };
        loop {
            let pause = self.hold_until.filter(|at| *at > Instant::now());
            if self.dirty && pause.is_none() {
                return;
            }
            let wake = match (until, pause.filter(|_| self.dirty)) {
                (Some(until), Some(pause)) => Some(until.min(pause)),
                (until, pause) => until.or(pause),
            };
            let timer = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                changed = self.wish.changed() => {
                    if changed.is_err() || !self.wish.borrow_and_update().is_as_before(&self.taken) {
                        return;
                    }
                    self.dirty = true;
                }
                () = timer => return,
            }
        }
    }

    fn end_overdue(&mut self, pod: &PodRecord) {
        if !self.told_deadline {
            self.told_deadline = true;
            self.shared.events.record(Event::new(
                EventSubject::pod(pod),
                EventType::Normal,
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
            ));
        }
        self.end_pod(
            Termination::new(KillCause::DeadlineExceeded, pod.facts().termination_grace)
                .with_status(StatusOverride::deadline_exceeded()),
        );
    }
}
