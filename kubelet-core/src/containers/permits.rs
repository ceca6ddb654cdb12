//! How many sandboxes and containers are made and started at a time, and which come first.
//!
//! A burst of pods would else ask the runtime for everything at once: it becomes no faster, calls run into their deadlines,
//! and since every pod's sandbox stands in line before anybody's container, all pods are up only at the very end. Here calls
//! wait for a permit. Those that bring a pod nearest to running come first, so that pods come up one after the other. The
//! number of permits follows what the runtime shows: it grows while calls take not much longer than alone, and falls when
//! they do, or are not answered at all.
//!
//! A call that takes very long gives its permit back, so that a few that hang hold up nobody else.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::runtime::RuntimeError;
use crate::settings::StartLimits;

/// A call that takes this long does not count any more …
const SLOW: Duration = Duration::from_secs(10);
/// … as long as there are not so many in all: a runtime that is slow as a whole is not helped by more calls.
const WITH_SLOW: usize = 64;
/// How much longer than alone calls may take: beyond that more of them at a time bring nothing.
const TOLERANCE: f64 = 4.0;
/// Calls shorter than this are quick, however much quicker they could be.
const QUICK: Duration = Duration::from_millis(5);
/// How far a new time moves the mean of recent ones, and how fast the time that counts as alone is forgotten.
const RECENT: f64 = 0.2;
const FORGOTTEN: f64 = 1.01;

/// What a permit is for. In the order of precedence: whoever is nearest to running is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartCall {
    Start,
    Create,
    Sandbox,
}

const CALLS: [StartCall; 3] = [StartCall::Start, StartCall::Create, StartCall::Sandbox];

/// How long calls of one kind take.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    alone: Option<f64>,
    recent: Option<f64>,
}

impl Times {
    /// How many times longer than alone they take now.
    fn add(&mut self, took: Duration) -> f64 {
        let took = took.max(QUICK).as_secs_f64();
        let alone = self.alone.map_or(took, |alone| (alone * FORGOTTEN).min(took));
        let recent = self.recent.map_or(took, |recent| recent + (took - recent) * RECENT);
        (self.alone, self.recent) = (Some(alone), Some(recent));
        recent / alone
    }
}

#[derive(Debug)]
struct State {
    limits: StartLimits,
    /// How many permits there are.
    limit: f64,
    /// Whether the limit was ever too high: until then it grows fast.
    was_too_high: bool,
    /// Calls that ended since the limit was last lowered: it falls once in a round.
    since_lowered: f64,
    /// Permits that count, and all that are out.
    counted: usize,
    out: usize,
    waiting: [VecDeque<oneshot::Sender<Permit>>; CALLS.len()],
    times: [Times; CALLS.len()],
}

impl State {
    fn has_room(&self) -> bool {
        let limit = self.limit as usize;
        self.counted < limit && self.out < limit.max(WITH_SLOW)
    }

    fn ended(&mut self, call: StartCall, took: Duration, answered: bool) {
        let ratio = self.times[call as usize].add(took);
        self.since_lowered += 1.0;
        if answered && ratio <= TOLERANCE {
            // Only as far as it is of use.
            if self.waiting.iter().any(|line| !line.is_empty()) {
                self.limit += if self.was_too_high { 1.0 / self.limit } else { 1.0 };
            }
        } else if self.since_lowered >= self.limit {
            self.was_too_high = true;
            self.since_lowered = 0.0;
            self.limit *= if answered { (TOLERANCE / ratio).max(0.7) } else { 0.5 };
        }
        let (least, most) = (self.limits.least.get() as f64, self.limits.most.get() as f64);
        self.limit = self.limit.clamp(least.min(most), most);
    }
}

/// The permits of one runtime.
#[derive(Clone, Debug)]
pub(super) struct StartPermits {
    state: Arc<Mutex<State>>,
}

/// Leave to make one call. Given back when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    state: Arc<Mutex<State>>,
    of: StartCall,
    counts: bool,
}

impl StartPermits {
    pub(super) fn new(limits: StartLimits) -> Self {
        let limit = limits.first.max(limits.least).min(limits.most).get() as f64;
        let state = State {
            limits,
            limit,
            was_too_high: false,
            since_lowered: f64::MAX,
            counted: 0,
            out: 0,
            waiting: Default::default(),
            times: Default::default(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Waits for a permit; nothing if `stop` comes first.
    ///
    /// # Cancellation
    /// Safe.
    pub(super) async fn acquire(&self, of: StartCall, stop: &CancellationToken) -> Option<Permit> {
        if stop.is_cancelled() {
            return None;
        }
        let turn = {
            let mut state = lock(&self.state);
            // Whoever waits already has waited longer, or is nearer to running.
            if state.has_room() && state.waiting.iter().all(VecDeque::is_empty) {
                return Some(Permit::new(&self.state, &mut state, of));
            }
            let (sender, turn) = oneshot::channel();
            state.waiting[of as usize].push_back(sender);
            turn
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            permit = turn => permit.ok(),
        }
    }

    #[cfg(test)]
    fn limit(&self) -> usize {
        lock(&self.state).limit as usize
    }
}

impl Permit {
    fn new(shared: &Arc<Mutex<State>>, state: &mut State, of: StartCall) -> Self {
        state.counted += 1;
        state.out += 1;
        Self {
            state: shared.clone(),
            of,
            counts: true,
        }
    }

    /// Makes the call, and learns from how long it takes, and whether it is answered.
    pub(super) async fn cover<T>(
        mut self,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        let begun = Instant::now();
        tokio::pin!(call);
        let ended = tokio::select! {
            biased;
            ended = &mut call => ended,
            () = tokio::time::sleep(SLOW) => {
                self.stop_counting();
                call.await
            }
        };
        let answered = !matches!(
            ended,
            Err(RuntimeError::Uncertain { .. } | RuntimeError::Unavailable { .. })
        );
        lock(&self.state).ended(self.of, begun.elapsed(), answered);
        ended
    }

    fn stop_counting(&mut self) {
        lock(&self.state).counted -= 1;
        self.counts = false;
        hand_out(&self.state);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.state);
            state.out -= 1;
            state.counted -= usize::from(self.counts);
        }
        hand_out(&self.state);
    }
}

/// Gives permits to those who wait, as far as there are any.
fn hand_out(shared: &Arc<Mutex<State>>) {
    loop {
        let (sender, permit) = {
            let mut state = lock(shared);
            if !state.has_room() {
                return;
            }
            let of = CALLS.into_iter().find(|of| !state.waiting[*of as usize].is_empty());
            let Some(of) = of else { return };
            let Some(sender) = state.waiting[of as usize].pop_front() else {
                return;
            };
            if sender.is_closed() {
                continue;
            }
            (sender, Permit::new(shared, &mut state, of))
        };
        // Whoever stopped waiting just now leaves it for the next: it comes back when it is dropped here.
        let _ = sender.send(permit);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
