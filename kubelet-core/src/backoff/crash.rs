//! The crash-loop back-off of one pod's containers.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::ids::ContainerId;
use crate::observation::ObservedContainer;
use crate::pod::ContainerView;

/// A moment beyond this cannot be told from any other, and might not be told at all.
const FAR: Duration = Duration::from_secs(365 * 86_400);

/// How restarts of a container that keeps ending are put off.
///
/// Source: kubelet 1.36: 10 s, doubled up to `crashLoopBackOff.maxContainerRestartPeriod` (300 s).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrashBackoffSettings {
    /// The delay of the second restart; the first comes at once. Cut to `max`. 10 s by default.
    pub initial: Duration,
    /// The longest delay. 300 s by default.
    pub max: Duration,
    /// A container that ran for longer than this starts over, without a delay. 600 s by default.
    pub reset_after: Duration,
}

impl Default for CrashBackoffSettings {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(10),
            max: Duration::from_secs(300),
            reset_after: Duration::from_secs(600),
        }
    }
}

/// What a back-off is about: a container of a pod with its image and resources. A change of those starts it over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CrashKey {
    name: Box<str>,
    definition: u64,
}

impl CrashKey {
    /// The key of a container.
    #[must_use]
    pub fn of(container: &ContainerView<'_>) -> Self {
        let mut hash = DefaultHasher::new();
        container.image().hash(&mut hash);
        // Maps of resources are sorted, so the same resources give the same text.
        let resources = container.resources().and_then(|r| serde_json::to_string(r).ok());
        resources.hash(&mut hash);
        Self {
            name: container.name().into(),
            definition: hash.finish(),
        }
    }
}

/// Whether a container that ended may be started again now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackoffDecision {
    /// It may.
    StartNow,
    /// It has to wait.
    Wait {
        /// The delay as a whole, counted from the container's end: what messages name.
        delay: Duration,
        /// When it may.
        until: Instant,
    },
}

/// The crash-loop back-off of the containers of one pod. Lives as long as the pod's worker and is never saved.
///
/// A container that always fails is started at once after its first end, then 10, 20, 40, 80, 160, 300, 300, … s after
/// each further end.
///
/// A wall clock that jumps back cannot stretch a wait: the time since a container's end is also measured from the moment
/// when its end was first seen here, on a clock that never jumps. One that jumps forward shortens it by no more than the
/// container ran, and makes no run a long one.
#[derive(Debug, Default)]
pub struct CrashBackoff {
    settings: CrashBackoffSettings,
    // By name alone: what an earlier definition of a container did is of no interest any more.
    entries: BTreeMap<Box<str>, Entry>,
    ends: BTreeMap<Box<str>, SeenEnd>,
}

#[derive(Clone, Debug)]
struct Entry {
    definition: u64,
    delay: Duration,
    started: Timestamp,
    started_mono: Instant,
}

#[derive(Clone, Debug)]
struct SeenEnd {
    id: ContainerId,
    at: Instant,
}

impl CrashBackoff {
    /// A back-off in which nothing has failed yet.
    #[must_use]
    pub fn new(settings: CrashBackoffSettings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Asks whether a container may be started after `exited`, its newest end, and counts the start if so. Not to be
    /// asked for a container that never ended: it may always start.
    pub fn check(
        &mut self,
        key: &CrashKey,
        exited: &ObservedContainer,
        now: Timestamp,
        mono: Instant,
    ) -> BackoffDecision {
        self.saw_end(key, exited, mono);
        let decision = self.peek(key, exited, now, mono);
        if decision == BackoffDecision::StartNow {
            self.advance(key, exited, now, mono);
        }
        decision
    }

    /// Notes when the end of a container was first seen. [`check`](Self::check) does it too; whoever only peeks calls it
    /// before, or a wait may be stretched by a wall clock that jumps back.
    pub fn saw_end(&mut self, key: &CrashKey, exited: &ObservedContainer, mono: Instant) {
        let known = self.ends.get(&key.name).is_some_and(|seen| seen.id == exited.id);
        if !known {
            let id = exited.id.clone();
            self.ends.insert(key.name.clone(), SeenEnd { id, at: mono });
        }
    }

    /// Asks whether a container may be started after `exited`, and counts nothing.
    #[must_use]
    pub fn peek(&self, key: &CrashKey, exited: &ObservedContainer, now: Timestamp, mono: Instant) -> BackoffDecision {
        let Some(entry) = self.entry(key) else {
            return BackoffDecision::StartNow;
        };
        let end = self.end(key, exited, mono);
        let since_end = end
            .wall
            .map_or(Duration::ZERO, |wall| between(wall, now))
            .min(mono.saturating_duration_since(entry.started_mono))
            .max(mono.saturating_duration_since(end.mono));
        match entry.delay.checked_sub(since_end) {
            Some(left) if !left.is_zero() && !self.ran_long(entry, &end) => BackoffDecision::Wait {
                delay: entry.delay,
                until: mono + left.min(FAR),
            },
            _ => BackoffDecision::StartNow,
        }
    }

    /// Counts a start after `exited`: the next one waits longer.
    pub fn advance(&mut self, key: &CrashKey, exited: &ObservedContainer, now: Timestamp, mono: Instant) {
        let max = self.settings.max;
        let end = self.end(key, exited, mono);
        let delay = match self.entry(key).filter(|entry| !self.ran_long(entry, &end)) {
            Some(entry) => entry.delay.saturating_mul(2).min(max),
            None => self.settings.initial.min(max),
        };
        let entry = Entry {
            definition: key.definition,
            delay,
            started: now,
            started_mono: mono,
        };
        self.entries.insert(key.name.clone(), entry);
    }

    fn entry(&self, key: &CrashKey) -> Option<&Entry> {
        self.entries
            .get(&key.name)
            .filter(|entry| entry.definition == key.definition)
    }

    fn end(&self, key: &CrashKey, exited: &ObservedContainer, mono: Instant) -> End {
        let seen = self.ends.get(&key.name).filter(|seen| seen.id == exited.id);
        End {
            // Runtimes report the epoch for what they do not know.
            wall: exited
                .finished_at
                .filter(|at| *at >= exited.created_at && *at > Timestamp::UNIX_EPOCH),
            mono: seen.map_or(mono, |seen| seen.at),
        }
    }

    /// Whether the container ran for long enough, since it was last started here, to start over.
    fn ran_long(&self, entry: &Entry, end: &End) -> bool {
        let at_most = end.mono.saturating_duration_since(entry.started_mono);
        let ran = match end.wall {
            Some(wall) if wall >= entry.started => between(entry.started, wall).min(at_most),
            // It ended before it was started, by the wall clock: that one jumped, or the start came to nothing.
            _ => at_most,
        };
        ran > self.settings.reset_after
    }
}

/// When a container ended: by the runtime's account, and when that was first seen.
#[derive(Debug)]
struct End {
    wall: Option<Timestamp>,
    mono: Instant,
}

/// The time from one moment to a later one; zero if it is not later.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::jiff::{SignedDuration, Timestamp};
    use serde_json::json;
    use tokio::time::{Instant, advance, sleep_until};

    use super::{BackoffDecision, CrashBackoff, CrashBackoffSettings, CrashKey};
    use crate::clock::{Clock, TokioClock};
    use crate::ids::ContainerId;
    use crate::observation::ObservedContainer;
    use crate::pod::testing::record;
    use crate::runtime::ContainerState;

    fn key(image: &str, cpu: &str) -> CrashKey {
        let pod = record(json!({"spec": {"containers": [
            {"name": "app", "image": image, "resources": {"limits": {"cpu": cpu}}},
        ]}}));
        CrashKey::of(&pod.container("app").unwrap())
    }

    fn ended(number: usize, at: Option<Timestamp>) -> ObservedContainer {
        let id = ContainerId::from(format!("app-{number}"));
        let mut seen = ObservedContainer::new(id, "app", ContainerState::Exited, Timestamp::UNIX_EPOCH);
        seen.finished_at = at;
        seen.exit_code = 1;
        seen
    }

    fn clock() -> TokioClock {
        TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap())
    }

    /// Restarts a container that runs for `runs[n]` after its start `n`, and tells when it was started, in seconds.
    async fn starts(backoff: &mut CrashBackoff, runs: &[u64]) -> Vec<u64> {
        let (clock, key, began) = (clock(), key("img", "1"), Instant::now());
        let mut starts = Vec::new();
        for (number, run) in runs.iter().enumerate() {
            starts.push(began.elapsed().as_secs());
            advance(Duration::from_secs(*run)).await;
            let exited = ended(number, Some(clock.now()));
            while let BackoffDecision::Wait { until, .. } = backoff.check(&key, &exited, clock.now(), Instant::now()) {
                sleep_until(until).await;
            }
        }
        starts
    }

    #[tokio::test(start_paused = true)]
    async fn a_container_that_always_fails_starts_at_these_times() {
        let mut backoff = CrashBackoff::default();
        assert_eq!(
            starts(&mut backoff, &[0; 10]).await,
            [0, 0, 10, 30, 70, 150, 310, 610, 910, 1210]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn each_wait_counts_from_the_end_of_the_container() {
        let mut backoff = CrashBackoff::default();
        // Starts 5 s after the last start and the delay.
        assert_eq!(starts(&mut backoff, &[5; 5]).await, [0, 5, 20, 45, 90]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_run_starts_over() {
        let mut backoff = CrashBackoff::default();
        // The fourth runs for 600 s, which is not longer; the fifth for 601 s.
        assert_eq!(
            starts(&mut backoff, &[0, 0, 0, 600, 601, 0, 0]).await,
            [0, 0, 10, 30, 670, 1271, 1281]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_longest_delay_also_cuts_the_first() {
        let mut backoff = CrashBackoff::new(CrashBackoffSettings {
            max: Duration::from_secs(2),
            ..CrashBackoffSettings::default()
        });
        assert_eq!(starts(&mut backoff, &[0; 5]).await, [0, 0, 2, 4, 6]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_delay_is_no_fault() {
        let mut backoff = CrashBackoff::new(CrashBackoffSettings {
            initial: Duration::MAX,
            max: Duration::MAX,
            ..CrashBackoffSettings::default()
        });
        let (clock, key) = (clock(), key("img", "1"));
        let exited = ended(0, Some(clock.now()));
        backoff.check(&key, &exited, clock.now(), Instant::now());
        assert!(matches!(
            backoff.check(&key, &exited, clock.now(), Instant::now()),
            BackoffDecision::Wait { .. }
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn another_image_or_other_resources_start_over() {
        let mut backoff = CrashBackoff::default();
        let clock = clock();
        for key in [key("img", "1"), key("img2", "1"), key("img2", "2")] {
            let exited = ended(0, Some(clock.now()));
            let mut check = || backoff.check(&key, &exited, clock.now(), Instant::now());
            assert_eq!(check(), BackoffDecision::StartNow);
            assert!(matches!(check(), BackoffDecision::Wait { .. }));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_jumps_back_stretches_no_wait() {
        let mut backoff = CrashBackoff::default();
        let (clock, key, began) = (clock(), key("img", "1"), Instant::now());
        backoff.check(&key, &ended(0, Some(clock.now())), clock.now(), began);
        // It ends again at once; then the clock is set back by a day.
        let exited = ended(1, Some(clock.now()));
        let set_back = || clock.now() - SignedDuration::from_hours(24);
        let wait = BackoffDecision::Wait {
            delay: Duration::from_secs(10),
            until: began + Duration::from_secs(10),
        };
        assert_eq!(backoff.check(&key, &exited, set_back(), began), wait);
        advance(Duration::from_secs(9)).await;
        assert_eq!(backoff.check(&key, &exited, set_back(), Instant::now()), wait);
        advance(Duration::from_secs(1)).await;
        assert_eq!(
            backoff.check(&key, &exited, set_back(), Instant::now()),
            BackoffDecision::StartNow
        );
        // It then runs for 11 minutes, and ends a day before its start by the wall clock.
        advance(Duration::from_secs(660)).await;
        let exited = ended(2, Some(set_back() - SignedDuration::from_hours(24)));
        assert_eq!(
            backoff.check(&key, &exited, set_back(), Instant::now()),
            BackoffDecision::StartNow
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_jumps_forward_shortens_no_wait() {
        let mut backoff = CrashBackoff::default();
        let (clock, key, began) = (clock(), key("img", "1"), Instant::now());
        let later = || clock.now() + SignedDuration::from_hours(24);
        backoff.check(&key, &ended(0, Some(clock.now())), clock.now(), began);
        // It runs for a second, in which the clock is set forward by a day: that is no long run.
        advance(Duration::from_secs(1)).await;
        let exited = ended(1, Some(later()));
        let until = Instant::now() + Duration::from_secs(10);
        let delay = Duration::from_secs(10);
        let wait = BackoffDecision::Wait { delay, until };
        assert_eq!(backoff.check(&key, &exited, later(), Instant::now()), wait);
        advance(Duration::from_secs(5)).await;
        // It is set forward once more while the container waits: by no more than its run is the wait shortened.
        let much_later = later() + SignedDuration::from_hours(24);
        let BackoffDecision::Wait { until: sooner, .. } = backoff.check(&key, &exited, much_later, Instant::now())
        else {
            panic!("it waits");
        };
        assert!(sooner <= until && sooner + Duration::from_secs(1) >= until);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_without_a_time_is_no_hot_loop() {
        let (clock, key) = (clock(), key("img", "1"));
        for unknown in [None, Some(Timestamp::UNIX_EPOCH)] {
            let mut backoff = CrashBackoff::default();
            let mut check = |number| backoff.check(&key, &ended(number, unknown), clock.now(), Instant::now());
            assert_eq!(check(0), BackoffDecision::StartNow);
            assert!(matches!(check(1), BackoffDecision::Wait { .. }));
            advance(Duration::from_secs(10)).await;
            assert_eq!(check(1), BackoffDecision::StartNow);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn to_peek_counts_nothing() {
        let mut backoff = CrashBackoff::default();
        let (clock, key, now) = (clock(), key("img", "1"), Instant::now());
        let exited = ended(0, Some(clock.now()));
        for _ in 0..3 {
            assert_eq!(backoff.peek(&key, &exited, clock.now(), now), BackoffDecision::StartNow);
        }
        backoff.advance(&key, &exited, clock.now(), now);
        assert!(matches!(
            backoff.peek(&key, &exited, clock.now(), now),
            BackoffDecision::Wait { .. }
        ));
    }
}
