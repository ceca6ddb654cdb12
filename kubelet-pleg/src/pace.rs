//! How often to look at everything: how far the runtime's events can be relied on. Decides; calls nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_core::PodUid;
use tokio::time::Instant;

use crate::settings::{EventedPlegSettings, GenericPlegSettings};

/// A period, and how long without a good look counts as unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rhythm {
    pub(crate) period: Duration,
    pub(crate) health_threshold: Duration,
}

/// What is known of the runtime's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Events {
    Cut,
    /// They come since then. What happened before is known once a look begun later has succeeded.
    CatchingUp(Instant),
    Flowing,
}

/// The short rhythm, and the long one while events can be relied on.
///
/// A stream may be open and yet tell nothing, or not everything: it is found out by changes that a look shows and no event
/// follows. Then the short rhythm holds until an event comes again.
#[derive(Debug)]
pub(crate) struct Pace {
    short: Rhythm,
    long: Option<Long>,
    events: Events,
    /// An event was missed, and none has come since.
    doubtful: bool,
    /// When looks found changes of pods that no event has told of.
    untold: BTreeMap<PodUid, Instant>,
    /// When events last told of pods: their changes may be found later.
    told: BTreeMap<PodUid, Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Long {
    rhythm: Rhythm,
    deaf_after: Duration,
}

impl Pace {
    /// Always the same.
    pub(crate) fn even(settings: &GenericPlegSettings) -> Self {
        Self {
            short: Rhythm {
                period: settings.period,
                health_threshold: settings.health_threshold,
            },
            long: None,
            events: Events::Cut,
            doubtful: false,
            untold: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Slower while events flow.
    pub(crate) fn evented(settings: &EventedPlegSettings) -> Self {
        let mut pace = Self::even(&settings.without_events);
        pace.long = Some(Long {
            rhythm: Rhythm {
                period: settings.period,
                health_threshold: settings.health_threshold,
            },
            deaf_after: settings.deaf_after,
        });
        pace
    }

    pub(crate) fn short(&self) -> Rhythm {
        self.short
    }

    /// What holds now.
    pub(crate) fn rhythm(&self) -> Rhythm {
        match self.long {
            Some(long) if self.events == Events::Flowing && !self.doubtful => long.rhythm,
            _ => self.short,
        }
    }

    /// Whether it matters that everything is looked at once events begin to flow.
    pub(crate) fn must_catch_up(&self) -> bool {
        self.long.is_some()
    }

    /// Events come from now on.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.events = Events::CatchingUp(now);
        self.forget();
    }

    /// No more events come.
    pub(crate) fn cut(&mut self) {
        self.events = Events::Cut;
        self.forget();
    }

    fn forget(&mut self) {
        self.untold.clear();
        self.told.clear();
    }

    /// A look at everything that began then has succeeded.
    pub(crate) fn looked_at_all(&mut self, begun: Instant) {
        if matches!(self.events, Events::CatchingUp(since) if begun >= since) {
            self.events = Events::Flowing;
        }
        // No more is needed of them, and pods come and go.
        if let Some(long) = self.long {
            self.told.retain(|_, at| at.elapsed() < long.deaf_after);
        }
    }

    /// An event told of this pod.
    pub(crate) fn told_of(&mut self, uid: &PodUid, now: Instant) {
        self.doubtful = false;
        if self.long.is_some() {
            self.untold.remove(uid);
            self.told.insert(uid.clone(), now);
        }
    }

    /// An event told that there may be more than it tells.
    pub(crate) fn told_of_all(&mut self) {
        self.doubtful = false;
        self.untold.clear();
    }

    /// A look found this pod changed.
    pub(crate) fn changed(&mut self, uid: PodUid, now: Instant) {
        let Some(long) = self.long.filter(|_| self.events == Events::Flowing) else {
            return;
        };
        if self.told.get(&uid).is_none_or(|at| now - *at >= long.deaf_after) {
            self.untold.entry(uid).or_insert(now);
        }
    }

    /// When it is certain that an event was missed, unless it comes before.
    pub(crate) fn deaf_at(&self) -> Option<Instant> {
        let long = self.long?;
        self.untold.values().min().map(|since| *since + long.deaf_after)
    }

    /// An event was missed. Answers of which pods.
    pub(crate) fn deaf(&mut self) -> Vec<PodUid> {
        self.doubtful = true;
        std::mem::take(&mut self.untold).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kubelet_core::PodUid;
    use tokio::time::{Instant, advance};

    use super::Pace;
    use crate::settings::{EventedPlegSettings, GenericPlegSettings};

    const LONG: Duration = Duration::from_secs(300);
    const SHORT: Duration = Duration::from_secs(1);

    async fn flowing() -> Pace {
        let mut pace = Pace::evented(&EventedPlegSettings::default());
        assert_eq!(pace.rhythm().period, SHORT);
        pace.connected(Instant::now());
        pace.looked_at_all(Instant::now());
        advance(Duration::from_secs(60)).await;
        assert_eq!(pace.rhythm().period, LONG);
        assert_eq!(pace.rhythm().health_threshold, Duration::from_secs(600));
        pace
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_slow_only_after_a_look_that_began_with_events() {
        let mut pace = Pace::evented(&EventedPlegSettings::default());
        let before = Instant::now();
        advance(SHORT).await;
        pace.connected(Instant::now());
        pace.looked_at_all(before);
        assert_eq!(pace.rhythm().period, SHORT);
        pace.looked_at_all(Instant::now());
        assert_eq!(pace.rhythm().period, LONG);
        pace.cut();
        assert_eq!(pace.rhythm().period, SHORT);
        pace.looked_at_all(Instant::now());
        assert_eq!(pace.rhythm().period, SHORT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_no_event_tells_of_makes_it_fast_until_one_comes() {
        let mut pace = flowing().await;
        let (told, untold) = (PodUid::from("told"), PodUid::from("untold"));
        pace.changed(told.clone(), Instant::now());
        pace.changed(untold.clone(), Instant::now());
        pace.told_of(&told, Instant::now());
        let deaf_at = pace.deaf_at().unwrap();
        assert_eq!(deaf_at - Instant::now(), Duration::from_secs(10));
        assert_eq!(pace.deaf(), [untold]);
        assert_eq!(pace.deaf_at(), None);
        assert_eq!(pace.rhythm().period, SHORT);
        // A stream that is opened anew is no better until it has told something.
        pace.connected(Instant::now());
        pace.looked_at_all(Instant::now());
        assert_eq!(pace.rhythm().period, SHORT);
        pace.told_of(&told, Instant::now());
        assert_eq!(pace.rhythm().period, LONG);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_may_come_before_the_change_is_found_but_not_long_before() {
        let mut pace = flowing().await;
        let uid = PodUid::from("p");
        pace.told_of(&uid, Instant::now());
        advance(SHORT).await;
        pace.changed(uid.clone(), Instant::now());
        assert_eq!(pace.deaf_at(), None);
        advance(Duration::from_secs(10)).await;
        pace.changed(uid.clone(), Instant::now());
        assert!(pace.deaf_at().is_some());
        pace.told_of_all();
        assert_eq!(pace.deaf_at(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_long_rhythm_events_change_nothing() {
        let mut pace = Pace::even(&GenericPlegSettings::default());
        pace.connected(Instant::now());
        pace.looked_at_all(Instant::now());
        pace.changed(PodUid::from("p"), Instant::now());
        assert_eq!(pace.deaf_at(), None);
        assert_eq!(pace.rhythm(), pace.short());
    }
}
