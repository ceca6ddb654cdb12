//! Where a request goes, and where a redirect leads from there.

use std::borrow::Cow;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};

/// A checked `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    uri: Uri,
    authority: Authority,
    tls: bool,
}

/// What becomes of an answer that is a redirect.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// It is followed. A header `Host` of the request's own goes along if the place was named without a host.
    To { target: Target, keeps_host: bool },
    /// It would be, but for the number of those that came before it.
    TooMany,
    /// It leads to another host, or nowhere: the redirect itself is the answer.
    Elsewhere,
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

    /// What becomes of a redirect from here, after `followed` others of those that are `allowed`.
    pub(super) fn redirect(&self, location: &[u8], followed: usize, allowed: usize) -> Redirect {
        let location = sendable(location);
        match self.join(&location) {
            Some(next) if next.host().eq_ignore_ascii_case(self.host()) => {
                if followed >= allowed {
                    return Redirect::TooMany;
                }
                Redirect::To {
                    target: next,
                    keeps_host: scheme_of(&location).is_none(),
                }
            }
            _ => Redirect::Elsewhere,
        }
    }

    /// The place that a `Location` header names, seen from here; nothing if it is none of ours.
    fn join(&self, location: &str) -> Option<Self> {
        if scheme_of(location).is_some() {
            return Self::parse(location).ok();
        }
        let location = location.split_once('#').map_or(location, |(location, _)| location);
        let scheme = if self.tls { "https" } else { "http" };
        if location.starts_with("//") {
            return Self::parse(&format!("{scheme}:{location}")).ok();
        }
        let (path, query) = match location.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (location, None),
        };
        let base = self.uri.path();
        let (path, query) = match path {
            "" => (Cow::Borrowed(base), query.or(self.uri.query())),
            _ if path.starts_with('/') => (Cow::Owned(without_dots(path)), query),
            _ => {
                let folder = base.rfind('/').map_or("/", |slash| &base[..=slash]);
                (Cow::Owned(without_dots(&format!("{folder}{path}"))), query)
            }
        };
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        Self::parse(&format!("{scheme}://{}{path}{query}", self.authority)).ok()
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

/// A location as it can be sent: servers write spaces and letters beyond ASCII into them.
fn sendable(location: &[u8]) -> String {
    let mut text = String::with_capacity(location.len());
    for byte in location.trim_ascii() {
        if byte.is_ascii_graphic() && !b"<>\\^`".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// The scheme that a reference begins with, if it does.
fn scheme_of(reference: &str) -> Option<&str> {
    let (scheme, _) = reference.split_once(':')?;
    let letters = scheme
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    (letters && scheme.starts_with(|c: char| c.is_ascii_alphabetic())).then_some(scheme)
}

/// A path without steps to the same folder and to the one above.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use kubelet_core::HttpProbe;
    use proptest::prelude::{any, proptest};
    use proptest::{prop_assert, prop_assert_eq};

    use super::{Redirect, Target, without_dots};

    fn to(url: &str, keeps_host: bool) -> Redirect {
        let target = Target::parse(url).unwrap();
        Redirect::To { target, keeps_host }
    }

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
            ("/y", "http://a:1/y"),
            ("y", "http://a:1/b/y"),
            ("y?z", "http://a:1/b/y?z"),
            ("?y", "http://a:1/b/c?y"),
            ("", "http://a:1/b/c?d"),
            ("#part", "http://a:1/b/c?d"),
            ("y#part", "http://a:1/b/y"),
            ("../y", "http://a:1/y"),
            ("../../y", "http://a:1/y"),
            ("./", "http://a:1/b/"),
            ("..", "http://a:1/"),
            ("/x/./y/../z", "http://a:1/x/z"),
            ("/x:y", "http://a:1/x:y"),
            (" /a b/\u{e4}", "http://a:1/a%20b/%C3%A4"),
            ("//A/y", "http://A/y"),
        ];
        for (location, want) in cases {
            assert_eq!(from.redirect(location.as_bytes(), 0, 1), to(want, true), "{location}");
        }
        let whole = from.redirect(b"https://a/y", 9, 10);
        assert_eq!(whole, to("https://a/y", false));
    }

    #[test]
    fn only_the_same_host_is_followed_and_only_so_often() {
        let from = Target::parse("http://a:1/b").unwrap();
        for location in [
            "http://x/y",
            "//x/y",
            "mailto:a",
            "ftp://a/",
            "http://u:p@a/",
            "http://",
            "http://[a/",
        ] {
            assert_eq!(
                from.redirect(location.as_bytes(), 0, 9),
                Redirect::Elsewhere,
                "{location}"
            );
            assert_eq!(
                from.redirect(location.as_bytes(), 9, 9),
                Redirect::Elsewhere,
                "{location}"
            );
        }
        assert_eq!(from.redirect(b"/c", 9, 9), Redirect::TooMany);
        assert_eq!(from.redirect(b"/c", 0, 0), Redirect::TooMany);
    }

    proptest! {
        #[test]
        fn whatever_path_a_pod_has_it_can_be_sent(path in any::<String>()) {
            let request = HttpProbe::new("10.0.0.7", 8080, &path).request("x").unwrap();
            let target = Target::parse(&request.url).unwrap();
            prop_assert_eq!((target.host(), target.port()), ("10.0.0.7", 8080));
            prop_assert_eq!(format!("http://10.0.0.7:8080{}", target.path()), request.url);
        }

        #[test]
        fn nothing_leads_to_another_host(location in any::<Vec<u8>>(), followed in 0..3_usize) {
            let from = Target::parse("http://a:1/b/c?d").unwrap();
            if let Redirect::To { target, .. } = from.redirect(&location, followed, 2) {
                prop_assert_eq!(target.host().to_ascii_lowercase(), "a");
                prop_assert!(followed < 2);
                prop_assert!(target.path().starts_with('/') && target.path().bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }

        #[test]
        fn nothing_that_looks_like_a_url_does(location in "[ahtps:/?#@.\\[\\]%]{0,16}") {
            let from = Target::parse("https://a/b/c").unwrap();
            if let Redirect::To { target, .. } = from.redirect(location.as_bytes(), 0, 1) {
                prop_assert_eq!(target.host(), "a");
                prop_assert!(!target.path().contains('#'));
            }
        }

        #[test]
        fn a_path_without_dots_stays_so(path in "(/[a.]{0,3}){0,6}") {
            let once = without_dots(&path);
            prop_assert!(once.starts_with('/'));
            prop_assert!(!once.split('/').any(|segment| segment == "." || segment == ".."), "{once:?}");
            prop_assert_eq!(without_dots(&once), once.clone());
        }
    }
}
