//! What pods have as the path of a request, as it is sent.

/// Path and query of `text`, with a leading slash and nothing in it that no URL may have.
///
/// It is read as a URL reference: the query is kept, and what stands before the path or after the query is left out.
/// What is no such reference is a path as it stands, question marks included.
///
/// Source: kubelet 1.36, `pkg/probe/http/request.go`, over `net/url` of Go.
pub(super) fn path_and_query(text: &str) -> String {
    let (path, query) = parts(text).unwrap_or_else(|| (escape(text.as_bytes()), None));
    let mut sent = String::with_capacity(text.len() + 1);
    if !path.starts_with('/') {
        sent.push('/');
    }
    sent.push_str(&path);
    if let Some(query) = query {
        sent.push('?');
        for byte in query.bytes() {
            push(&mut sent, byte, may_be_in_query(byte));
        }
    }
    sent
}

/// The path, escaped where it has to be, and the query of a URL reference; nothing if it is none.
fn parts(text: &str) -> Option<(String, Option<&str>)> {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return None;
    }
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    unescape(fragment)?;
    let (rest, has_scheme) = without_scheme(text)?;
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let is_rooted = rest.starts_with('/');
    // `mailto:x` has no path.
    if has_scheme && !is_rooted {
        return None;
    }
    let first = rest.split('/').next().unwrap_or(rest);
    if !is_rooted && first.contains(':') {
        return None;
    }
    let is_opened = rest.starts_with("//") && (has_scheme || !rest.starts_with("///"));
    let path = match rest.strip_prefix("//").filter(|_| is_opened) {
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            is_authority(authority).then_some(path)?
        }
        None => rest,
    };
    let plain = unescape(path)?;
    if path.bytes().all(may_be_in_path) {
        return Some((path.to_owned(), query));
    }
    Some((escape(&plain), query))
}

/// What comes after a scheme, and whether there is one; nothing if it is empty.
fn without_scheme(text: &str) -> Option<(&str, bool)> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
    match end {
        Some(end) if text[end..].starts_with(':') => match text.chars().next() {
            Some(':') => None,
            Some(first) if first.is_ascii_alphabetic() => Some((&text[end + 1..], true)),
            _ => Some((text, false)),
        },
        _ => Some((text, false)),
    }
}

/// Whether this can stand between two slashes and a path. It is not used, but what cannot makes no reference.
fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').unwrap_or(("", text));
    let port = match host.rfind(']') {
        Some(end) if host.starts_with('[') => &host[end + 1..],
        _ if host.contains('[') => return false,
        _ => host.find(':').map_or("", |colon| &host[colon..]),
    };
    let port_is_fine = port.is_empty() || (port.starts_with(':') && port.bytes().skip(1).all(|b| b.is_ascii_digit()));
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:%".contains(&byte) || !byte.is_ascii();
    let user_is_fine = user
        .bytes()
        .all(|byte| is_word(byte) && byte.is_ascii() || byte == b'@');
    let host_is_fine = host.bytes().all(|byte| is_word(byte) || b"[]<>\"".contains(&byte));
    let escapes = |text: &str| unescape(text).is_some();
    port_is_fine && user_is_fine && host_is_fine && escapes(user) && escapes(host)
}

/// The bytes that are meant; nothing if a percent sign begins no escape.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            plain.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            plain.push(byte);
        }
    }
    Some(plain)
}

/// A path of these bytes.
fn escape(plain: &[u8]) -> String {
    let mut path = String::with_capacity(plain.len());
    for byte in plain {
        let is_kept = byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(byte);
        push(&mut path, *byte, is_kept);
    }
    path
}

fn push(text: &mut String, byte: u8, as_it_is: bool) {
    if as_it_is {
        text.push(char::from(byte));
    } else {
        text.push_str(&format!("%{byte:02X}"));
    }
}

fn may_be_in_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]%/".contains(&byte)
}

/// A query goes as it is, unless it would break the line that it stands in or be taken for something else.
fn may_be_in_query(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"<>#".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};
    use proptest::{prop_assert, prop_assert_eq};

    use super::{may_be_in_path, path_and_query};

    #[test]
    fn a_path_is_read_as_a_url_reference() {
        let cases = [
            ("/healthz", "/healthz"),
            ("healthz", "/healthz"),
            ("", "/"),
            ("/", "/"),
            ("?x=y", "/?x=y"),
            ("/a?b=c&d", "/a?b=c&d"),
            ("/a?", "/a?"),
            ("/a?b?c", "/a?b?c"),
            ("/a#part", "/a"),
            ("/a?b#part", "/a?b"),
            ("#part", "/"),
            ("/a%20b", "/a%20b"),
            ("/a%2Fb/%C3%A4", "/a%2Fb/%C3%A4"),
            ("/a!(b)*'c'", "/a!(b)*'c'"),
            ("/a//b", "/a//b"),
            ("///a", "///a"),
            ("/a:b", "/a:b"),
            ("*", "/*"),
            // Scheme and host are others'.
            ("http://other:1/a?b", "/a?b"),
            ("//other/a", "/a"),
            ("//other", "/"),
            ("x-y://u:p@[::1]:1/a", "/a"),
            // Escaped where it has to be.
            ("/a b", "/a%20b"),
            ("/ä", "/%C3%A4"),
            ("/a%20b c!", "/a%20b%20c%21"),
            ("/a?b c=\"ä\"", "/a?b%20c=%22%C3%A4%22"),
        ];
        for (text, sent) in cases {
            assert_eq!(path_and_query(text), sent, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_reference_is_a_path_as_it_stands() {
        let cases = [
            ("/a%zz?b", "/a%25zz%3Fb"),
            ("/a%", "/a%25"),
            ("/a\nb", "/a%0Ab"),
            ("/a#%zz", "/a%23%25zz"),
            (":a", "/:a"),
            ("1:a", "/1:a"),
            ("a b:c/d", "/a%20b:c/d"),
            ("mailto:a", "/mailto:a"),
            ("//a b/c", "//a%20b/c"),
            ("//a:b/c", "//a:b/c"),
            ("http://[::1/c", "/http://%5B::1/c"),
        ];
        for (text, sent) in cases {
            assert_eq!(path_and_query(text), sent, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_sent_is_a_path_and_a_query_in_one_line(text in any::<String>()) {
            let sent = path_and_query(&text);
            prop_assert!(sent.starts_with('/'), "{sent:?}");
            prop_assert!(sent.bytes().all(|byte| byte.is_ascii_graphic()), "{sent:?}");
            let (path, query) = sent.split_once('?').unwrap_or((&sent, ""));
            prop_assert!(path.bytes().all(may_be_in_path), "{sent:?}");
            prop_assert!(!query.contains('#'), "{sent:?}");
        }

        #[test]
        fn references_of_strange_parts_are_sent_too(text in "[a:/?#%@\\[\\] \u{e4}]{0,12}") {
            let sent = path_and_query(&text);
            prop_assert!(sent.starts_with('/') && sent.is_ascii() && !sent.contains([' ', '#']), "{sent:?}");
        }

        #[test]
        fn a_plain_path_goes_as_it_is(path in "(/[a-zA-Z0-9._~!$&'()*+,;=:@-]+){1,4}", query in "[a-z0-9=&?/%+]{0,12}") {
            prop_assert_eq!(path_and_query(&path), path.clone());
            let whole = format!("{path}?{query}");
            prop_assert_eq!(path_and_query(&whole), whole);
        }
    }
}
