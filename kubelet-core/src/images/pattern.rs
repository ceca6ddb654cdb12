//! Which images a registry's name in a configuration means.

/// Host with globs, port and path of a registry, or of a repository.
///
/// Source: kubelet 1.36, `credentialprovider/keyring.go`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegistryPattern {
    labels: Vec<String>,
    port: Option<String>,
    path: String,
}

impl RegistryPattern {
    /// Takes `host[:port][/path]` apart; the error says what is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("has white space");
        }
        if text.contains(['?', '#', '\\']) || text.contains("://") {
            return Err("is not host[:port][/path]");
        }
        let (place, path) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (place, None),
        };
        if host.is_empty() {
            return Err("has no host");
        }
        if port.is_some_and(|port| port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit())) {
            return Err("has a port that is not a number");
        }
        Ok(Self {
            labels: host.split('.').map(str::to_owned).collect(),
            port: port.map(str::to_owned),
            path: path.to_owned(),
        })
    }

    /// Whether it means this repository: equal ports, as many labels of the host, each a glob, and a prefix of the path.
    pub(super) fn matches(&self, repository: &Self) -> bool {
        self.port == repository.port
            && self.labels.len() == repository.labels.len()
            && repository.path.starts_with(&self.path)
            && self
                .labels
                .iter()
                .zip(&repository.labels)
                .all(|(glob, label)| glob_matches(glob, label))
    }
}

/// Whether a text fits a glob in which `*` stands for any text.
fn glob_matches(glob: &str, text: &str) -> bool {
    let Some((head, rest)) = glob.split_once('*') else {
        return glob == text;
    };
    let Some(mut text) = text.strip_prefix(head) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        // The earliest place leaves most for those that follow.
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::{RegistryPattern, glob_matches};

    fn matches(pattern: &str, repository: &str) -> bool {
        let parse = |text| RegistryPattern::parse(text).unwrap();
        parse(pattern).matches(&parse(repository))
    }

    #[test]
    fn ports_are_equal_labels_are_globs_and_paths_are_prefixes() {
        for (pattern, repository, fits) in [
            ("reg.example", "reg.example/team/app", true),
            ("reg.example", "reg.example:5000/team/app", false),
            ("reg.example:5000", "reg.example:5000/team/app", true),
            ("reg.example:5000", "reg.example/team/app", false),
            ("*.example", "reg.example/app", true),
            ("*.example", "a.reg.example/app", false),
            ("*.*.example", "a.reg.example/app", true),
            ("r*g.example", "reg.example/app", true),
            (
                "*.dkr.ecr.*.amazonaws.com",
                "12.dkr.ecr.eu-west-1.amazonaws.com/app",
                true,
            ),
            ("reg.example/team", "reg.example/team/app", true),
            ("reg.example/team", "reg.example/team2/app", true),
            ("reg.example/team/", "reg.example/team2/app", false),
            ("reg.example/*", "reg.example/team/app", false),
            ("*.example:*", "reg.example:5000/app", false),
            ("[::1]:5000", "[::1]:5000/app", true),
        ] {
            let found = RegistryPattern::parse(pattern).is_ok() && matches(pattern, repository);
            assert_eq!(found, fits, "{pattern} {repository}");
        }
    }

    #[test]
    fn what_cannot_be_a_registry_is_refused() {
        for text in [
            "",
            "/path",
            "a b",
            "https://reg.example",
            "reg.example:",
            "reg.example:x",
            "reg?x",
            "reg#x",
        ] {
            assert!(RegistryPattern::parse(text).is_err(), "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn globs_agree_with_the_obvious_definition(glob in "[ab*]{0,7}", text in "[ab]{0,8}") {
            fn obvious(glob: &[u8], text: &[u8]) -> bool {
                match glob.split_first() {
                    None => text.is_empty(),
                    Some((b'*', rest)) => (0..=text.len()).any(|at| obvious(rest, &text[at..])),
                    Some((c, rest)) => text.first() == Some(c) && obvious(rest, &text[1..]),
                }
            }
            proptest::prop_assert_eq!(glob_matches(&glob, &text), obvious(glob.as_bytes(), text.as_bytes()));
        }
    }
}
