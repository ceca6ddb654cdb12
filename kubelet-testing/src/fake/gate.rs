//! The way of every call: recorded, checked against the contract, delayed, perhaps failed, then carried out.

use std::future;
use std::time::Duration;

use kubelet_core::{ContainerId, PodUid, RuntimeError};
use tokio::time::{self, Instant};

use crate::fake::FakeRuntime;
use crate::fake::call::{ErrorKind, Op, Outcome, Subject};
use crate::fake::effect::{Effect, Made};
use crate::fake::fault::{Plan, Verdict};
use crate::fake::journal::Happened;
use crate::fake::state::State;

/// A call under way. Dropped before [`Passage::finish`], it counts as given up by its caller.
#[derive(Debug)]
pub(crate) struct Passage<'a> {
    runtime: &'a FakeRuntime,
    op: Op,
    number: u64,
    epoch: u64,
    plan: Plan,
    in_hand: Option<(PodUid, String)>,
    effect: Option<Effect>,
    outcome: Outcome,
    /// What it makes, for the journal.
    makes: Option<Subject>,
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        let mut state = self.runtime.lock();
        if let Some((after, effect)) = state.abandoned_after.zip(self.effect.take())
            && self.outcome == Outcome::Dropped
            && self.plan.verdict == Verdict::Work
        {
            state.world.schedule(Instant::now() + after, effect);
            state.deliver();
        }
        if let Some(key) = &self.in_hand {
            state.in_hand.remove(key);
        }
        let at = state.made.elapsed();
        state.log.end(self.number, at, self.op, self.outcome);
    }
}

impl<'a> Passage<'a> {
    pub(crate) fn begin(runtime: &'a FakeRuntime, op: Op, mut subject: Subject, effect: Option<Effect>) -> Self {
        let now = Instant::now();
        let mut state = runtime.lock();
        state.advance(now);
        state.let_the_world_fail(now);
        state.complete(&mut subject);
        if op.changes_pods() || op == Op::Exec {
            let subject = subject.clone();
            state.world.journal.note(now, || Happened::Call { op, subject });
        }
        if matches!(op, Op::ListSandboxes | Op::ListContainers) {
            let pod = subject.pod.clone();
            state.world.journal.note(now, || Happened::Look { pod });
        }
        let makes = matches!(op, Op::RunSandbox | Op::CreateContainer).then(|| subject.clone());
        let in_hand = state.take_in_hand(op, &subject);
        let mut plan = state.faults.plan(op, subject.pod.as_ref());
        plan.delay += state.latencies.get(&op).copied().unwrap_or_default();
        if state.is_down() {
            plan = Plan {
                delay: Duration::ZERO,
                early_hint: false,
                verdict: Verdict::Unavailable,
            };
        }
        if let Some(uid) = subject.pod.as_ref().filter(|_| plan.early_hint) {
            state.hint(uid);
        }
        let at = state.made.elapsed();
        let number = state.log.begin(at, op, subject);
        Self {
            runtime,
            op,
            number,
            epoch: state.epoch,
            plan,
            in_hand,
            effect,
            outcome: Outcome::Dropped,
            makes,
        }
    }

    /// Waits as planned.
    pub(crate) async fn wait(&self) {
        if self.plan.verdict == Verdict::Hang {
            future::pending::<()>().await;
        }
        if !self.plan.delay.is_zero() {
            time::sleep(self.plan.delay).await;
        }
    }

    /// Fails as planned, or does the work. The effect may happen although the call fails.
    pub(crate) fn settle<T>(
        &mut self,
        work: impl FnOnce(&mut State, Instant, Option<Effect>) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        let now = Instant::now();
        let late = self.effect.take();
        let mut state = self.runtime.lock();
        state.advance(now);
        self.check_cut_off(&mut state)?;
        let op = self.op.name();
        let result = match self.plan.verdict {
            Verdict::Work => work(&mut state, now, late),
            Verdict::Unavailable => Err(RuntimeError::unavailable(op, state.faults.words())),
            Verdict::Refused => {
                let message = state.faults.words();
                if let Some(Effect::Start(id)) = &late {
                    state.world.fail_start(id, &message, now);
                }
                Err(RuntimeError::refused(message))
            }
            Verdict::Busy => Err(RuntimeError::Busy {
                what: state.faults.words(),
            }),
            Verdict::Taken => Err(RuntimeError::Taken {
                what: state.faults.words(),
            }),
            Verdict::NotFound => Err(RuntimeError::not_found(state.faults.words())),
            Verdict::Unsupported => Err(RuntimeError::unsupported(op)),
            Verdict::Uncertain { late: after } => {
                if let Some((after, effect)) = after.zip(late) {
                    state.world.schedule(now + after, effect);
                }
                Err(RuntimeError::uncertain(op, state.faults.words()))
            }
            // `wait` did not return.
            Verdict::Hang => Err(RuntimeError::uncertain(op, state.faults.words())),
        };
        state.deliver();
        result
    }

    /// Waits until a container does not run, or until the runtime goes away.
    pub(crate) async fn until_ended(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        loop {
            let (until, changed) = {
                let mut state = self.runtime.lock();
                state.advance(Instant::now());
                self.check_cut_off(&mut state)?;
                let Some(container) = state.world.container_mut(id).filter(|c| c.is_running()) else {
                    return Ok(());
                };
                // Registered under the lock, so that no change goes by in between.
                (container.end.map(|(at, _)| at), container.changed().notified_owned())
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(until) => {}
            }
        }
    }

    pub(crate) fn finish<T>(mut self, result: Result<T, RuntimeError>) -> Result<T, RuntimeError> {
        self.outcome = match &result {
            Ok(_) => Outcome::Done,
            Err(error) => Outcome::Failed(ErrorKind::of(error)),
        };
        if self.outcome == Outcome::Failed(ErrorKind::Uncertain)
            && let Some(subject) = self.makes.take()
        {
            let op = self.op;
            let unknown = || Happened::Unknown { op, subject };
            self.runtime.lock().world.journal.note(Instant::now(), unknown);
        }
        result
    }

    fn check_cut_off(&self, state: &mut State) -> Result<(), RuntimeError> {
        if state.epoch == self.epoch {
            return Ok(());
        }
        let (op, words) = (self.op.name(), state.faults.words());
        Err(if self.op.changes_pods() {
            RuntimeError::uncertain(op, words)
        } else {
            RuntimeError::unavailable(op, words)
        })
    }
}

impl State {
    /// Notes an exclusive call, and that it overlaps another where it does.
    fn take_in_hand(&mut self, op: Op, subject: &Subject) -> Option<(PodUid, String)> {
        if !op.is_exclusive() {
            return None;
        }
        let pod = subject.pod.clone()?;
        let key = (pod, subject.container.clone().unwrap_or_default());
        if self.in_hand.insert(key.clone()) {
            return Some(key);
        }
        let (pod, name) = key;
        self.world.violation(format!(
            "{} overlaps another change of {name:?} of pod {pod}",
            op.name()
        ));
        // The other call gives it back.
        None
    }
}

impl FakeRuntime {
    /// A call that only reads.
    pub(crate) async fn read<T>(
        &self,
        op: Op,
        subject: Subject,
        work: impl FnOnce(&mut State) -> Result<T, RuntimeError> + Send,
    ) -> Result<T, RuntimeError> {
        let mut passage = Passage::begin(self, op, subject, None);
        passage.wait().await;
        let result = passage.settle(|state, _, _| work(state));
        passage.finish(result)
    }

    /// A call that changes the world.
    pub(crate) async fn change(&self, op: Op, subject: Subject, effect: Effect) -> Result<Made, RuntimeError> {
        let mut passage = Passage::begin(self, op, subject, Some(effect));
        passage.wait().await;
        let result = passage.settle(apply);
        passage.finish(result)
    }
}

/// The work of a changing call.
pub(crate) fn apply(state: &mut State, now: Instant, effect: Option<Effect>) -> Result<Made, RuntimeError> {
    match effect {
        Some(effect) => state.world.apply(&effect, now),
        None => Ok(Made::Nothing),
    }
}

/// Sleeps until then, or for ever.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => future::pending().await,
    }
}
