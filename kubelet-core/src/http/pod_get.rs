//! The requests that pods ask for, in probes and in hooks.

use std::net::IpAddr;

use super::reference::path_and_query;
use super::{BoundedRequest, HttpError};
use crate::probes::HttpProbe;

/// As many redirects are followed, to the same host name.
const MOST_REDIRECTS: usize = 10;
/// As much of an answer is read.
const READ_BYTES: usize = 10 << 10;
/// What these say of a body is wrong of a request without one, and would make a server wait for it.
const OF_BODIES: [&str; 3] = ["Content-Length", "Transfer-Encoding", "Trailer"];

impl HttpProbe {
    /// The request: at most 10 redirects and 10 KiB of an answer, without a look at certificates. Its timeout is still to be set.
    ///
    /// The path is read as a URL reference, or else taken as it stands. Headers are as given, but for those that describe a
    /// body, and with one `Host` at most. `User-Agent` is `user_agent` and `Accept` is `*/*` if they are not given; given without
    /// a value they are left out.
    ///
    /// Source: kubelet 1.36, `pkg/probe/http/request.go`.
    ///
    /// # Errors
    /// [`HttpError::BadRequest`] if the host is none. Whether the headers can be sent is found out by who sends them.
    pub fn request(&self, user_agent: &str) -> Result<BoundedRequest, HttpError> {
        let scheme = if self.tls { "https" } else { "http" };
        let url = format!("{scheme}://{}{}", self.place(), path_and_query(&self.path));
        if !is_host(&self.host) || self.port == 0 {
            return Err(HttpError::BadRequest {
                url,
                message: format!("nobody can be at port {} of host {:?}", self.port, self.host),
            });
        }
        let mut request = BoundedRequest::get(url);
        request.headers = self.headers_to_send(user_agent);
        request.body_limit_bytes = READ_BYTES;
        request.max_redirects = MOST_REDIRECTS;
        request.verify_tls = false;
        Ok(request)
    }

    /// Host and port, as they are in a URL.
    pub(crate) fn place(&self) -> String {
        match self.host.parse() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }

    fn headers_to_send(&self, user_agent: &str) -> Vec<(String, String)> {
        let first = |wanted: &str| {
            let mut named = self
                .headers
                .iter()
                .filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
            named.next().map(|(_, value)| value.as_str())
        };
        let is = |name: &str, others: &[&str]| others.iter().any(|other| name.eq_ignore_ascii_case(other));
        let mut headers = Vec::with_capacity(self.headers.len() + 2);
        // Of these only the first one counts.
        let agent = first("User-Agent").unwrap_or(user_agent);
        for (name, value) in [("Host", first("Host").unwrap_or_default()), ("User-Agent", agent)] {
            if !value.is_empty() {
                headers.push((name.to_owned(), value.to_owned()));
            }
        }
        let accept = first("Accept");
        if accept.is_none() {
            headers.push(("Accept".to_owned(), "*/*".to_owned()));
        }
        let others = self.headers.iter().filter(|(name, _)| {
            let is_refused = accept == Some("") && is(name, &["Accept"]);
            !is_refused && !is(name, &["Host", "User-Agent"]) && !is(name, &OF_BODIES)
        });
        headers.extend(others.cloned());
        headers
    }
}

/// Whether something can be there: an address, or a name of the length and the letters that names have.
pub(crate) fn is_host(host: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = !host.is_empty() && host.len() <= 253 && host.bytes().all(letter);
    is_name || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_oneof, proptest};
    use proptest::strategy::{Just, Strategy};
    use proptest::{prop_assert, prop_assert_eq};

    use super::{HttpError, HttpProbe, OF_BODIES};

    fn name() -> impl Strategy<Value = String> {
        let known = [
            "Host",
            "host",
            "User-Agent",
            "USER-AGENT",
            "Accept",
            "accept",
            "Content-Length",
            "trailer",
            "X",
        ];
        let known = known.map(|name| Just(name.to_owned()).boxed());
        prop_oneof![proptest::strategy::Union::new(known), any::<String>()]
    }

    fn with(headers: &[(&str, &str)]) -> HttpProbe {
        let mut probe = HttpProbe::new("10.0.0.7", 8080, "/healthz");
        probe.headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        probe
    }

    fn sent(headers: &[(&str, &str)]) -> Vec<String> {
        let request = with(headers).request("kube-probe/1.36").unwrap();
        let lines = request.headers.iter().map(|(name, value)| format!("{name}: {value}"));
        lines.collect()
    }

    #[test]
    fn a_request_is_bounded_and_trusts_anybody() {
        let request = with(&[]).request("x").unwrap();
        assert_eq!((request.method.as_str(), request.verify_tls), ("GET", false));
        assert_eq!((request.max_redirects, request.body_limit_bytes), (10, 10 << 10));
    }

    #[test]
    fn its_url_is_of_host_port_and_path() {
        let cases = [
            (false, "10.0.0.7", 80, "healthz", "http://10.0.0.7:80/healthz"),
            (true, "fd00::7", 8443, "/a?b", "https://[fd00::7]:8443/a?b"),
            (false, "web_1.example", 1, "", "http://web_1.example:1/"),
        ];
        for (tls, host, port, path, url) in cases {
            let mut probe = HttpProbe::new(host, port, path);
            probe.tls = tls;
            assert_eq!(probe.request("x").unwrap().url, url);
        }
    }

    #[test]
    fn what_is_no_host_is_a_bad_request() {
        let long = "a".repeat(254);
        let hosts = [
            "", "a/b", "u@h", "a b", "[::1]", "a:1", "a?b", "a#b", "ä", "a%41", "a\r\nb", &long,
        ];
        for host in hosts {
            let error = HttpProbe::new(host, 80, "/").request("x");
            assert!(
                matches!(error, Err(HttpError::BadRequest { .. })),
                "{host:?}: {error:?}"
            );
        }
        let error = HttpProbe::new("a", 0, "/").request("x");
        assert!(matches!(error, Err(HttpError::BadRequest { .. })), "{error:?}");
    }

    #[test]
    fn headers_are_as_given_and_two_are_filled_in() {
        let filled = ["User-Agent: kube-probe/1.36", "Accept: */*"];
        assert_eq!(sent(&[]), filled);
        let mut all = filled.to_vec();
        all.extend(["X-A: 1", "x-a: 2", "X-B: "]);
        assert_eq!(sent(&[("X-A", "1"), ("x-a", "2"), ("X-B", "")]), all);
        assert_eq!(
            sent(&[("user-agent", "me"), ("accept", "a"), ("Accept", "b")]),
            ["User-Agent: me", "accept: a", "Accept: b"]
        );
    }

    #[test]
    fn empty_ones_are_left_out() {
        assert_eq!(sent(&[("User-Agent", ""), ("Accept", ""), ("accept", "b")]), [""; 0]);
        assert_eq!(sent(&[("Host", "")]), ["User-Agent: kube-probe/1.36", "Accept: */*"]);
    }

    #[test]
    fn there_is_one_host_and_no_word_of_a_body() {
        let given = [
            ("Content-Length", "5"),
            ("transfer-encoding", "chunked"),
            ("Trailer", "X"),
            ("Host", "pod.example"),
            ("host", "other.example"),
            ("User-Agent", "me"),
            ("User-Agent", "you"),
        ];
        assert_eq!(sent(&given), ["Host: pod.example", "User-Agent: me", "Accept: */*"]);
    }

    proptest! {
        #[test]
        fn whatever_headers_there_are_the_rules_hold(given in vec((name(), "[a ]{0,2}"), 0..6)) {
            let mut probe = with(&[]);
            probe.headers = given.clone();
            let sent = probe.request("agent").unwrap().headers;
            let count = |name: &str| sent.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).count();
            let was_given = |name: &str| given.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
            for name in ["Host", "User-Agent"] {
                prop_assert!(count(name) <= 1);
            }
            for name in ["User-Agent", "Accept"] {
                let is_refused = was_given(name).is_some_and(|(_, value)| value.is_empty());
                prop_assert_eq!(count(name) == 0, is_refused, "{}: {:?}", name, &sent);
            }
            prop_assert!(OF_BODIES.iter().all(|name| count(name) == 0));
            let special = |name: &str| {
                let mut all = ["Host", "User-Agent", "Accept"].iter().chain(&OF_BODIES);
                all.any(|other| name.eq_ignore_ascii_case(other))
            };
            let plain = |headers: &[(String, String)]| -> Vec<_> {
                headers.iter().filter(|(name, _)| !special(name)).cloned().collect()
            };
            prop_assert_eq!(plain(&sent), plain(&given));
        }

        #[test]
        fn no_host_leads_elsewhere(host in "[a1.:/?#@%\\[\\] \u{e4}-]{0,6}", path in any::<String>()) {
            if let Ok(request) = HttpProbe::new(&host, 80, path).request("x") {
                let rest = request.url.strip_prefix("http://").unwrap();
                let authority = &rest[..rest.find('/').unwrap()];
                let shown = if host.contains(':') { authority.contains("]:80") } else { authority == format!("{host}:80") };
                prop_assert!(shown, "{}", request.url);
            }
        }
    }
}
