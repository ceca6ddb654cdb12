//! Which number of calls at a time a runtime gets most done with: found by trying. Decides; waits for nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::StartCall;

/// How much more, or less, is tried.
const UP: f64 = 1.5;
const DOWN: f64 = 0.75;
/// How much more has to get done for more calls to be worth it, and how much less for fewer of them not to be.
const GAIN: f64 = 1.2;
const LOSS: f64 = 0.95;
/// How many rounds pass after a try that was of no use.
const PAUSE: u32 = 8;
/// How far a new time moves the mean of recent ones.
const RECENT: f64 = 0.2;
/// Shorter times are measured as this one, so that nothing is divided by zero.
const SHORTEST: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Try {
    More,
    Fewer,
}

/// The number of calls at a time, and what is known of other numbers.
///
/// A round is twice as many calls as may be under way at a time. Only rounds in which somebody waited all the time tell how much
/// the runtime can do.
#[derive(Debug)]
pub(super) struct Climb {
    least: f64,
    most: f64,
    /// What holds, but for a try.
    limit: f64,
    trying: Option<Try>,
    next: Try,
    /// Rounds until the next try.
    pause: u32,
    /// How much got done per second with the limit that holds.
    rate: Option<f64>,
    /// How long calls of each kind take, relative to each other: what one of them counts.
    costs: [f64; 3],
    round: Round,
}

#[derive(Debug)]
struct Round {
    begun: Instant,
    calls: u32,
    unanswered: u32,
    done: f64,
    was_idle: bool,
}

impl Round {
    fn new(now: Instant) -> Self {
        Self {
            begun: now,
            calls: 0,
            unanswered: 0,
            done: 0.0,
            was_idle: false,
        }
    }
}

impl Climb {
    pub(super) fn new(first: f64, least: f64, most: f64) -> Self {
        Self {
            least,
            most,
            limit: first,
            trying: None,
            next: Try::More,
            pause: 1,
            rate: None,
            costs: [0.0; 3],
            round: Round::new(Instant::now()),
        }
    }

    /// How many calls may be under way now.
    pub(super) fn limit(&self) -> usize {
        self.tried() as usize
    }

    fn tried(&self) -> f64 {
        let limit = match self.trying {
            None => self.limit,
            Some(Try::More) => self.limit * UP,
            Some(Try::Fewer) => self.limit * DOWN,
        };
        limit.clamp(self.least, self.most)
    }

    /// Nobody waits: how much gets done says nothing about how much could.
    pub(super) fn idle(&mut self) {
        self.round.was_idle = true;
    }

    /// A call without an answer. One alone may have its own reason.
    pub(super) fn unanswered(&mut self) {
        self.round.unanswered += 1;
        if f64::from(self.round.unanswered) >= self.tried() / 4.0 {
            self.limit = (self.tried() / 2.0).clamp(self.least, self.most);
            self.trying = None;
            self.rate = None;
            self.pause = 1;
            self.next = Try::More;
            self.round = Round::new(Instant::now());
        }
    }

    /// A call has been answered.
    pub(super) fn answered(&mut self, call: StartCall, took: Duration) {
        let took = took.max(SHORTEST).as_secs_f64();
        let cost = &mut self.costs[call as usize];
        *cost += (took - *cost) * if *cost == 0.0 { 1.0 } else { RECENT };
        let all: f64 = self.costs.iter().sum();
        self.round.done += self.costs[call as usize] / all;
        self.round.calls += 1;
        if f64::from(self.round.calls) >= 2.0 * self.tried() {
            self.round_ended();
        }
    }

    fn round_ended(&mut self) {
        let now = Instant::now();
        let round = std::mem::replace(&mut self.round, Round::new(now));
        if round.was_idle {
            return;
        }
        let rate = round.done / (now - round.begun).max(SHORTEST).as_secs_f64();
        let Some(before) = self.rate.filter(|_| self.trying.is_some()) else {
            self.rate = Some(rate);
            self.pause = self.pause.saturating_sub(1);
            if self.pause == 0 {
                self.begin_a_try();
            }
            return;
        };
        let is_better = match self.trying {
            Some(Try::More) => rate >= before * GAIN,
            _ => rate >= before * LOSS,
        };
        if is_better {
            self.limit = self.tried();
            self.rate = Some(rate);
            self.begin_a_try();
        } else {
            self.next = match self.trying {
                Some(Try::More) => Try::Fewer,
                _ => Try::More,
            };
            self.trying = None;
            self.pause = PAUSE;
        }
    }

    fn begin_a_try(&mut self) {
        self.trying = Some(self.next);
        // Nothing is learnt where there is no other number to try.
        if self.tried() as usize == self.limit as usize {
            self.trying = None;
            self.next = match self.next {
                Try::More => Try::Fewer,
                Try::Fewer => Try::More,
            };
            self.pause = PAUSE;
        }
    }
}
