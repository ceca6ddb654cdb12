//! How many sandboxes and containers are made and started at a time, and which come first.
//!
//! A burst of pods would else ask the runtime for everything at once: it becomes no faster, calls run into their deadlines,
//! and since every pod's sandbox stands in line before anybody's container, all pods are up only at the very end. Here calls
//! wait for a permit. Those that bring a pod nearest to running come first, so that pods come up one after the other. The
//! number of permits follows what the runtime shows.
//!
//! A call that takes very long gives its permit back, so that a few that hang hold up nobody else.

mod climb;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use climb::Climb;

use crate::runtime::RuntimeError;
use crate::settings::StartLimits;

/// A call that takes this long does not count any more …
const SLOW: Duration = Duration::from_secs(10);
/// … as long as there are not so many in all: a runtime that is slow as a whole is not helped by more calls.
const WITH_SLOW: usize = 64;

/// What a permit is for. In the order of precedence: whoever is nearest to running is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartCall {
    Start,
    Create,
    Sandbox,
}

const CALLS: [StartCall; 3] = [StartCall::Start, StartCall::Create, StartCall::Sandbox];

#[derive(Debug)]
struct State {
    climb: Climb,
    /// Permits that count, and all that are out.
    counted: usize,
    out: usize,
    waiting: [VecDeque<oneshot::Sender<Permit>>; CALLS.len()],
}

impl State {
    fn has_room(&self) -> bool {
        let limit = self.climb.limit();
        self.counted < limit && self.out < limit.max(WITH_SLOW)
    }

    fn nobody_waits(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
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
        let (least, most) = (limits.least.min(limits.most), limits.most);
        let first = limits.first.clamp(least, most);
        let [first, least, most] = [first, least, most].map(|number| number.get() as f64);
        let state = State {
            climb: Climb::new(first, least, most),
            counted: 0,
            out: 0,
            waiting: Default::default(),
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
            if state.has_room() && state.nobody_waits() {
                state.climb.idle();
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
        lock(&self.state).climb.limit()
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
        {
            let mut state = lock(&self.state);
            if answered {
                state.climb.answered(self.of, begun.elapsed());
            } else {
                state.climb.unanswered();
            }
        }
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
            let Some(of) = of else {
                state.climb.idle();
                return;
            };
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
