//! Names of images, taken apart as the clients of registries do.

use std::fmt;

use crate::runtime::ImageRef;

/// The registry of names that have none.
const DEFAULT_DOMAIN: &str = "docker.io";

/// Its older name.
const LEGACY_DOMAIN: &str = "index.docker.io";

/// The longest path of a repository.
const MAX_PATH: usize = 255;

/// The longest tag.
const MAX_TAG: usize = 128;

/// Why a text is no name of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadReference {
    #[error("invalid reference format")]
    Format,
    #[error("invalid reference format: repository name must be lowercase")]
    UpperCase,
    #[error("repository name must not be more than {MAX_PATH} characters")]
    TooLong,
    #[error("invalid repository name: 64 hexadecimal digits are the id of an image")]
    Id,
}

/// The full name of an image.
///
/// Source: the grammar of `distribution/reference`, with the defaults of `ParseNormalizedNamed`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    domain: String,
    path: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl Reference {
    pub(crate) fn parse(text: &str) -> Result<Self, BadReference> {
        if text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(BadReference::Id);
        }
        let (domain, rest) = split_domain(text);
        let (named, digest) = match rest.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (rest, None),
        };
        let (path, tag) = match named.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (named, None),
        };
        if path.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(BadReference::UpperCase);
        }
        let is_fine = is_domain(domain)
            && path.split('/').all(is_path_component)
            && tag.is_none_or(is_tag)
            && digest.is_none_or(is_digest);
        if !is_fine {
            return Err(BadReference::Format);
        }
        let domain = if domain == LEGACY_DOMAIN {
            DEFAULT_DOMAIN
        } else {
            domain
        };
        let path = if domain == DEFAULT_DOMAIN && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        if path.len() > MAX_PATH {
            return Err(BadReference::TooLong);
        }
        Ok(Self {
            domain: domain.to_owned(),
            path,
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// Registry and path, without tag and digest: what credentials are looked up for.
    pub(crate) fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }
}

/// The one name under which runtimes keep an image: a digest makes its tag meaningless, and without both it is the latest.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        match (&self.digest, &self.tag) {
            (Some(digest), _) => write!(f, "@{digest}"),
            (None, Some(tag)) => write!(f, ":{tag}"),
            (None, None) => f.write_str(":latest"),
        }
    }
}

/// The reference to look for: `:latest` is implied where there is neither tag nor digest.
pub(crate) fn normalized(asked: &str) -> ImageRef {
    let name = asked.rsplit('/').next().unwrap_or(asked);
    if name.contains([':', '@']) {
        ImageRef::new(asked)
    } else {
        ImageRef::with_asked(format!("{asked}:latest"), asked)
    }
}

fn split_domain(text: &str) -> (&str, &str) {
    match text.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':']) || first == "localhost" || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        _ => (DEFAULT_DOMAIN, text),
    }
}

fn is_domain(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.split('.').all(|label| {
            let ends = |c: char| c.is_ascii_alphanumeric();
            label.starts_with(ends)
                && label.ends_with(ends)
                && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        }),
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    is_host && port.is_none_or(is_port)
}

/// Letters and digits, with `.`, `_`, `__` or any number of `-` between them.
fn is_path_component(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    is_word(*first)
        && is_word(*last)
        && bytes
            .split(|b| is_word(*b))
            .all(|between| matches!(between, b"" | b"." | b"_" | b"__") || between.iter().all(|b| *b == b'-'))
}

fn is_tag(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= MAX_TAG && text.starts_with(is_word) && text.chars().all(|c| is_word(c) || matches!(c, '.' | '-'))
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, hex)) = text.split_once(':') else {
        return false;
    };
    let parts = algorithm.split(['-', '_', '+', '.']);
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.chars().all(|c| c.is_ascii_alphanumeric())
    };
    parts.into_iter().all(is_part) && hex.len() >= 32 && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::{BadReference, Reference, normalized};

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn latest_is_implied_only_without_tag_and_digest() {
        for (asked, name) in [
            ("app", "app:latest"),
            ("app:1", "app:1"),
            ("host:5000/app", "host:5000/app:latest"),
            ("host:5000/app:1", "host:5000/app:1"),
            ("app@sha256:00", "app@sha256:00"),
        ] {
            assert_eq!(normalized(asked).name, name);
            assert_eq!(normalized(asked).asked, asked);
        }
    }

    #[test]
    fn names_get_the_registry_that_they_do_not_say() {
        let digested = format!("reg.example/app:1@{DIGEST}");
        for (text, repository, full) in [
            (
                "nginx",
                "docker.io/library/nginx",
                "docker.io/library/nginx:latest".to_owned(),
            ),
            ("team/app:2", "docker.io/team/app", "docker.io/team/app:2".to_owned()),
            (
                "index.docker.io/app",
                "docker.io/library/app",
                "docker.io/library/app:latest".to_owned(),
            ),
            ("localhost/app:1", "localhost/app", "localhost/app:1".to_owned()),
            (
                "127.0.0.1:5000/a/b__c/d.e-f--g:V_1.2",
                "127.0.0.1:5000/a/b__c/d.e-f--g",
                "127.0.0.1:5000/a/b__c/d.e-f--g:V_1.2".to_owned(),
            ),
            ("[::1]:5000/app", "[::1]:5000/app", "[::1]:5000/app:latest".to_owned()),
            (&digested, "reg.example/app", format!("reg.example/app@{DIGEST}")),
        ] {
            let reference = Reference::parse(text).unwrap();
            assert_eq!(
                (reference.repository().as_str(), reference.to_string()),
                (repository, full),
                "{text}"
            );
            assert_eq!(
                Reference::parse(&reference.to_string()).unwrap().to_string(),
                reference.to_string()
            );
        }
    }

    #[test]
    fn other_texts_are_no_names() {
        let long = format!("reg.example/{}", "a/".repeat(128) + "b");
        for (text, why) in [
            ("", BadReference::Format),
            ("app 1", BadReference::Format),
            ("App:1", BadReference::UpperCase),
            ("reg.example/Team/app", BadReference::UpperCase),
            ("reg.example/", BadReference::Format),
            ("reg.example:x/app", BadReference::Format),
            ("-reg.example/app", BadReference::Format),
            ("a___b", BadReference::Format),
            ("a..b", BadReference::Format),
            ("app:", BadReference::Format),
            ("app:.1", BadReference::Format),
            ("app@sha256:12", BadReference::Format),
            ("https://reg.example/app", BadReference::Format),
            (&DIGEST["sha256:".len()..], BadReference::Id),
            (&long, BadReference::TooLong),
        ] {
            assert_eq!(Reference::parse(text), Err(why), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_taken_apart_or_refused(text in ".{0,80}") {
            if let Ok(reference) = Reference::parse(&text) {
                let again = Reference::parse(&reference.to_string());
                proptest::prop_assert_eq!(again.map(|r| r.repository()), Ok(reference.repository()));
            }
        }
    }
}
