//! A back-off per key, such as that of image pulls.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Doubles the delay of a key at each failure, and forgets a key that did not fail for twice the longest delay.
///
/// Source: kubelet 1.36 puts image pulls off so, from 10 s to 300 s, per pod and image.
#[derive(Debug)]
pub struct KeyedBackoff<K> {
    initial: Duration,
    max: Duration,
    entries: BTreeMap<K, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    delay: Duration,
    since: Instant,
}

impl<K: Ord> KeyedBackoff<K> {
    /// Delays from `initial` to `max`; an `initial` above `max` is cut to it.
    #[must_use]
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial: initial.min(max),
            max,
            entries: BTreeMap::new(),
        }
    }

    /// Notes a failure of `key` and says how long the next attempt is put off. Forgets what failed long ago.
    pub fn next(&mut self, key: K, now: Instant) -> Duration {
        let quiet = self.quiet();
        self.entries
            .retain(|_, entry| now.saturating_duration_since(entry.since) <= quiet);
        let delay = self
            .entries
            .get(&key)
            .map_or(self.initial, |entry| entry.delay.saturating_mul(2).min(self.max));
        self.entries.insert(key, Entry { delay, since: now });
        delay
    }

    /// Until when `key` is put off; nothing if it may be tried now.
    #[must_use]
    pub fn until(&self, key: &K, now: Instant) -> Option<Instant> {
        self.entries
            .get(key)
            .and_then(|entry| entry.since.checked_add(entry.delay))
            .filter(|until| now < *until)
    }

    /// Whether `key` is put off now.
    #[must_use]
    pub fn is_in_backoff(&self, key: &K, now: Instant) -> bool {
        self.until(key, now).is_some()
    }

    /// Forgets a key: it went well, or is not asked for any more.
    pub fn forget(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// Keeps only the keys that `wanted` names.
    pub fn retain(&mut self, mut wanted: impl FnMut(&K) -> bool) {
        self.entries.retain(|key, _| wanted(key));
    }

    /// How many keys are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no key is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn quiet(&self) -> Duration {
        self.max.saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::KeyedBackoff;

    fn pulls() -> KeyedBackoff<&'static str> {
        KeyedBackoff::new(Duration::from_secs(10), Duration::from_secs(300))
    }

    #[tokio::test(start_paused = true)]
    async fn the_delay_doubles_up_to_its_bound() {
        let mut backoff = pulls();
        let mut delays = Vec::new();
        for _ in 0..7 {
            let delay = backoff.next("a", Instant::now());
            delays.push(delay.as_secs());
            advance(delay - Duration::from_millis(1)).await;
            assert!(backoff.is_in_backoff(&"a", Instant::now()));
            assert!(!backoff.is_in_backoff(&"b", Instant::now()));
            advance(Duration::from_millis(1)).await;
            assert!(!backoff.is_in_backoff(&"a", Instant::now()));
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_key_is_forgotten() {
        let mut backoff = pulls();
        backoff.next("a", Instant::now());
        backoff.next("a", Instant::now());
        advance(Duration::from_secs(600)).await;
        assert_eq!(backoff.next("a", Instant::now()), Duration::from_secs(40));
        advance(Duration::from_secs(601)).await;
        backoff.next("b", Instant::now());
        assert_eq!(backoff.len(), 1);
        assert_eq!(backoff.next("a", Instant::now()), Duration::from_secs(10));
    }
}
