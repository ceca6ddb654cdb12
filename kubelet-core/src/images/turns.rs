//! When a pull may begin.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::settings::Settings;

/// Bounds how many pulls run at once and how many begin in a second.
#[derive(Debug)]
pub(crate) struct PullTurns {
    running: Semaphore,
    pace: Option<Mutex<Pace>>,
}

impl PullTurns {
    pub(crate) fn new(settings: &Settings) -> Self {
        let parallel = settings.parallel_image_pulls.clamp(1, Semaphore::MAX_PERMITS);
        let pace = Pace::new(settings.registry_pull_qps, settings.registry_burst, Instant::now);
        Self {
            running: Semaphore::new(parallel),
            pace: pace.map(Mutex::new),
        }
    }

    /// Waits for a turn, in the order of arrival. It ends when the permit is dropped.
    ///
    /// # Cancellation
    /// A dropped call takes no turn.
    pub(crate) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        // Nobody closes it.
        let permit = self.running.acquire().await.ok();
        let begins = self.pace.as_ref().map(|pace| {
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.next(Instant::now())
        });
        if let Some(begins) = begins {
            tokio::time::sleep_until(begins).await;
        }
        permit
    }
}

/// So many beginnings at once, and then one per period.
#[derive(Debug)]
struct Pace {
    period: Duration,
    /// How far ahead of the steady pace one may be.
    slack: Duration,
    /// When the next one is due at the steady pace.
    due: Instant,
}

impl Pace {
    fn new(per_second: u32, burst: u32, now: impl FnOnce() -> Instant) -> Option<Self> {
        let period = Duration::from_secs(1).checked_div(per_second)?;
        Some(Self {
            period,
            slack: period * burst.max(1).saturating_sub(1),
            due: now(),
        })
    }

    /// When the next one may begin; it is counted.
    fn next(&mut self, now: Instant) -> Instant {
        let due = self.due.max(now);
        self.due = due + self.period;
        // What is within the burst begins at once.
        due.checked_sub(self.slack).map_or(now, |begins| begins.max(now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Pace, PullTurns};
    use crate::settings::Settings;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_begins_at_once_and_the_rest_at_a_steady_pace() {
        let start = Instant::now();
        let mut pace = Pace::new(5, 3, || start).unwrap();
        let begins: Vec<_> = (0..6).map(|_| pace.next(start) - start).collect();
        assert_eq!(begins, [0, 0, 0, 200, 400, 600].map(millis));
        // Silence gives a burst back, and no more than one.
        let later = start + Duration::from_secs(60);
        let begins: Vec<_> = (0..5).map(|_| pace.next(later) - later).collect();
        assert_eq!(begins, [0, 0, 0, 200, 400].map(millis));
        assert!(Pace::new(0, 3, || start).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_bound_run_at_once() {
        let mut settings = Settings {
            parallel_image_pulls: 2,
            ..Settings::default()
        };
        let turns = PullTurns::new(&settings);
        let (first, _second) = (turns.take().await, turns.take().await);
        assert!(tokio::time::timeout(millis(10), turns.take()).await.is_err());
        drop(first);
        assert!(turns.take().await.is_some());
        settings.parallel_image_pulls = usize::MAX;
        assert!(PullTurns::new(&settings).take().await.is_some());
    }
}
