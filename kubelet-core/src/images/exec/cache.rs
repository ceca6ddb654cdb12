//! Answers of a plugin, as long as they last.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::images::Keyring;

/// How often what has expired is thrown away.
const PURGE_PERIOD: Duration = Duration::from_secs(15 * 60);

/// From how many answers on the cache begins anew: each pod may have its own.
const MAX_CACHED: usize = 2000;

/// The key of what is for every image.
const GLOBAL: &str = "<global>";

/// For what an answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheKey {
    Image,
    Registry,
    Global,
}

impl CacheKey {
    pub(super) fn of(self, repository: &str) -> &str {
        match self {
            Self::Image => repository,
            Self::Registry => registry_of(repository),
            Self::Global => GLOBAL,
        }
    }
}

fn registry_of(repository: &str) -> &str {
    repository.split('/').next().unwrap_or(repository)
}

#[derive(Default)]
pub(super) struct Cache {
    /// By whom they are for, and for what.
    entries: BTreeMap<(String, String), (Keyring, Instant)>,
    purged: Option<Instant>,
}

impl Cache {
    /// `whom` says for whom an answer is; empty: for every pod.
    pub(super) fn get(&mut self, whom: &str, repository: &str, now: Instant) -> Option<Keyring> {
        let purged = *self.purged.get_or_insert(now);
        if now.saturating_duration_since(purged) >= PURGE_PERIOD {
            self.entries.retain(|_, (_, until)| now < *until);
            self.purged = Some(now);
        }
        let keys = [repository, registry_of(repository), GLOBAL];
        let key = |what: &str| (whom.to_owned(), what.to_owned());
        let known = keys.into_iter().filter_map(|what| self.entries.get(&key(what)));
        let valid = |(keyring, until): &(Keyring, Instant)| (now < *until).then(|| keyring.clone());
        known.into_iter().find_map(valid)
    }

    pub(super) fn put(&mut self, whom: &str, key: &str, keyring: Keyring, lasts: Duration, now: Instant) {
        // What lasts longer than time can be told is as good as for ever.
        let until = now
            .checked_add(lasts)
            .unwrap_or(now + Duration::from_secs(365 * 86_400));
        let key = (whom.to_owned(), key.to_owned());
        if self.entries.len() >= MAX_CACHED && !self.entries.contains_key(&key) {
            self.entries.retain(|_, (_, until)| now < *until);
            if self.entries.len() >= MAX_CACHED {
                self.entries.clear();
            }
        }
        self.entries.insert(key, (keyring, until));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Cache, CacheKey, MAX_CACHED};
    use crate::images::Keyring;
    use crate::runtime::RegistryAuth;

    fn keyring(user: &str) -> Keyring {
        let mut keyring = Keyring::new();
        keyring.add("reg.example", RegistryAuth::basic(user, ""));
        keyring
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_for_less_comes_first_and_lasts_as_long_as_it_says() {
        let (start, mut cache) = (Instant::now(), Cache::default());
        let after = |seconds| start + Duration::from_secs(seconds);
        for (key, user, lasts) in [
            (CacheKey::Image, "image", 10),
            (CacheKey::Registry, "registry", 20),
            (CacheKey::Global, "global", 30),
        ] {
            cache.put(
                "",
                key.of("reg.example/a"),
                keyring(user),
                Duration::from_secs(lasts),
                start,
            );
        }
        let mut user = |repository: &str, at| {
            assert_eq!(cache.get("somebody", repository, after(at)), None);
            let found = cache.get("", repository, after(at))?;
            Some(found.lookup("reg.example/a")[0].username.clone())
        };
        assert_eq!(user("reg.example/a", 9).as_deref(), Some("image"));
        assert_eq!(user("reg.example/b", 9).as_deref(), Some("registry"));
        assert_eq!(user("other.example/a", 9).as_deref(), Some("global"));
        assert_eq!(user("reg.example/a", 10).as_deref(), Some("registry"));
        assert_eq!(user("reg.example/a", 20).as_deref(), Some("global"));
        assert_eq!(user("reg.example/a", 30), None);
        assert_eq!(user("reg.example/a", 1000), None);
        assert!(cache.entries.is_empty(), "what has expired is thrown away");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_kept_than_there_is_room_for() {
        let (start, mut cache) = (Instant::now(), Cache::default());
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut put = |whom: usize, lasts, at| {
            let lasts = Duration::from_secs(lasts);
            cache.put(&whom.to_string(), "reg.example/a", keyring("me"), lasts, after(at));
            cache.entries.len()
        };
        assert_eq!(put(0, 100, 0), 1);
        for whom in 1..MAX_CACHED {
            put(whom, 10, 0);
        }
        assert_eq!(put(0, 100, 0), MAX_CACHED, "it is there already");
        assert_eq!(put(MAX_CACHED, 10, 10), 2, "what has expired goes first");
        for whom in 1..MAX_CACHED {
            put(whom, 100, 20);
        }
        assert!(put(MAX_CACHED + 1, 100, 20) < MAX_CACHED);
    }
}
