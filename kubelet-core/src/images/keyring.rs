//! Credentials by the registries that they are for.

use std::collections::BTreeMap;
use std::fmt;

use super::pattern::RegistryPattern;
use crate::runtime::RegistryAuth;

/// Under what those of Docker Hub are often kept.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Credentials by registry, and the way to find those for an image.
///
/// A registry is `host[:port][/path]`; each label of the host may hold `*`. A scheme, and `/v1` or `/v2` before the path,
/// mean nothing. `Debug` shows registries only.
///
/// Source: kubelet 1.36, `credentialprovider/keyring.go`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keyring {
    entries: BTreeMap<String, Vec<RegistryAuth>>,
}

impl Keyring {
    /// One without credentials.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds credentials for a registry. Where the text is none they are for nothing.
    pub fn add(&mut self, registry: &str, auth: RegistryAuth) {
        self.entries.entry(key_of(registry)).or_default().push(auth);
    }

    /// Adds all of another.
    pub fn extend(&mut self, other: Self) {
        for (key, auths) in other.entries {
            self.entries.entry(key).or_default().extend(auths);
        }
    }

    /// Whether there are no credentials.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether this is the password of any of them.
    pub(crate) fn has_password(&self, password: &str) -> bool {
        self.entries.values().flatten().any(|auth| auth.password == password)
    }

    /// The credentials for a repository, such as `docker.io/library/nginx`: those of more specific registries first.
    #[must_use]
    pub fn lookup(&self, repository: &str) -> Vec<&RegistryAuth> {
        let Ok(wanted) = RegistryPattern::parse(repository) else {
            return Vec::new();
        };
        // A longer text with the same beginning comes later in the map.
        let fitting = self
            .entries
            .iter()
            .rev()
            .filter(|(key, _)| RegistryPattern::parse(key).is_ok_and(|pattern| pattern.matches(&wanted)));
        let found: Vec<_> = fitting.flat_map(|(_, auths)| auths).collect();
        if found.is_empty() && is_on_docker_hub(repository) {
            return self.entries.get(DEFAULT_REGISTRY).into_iter().flatten().collect();
        }
        found
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring")
            .field("registries", &self.entries.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

fn key_of(registry: &str) -> String {
    let bare = registry
        .strip_prefix("https://")
        .or_else(|| registry.strip_prefix("http://"))
        .unwrap_or(registry);
    let (host, path) = match bare.find('/') {
        Some(at) => bare.split_at(at),
        None => (bare, ""),
    };
    let path = match path.strip_prefix("/v1").or_else(|| path.strip_prefix("/v2")) {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    };
    let path = if path == "/" { "" } else { path };
    format!("{host}{path}")
}

fn is_on_docker_hub(repository: &str) -> bool {
    repository
        .split_once('/')
        .is_some_and(|(host, _)| matches!(host, "docker.io" | DEFAULT_REGISTRY))
}

#[cfg(test)]
mod tests {
    use super::{Keyring, RegistryAuth, key_of};

    fn keyring(registries: &[&str]) -> Keyring {
        let mut keyring = Keyring::new();
        for registry in registries {
            keyring.add(registry, RegistryAuth::basic(*registry, "hunter2"));
        }
        keyring
    }

    fn found<'a>(keyring: &'a Keyring, repository: &str) -> Vec<&'a str> {
        keyring
            .lookup(repository)
            .iter()
            .map(|auth| auth.username.as_str())
            .collect()
    }

    #[test]
    fn schemes_and_versions_of_the_api_mean_nothing() {
        for (registry, key) in [
            ("https://index.docker.io/v1/", "index.docker.io"),
            ("http://reg.example", "reg.example"),
            ("reg.example/", "reg.example"),
            ("reg/v2/team", "reg/team"),
            ("reg/v2", "reg/v2"),
            ("reg/v3/team", "reg/v3/team"),
            ("reg/v1x/team", "reg/v1x/team"),
        ] {
            assert_eq!(key_of(registry), key, "{registry}");
        }
    }

    #[test]
    fn more_specific_registries_come_first() {
        let keyring = keyring(&[
            "reg.example",
            "*.example",
            "reg.example/team",
            "reg.example/team/app",
            "other.example",
        ]);
        assert_eq!(
            found(&keyring, "reg.example/team/app"),
            ["reg.example/team/app", "reg.example/team", "reg.example", "*.example"]
        );
        assert_eq!(found(&keyring, "reg.example/x"), ["reg.example", "*.example"]);
        assert!(found(&keyring, "reg.test/x").is_empty());
    }

    #[test]
    fn docker_hub_has_more_than_one_name() {
        let hub = keyring(&["https://index.docker.io/v1/"]);
        assert_eq!(found(&hub, "docker.io/library/nginx").len(), 1);
        assert!(found(&hub, "reg.example/library/nginx").is_empty());
        let both = keyring(&["docker.io", "index.docker.io"]);
        assert_eq!(found(&both, "docker.io/library/nginx"), ["docker.io"]);
    }

    #[test]
    fn a_registry_that_is_none_hurts_no_other() {
        let keyring = keyring(&["not a registry", "reg.example:x", "reg.example"]);
        assert_eq!(found(&keyring, "reg.example/app"), ["reg.example"]);
    }

    #[test]
    fn debug_shows_no_credentials() {
        let shown = format!(
            "{:?} {:?}",
            keyring(&["reg.example"]),
            RegistryAuth::basic("me", "hunter2")
        );
        assert!(shown.contains("reg.example") && !shown.contains("hunter2"), "{shown}");
    }
}
