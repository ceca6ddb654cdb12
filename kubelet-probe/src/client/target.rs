//! Where a request goes.

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};

/// A checked `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    uri: Uri,
    authority: Authority,
    tls: bool,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        // A fragment is for the one who reads the answer; it is not sent.
        let url = url.split_once('#').map_or(url, |(url, _)| url);
        let uri: Uri = url.parse().map_err(|error| format!("not a URL: {error}"))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) => return Err(format!("scheme {scheme:?} is neither http nor https")),
            None => return Err("no scheme: neither http nor https".to_owned()),
        };
        let authority = uri.authority().cloned().ok_or("no host")?;
        if authority.as_str().contains('@') {
            return Err("user and password belong in a header, not in the URL".to_owned());
        }
        if authority.host().is_empty() {
            return Err("no host".to_owned());
        }
        Ok(Self { uri, authority, tls })
    }

    /// The place that a `Location` header names, seen from here; nothing if it is none of ours.
    pub(super) fn join(&self, location: &str) -> Option<Self> {
        if let Ok(absolute) = Self::parse(location) {
            return Some(absolute);
        }
        let scheme = if self.tls { "https" } else { "http" };
        let authority = &self.authority;
        if location.starts_with("//") {
            return Self::parse(&format!("{scheme}:{location}")).ok();
        }
        if location.starts_with('/') {
            return Self::parse(&format!("{scheme}://{authority}{location}")).ok();
        }
        let has_scheme = location
            .split_once(':')
            .is_some_and(|(start, _)| !start.contains(['/', '?']));
        if has_scheme {
            return None;
        }
        let path = self.uri.path();
        let base = if location.starts_with('?') {
            path
        } else {
            path.rfind('/').map_or("/", |slash| &path[..=slash])
        };
        Self::parse(&format!("{scheme}://{authority}{base}{location}")).ok()
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls
    }

    /// The host as it is resolved: an IPv6 address without its brackets.
    pub(super) fn host(&self) -> &str {
        let host = self.authority.host();
        host.strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host)
    }

    pub(super) fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.tls { 443 } else { 80 })
    }

    /// Host and port as the `Host` header has them.
    pub(super) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// What is asked for there.
    pub(super) fn path(&self) -> &str {
        self.uri.path_and_query().map_or("/", PathAndQuery::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn urls_are_taken_apart() {
        let cases = [
            ("http://a", ("a", 80, "/")),
            ("https://a/b?c#d", ("a", 443, "/b?c")),
            ("http://[::1]:8080/x", ("::1", 8080, "/x")),
            ("http://10.0.0.1:1", ("10.0.0.1", 1, "/")),
        ];
        for (url, want) in cases {
            let target = Target::parse(url).unwrap();
            assert_eq!((target.host(), target.port(), target.path()), want, "{url}");
        }
        for url in ["", "a/b", "ftp://a/", "/x", "http://", "http://u:p@a/", "http://a b/"] {
            assert!(Target::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_location_is_seen_from_the_target() {
        let from = Target::parse("http://a:1/b/c?d").unwrap();
        let cases = [
            ("http://x/y", Some("http://x/y")),
            ("//x/y", Some("http://x/y")),
            ("/y", Some("http://a:1/y")),
            ("y", Some("http://a:1/b/y")),
            ("?y", Some("http://a:1/b/c?y")),
            ("mailto:x", None),
        ];
        for (location, want) in cases {
            let want = want.map(|url| Target::parse(url).unwrap());
            assert_eq!(from.join(location), want, "{location}");
        }
    }
}
